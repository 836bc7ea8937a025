"""Strict verdicts against hand-made completions whose truth was judged by people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from maskgrad.tasks.base import Example, Task
from maskgrad.tasks.countdown import CountdownSettings, CountdownTask
from maskgrad.tasks.expression import OPERATORS
from maskgrad.tasks.sudoku import SudokuSettings, SudokuTask

FOLDER = Path(__file__).parents[2].parent / "shared" / "golden" / "rewards"


def rows(name: str) -> list[dict[str, Any]]:
    """Rows with a settled verdict; none when the folder is absent."""
    file = FOLDER / f"{name}.jsonl"
    if not file.exists():
        return []
    table = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [row for row in table if row["truly_correct"] is not None]


def verdict(task: Task, row: dict[str, Any]) -> bool | None:
    example = Example(id=row["id"], prompt="", columns=row["prompt_fields"])
    return task.grade(example, row["completion"]).correct


@pytest.mark.skipif(not rows("countdown"), reason="the shared golden rewards are not next to the repository")
def test_countdown_verdicts() -> None:
    # The table counts a leading minus sign as legal, and a bare expression as an answer where no tag was written.
    tagged, bare = (
        CountdownTask(CountdownSettings(prompt=prompt, operators=OPERATORS, unary_minus=True))
        for prompt in ("d1", "compact")
    )
    got = {row["id"]: verdict(tagged if "<" in row["completion"] else bare, row) for row in rows("countdown")}
    assert got == {row["id"]: row["truly_correct"] for row in rows("countdown")}
    assert len(got) > 20


@pytest.mark.skipif(not rows("sudoku"), reason="the shared golden rewards are not next to the repository")
def test_sudoku_verdicts() -> None:
    task = SudokuTask(SudokuSettings(prompt="d1"))
    got = {row["id"]: verdict(task, row) for row in rows("sudoku")}
    assert got == {row["id"]: row["truly_correct"] for row in rows("sudoku")}
    assert len(got) > 20
