"""Finding answers in completions."""

from __future__ import annotations

import pytest

from maskgrad.tasks.answers import final_answer, last_box, last_tag, tagged_answer, whole_answer


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
        (r"\boxed{\boxed{5}}", "5", "ok"),
        (r"\boxed{ \boxed{5} }", "5", "ok"),
        ("\\boxed{\n\\boxed{25}\n", "25", "ok"),
        (r"\boxed{3}\boxed{\boxed{4", "3", "ok"),
        (r"\boxed{a \boxed{5}}", r"a \boxed{5}", "ok"),
        (r"\boxed{3} then \boxed{4", "3", "ok"),
        (r"\boxed{3", "", "truncated"),
        (r"\boxed{3 \boxed{4}", "", "truncated"),
        (r"\boxed{}", "", "no_answer"),
        (r"\boxed 3", "3", "ok"),
        (r"so $\boxed \frac{1}{2}$ is it", r"\frac{1}{2}", "ok"),
        (r"\boxed{4} and \boxed 3", "3", "ok"),
        (r"\boxedness", "", "no_answer"),
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
        (r"<answer>\boxed{1+2</answer>", "1+2", "box", "ok"),
        (r"<answer>\boxed{\frac{1}{2</answer>", "", "box", "truncated"),
        (r"<answer>\boxed{}32</answer>", r"\boxed{}32", "tag", "ok"),
        (r"<answer>\boxed{}</answer>", "", "box", "no_answer"),
        ("1+2", "", "none", "no_answer"),
        ("<answer>1+2", "", "tag", "truncated"),
    ],
)
def test_tagged_answer(text: str, answer: str, source: str, status: str) -> None:
    found = tagged_answer(text)
    assert (found.text, found.source, found.status) == (answer, source, status)
    assert text[slice(*found.span)] == answer


@pytest.mark.parametrize(
    ("text", "answer", "source", "status"),
    [
        (r"<answer>5</answer> \boxed{6}", "5", "tag", "ok"),
        (r"\boxed{6} <answer></answer>", "6", "box", "ok"),
        (r"work</reasoning>\boxed{6}</answer>", "6", "box", "ok"),
        (r"<answer>\boxed{6}", "6", "box", "ok"),
        ("<answer>6", "", "tag", "truncated"),
        (r"The answer is 72, so \boxed{7", "", "box", "truncated"),
        (r"\boxed{12", "", "box", "truncated"),
        (r"\boxed{\frac{1}{2}", r"\frac{1}{2}", "box", "ok"),
        (r"$\boxed{\frac{1}{2}$.", r"\frac{1}{2}", "box", "ok"),
        (r"so \boxed{\frac{1}{2}", "", "box", "truncated"),
        (r"\boxed{\frac{1}{2}+", "", "box", "truncated"),
        (r"\boxed{\{1\}", "", "box", "truncated"),
        (r"\boxed{3 \boxed{4}", "", "box", "truncated"),
        ("one\n#### 1,080\nmore", "1,080", "hashes", "ok"),
        ("#### 1 #### 2", "2", "hashes", "ok"),
        ("####", "", "hashes", "no_answer"),
        ("The answer is 5", "The answer is 5", "text", "ok"),
        ("so 7 * 2 = 14\n</reasoning>", "", "none", "no_answer"),
        ("<reasoning>14", "", "none", "no_answer"),
        (r"\boxed{8}<|eot_id|>\boxed{9}", "8", "box", "ok"),
        ("5<|endoftext|><|endoftext|>", "5", "text", "ok"),
        ("<|endoftext|>5", "", "text", "no_answer"),
        ("", "", "text", "no_answer"),
    ],
)
def test_final_answer(text: str, answer: str, source: str, status: str) -> None:
    found = final_answer(text)
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
    assert final_answer("\\boxed{" + "{" * 1_000_000).status == "truncated"
    assert final_answer("\\boxed{" * 100_000 + "1" + "}" * 100_000).text == "1"
