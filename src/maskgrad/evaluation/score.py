"""Grading saved generations again: rows of data and completions in, the same rows with verdicts out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from maskgrad.errors import UserError
from maskgrad.evaluation.outcomes import failures, statuses
from maskgrad.evaluation.statistics import wilson_interval
from maskgrad.tasks.base import Example, Grade, Task
from maskgrad.tasks.registry import make_task, task_entry
from maskgrad.tasks.row_files import json_lines

Row = dict[str, Any]

_TAG = re.compile(r"</?(?:answer|reasoning)\b", re.IGNORECASE)


def read_rows(path: str | Path) -> list[tuple[str, Row]]:
    """Place ("FILE, line N") and object of every line that is not blank; each has `completion` as text.

    Refused, with the line's number: what is not JSON, no object, or has no completion.
    """
    rows = json_lines(Path(path))
    if not rows:
        raise UserError(f"{path} holds no rows: give a file with one JSON object per line")
    for where, row in rows:
        if not isinstance(row.get("completion"), str):
            raise UserError(f"{where}: 'completion' is missing or not text")
    return rows


def scoring_tasks(given: Mapping[str, Any], rows: Sequence[tuple[str, Row]]) -> tuple[Task, Task]:
    """The task for plain completions and the one for completions that write an answer tag; often the same.

    Rows that `maskgrad eval` wrote name the settings they were graded with in `task`. Other rows are graded by the
    widest rules the task knows. Settings in `given` win over both; if `prompt` is among them it decides for all rows.
    """
    stored = [row["task"] for _, row in rows if isinstance(row.get("task"), Mapping)]
    if stored and stored != [stored[0]] * len(rows):
        raise UserError("the rows were graded with different task settings: score each kind in a file of its own")
    if stored:
        if stored[0].get("name") != given["name"]:
            raise UserError(f"the rows are of task {stored[0].get('name')!r}, not {given['name']!r}: name that one")
        task = make_task({**stored[0], **given})
        return task, task
    make_task(given)  # an unknown name or setting is reported before anything else
    entry = task_entry(given["name"])
    plain = make_task({**entry.scoring, **given})
    if "prompt" in given or not entry.tagged:
        return plain, plain
    return plain, make_task({**entry.scoring, **entry.tagged, **given})


def score_rows(given: Mapping[str, Any], rows: Sequence[tuple[str, Row]]) -> tuple[list[Row], Row]:
    """Each row with `reward`, `correct`, `extracted`, `status` (in order), and a summary."""
    plain, tagged = scoring_tasks(given, rows)
    plain.check()
    examples = [plain.from_row(row, where) for where, row in rows]
    texts = [row["completion"] for _, row in rows]
    grades = _grade(plain, tagged, examples, texts)
    out = [
        {**row, "reward": g.reward, "correct": g.correct, "extracted": g.extracted, "status": g.status}
        for (_, row), g in zip(rows, grades, strict=True)
    ]
    return out, _summary(plain, given, grades)


def _grade(plain: Task, tagged: Task, examples: Sequence[Example], texts: Sequence[str]) -> list[Grade]:
    grades: dict[int, Grade] = {}
    kinds = [tagged if _TAG.search(text) else plain for text in texts]
    for task in (plain, tagged):
        places = [i for i, kind in enumerate(kinds) if kind is task and i not in grades]
        found = task.grade_batch([examples[i] for i in places], [texts[i] for i in places]) if places else []
        grades.update(zip(places, found, strict=True))
    return [grades[i] for i in range(len(texts))]


def _summary(task: Task, given: Mapping[str, Any], grades: Sequence[Grade]) -> Row:
    known = [bool(g.correct) for g in grades if g.correct is not None]
    rewards = [g.reward for g in grades if g.reward is not None]
    return {
        "task": task.name,
        "task_hash": task.hash(),
        **({"sandbox": task.sandbox} if task.sandbox else {}),
        "task_settings": dict(given),
        "grader": task.grader,
        "n": len(grades),
        "accuracy": sum(known) / len(known) if known else None,
        "interval": list(wilson_interval(sum(known), len(known))) if known else None,
        "reward": sum(rewards) / len(rewards) if rewards else None,
        "status": statuses(grades),
        "failures": failures(grades),
    }
