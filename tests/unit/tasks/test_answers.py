"""Finding answers in completions."""

from __future__ import annotations

import pytest

from maskgrad.tasks.answers import last_box, last_tag, tagged_answer, whole_answer


@pytest.mark.parametrize(
    ("text", "answer", "status"),
    [
        ("<answer>7</answer>", "7", "ok"),
        ("<answer>\n 7 \n</answer> trailing", "7", "ok"),
        ("<answer>1</answer> <answer>2</answer>", "2", "ok"),
        ("<answer>1</answer> <answer>2", "1", "ok"),
        ("<answer>1 <answer>2</answer>", "2", "ok"),
        ("<answer>1</answer> and </answer>", "1", "ok"),
        ("</answer>1<answer>", "", "truncated"),
        ("<answer>7", "", "truncated"),
        ("<answer> \n </answer>", "", "no_answer"),
        ("7</answer>", "", "no_answer"),
        ("<ANSWER>7</ANSWER>", "", "no_answer"),
        ("", "", "no_answer"),
    ],
)
def test_last_tag(text: str, answer: str, status: str) -> None:
    found = last_tag(text, "answer")
    assert (found.text, found.status) == (answer, status)
    assert text[slice(*found.span)] == answer


@pytest.mark.parametrize(
    ("text", "answer", "status"),
    [
        (r"\boxed{7}", "7", "ok"),
        (r"\boxed{1}\boxed{2}", "2", "ok"),
        (r"\fbox{3} done", "3", "ok"),
        (r"\boxed {3}", "3", "ok"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}", "ok"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}", "ok"),
        (r"{ \boxed{5}", "5", "ok"),
        (r"} \boxed{5}", "5", "ok"),
        (r"\boxed{\boxed{5}}", r"\boxed{5}", "ok"),
        (r"\boxed{3} then \boxed{4", "3", "ok"),
        (r"\boxed{3", "", "truncated"),
        (r"\boxed{3 \boxed{4}", "", "truncated"),
        (r"\boxed{}", "", "no_answer"),
        (r"\boxed 3", "", "no_answer"),
        (r"\\boxed{3}", "", "no_answer"),
        ("boxed{3}", "", "no_answer"),
    ],
)
def test_last_box(text: str, answer: str, status: str) -> None:
    found = last_box(text)
    assert (found.text, found.status) == (answer, status)
    assert text[slice(*found.span)] == answer


@pytest.mark.parametrize(
    ("text", "answer", "source", "status"),
    [
        ("<answer>1+2</answer>", "1+2", "tag", "ok"),
        (r"<answer>so \boxed{1+2}!</answer>", "1+2", "box", "ok"),
        (r"\boxed{9} <answer>1+2</answer>", "1+2", "tag", "ok"),
        (r"<answer>1+2</answer> \boxed{9}", "1+2", "tag", "ok"),
        (r"<answer>\boxed{1+2</answer>", "", "box", "truncated"),
        (r"<answer>\boxed{}</answer>", "", "box", "no_answer"),
        ("1+2", "", "none", "no_answer"),
        ("<answer>1+2", "", "tag", "truncated"),
    ],
)
def test_tagged_answer(text: str, answer: str, source: str, status: str) -> None:
    found = tagged_answer(text)
    assert (found.text, found.source, found.status) == (answer, source, status)
    assert text[slice(*found.span)] == answer


def test_whole_answer() -> None:
    assert whole_answer("  12 \n").text == "12"
    assert whole_answer(" \n").status == "no_answer"


def test_hostile_lengths_are_scanned_once() -> None:
    assert last_box("\\boxed{" * 200_000).status == "truncated"
    assert last_box("{" * 300_000 + "}" * 300_000).status == "no_answer"
    assert last_tag("<answer>" * 200_000 + "x", "answer").status == "truncated"
    assert last_tag("<answer>1</answer>" * 50_000, "answer").text == "1"
