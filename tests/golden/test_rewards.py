"""Strict verdicts against hand-made completions whose truth was judged by people, and published rewards against their
releases.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from maskgrad.tasks.base import Example, Task
from maskgrad.tasks.compat import COMPAT
from maskgrad.tasks.registry import TASKS, make_task

FOLDER = Path(__file__).parents[2].parent / "shared" / "golden" / "rewards"
NAMES = ("gsm8k", "math", "countdown", "sudoku")

pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="the shared golden rewards are not next to the repository")

# Official function names and the parts of our compat rewards that reproduce them.
GSM8K_PARTS = {
    "correctness_reward_func": "correctness",
    "int_reward_func": "integer",
    "strict_format_reward_func": "strict_layout",
    "soft_format_reward_func": "soft_layout",
    "xmlcount_reward_func": "xml_count",
}
MATH_PARTS = {"correctness_reward_func_math": "correctness", "boxed_and_answer_tags_format_reward": "format"}
OTHER_PARTS = {"anti_short_boxed_reward": "anti_short_box"}


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def scorer(name: str, **settings: Any) -> Task:
    return make_task({"name": name, **TASKS[name].scoring, **settings})


def part_name(repo: str, function: str) -> str:
    """The part of our reward that reproduces a function; ESPO and StableDRL have one, named base, beside the box
    part.
    """
    named = OTHER_PARTS if repo in ("espo", "stabledrl") else {**GSM8K_PARTS, **MATH_PARTS}
    return named.get(function, "base")


@pytest.mark.parametrize("name", NAMES)
def test_strict_verdicts_equal_the_truth(name: str) -> None:
    task = scorer(name)
    settled = [row for row in rows(name) if row["truly_correct"] is not None]
    got = {
        row["id"]: task.grade(Example(id=row["id"], prompt="", columns=row["prompt_fields"]), row["completion"]).correct
        for row in settled
    }
    assert got == {row["id"]: row["truly_correct"] for row in settled}
    assert len(got) > 20


@pytest.mark.parametrize("name", NAMES)
def test_compat_rewards_equal_the_official_scores(name: str) -> None:
    wrong, compared = [], 0
    for row in rows(name):
        for function, score in row["official"].items():
            repo, _, short = function.partition(".")
            parts = COMPAT[name][f"compat_{repo}"](row["completion"], row["prompt_fields"])
            compared += 1
            if parts[part_name(repo, short)] != pytest.approx(score, abs=1e-6):
                wrong.append((row["id"], function, score, parts))
    assert not wrong
    assert compared > 150


@pytest.mark.parametrize("name", NAMES)
def test_compat_reward_is_the_sum_of_its_parts_and_keeps_the_strict_verdict(name: str) -> None:
    strict = scorer(name)
    for reward in COMPAT[name]:
        task = scorer(name, reward=reward)
        for row in rows(name)[:8]:
            example = Example(id=row["id"], prompt="", columns=row["prompt_fields"])
            grade = task.grade(example, row["completion"])
            parts = [value for part, value in grade.parts.items() if part.startswith(f"{reward}.")]
            assert grade.reward == pytest.approx(sum(parts))
            assert grade.correct == strict.grade(example, row["completion"]).correct
