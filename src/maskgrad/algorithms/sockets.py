"""Names and settings of the four sockets that `composed` combines."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from maskgrad.algorithms import selection
from maskgrad.settings import Settings


class MeanFieldView(Settings):
    name: Literal["mean_field"] = "mean_field"
    p_prompt: float = Field(default=0.15, ge=0, le=1)
    draws: int = Field(default=1, ge=1)


class BlockBoundView(Settings):
    name: Literal["block_bound"] = "block_bound"
    draws: int = Field(default=2, ge=1)
    block: int = Field(default=32, ge=1)
    p_context: float = Field(default=0.15, ge=0, le=1)
    mode: Literal["block_random", "block_all", "random", "all"] = "block_random"


class ExactCountView(Settings):
    name: Literal["exact_count"] = "exact_count"
    draws: int = Field(default=2, ge=1)
    coupled: bool = True
    live_only: bool = False


class RandomRateView(Settings):
    name: Literal["random_rate"] = "random_rate"
    low: float = Field(default=0.0, ge=0, le=1)
    high: float = Field(default=1.0, gt=0, le=1)
    structured: bool = True


class TraceSlicesView(Settings):
    name: Literal["trace_slices"] = "trace_slices"
    shrink: int = Field(default=1, ge=1)


class SelectedStepsView(Settings):
    name: Literal["selected_steps"] = "selected_steps"
    steps: int = Field(default=8, ge=1)
    select_rule: selection.Rule = "topk"
    entropy: selection.EntropyKind = "mean_revealed"
    score: Literal["kernel", "proposal", "revealed", "revealed_untempered"] = "kernel"


class Bound(Settings):
    """token, slice (tokens that know their slice), step, sequence (weighted sum), sandwich (per-token lower, upper)."""

    name: Literal["token", "slice", "step", "sequence", "sandwich"]
    upper: Literal["mix", "elbo", "eubo", "zero"] = "elbo"  # sandwich: bound of samples with A <= 0
    beta_eubo: float = Field(default=1.5, gt=0)
    omega: float = Field(default=0.5, ge=0, le=1)


class Credit(Settings):
    name: Literal["centred", "leave_one_out", "softmax_difference", "stepwise"] = "centred"
    std: Literal["none", "population"] = "none"  # centred
    positive_only: bool = False  # softmax_difference
    weight: float = Field(default=0.0, ge=0)  # stepwise: lambda; 0 = EGSPO
    centring: Literal["pooled_loo", "outcome_loo", "rank_mean", "outcome_mean_plus_delta"] = "pooled_loo"


View = Annotated[
    MeanFieldView | BlockBoundView | ExactCountView | RandomRateView | TraceSlicesView | SelectedStepsView,
    Field(discriminator="name"),
]
#: Views on which a bound means what its name says.
FITS = {
    "token": ("mean_field", "exact_count", "random_rate", "trace_slices"),
    "slice": ("trace_slices",),
    "step": ("selected_steps",),
    "sequence": ("mean_field", "exact_count", "trace_slices"),
    "sandwich": ("block_bound", "mean_field", "random_rate"),
}
RECORDED = ("trace_slices", "selected_steps")
