"""Reward functions supplied by the user, called as `fn(prompts=..., completions=..., **columns)`: the weighted sum."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

from maskgrad.errors import UserError
from maskgrad.tasks.base import Grade, Status
from maskgrad.tasks.reward_calls import NamedReward, RewardFailure, RewardFunction

__all__ = ["RewardFailure", "RewardFunction", "RewardFunctions", "call_reward_functions"]

_GRAVITY: tuple[Status, ...] = ("ok", "wrong", "no_answer", "timeout", "error", "infra", "crash")


def function_names(funcs: Sequence[RewardFunction]) -> tuple[str, ...]:
    """One name per function, taken from the function or its class; repeated names are numbered."""
    names: list[str] = []
    for func in funcs:
        base = name = str(getattr(func, "__name__", type(func).__name__))
        repeat = 1
        while name in names:
            repeat += 1
            name = f"{base}_{repeat}"
        names.append(name)
    return tuple(names)


def checked_weights(funcs: Sequence[RewardFunction], weights: Sequence[float] | None) -> tuple[float, ...]:
    """Weights as floats, 1.0 each when left out. Refused: no function, another count, a non-finite weight."""
    if not funcs:
        raise UserError("no reward function given; pass at least one")
    for func in funcs:
        if not callable(func):
            raise UserError(f"reward function {func!r} cannot be called")
    if weights is None:
        return (1.0,) * len(funcs)
    if len(weights) != len(funcs):
        raise UserError(f"{len(weights)} reward weights for {len(funcs)} reward functions; pass one per function")
    for weight in weights:
        if isinstance(weight, bool) or not isinstance(weight, numbers.Real) or not math.isfinite(weight):
            raise UserError(f"reward weight {weight!r} is not a finite number")
    return tuple(float(weight) for weight in weights)


class RewardFunctions:
    """Several weighted functions as one reward. Remembers which of them have worked and whose tracebacks were shown.

    A wrong number of weights, or a function that cannot be called, is a UserError.
    """

    def __init__(self, funcs: Sequence[RewardFunction], weights: Sequence[float] | None = None) -> None:
        self.weights = checked_weights(funcs, weights)
        self.names = function_names(funcs)
        self._calls = [NamedReward(name, func) for name, func in zip(self.names, funcs, strict=True)]

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Sequence[Any]]
    ) -> list[Grade]:
        """Call every function once on the whole batch and return one Grade per row.

        The reward is the weighted sum over the functions that did not abstain (None), and None when all did. A row
        on which a function raised has no reward and the status "crash": a sum that lacks a part would be another
        reward. `parts` holds each function's unweighted value under its name. `correct` stays None unless a function
        returns a Grade that says so. A wrong number of values, a single value for the batch, a value that is not a
        finite number, and an exception on every row of a function's first batch raise UserError naming the function.
        """
        for label, values in (("completions", completions), *columns.items()):
            if len(values) != len(prompts):
                raise UserError(f"{label} has {len(values)} entries for {len(prompts)} prompts")
        table = [call(prompts, completions, columns) for call in self._calls]
        return [_combined(self.names, self.weights, row) for row in zip(*table, strict=True)]


def call_reward_functions(
    funcs: Sequence[RewardFunction],
    weights: Sequence[float] | None,
    prompts: Sequence[Any],
    completions: Sequence[Any],
    columns: Mapping[str, Sequence[Any]],
) -> list[Grade]:
    """One call of `RewardFunctions` that remembers nothing."""
    return RewardFunctions(funcs, weights)(prompts, completions, columns)


def _combined(names: Sequence[str], weights: Sequence[float], row: Sequence[Grade | None]) -> Grade:
    parts: dict[str, float] = {}
    total: float | None = None
    for name, weight, grade in zip(names, weights, row, strict=True):
        if grade is None:
            continue
        parts.update({f"{name}.{key}": value for key, value in grade.parts.items()})
        if grade.reward is not None:
            parts[name] = float(grade.reward)
            total = (total or 0.0) + weight * float(grade.reward)
    given = [grade for grade in row if grade is not None]
    verdicts = [grade.correct for grade in given if grade.correct is not None]
    details = [grade.detail for grade in given if grade.detail]
    status: Status = max((grade.status for grade in given), key=_GRAVITY.index, default="ok")
    if status in ("crash", "infra"):
        return Grade(reward=None, correct=None, status=status, parts=parts, detail="; ".join(details))
    return Grade(
        reward=total,
        correct=all(verdicts) if verdicts else None,
        status=status,
        parts=parts,
        detail="; ".join(details) if details or total is not None else "every reward function abstained",
    )
