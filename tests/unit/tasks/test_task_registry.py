"""Tasks by name, settings, and the batch contract."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from maskgrad.errors import UserError
from maskgrad.tasks import SudokuTask, make_task, self_test


def test_every_generated_task_passes_its_self_test_in_every_protocol() -> None:
    for name in ("countdown", "sudoku"):
        for prompt in ("compact", "d1", "spg", "espo", "tracerl"):
            task = make_task({"name": name, "prompt": prompt})
            assert task.name == name
            self_test(task)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "needs a name; valid: code, countdown, "),
        ({"name": "sodoku"}, "unknown task 'sodoku'; did you mean 'sudoku'"),
        ({"name": "zzz"}, "valid: code, countdown, "),
        ({"name": "sudoku", "promt": "d1"}, "no setting 'promt'; did you mean 'prompt'"),
        ({"name": "sudoku", "prompt": "d2"}, "prompt cannot be 'd2'; did you mean 'd1'"),
        ({"name": "sudoku", "reward": "all"}, "reward cannot be 'all'"),
        ({"name": "sudoku", "blanks": [12, 8]}, "must rise"),
        ({"name": "sudoku", "blanks": [8, 13]}, "from 1 to 12, not 13"),
        ({"name": "sudoku", "blanks": [0, 8]}, "from 1 to 12, not 0"),
        ({"name": "sudoku", "blanks": 8}, "two whole numbers"),
        ({"name": "sudoku", "blanks": [8, 9.5]}, "not 9.5"),
        ({"name": "sudoku", "seed": -1}, "from 0 up, not -1"),
        ({"name": "sudoku", "seed": True}, "not True"),
        ({"name": "sudoku", "file": 3}, "file must be a path"),
        ({"name": "countdown", "operators": "+^"}, "operators must be some of"),
        ({"name": "countdown", "operators": "++"}, "each once"),
        ({"name": "countdown", "operators": ""}, "operators must be"),
        ({"name": "countdown", "count": 1}, "count must be"),
        ({"name": "countdown", "count": 7}, "from 2 to 6"),
        ({"name": "countdown", "max_number": 0}, "max_number"),
        ({"name": "countdown", "format_share": 1.0}, "format_share must be a number in"),
        ({"name": "countdown", "format_share": float("nan")}, "format_share"),
        ({"name": "countdown", "unary_minus": "no"}, "true or false"),
    ],
)
def test_bad_settings(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words.replace("(", r"\(")):
        make_task(settings)


def test_lists_from_yaml_become_pairs_and_operators_their_usual_order() -> None:
    assert (
        make_task({"name": "sudoku", "blanks": [8, 9]}).hash() == make_task({"name": "sudoku", "blanks": (8, 9)}).hash()
    )
    assert (
        make_task({"name": "countdown", "operators": "-+"}).hash()
        == make_task({"name": "countdown", "operators": "+-"}).hash()
    )


def test_splits_and_indices_are_checked() -> None:
    task = make_task({"name": "sudoku"})
    with pytest.raises(UserError, match="unknown split 'tran'; did you mean 'train'"):
        task.example("tran", 0)
    with pytest.raises(UserError, match="index -1"):
        task.example("train", -1)


def test_batches_keep_order_and_length() -> None:
    task = SudokuTask()
    examples = [task.example("train", index) for index in range(3)]
    texts = [task.target(examples[0]), "", task.target(examples[2])]
    assert [grade.status for grade in task.grade_batch(examples, texts)] == ["ok", "no_answer", "ok"]
    with pytest.raises(UserError, match="2 completions for 3 examples"):
        task.grade_batch(examples, texts[:2])


def test_tasks_import_no_tensor_library() -> None:
    code = "import sys, maskgrad.tasks; sys.exit(any(m in sys.modules for m in ('torch', 'transformers')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
