"""What a method differentiates, as a value: the configuration that `surrogate.policy_loss` reads."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, model_validator

from maskgrad.settings import Settings

Coefficient = Literal[
    "token_mean",  # 1 / live tokens
    "group_sum",  # 1 / groups
    "step_mean",  # 1 / units
    "step_token_mean",  # 1 / scored tokens
    "length_mean",  # live tokens of the row / live tokens
    "row_mean",  # 1 / rows
    "slice_mean",  # 1 / (views * tokens of the unit's view)
    "fixed_length",  # 1 / (views * canvas length)
    "view_mean",  # 1 / views: summed inside a view
]


class Objective(Settings):
    """Configuration of `policy_loss`. Clip bounds are in ratio space in both clip modes."""

    form: Literal["ratio", "score"]
    coef: Coefficient
    ratio_scale: Literal["token", "sequence"] = "token"
    clip: Literal["none", "ppo", "always"] = "none"
    clip_low: float = Field(default=0.0, ge=0)
    clip_high: float = Field(default=math.inf, gt=0)
    self_normalise: Literal["none", "group"] = "none"
    weights: Literal["ratio", "none"] = (
        "ratio"  # score form: exp(d), clipped and normalised | 1, the old policy is not read
    )
    recentre: bool = False
    kl: Literal["none", "k1", "k2", "k3", "exact", "exact_mean"] = "none"  # exact: sum over V | mean over V (released)
    kl_to: Literal["reference", "old"] = "reference"
    kl_scale: Literal["ratio", "summed"] = "ratio"  # k(r) on the ratio scale | k(summed r) / size
    kl_coef: Coefficient | None = None  # None: the coefficients of the policy term
    beta: float = Field(default=0.0, ge=0)
    log_bound: float = Field(default=20.0, gt=0)
    allow_fresh_masks: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> Objective:
        if self.clip_low > self.clip_high:
            raise ValueError(f"clip_low {self.clip_low} lies above clip_high {self.clip_high}: swap or widen them")
        if (self.beta > 0) != (self.kl != "none"):
            raise ValueError(f"kl {self.kl!r} and beta {self.beta} contradict each other: set both or neither")
        if self.form == "ratio" and (self.clip == "always" or self.self_normalise != "none" or self.recentre):
            raise ValueError("unconditional clip, self-normalisation and recentring need the score form")
        if self.clip == "ppo":
            if self.form == "score":
                raise ValueError(
                    "clip 'ppo' gates a ratio that carries the gradient: use it with form 'ratio', or 'always'"
                )
            if not self.clip_low <= 1 <= self.clip_high:
                raise ValueError(
                    f"clip_low {self.clip_low} and clip_high {self.clip_high} must enclose ratio 1: "
                    "use for example 0.8 and 1.2"
                )
        if self.allow_fresh_masks and self.needs_reference:
            raise ValueError("a KL to the reference needs the masks of the current policy: share them (masks 'epoch')")
        if self.exact_kl and self.kl_to != "reference":
            raise ValueError("the exact KL is taken to the starting policy: set kl_to to 'reference', or kl to 'k3'")
        if self.weights == "none" and (self.form == "ratio" or self.clip != "none" or self.self_normalise != "none"):
            raise ValueError("weights 'none' means weight 1 in the score form, without clip and self-normalisation")
        if self.kl_scale == "summed" and self.ratio_scale != "token":
            raise ValueError(
                "kl_scale 'summed' divides the KL of a summed unit by its size: use it with ratio_scale 'token'"
            )
        return self

    @property
    def needs_reference(self) -> bool:
        """Whether the loss reads the starting policy."""
        return self.beta > 0 and self.kl_to == "reference"

    @property
    def exact_kl(self) -> bool:
        """Whether the KL is summed over the vocabulary instead of estimated from the scored tokens."""
        return self.kl in ("exact", "exact_mean")

    @property
    def needs_old(self) -> bool:
        """Whether the loss of a second update reads the policy that sampled."""
        return self.weights == "ratio" or (self.beta > 0 and self.kl_to == "old")
