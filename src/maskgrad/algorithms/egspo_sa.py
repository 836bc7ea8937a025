"""EGSPO-SA (arXiv 2603.12554 section 4): EGSPO with stepwise advantages from one-shot completions.

    R_s = r(x_0) + lambda_s (r(x_0) - r(yhat_s)), divided by 1 + lambda_s;     A_s = R_s - baseline

yhat_s is the greedy completion of the state y_s, from the logits that the sampler computed anyway. r(yhat_s) depends on
the state alone, so it is a baseline: lambda changes the variance of the gradient over all steps, not its expectation.

Kept: one-shot completions of the whole canvas at the chosen passes, rewarded as the final completion is.
Changed against the released code: the baseline leaves the own sample out (`centring`); `step_reward_parts: correctness`
compares verdicts on both sides, where the released option compares a verdict with a whole reward.
Added: `time_loo`, the other members' returns at the same pass, which needs their one-shot rewards there.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from maskgrad.algorithms import advantages
from maskgrad.algorithms.egspo import EGSPO
from maskgrad.records import RolloutBatch


class EGSPOSA(EGSPO):
    name: Literal["egspo_sa"] = "egspo_sa"  # type: ignore[assignment]
    stepwise_weight: float = Field(default=0.5, ge=0)  # lambda
    schedule: Literal["constant", "linear"] = "constant"  # linear: lambda_s = lambda s / S
    normalise: bool = True  # divide returns by 1 + lambda_s
    step_reward_parts: Literal["all", "correctness", "correctness_released"] = "all"

    @property
    def lam(self) -> float:
        return self.stepwise_weight

    @property
    def guess_reward(self) -> str:
        return self.step_reward_parts

    @property
    def wants_step_baseline(self) -> bool:
        return self.centring == "time_loo" and self.wants_one_shot

    def returns(self, batch: RolloutBatch) -> tuple[Tensor, Tensor]:
        if batch.step_reward is None:
            return super().returns(batch)
        lam = self.lam_at(batch)
        delta = lam * (batch.reward[:, None] - batch.step_reward)
        return advantages.stepwise_returns(batch.reward, batch.step_reward, lam, self.normalise), delta

    def lam_at(self, batch: RolloutBatch) -> Tensor:
        """lambda_s of the selected passes [B,K]."""
        assert batch.selected is not None and batch.trajectory is not None
        lam = torch.full(batch.selected.shape, self.lam, dtype=batch.reward.dtype, device=batch.reward.device)
        if self.schedule == "linear":
            lam = lam * batch.selected.clamp(min=0) / batch.trajectory.passes[:, None].clamp(min=1)
        return lam

    def advantage(self, batch: RolloutBatch) -> Tensor:
        if self.centring == "time_loo" and batch.step_centred is not None:
            assert batch.selected is not None
            used, lam = batch.selected >= 0, self.lam_at(batch)
            return advantages.time_centred(batch.reward, batch.step_centred, used, batch.group, lam, self.normalise)
        out = super().advantage(batch)
        if self.centring == "outcome_mean_plus_delta" and self.normalise and batch.step_reward is not None:
            out = out / (1 + self.lam_at(batch))  # the other centrings take normalised returns
        return out
