"""Tables of answers as people write them, with the verdict that a person would give: neighbours of the golden rows.

`tables/*.jsonl` hold columns, whether the answers stand alone or in the tags, and right and wrong answers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from maskgrad.tasks.base import Example
from maskgrad.tasks.math_equal import compare
from maskgrad.tasks.registry import TASKS, build_task

TABLES = Path(__file__).parent / "tables"
TAGGED = "<reasoning>\nx\n</reasoning>\n<answer>\n{}\n</answer>\n"


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (TABLES / f"{name}.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.parametrize("name", ["gsm8k", "math", "countdown", "sudoku"])
def test_verdicts(name: str) -> None:
    task = build_task({"name": name, **TASKS[name].scoring})
    judged = 0
    for row in rows(name):
        example = Example(id="row", prompt="", columns=row["columns"])
        frame = TAGGED if row["place"] == "tagged" else "{}"
        for expected in ("right", "wrong"):
            for answer in row[expected]:
                grade = task.grade(example, frame.replace("{}", answer))
                assert grade.correct is (expected == "right"), (row["columns"], answer, grade)
                judged += 1
    assert judged >= 50


@pytest.mark.parametrize("row", rows("equality"), ids=lambda row: row["gold"])
def test_equality(row: dict[str, Any]) -> None:
    for answer in row["equal"]:
        assert compare(gold=row["gold"], answer=answer).outcome == "equal", answer
    for answer in row["different"]:
        assert compare(gold=row["gold"], answer=answer).outcome != "equal", answer
