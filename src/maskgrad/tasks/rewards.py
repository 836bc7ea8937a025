"""Reward functions supplied by the user, called as `fn(prompts=..., completions=..., **columns)`."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from maskgrad.errors import UserError
from maskgrad.tasks.base import Grade, Status

RewardFunction = Callable[..., Sequence[float | Grade | None]]

_GRAVITY: tuple[Status, ...] = ("ok", "wrong", "no_answer", "error")


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


def call_reward_functions(
    funcs: Sequence[RewardFunction],
    weights: Sequence[float] | None,
    prompts: Sequence[Any],
    completions: Sequence[Any],
    columns: Mapping[str, Sequence[Any]],
) -> list[Grade]:
    """Call every function once on the whole batch and return one Grade per row.

    The reward is the weighted sum over the functions that did not abstain (None), and None when all did. `parts`
    holds each function's unweighted value under its name. `correct` stays None unless a function returns a
    Grade that says so. A wrong number of values, a single value for the batch, a value that is not a finite
    number, and an exception inside a function raise UserError naming the function.
    """
    weights = checked_weights(funcs, weights)
    for label, values in (("completions", completions), *columns.items()):
        if len(values) != len(prompts):
            raise UserError(f"{label} has {len(values)} entries for {len(prompts)} prompts")
    names = function_names(funcs)
    table = [_call(name, func, prompts, completions, columns) for name, func in zip(names, funcs, strict=True)]
    return [_combined(names, weights, row) for row in zip(*table, strict=True)]


def _call(
    name: str, func: RewardFunction, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]
) -> list[Grade | None]:
    keywords = {key: list(values) for key, values in columns.items()}
    try:
        result: Any = func(prompts=list(prompts), completions=list(completions), **keywords)
    except Exception as error:  # user code is foreign: whatever it raises is reported under the function's name
        raise UserError(f"reward function {name} raised {type(error).__name__}: {error}") from error
    values = result.tolist() if hasattr(result, "tolist") else result  # arrays
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Sequence):
        raise UserError(
            f"reward function {name} returned {type(result).__name__}; return a list of {len(prompts)} values, "
            "one per completion"
        )
    if len(values) != len(prompts):
        raise UserError(f"reward function {name} returned {len(values)} values, expected {len(prompts)}")
    return [_as_grade(name, row, value) for row, value in enumerate(values)]


def _as_grade(name: str, row: int, value: object) -> Grade | None:
    """A plain number becomes a Grade without a verdict; None stays None."""
    if value is None:
        return None
    grade = value if isinstance(value, Grade) else None
    reward = grade.reward if grade is not None else value
    if reward is None:
        return grade
    if not isinstance(reward, numbers.Real):
        raise UserError(f"reward function {name}, row {row}: {type(reward).__name__} is not a number or None")
    if not math.isfinite(reward):
        raise UserError(f"reward function {name}, row {row}: the value is {float(reward)}; return None to abstain")
    return grade or Grade(reward=float(reward), correct=None, status="ok")


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
    return Grade(
        reward=total,
        correct=all(verdicts) if verdicts else None,
        status=max((grade.status for grade in given), key=_GRAVITY.index, default="ok"),
        parts=parts,
        detail="; ".join(details) if details or total is not None else "every reward function abstained",
    )
