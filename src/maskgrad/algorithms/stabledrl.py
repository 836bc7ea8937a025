"""StableDRL (arXiv 2603.06743): stable policy updates from noisy likelihood ratios.

    grad J = E[ sum_j w_j A_j grad score_j ],  w_j = C_j / sum_i C_i,  C_i = clip(rho_i, clip_low, clip_high)
    rho_i = exp(ELBO_new - ELBO_old), detached;  score_i = ELBO if A_i > 0 else omega EUBO + (1-omega) ELBO

Kept: unconditional clip before and independent of the sign of A; self-normalisation inside each prompt group; ELBO
ratio; SPG surrogate; no reference policy, no division by the reward's deviation.
Changed against the released code: old and new ELBO share their masks by default (`masks: shared`), which makes the
ratio of the first update exactly 1; the block is drawn without replacement among the used ones; softmax per group
instead of per micro-batch; cap 6 = 1 + eps of the paper's eps = 5 (released: 5); denominators are global.
`compat: released` restores the released settings (fresh numerator masks, cap 5, token scale).
On a block-causal policy the likelihood is the block-diffusion ELBO of section 6 (`block_views.block_elbo`): independent
noise in every block, all blocks in one staircase pass; `draws` and `pairing` then describe the masks, and `mode`,
`block`, `p_context` and `score_later_blocks`/`score_context` are refused, as is `pairing` under full attention.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, model_validator
from torch import Tensor

from maskgrad.algorithms.advantages import centred
from maskgrad.algorithms.base import Algorithm
from maskgrad.algorithms.objective import Objective
from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.likelihood import block_views, bounds, views
from maskgrad.likelihood.block_views import Pairing
from maskgrad.records import MaskedViews, RolloutBatch, Units


class StableDRL(Algorithm):
    RELEASED = {"masks": "fresh", "clip_low": 0.0, "clip_high": 5.0, "ratio_scale": "token", "epochs": 2}

    FULL_ONLY = ("mode", "block", "p_context", "score_later_blocks", "score_context")
    BLOCK_ONLY = ("pairing",)

    name: Literal["stabledrl"] = "stabledrl"
    epochs: int = Field(default=2, ge=1)
    draws: int = Field(default=2, ge=1)  # masked copies per sequence
    mode: Literal["block_random", "block_all", "random", "all"] = "block_random"
    block: int = Field(default=32, ge=1)  # block length of the masks
    p_context: float = Field(default=0.15, ge=0, le=1)
    score_later_blocks: bool = True
    score_context: bool = True
    pairing: Pairing = "antithetic"  # block-causal policies: how the draws of a sequence depend on each other
    score: Literal["mix", "elbo", "eubo", "zero"] = "mix"  # bound of samples with A <= 0
    beta_eubo: float = Field(default=1.5, gt=0)
    omega: float = Field(default=0.5, ge=0, le=1)
    ratio_scale: Literal["token", "sequence"] = "token"
    clip_low: float = Field(default=0.0, ge=0)
    clip_high: float = Field(default=6.0, gt=0)
    clip: bool = True  # False: ablation "self-normalisation only"
    self_normalise: bool = True  # False: ablation "clip only"
    recentre: bool = False
    reward_std: Literal["none", "population"] = "none"

    @model_validator(mode="after")
    def _bounds(self) -> StableDRL:
        if self.clip_low > self.clip_high:
            raise ValueError(f"clip_low {self.clip_low} lies above clip_high {self.clip_high}: swap or widen them")
        return self

    def objective(self) -> Objective:
        return Objective(
            form="score",
            coef="group_sum" if self.self_normalise else "row_mean",
            ratio_scale=self.ratio_scale,
            clip="always" if self.clip else "none",
            clip_low=self.clip_low if self.clip else 0.0,
            clip_high=self.clip_high if self.clip else math.inf,
            self_normalise="group" if self.self_normalise else "none",
            recentre=self.recentre,
            allow_fresh_masks=self.masks == "fresh",
        )

    def views(self, batch: RolloutBatch, sampler: SamplerConfig, seed: int, use: int) -> MaskedViews:
        if batch.block is not None:
            return block_views.block_elbo(batch, seed, use, draws=self.draws, pairing=self.pairing)
        return views.block_bound(
            batch,
            seed,
            use,
            draws=self.draws,
            block=self.block,
            p_context=self.p_context,
            mode=self.mode,
            score_later_blocks=self.score_later_blocks,
            score_context=self.score_context,
        )

    def units(self, logp: Tensor, views: MaskedViews, batch: RolloutBatch) -> Units:
        reduce = bounds.sandwich_units if batch.block is None else bounds.block_sandwich_units
        return reduce(logp, views, batch.live, kind=self.score, beta=self.beta_eubo, omega=self.omega)

    def advantage(self, batch: RolloutBatch) -> Tensor:
        return centred(batch.reward, batch.group, None if self.reward_std == "none" else self.reward_std)
