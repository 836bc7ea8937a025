"""Tasks by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from maskgrad.errors import UserError, nearest
from maskgrad.tasks.base import Task
from maskgrad.tasks.countdown import CountdownSettings, CountdownTask
from maskgrad.tasks.expression import OPERATORS
from maskgrad.tasks.gsm8k import Gsm8kSettings, Gsm8kTask
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
    "countdown": TaskEntry(
        CountdownSettings, CountdownTask, {"operators": OPERATORS, "unary_minus": True}, {"prompt": "d1"}
    ),
    "sudoku": TaskEntry(SudokuSettings, SudokuTask, tagged={"prompt": "d1"}),
    "gsm8k": TaskEntry(Gsm8kSettings, Gsm8kTask),
    "math": TaskEntry(MathSettings, MathTask),
}


def make_task(settings: Mapping[str, Any]) -> Task:
    """Build a task from a mapping with `name` and that task's settings.

    Settings left out keep their defaults. An unknown name or setting, or a value out of range, is a UserError.
    """
    chosen = dict(settings)
    if "name" not in chosen:
        raise UserError(f"a task needs a name; valid: {', '.join(sorted(TASKS))}")
    name = chosen.pop("name")
    if name not in TASKS:
        raise UserError(f"unknown task {name!r}; {nearest(str(name), TASKS)}")
    entry = TASKS[name]
    valid = [field.name for field in dataclasses.fields(entry.settings)]
    for key in chosen:
        if key not in valid:
            raise UserError(f"task {name} has no setting {key!r}; {nearest(str(key), valid)}")
    return entry.build(entry.settings(**chosen))
