"""wd1 (arXiv 2507.08838): weighted log-likelihood, without ratios, old policy or reference.

    A = R - mean;  w+ = softmax(A), w- = softmax(-A) over the group
    loss = (1/groups) sum_i (w-_i - w+_i) sum_k live_ik lp_ik,   lp of the fully hidden completion

Kept: sums over tokens (long answers weigh more), no ratio, clip, temperature, length normalisation or KL; a new prompt
mask per inner epoch; variant `positive_only` with w+ alone.
Changed against the released code: the softmax runs over the prompt group by id, not over the micro-batch (the same
numbers when the micro-batch is one group); the denominator is global; a group of equal rewards has weight exactly zero
in the positive-only variant too (released: 1/G each).
Left out: rollouts drawn from a mix of policy and reference logits (the loss is the same), and wd1++ (slices of the
trajectory, no released code; `composed` with `trace_slices` and `softmax_difference` is the same idea).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from maskgrad.algorithms.advantages import softmax_difference
from maskgrad.algorithms.base import Algorithm
from maskgrad.algorithms.objective import Objective
from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.likelihood import bounds, views
from maskgrad.records import MaskedViews, RolloutBatch, Units


class WD1(Algorithm):
    RELEASED = {"epochs": 12, "masks": "epoch", "p_prompt": 0.15}

    name: Literal["wd1"] = "wd1"
    epochs: int = Field(default=12, ge=1)  # 8 for the puzzles
    masks: Literal["shared", "epoch"] = "epoch"  # type: ignore[assignment]
    p_prompt: float = Field(default=0.15, ge=0, le=1)
    positive_only: bool = False  # w+ alone

    def objective(self) -> Objective:
        return Objective(form="score", coef="group_sum", weights="none")

    def views(self, batch: RolloutBatch, sampler: SamplerConfig, seed: int, use: int) -> MaskedViews:
        return views.mean_field(batch, seed, use, p_prompt=self.p_prompt)

    def units(self, logp: Tensor, views: MaskedViews, batch: RolloutBatch) -> Units:
        return bounds.sequence_units(logp, views)

    def advantage(self, batch: RolloutBatch) -> Tensor:
        return softmax_difference(batch.reward, batch.group, self.positive_only)
