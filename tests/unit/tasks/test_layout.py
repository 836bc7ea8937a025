"""The format part of a reward."""

from __future__ import annotations

from typing import Any

import pytest

from maskgrad.errors import UserError
from maskgrad.tasks.base import Grade, self_test
from maskgrad.tasks.layout import has_layout, paid_for_layout
from maskgrad.tasks.registry import build_task

FULL = "<reasoning>\none\ntwo\n</reasoning>\n<answer>\n{}\n</answer>\n"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (FULL.format("72"), True),
        ("  <reasoning>a</reasoning> <answer>72</answer>", True),
        ("<reasoning></reasoning><answer>72</answer>", True),
        (FULL.format(" "), False),
        (FULL.format("72") + "<answer>72</answer>", False),
        ("<answer>72</answer><reasoning>a</reasoning>", False),
        ("<reasoning><answer>72</answer></reasoning>", False),
        ("Sure! " + FULL.format("72"), False),
        (FULL.format("72") + "Done.", False),
        ("<answer>72</answer>", False),
        ("<reasoning>a</reasoning><answer>72", False),
        ("<REASONING>a</REASONING><answer>72</answer>", False),
        ("", False),
    ],
)
def test_layout(text: str, kept: bool) -> None:
    assert has_layout(text) is kept


def test_the_part_is_added_and_told_apart() -> None:
    grade = Grade(reward=1.0, correct=True, status="ok", parts={"score": 1.0})
    assert paid_for_layout(grade, "72", 0.0) is grade
    paid = paid_for_layout(grade, FULL.format("72"), 0.25)
    assert (paid.reward, paid.correct, paid.parts) == (1.25, True, {"score": 1.0, "format": 1.0})
    assert paid_for_layout(grade, "72", 0.25).reward == 1.0
    infra = Grade(reward=None, correct=None, status="infra")
    assert paid_for_layout(infra, FULL.format("72"), 0.25) is infra


@pytest.mark.parametrize("name", ["countdown", "sudoku"])
def test_tasks_pay_it(name: str) -> None:
    task = build_task({"name": name, "prompt": "d1", "format_weight": 0.5})
    example = task.example("train", 0)
    gold = task.target(example)
    grades = task.grade_batch([example] * 3, [gold, gold[gold.index("<answer>") :], FULL.format("no")])
    assert [(g.reward, g.correct) for g in grades] == [(1.5, True), (1.0, True), (0.5, False)]
    self_test(task, count=1)
    assert task.hash() != build_task({"name": name, "prompt": "d1"}).hash()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": "sudoku", "format_weight": 0.5}, "'compact' does not ask for"),
        ({"name": "gsm8k", "prompt": "espo", "format_weight": 0.5}, "use prompt d1 or spg"),
        ({"name": "math", "reward": "compat_d1", "format_weight": 0.5}, "compat_d1, which has its own parts"),
        ({"name": "sudoku", "prompt": "d1", "reward": "compat_d1", "format_weight": 0.5}, "compat_d1, which"),
        ({"name": "countdown", "reward": "compat_d1", "near_target": 0.5}, "go with reward strict, not compat_d1"),
        ({"name": "countdown", "prompt": "d1", "format_weight": 1.5}, r"a number in \[0, 1\)"),
    ],
)
def test_weights_that_make_no_sense(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        build_task(settings)
