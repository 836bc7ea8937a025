"""GRPO on ratios of sequence ELBOs: the baseline that StableDRL (arXiv 2603.06743) shows collapsing.

    rho = exp((ELBO_new - ELBO_old) [/ L]),   loss = mean over rows of -min(rho A, clip(rho, .8, 1.2) A)

Not a method to train with: at sequence scale, and with fresh masks for the numerator, single noisy ratios reach any
size, and for A < 0 the clip does not hold them. `positives_only` is the control: only A > 0, where it does.
Kept: PPO clip, ratio of sequence estimates, A = R - mean. Choices the paper leaves open are settings: `proxy`
(SPG's block bound or ESPO's exact-count ELBO), `ratio_scale`, `masks`.
The ratio is bounded before exp, as in every method here.
On a block-causal policy both proxies are the block-diffusion ELBO per token (`block_views.block_elbo`).
No released code of its own; there is nothing for `compat` to restore.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from maskgrad.algorithms.advantages import centred
from maskgrad.algorithms.base import Algorithm
from maskgrad.algorithms.objective import Objective
from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.likelihood import block_views, bounds, elbo_views, views
from maskgrad.records import MaskedViews, RolloutBatch, Units


class GRPOElbo(Algorithm):
    FULL_ONLY = ("proxy", "block", "p_context")

    name: Literal["grpo_elbo"] = "grpo_elbo"
    epochs: int = Field(default=2, ge=1)
    proxy: Literal["block_bound", "exact_count"] = "block_bound"
    draws: int = Field(default=2, ge=1)
    coupled: bool = False  # exact_count: complementary pairs
    block: int = Field(default=32, ge=1)  # block_bound: block length of the masks
    p_context: float = Field(default=0.15, ge=0, le=1)  # block_bound
    ratio_scale: Literal["token", "sequence"] = "sequence"
    clip_low: float = Field(default=0.8, ge=0, le=1)
    clip_high: float = Field(default=1.2, ge=1)
    beta: float = Field(default=0.0, ge=0)  # k3 KL to the starting policy
    positives_only: bool = False  # control: drop the samples with A < 0
    log_bound: float = Field(default=20.0, gt=0)  # log-ratios are clamped to +- this before exp

    @model_validator(mode="after")
    def _valid(self) -> GRPOElbo:
        self.objective()
        return self

    def objective(self) -> Objective:
        return Objective(
            form="ratio",
            coef="row_mean",
            ratio_scale=self.ratio_scale,
            clip="ppo",
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            kl="k3" if self.beta > 0 else "none",
            beta=self.beta,
            log_bound=self.log_bound,
            allow_fresh_masks=self.masks == "fresh",
        )

    def views(self, batch: RolloutBatch, sampler: SamplerConfig, seed: int, use: int) -> MaskedViews:
        if batch.block is not None:
            return block_views.counted_pairs(batch, seed, use, draws=self.draws, coupled=self.coupled)
        if self.proxy == "exact_count":
            return elbo_views.exact_count(batch, seed, use, draws=self.draws, coupled=self.coupled)
        return views.block_bound(batch, seed, use, draws=self.draws, block=self.block, p_context=self.p_context)

    def units(self, logp: Tensor, views: MaskedViews, batch: RolloutBatch) -> Units:
        if batch.block is not None:
            return bounds.block_sandwich_units(logp, views, batch.live, kind="elbo", beta=1.0, omega=0.0)
        if self.proxy == "exact_count":
            length = torch.full_like(batch.group, batch.live.shape[1])
            return bounds.sequence_units(logp, views, length)
        return bounds.sandwich_units(logp, views, batch.live, kind="elbo", beta=1.0, omega=0.0)

    def advantage(self, batch: RolloutBatch) -> Tensor:
        value = centred(batch.reward, batch.group)
        return value.clamp(min=0) if self.positives_only else value
