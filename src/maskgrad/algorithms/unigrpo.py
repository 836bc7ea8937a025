"""UniGRPO (MMaDA, arXiv 2505.15809): GRPO on the tokens hidden at a random rate that varies over the inner epochs.

    rate_e = low + (high - low) frac(u + e / mu),  completion hidden at this rate, prompt visible
    rho_k  = exp(lp_k - lp_old_k) on hidden live tokens (weight 1, not 1/t)
    loss   = mean over scored tokens of -min(rho A, clip(rho, 1-eps, 1+eps) A) + beta k3(lp - lp_ref),  A = z-score

Kept: structured rates (first one random, the others spread over the range), token ratios, z-score, k3.
Changed: old and reference log-probs are scored on the views of the current inner epoch (the paper is silent).
Unknown in the paper, hence settings: the exact schedule of the rates and its range, mu, eps, beta. No released recipe
for text: there is nothing for `compat` to restore.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator
from torch import Tensor

from maskgrad.algorithms.advantages import centred
from maskgrad.algorithms.base import Algorithm
from maskgrad.algorithms.objective import Objective
from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.likelihood import bounds, elbo_views
from maskgrad.records import MaskedViews, RolloutBatch, Units


class UniGRPO(Algorithm):
    name: Literal["unigrpo"] = "unigrpo"
    epochs: int = Field(default=4, ge=1)
    masks: Literal["shared", "epoch"] = "epoch"  # type: ignore[assignment]
    rate_low: float = Field(default=0.0, ge=0, le=1)
    rate_high: float = Field(default=1.0, gt=0, le=1)
    structured: bool = True  # False: an independent rate per inner epoch
    clip_low: float = Field(default=0.8, ge=0, le=1)
    clip_high: float = Field(default=1.2, ge=1)
    beta: float = Field(default=0.01, ge=0)  # k3 KL to the starting policy
    reward_std: Literal["none", "population"] = "population"

    @model_validator(mode="after")
    def _rates(self) -> UniGRPO:
        if self.rate_low > self.rate_high:
            raise ValueError(f"rate_low {self.rate_low} lies above rate_high {self.rate_high}: swap or widen them")
        return self

    def objective(self) -> Objective:
        return Objective(
            form="ratio",
            coef="step_token_mean",
            clip="ppo",
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            kl="k3" if self.beta > 0 else "none",
            beta=self.beta,
        )

    def views(self, batch: RolloutBatch, sampler: SamplerConfig, seed: int, use: int) -> MaskedViews:
        low, high = self.rate_low, self.rate_high
        return elbo_views.random_rate(
            batch, seed, use, epochs=self.epochs, low=low, high=high, structured=self.structured
        )

    def units(self, logp: Tensor, views: MaskedViews, batch: RolloutBatch) -> Units:
        return bounds.token_units(logp, views)

    def advantage(self, batch: RolloutBatch) -> Tensor:
        return centred(batch.reward, batch.group, None if self.reward_std == "none" else self.reward_std)
