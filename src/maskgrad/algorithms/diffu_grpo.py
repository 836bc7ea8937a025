"""diffu-GRPO (d1, arXiv 2504.12216): GRPO on one-step mean-field token likelihoods.

    rho_k = exp(lp_k - lp_old_k),  lp_k = log softmax(logits(z))_k[x_k], z = completion fully hidden    (eq. 3, 4)
    loss = sum_k live_k ( -min(rho A, clip(rho, clip_low, clip_high) A) + beta k3(lp_k - lp_ref_k) ) / sum live

Kept: one forward pass per likelihood; random prompt masking as a regulariser, drawn anew for each inner epoch and
shared by old, reference and new; A = R - mean without division by the deviation.
Changed against the released code: the mask is stored instead of regenerated from a seed; both LLaDA stop tokens end a
completion; the denominator is global. `compat: released` sets the recipe's number of inner epochs and KL.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from maskgrad.algorithms.advantages import centred
from maskgrad.algorithms.base import Algorithm
from maskgrad.algorithms.objective import Objective
from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.likelihood import bounds, views
from maskgrad.records import MaskedViews, RolloutBatch, Units


class DiffuGRPO(Algorithm):
    RELEASED = {"epochs": 12, "masks": "epoch", "beta": 0.04}

    name: Literal["diffu_grpo"] = "diffu_grpo"
    epochs: int = Field(default=12, ge=1)
    masks: Literal["shared", "epoch"] = "epoch"  # type: ignore[assignment]
    p_prompt: float = Field(default=0.15, ge=0, le=1)
    clip_low: float = Field(default=0.5, ge=0, le=1)
    clip_high: float = Field(default=1.5, ge=1)
    beta: float = Field(default=0.0, ge=0)  # k3 KL to the starting policy; 0.04 in the paper's recipe
    reward_std: Literal["none", "population"] = "none"

    def objective(self) -> Objective:
        return Objective(
            form="ratio",
            coef="token_mean",
            clip="ppo",
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            kl="k3" if self.beta > 0 else "none",
            beta=self.beta,
        )

    def views(self, batch: RolloutBatch, sampler: SamplerConfig, seed: int, use: int) -> MaskedViews:
        return views.mean_field(batch, seed, use, p_prompt=self.p_prompt)

    def units(self, logp: Tensor, views: MaskedViews, batch: RolloutBatch) -> Units:
        return bounds.token_units(logp, views)

    def advantage(self, batch: RolloutBatch) -> Tensor:
        return centred(batch.reward, batch.group, None if self.reward_std == "none" else self.reward_std)
