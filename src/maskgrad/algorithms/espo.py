"""ESPO (arXiv 2512.03759): sequence-level policy optimisation on ELBO ratios.

    ELBO = mean over draws of 1/2 ( (L+1)/l sum_hidden lp(z) + (L+1)/(L-l) sum_rest lp(z_complement) )
    rho  = exp((ELBO - ELBO_old) / L),   A = R - mean of the other members
    loss = mean over rows of -min(rho A, clip(rho, 1-eps, 1+eps) A) + beta (ELBO - ELBO_ref)^2 / (2 L)

Kept: two draws with complementary masks (four forward passes), l ~ U{0..L}, padding behind the stop token counted, old
and reference scored on the masks of the current pass, k2 KL of the summed ELBO over L (not normalised further).
The ratio is tempered: rho = (p / p_old)^(1/L).
Changed against the released code: counts are stratified over the sample ids of the run, so over every global batch,
instead of over a micro-batch; denominators are global; `coupled: false` really switches the complement off.
On a block-causal policy counts are drawn inside each block and complements are taken there; only live tokens count.
`compat: released` sets the recipe's KL weight.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from maskgrad.algorithms.advantages import leave_one_out, sample_deviation
from maskgrad.algorithms.base import Algorithm
from maskgrad.algorithms.objective import Objective
from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.likelihood import block_views, bounds, elbo_views
from maskgrad.records import MaskedViews, RolloutBatch, Units


class ESPO(Algorithm):
    RELEASED = {"epochs": 8, "masks": "epoch", "beta": 0.003, "live_only": False, "coupled": True}

    name: Literal["espo"] = "espo"
    epochs: int = Field(default=8, ge=1)
    masks: Literal["shared", "epoch"] = "epoch"  # type: ignore[assignment]
    draws: int = Field(default=2, ge=1)  # mask draws per sequence; twice as many views if coupled
    coupled: bool = True
    live_only: bool = False  # count and average live positions only
    clip_low: float = Field(default=0.8, ge=0, le=1)  # the Countdown recipe uses 1, 1
    clip_high: float = Field(default=1.2, ge=1)
    beta: float = Field(default=0.001, ge=0)  # k2 KL to the starting policy; Countdown .003, Sudoku and code .01
    scale_rewards: bool = False  # divide by the sample deviation of the group + 1e-4

    def objective(self) -> Objective:
        return Objective(
            form="ratio",
            coef="row_mean",
            ratio_scale="token",
            clip="ppo",
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            kl="k2" if self.beta > 0 else "none",
            kl_scale="summed",
            beta=self.beta,
        )

    def views(self, batch: RolloutBatch, sampler: SamplerConfig, seed: int, use: int) -> MaskedViews:
        if batch.block is not None:
            return block_views.counted_pairs(batch, seed, use, draws=self.draws, coupled=self.coupled)
        return elbo_views.exact_count(
            batch, seed, use, draws=self.draws, coupled=self.coupled, live_only=self.live_only
        )

    def units(self, logp: Tensor, views: MaskedViews, batch: RolloutBatch) -> Units:
        length = torch.full_like(batch.live[:, 0], batch.live.shape[1], dtype=torch.int64)
        live_only = self.live_only or batch.block is not None
        return bounds.sequence_units(logp, views, batch.live.sum(1) if live_only else length)

    def advantage(self, batch: RolloutBatch) -> Tensor:
        value = leave_one_out(batch.reward, batch.group)
        return value / (sample_deviation(batch.reward, batch.group) + 1e-4) if self.scale_rewards else value
