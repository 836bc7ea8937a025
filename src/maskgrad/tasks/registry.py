"""Tasks by name."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from maskgrad.errors import UserError, nearest
from maskgrad.tasks.base import Task
from maskgrad.tasks.code import CodeSettings, CodeTask
from maskgrad.tasks.countdown import CountdownSettings, CountdownTask
from maskgrad.tasks.expression import OPERATORS
from maskgrad.tasks.grading import GradingSettings
from maskgrad.tasks.grading_task import ServedTask
from maskgrad.tasks.gsm8k import Gsm8kSettings, Gsm8kTask
from maskgrad.tasks.gym import PREFIX, GymSettings, GymTask
from maskgrad.tasks.math import MathSettings, MathTask
from maskgrad.tasks.sudoku import SudokuSettings, SudokuTask


@dataclasses.dataclass(frozen=True)
class TaskEntry:
    """A task's settings class and the constructor that takes such settings.

    `scoring` holds the settings with which saved completions of unknown origin are graded: the widest rules the
    task knows. `tagged` holds what is to be changed for such a completion if it writes an answer tag.
    """

    settings: type
    build: Callable[[Any], Task]
    scoring: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    tagged: Mapping[str, Any] = dataclasses.field(default_factory=dict)


TASKS: dict[str, TaskEntry] = {
    "code": TaskEntry(CodeSettings, functools.partial(CodeTask, "code")),
    "humaneval": TaskEntry(CodeSettings, functools.partial(CodeTask, "humaneval")),
    "kodcode": TaskEntry(CodeSettings, functools.partial(CodeTask, "kodcode")),
    "mbpp": TaskEntry(CodeSettings, functools.partial(CodeTask, "mbpp")),
    "countdown": TaskEntry(
        CountdownSettings, CountdownTask, {"operators": OPERATORS, "unary_minus": True}, {"prompt": "d1"}
    ),
    "sudoku": TaskEntry(SudokuSettings, SudokuTask, tagged={"prompt": "d1"}),
    "gsm8k": TaskEntry(Gsm8kSettings, Gsm8kTask),
    "math": TaskEntry(MathSettings, MathTask),
}


def task_entry(name: object) -> TaskEntry:
    """The entry of a task; every `gym:NAME` has one. An unknown name is a UserError."""
    if isinstance(name, str) and name.startswith(PREFIX):
        return TaskEntry(GymSettings, functools.partial(GymTask, name))
    if name not in TASKS:
        raise UserError(f"unknown task {name!r}; {nearest(str(name), [*TASKS, PREFIX + 'NAME'])}")
    return TASKS[str(name)]


def make_task(settings: Mapping[str, Any], grading: GradingSettings | None = None) -> Task:
    """Build a task from a mapping with `name` and that task's settings; see `build_task`.

    Completions of a task that is not bounded are judged by worker processes, under the limits of `grading`. A task that
    was registered from outside the library is judged here: a worker could not build it.
    """
    task = build_task(settings)
    ours = type(task).__module__.startswith("maskgrad.tasks.")
    return ServedTask(task, settings, grading) if ours and not task.bounded else task


def build_task(settings: Mapping[str, Any]) -> Task:
    """The task itself, which grades in this process.

    Settings left out keep their defaults. An unknown name or setting, or a value out of range, is a UserError.
    """
    chosen = dict(settings)
    if "name" not in chosen:
        raise UserError(f"a task needs a name; valid: {', '.join(sorted(TASKS))}")
    name = chosen.pop("name")
    entry = task_entry(name)
    valid = [field.name for field in dataclasses.fields(entry.settings)]
    for key in chosen:
        if key not in valid:
            raise UserError(f"task {name} has no setting {key!r}; {nearest(str(key), valid)}")
    return entry.build(entry.settings(**chosen))
