"""Paired comparison of two results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from maskgrad.errors import UserError
from maskgrad.evaluation.compare import compare, load_result, sentence
from maskgrad.evaluation.statistics import mcnemar_exact


def result(*marks: int | list[bool | None] | None, **changes: Any) -> dict[str, Any]:
    verdicts = {
        f"t/test/{i}": mark if isinstance(mark, list) else [None if mark is None else bool(mark)]
        for i, mark in enumerate(marks)
    }
    return {
        "model": "m",
        "task": "t",
        "task_hash": "h",
        "split": "test",
        "sampler": {"gen_length": 16, "steps": 8},
        "verdicts": verdicts,
        **changes,
    }


def test_difference_and_exact_test() -> None:
    before = result(1, 0, 0, 0, 0, 0, 0, 1)
    after = result(1, 1, 1, 1, 1, 1, 0, 0)
    found = compare(before, after)
    assert (found["n"], found["only_first"], found["only_second"]) == (8, 1, 5)
    assert found["difference"] == pytest.approx(4 / 8)
    assert found["p_value"] == mcnemar_exact(1, 5)
    low, high = found["interval"]
    assert 0 <= low < 4 / 8 < high <= 1
    assert (found["first"]["accuracy"], found["second"]["accuracy"]) == (0.25, 0.75)
    assert compare(after, before)["difference"] == -found["difference"]
    assert "difference +50.0 points" in sentence(found) and "p = 0.2188" in sentence(found)


def test_items_are_matched_by_id_not_by_place() -> None:
    before = result(1, 0, 0)
    after = {**result(), "verdicts": dict(reversed(before["verdicts"].items()))}
    assert compare(before, after)["difference"] == 0


def test_items_one_side_could_not_judge_are_counted_apart() -> None:
    found = compare(result(1, None, 0), result(1, 1, 1))
    assert (found["n"], found["undecided"], found["difference"]) == (2, 1, 0.5)
    with pytest.raises(UserError, match="no item was judged in both"):
        compare(result(None), result(1))


def test_repeats_have_an_interval_and_no_exact_test() -> None:
    found = compare(result([True, False], [False, False]), result([True, True], [True, False]))
    assert found["difference"] == 0.5 and found["p_value"] is None and found["only_first"] is None
    assert "McNemar" not in sentence(found)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (result(1, 0, task="u"), "differ in their task, 't' and 'u'"),
        (result(1, 0, task_hash="g"), "task hash"),
        (result(1, 0, split="validation"), "split, 'test' and 'validation'"),
        (result(1, 0, 1), r"not on the same items \(1 are in one only, among them 't/test/2'\)"),
        (result(1, 0, sampler={"gen_length": 16, "steps": 4}), "steps 8 and 4.*--across-samplers"),
    ],
)
def test_what_cannot_be_compared(other: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        compare(result(1, 0), other)
    assert "\n" not in str(caught.value)


def test_other_samplers_when_asked_for() -> None:
    found = compare(result(1, 0), result(1, 1, sampler={"gen_length": 16, "steps": 4}), across=True)
    assert found["sampler_differs"] == {"steps": [8, 4]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[]", "holds no verdicts"),
        ('{"n": 3}', "holds no verdicts"),
        ('{"results": [1, 2]}', "2 results"),
    ],
)
def test_files_that_are_no_result(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(UserError, match=words):
        load_result(tmp_path / "r.json")
    with pytest.raises(UserError, match="cannot read"):
        load_result(tmp_path / "none.json")


def test_a_result_file(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(json.dumps(result(1)))
    assert load_result(tmp_path / "r.json") == result(1)
