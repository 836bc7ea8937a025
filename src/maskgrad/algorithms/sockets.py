"""Names and settings of the four sockets that `composed` combines."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from maskgrad.algorithms import selection
from maskgrad.algorithms.objective import Objective
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

    @model_validator(mode="after")
    def _rates(self) -> RandomRateView:
        if self.low > self.high:
            raise ValueError(f"low {self.low} lies above high {self.high}: swap or widen them")
        return self


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
    centring: selection.Centring = "pooled_loo"


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


def faults(view: View, bound: Bound, credit: Credit, objective: Objective, masks: str) -> list[tuple[bool, str]]:
    """(whether it holds, why it is refused) for every combination whose numbers would not mean what their names say."""
    fits, drawn = FITS[bound.name], view.name not in RECORDED
    one_sided = bound.name != "sandwich" or bound.upper == "elbo"
    fresh_kl = masks == "fresh" and objective.needs_reference
    one_place = bound.name in ("token", "slice")
    elsewhere = view.name == "random_rate" or (isinstance(view, ExactCountView) and not view.coupled)
    return [
        (
            view.name not in fits,
            f"bound {bound.name!r} does not fit view {view.name!r}: use it with {' or '.join(fits)}",
        ),
        (
            credit.name == "stepwise" and bound.name != "step",
            "stepwise advantages need step views: use view selected_steps and bound step",
        ),
        (
            objective.coef.startswith("step_mean") and bound.name != "step",
            "coef step_mean counts denoising steps: use bound step",
        ),
        (
            objective.coef == "slice_mean" and bound.name != "slice",
            "coef slice_mean divides by slice sizes: use bound slice",
        ),
        (not drawn and masks != "shared", f"view {view.name!r} draws no masks: leave masks at 'shared'"),
        (
            objective.form == "ratio" and not one_sided,
            "the ratio form reads the lower bound only: set bound.upper to 'elbo'",
        ),
        (
            objective.self_normalise == "group" and one_place,
            "self-normalisation compares the same unit in all members of a group, and tokens at one place are not "
            "the same unit: use bound step, sequence or sandwich",
        ),
        (
            objective.kl != "none" and not one_sided and bound.upper == "zero",
            "a KL on the lower bound of samples whose upper bound is zero contradicts itself: set bound.upper",
        ),
        (
            masks == "fresh" and bound.name == "token" and elsewhere,
            f"fresh masks of view {view.name!r} score other tokens than the old policy's, which then have no ratio: "
            "set masks to 'epoch', or use bound sequence or sandwich",
        ),
        (fresh_kl, "a KL to the reference needs the masks of the current policy: set masks to 'epoch'"),
        *_idle(credit),
    ]


def _idle(credit: Credit) -> list[tuple[bool, str]]:
    """Settings of another credit than the chosen one, which would be read by nobody."""
    owner = {"std": "centred", "positive_only": "softmax_difference", "weight": "stepwise", "centring": "stepwise"}
    given = sorted(credit.model_fields_set & set(owner))
    return [
        (
            owner[key] != credit.name and getattr(credit, key) != type(credit).model_fields[key].default,
            f"credit.{key} belongs to credit {owner[key]!r}, not to {credit.name!r}: leave it out",
        )
        for key in given
    ]
