"""Calling one reward function of the user's: which keywords it gets, what it may return, what a crash becomes."""

from __future__ import annotations

import asyncio
import inspect
import math
import numbers
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from maskgrad.errors import UserError
from maskgrad.tasks.base import Grade

RewardFunction = Callable[..., Any]


class RewardFailure(UserWarning):
    """A reward function raised; the rows concerned abstain. Shown once for each kind of exception."""


@dataclass
class NamedReward:
    """A reward function with the name it is reported under.

    `worked` says whether it ever judged a row: one that fails on the whole of its first batch is a mistake to be
    reported, one that fails later is an outcome to be counted.
    """

    name: str
    func: RewardFunction
    worked: bool = False
    seen: set[str] = field(default_factory=set)  # kinds of exceptions whose traceback was shown

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Sequence[Any]]
    ) -> list[Grade | None]:
        """One entry per completion; None abstains. Rows on which the function raises get the status "crash".

        The function is called once with the whole batch. If that raises, it is called row by row, so that one bad
        row does not take the others with it.
        """
        rows = {"prompts": prompts, "completions": completions, **columns}
        accepted = accepted_keywords(self.name, self.func, rows)
        found, error = self._attempt(accepted, len(prompts))
        if error is not None:
            found = [self._crash(error)] if len(prompts) == 1 else self._row_by_row(accepted, len(prompts))
        self.worked |= any(grade is None or grade.status != "crash" for grade in found)
        if error is not None and not self.worked:
            raise UserError(f"reward function {self.name} raised {type(error).__name__}: {error}") from error
        if error is not None:
            self._show(error)
        return found

    def _row_by_row(self, accepted: Mapping[str, Sequence[Any]], count: int) -> list[Grade | None]:
        found: list[Grade | None] = []
        for row in range(count):
            grades, error = self._attempt({key: values[row : row + 1] for key, values in accepted.items()}, 1, row)
            found += grades if error is None else [self._crash(error)]
        return found

    def _crash(self, error: Exception) -> Grade:
        return Grade(reward=None, correct=None, status="crash", detail=f"{self.name}: {type(error).__name__}: {error}")

    def _attempt(
        self, accepted: Mapping[str, Sequence[Any]], count: int, first: int = 0
    ) -> tuple[list[Grade | None], Exception | None]:
        copies = {key: list(values) for key, values in accepted.items()}  # the function may change what it gets
        try:
            result = self.func(**copies)
            if inspect.isawaitable(result):
                result = _wait(result)
        except Exception as error:  # user code is foreign: whatever it raises is an outcome
            return [], error
        return checked_values(self.name, result, count, first), None

    def _show(self, error: Exception) -> None:
        kind = type(error).__name__
        if kind not in self.seen:
            self.seen.add(kind)
            lines = "".join(traceback.format_exception(error)).rstrip()
            warnings.warn(f"reward function {self.name} raised {kind}, its rows abstain\n{lines}", RewardFailure, 3)


def _wait(result: Any) -> Any:
    """The value of an awaitable. It runs in a thread of its own, because a notebook's thread has a running loop."""

    async def run() -> Any:
        return await result

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, run()).result()


def accepted_keywords(
    name: str, func: RewardFunction, rows: Mapping[str, Sequence[Any]]
) -> Mapping[str, Sequence[Any]]:
    """The columns the function has a parameter for, all of them if it takes `**kwargs`.

    A parameter without default that is no column is a UserError that names it, as is one that can only be given by
    position. A callable that hides its signature gets everything.
    """
    try:
        parameters = inspect.signature(func).parameters.values()
    except ValueError:
        return rows
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        if parameter.kind == parameter.POSITIONAL_ONLY:
            raise UserError(f"reward function {name} takes {parameter.name!r} by position: let it take keywords")
        if parameter.default is parameter.empty and parameter.name not in rows:
            raise UserError(
                f"reward function {name} needs {parameter.name!r}, which is no column of the data: "
                f"found {', '.join(rows)}"
            )
    if any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters):
        return rows
    names = {parameter.name for parameter in parameters}
    return {key: values for key, values in rows.items() if key in names}


def checked_values(name: str, result: Any, count: int, first: int = 0) -> list[Grade | None]:
    """The values a function returned as grades; `first` is the number of the first row, for messages."""
    values = result.tolist() if hasattr(result, "tolist") else result  # arrays
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Sequence):
        raise UserError(
            f"reward function {name} returned {type(result).__name__}; return a list of {count} values, "
            "one per completion"
        )
    if len(values) != count:
        raise UserError(f"reward function {name} returned {len(values)} values, expected {count}")
    return [_as_grade(name, row, value) for row, value in enumerate(values, start=first)]


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
