"""DiPO (DiRL, arXiv 2512.22234): TraceRL's slices with a token mean and an asymmetric clip.

    rho_k = exp(clamp(lp_k - lp_old_k, +-10)),   loss = (1/scored tokens) sum_k -min(rho A, clip(rho, .8, 1.28) A)

Kept: z-score with the population deviation, mean over scored tokens, clip [1 - eps, 1 + eps + 0.08], optional k3 KL to
a reference (0 in the examples), old log-probs skipped when the update is on-policy, token ids end to end.
Changed against the released code: the 0.08 is the explicit `clip_high`; groups without variance are not scored instead
of being replaced by new prompts, and still count in the denominator. With equal clip sides and TraceRL's aggregation
and KL it is TraceRL.
Left out: the rollout server.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from maskgrad.algorithms.tracerl import TraceRL


class DiPO(TraceRL):
    RELEASED = {"shrink": 1, "aggregation": "token_mean", "beta": 0.0, "clip_low": 0.8, "clip_high": 1.28}

    name: Literal["dipo"] = "dipo"  # type: ignore[assignment]
    shrink: int | None = Field(default=1, ge=1)
    clip_high: float = Field(default=1.28, ge=1)
    aggregation: Literal["slice_mean", "fixed_length", "token_mean"] = "token_mean"
    beta: float = Field(default=0.0, ge=0)
    kl_to: Literal["old", "reference"] = "reference"
    kl_sum: bool = False
