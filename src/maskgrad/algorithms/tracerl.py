"""TraceRL (dLLM-RL, arXiv 2509.06949): token ratios at the states of the recorded trajectory.

    slice n: every `shrink` consecutive distinct steps; scored = its live tokens, hidden = tokens of step >= its first
    rho_k = exp(clamp(lp_k - lp_old_k, +-10))
    loss  = mean over slices of (1/|slice|) sum_k -min(rho A, clip(rho, .8, 1.2) A)  + beta sum_k k3(lp_k - lp_old_k)

Kept: z-score with the population deviation (zero where it is zero), KL to the *old* policy, summed inside a slice for
LLaDA and Dream and averaged over slices; one pass over the rollouts; log-probs at temperature 1 over all ids.
With one update per batch the ratio is 1 and the KL has no gradient: set `minibatches` or `epochs` for more.
Changed against the released code: the log-ratio is always bounded (released: not for LLaDA and Dream); old log-probs
come from the scorer on the same views; `fixed_length` divides by the canvas instead of the longest response of the
set, a constant; stop-token positions count as live, padding behind it never does (`post_num` 0).
On a block-causal policy steps are counted inside each block and slice n shows slice n of all blocks, each beside the
clean text before it (`block_views.block_slices`): the conditionals the sampler drew from. The release uses
`aggregation: fixed_length` and `kl_sum: false` there.
Left out: the value model, filtering prompts by accuracy.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from maskgrad.algorithms.advantages import centred
from maskgrad.algorithms.base import Algorithm
from maskgrad.algorithms.objective import Coefficient, Objective
from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.errors import UserError
from maskgrad.likelihood import block_views, bounds, elbo_views
from maskgrad.records import MaskedViews, RolloutBatch, Units

COEFFICIENT: dict[str, Coefficient] = {
    "slice_mean": "slice_mean",
    "fixed_length": "fixed_length",
    "token_mean": "step_token_mean",
}


class TraceRL(Algorithm):
    RELEASED = {"aggregation": "slice_mean", "beta": 0.01, "kl_sum": True}

    name: Literal["tracerl"] = "tracerl"
    masks: Literal["shared"] = "shared"  # type: ignore[assignment]  # the states are recorded, nothing is drawn
    shrink: int | None = Field(default=None, ge=1)  # passes per slice; None: 1 on block-causal policies, else 8
    clip_low: float = Field(default=0.8, ge=0, le=1)
    clip_high: float = Field(default=1.2, ge=1)
    aggregation: Literal["slice_mean", "fixed_length", "token_mean"] = "slice_mean"
    beta: float = Field(default=0.01, ge=0)  # k3 KL
    kl_to: Literal["old", "reference"] = "old"
    kl_sum: bool = True  # sum the KL inside a slice, as released for LLaDA and Dream; False: weigh it like the ratio
    log_bound: float = Field(default=10.0, gt=0)
    reward_std: Literal["none", "population"] = "population"

    def check(self, sampler: SamplerConfig, group_size: int) -> None:
        if sampler.guidance > 0:
            raise UserError(
                f"rollout guidance {sampler.guidance} is not in the scored states: set it to 0 for {self.name}"
            )
        if sampler.temperature == 0:
            raise UserError("rollout temperature 0 makes every rollout of a group the same: set it above 0")

    @property
    def wants_trajectory(self) -> bool:
        return True

    def objective(self) -> Objective:
        return Objective(
            form="ratio",
            coef=COEFFICIENT[self.aggregation],
            clip="ppo",
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            kl="k3" if self.beta > 0 else "none",
            kl_to=self.kl_to,
            kl_coef="view_mean" if self.kl_sum else None,
            beta=self.beta,
            log_bound=self.log_bound,
        )

    def views(self, batch: RolloutBatch, sampler: SamplerConfig, seed: int, use: int) -> MaskedViews:
        if batch.block is not None:
            return block_views.block_slices(batch, shrink=self.shrink or 1)
        return elbo_views.trace_slices(batch, shrink=self.shrink or 8)

    def units(self, logp: Tensor, views: MaskedViews, batch: RolloutBatch) -> Units:
        return bounds.slice_units(logp, views)

    def advantage(self, batch: RolloutBatch) -> Tensor:
        return centred(batch.reward, batch.group, None if self.reward_std == "none" else self.reward_std)
