"""Published rewards: faults included, bounded, nothing executed."""

from __future__ import annotations

import pytest

from maskgrad.errors import UserError
from maskgrad.tasks import compat_d1, compat_eval, compat_verify
from maskgrad.tasks.base import Grade
from maskgrad.tasks.compat import COMPAT, compat_grade
from maskgrad.tasks.compat_arithmetic import Refused, python_value
from maskgrad.tasks.compat_latex import last_boxed, strings_equal


def tagged(answer: str) -> str:
    return f"<reasoning>\nr\n</reasoning>\n<answer>\n{answer}\n</answer>\n"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2**3*3", 24),
        ("7//2*8", 24),
        ("2.5*4", 10),
        ("8/(3-8/3)", 24),
        ("-2+3", 1),
        ("+5", 5),
        ("(2\n+3)", 5),
        ("2**-1", 0.5),
    ],
)
def test_arithmetic_is_that_of_python(text: str, value: float) -> None:
    assert python_value(text) == pytest.approx(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2*",
        "(2)(3)",
        "04",
        "2*3\n*4",
        "1/0",
        "9**9**9",
        "9**(9**9)",
        "(9**999)**999",
        "...",
        "()",
        "1 2",
        "2%3",
        "abs(2)",
        "٢*3",
        "-" * 300 + "1",
        "(" * 200 + "1" + ")" * 200,
        "1" * 500,
        "0**-1",
    ],
)
def test_arithmetic_refused(text: str) -> None:
    try:
        value = python_value(text)
    except Refused:
        return
    assert text.startswith("-") and value == 1  # long chains of signs are legal in Python


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("2*3*4", 1.0),
        ("4*(3*2)", 1.0),
        ("2*3+4", 0.1),
        ("2*3*4=24", 0.1),
        ("2*3*04", 0.1),
        ("", 0.1),
        ("2*3*4;", 0.1),
        ("2 * 3 * 4", 1.0),
        ("3*8", 0.1),
        ("9" * 200, 0.1),
    ],
)
def test_countdown(answer: str, score: float) -> None:
    assert compat_d1.countdown_score(tagged(answer), [2, 3, 4], 24) == score


def test_countdown_variants() -> None:
    assert compat_d1.countdown_score("2*3*4", [2, 3, 4], 24) == 0.0
    assert compat_d1.countdown_score("<answer>1</answer><answer>2*3*4</answer>", [2, 3, 4], 24) == 1.0
    assert compat_d1.countdown_score(tagged("3*8"), [3, 8, 4], 24, subset=True) == 1.0
    assert compat_d1.countdown_score(tagged("3*8*1"), [3, 8, 4], 24, subset=True) == 0.1
    assert compat_d1.tinyzero_score("<answer>2*3*4</answer>\nmore", [2, 3, 4], 24) == 0.0
    assert compat_d1.tinyzero_score("more\n<answer>2*3*4</answer>", [2, 3, 4], 24) == 1.0


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (tagged("72"), (2.0, 0.5, 0.5, 0.0, 0.5)),
        (tagged("72").rstrip(), (2.0, 0.5, 0.0, 0.0, 0.5 - 0.001 * 47)),
        (tagged("72.0"), (0.0, 0.0, 0.5, 0.0, 0.5)),
        ("72", (2.0, 0.5, 0.0, 0.0, 0.0)),
        ("²", (0.0, 0.5, 0.0, 0.0, 0.0)),
        ("<answer>72", (2.0, 0.5, 0.0, 0.0, 0.0)),
        ("", (0.0, 0.0, 0.0, 0.0, 0.0)),
    ],
)
def test_gsm8k_parts(text: str, parts: tuple[float, ...]) -> None:
    assert tuple(compat_d1.gsm8k_parts(text, "72").values()) == pytest.approx(parts)


@pytest.mark.parametrize(
    ("first", "second", "equal"),
    [
        ("\\frac12", "\\frac{1}{2}", True),
        ("\\frac1{72}", "\\frac{1}{72}", True),
        ("\\dfrac{1}{2}", "\\tfrac{1}{2}", True),
        ("0.5", "\\frac{1}{2}", True),
        ("0.50", "\\frac{1}{2}", False),
        (".5", "0.5", True),
        ("3/4", "\\frac{3}{4}", True),
        ("x=5", "5", True),
        ("abc=5", "5", False),
        ("\\sqrt3", "\\sqrt{3}", True),
        ("10\\text{ cm}", "10", True),
        ("10 \\text{cm}", "10", False),
        ("90^\\circ", "90", True),
        ("\\left(1\\right)", "(1)", True),
        ("\\$5", "5", True),
        ("50\\%", "50", True),
        ("1,000", "1000", False),
        ("\\frac", "\\frac", True),
        ("\\sqrt", "5", False),
    ],
)
def test_string_comparison(first: str, second: str, equal: bool) -> None:
    assert strings_equal(first, second) is equal


def test_last_box_as_released() -> None:
    assert last_boxed("\\boxed{1} \\boxed{2}") == "\\boxed{2}"
    assert last_boxed("\\boxed{1") is None
    assert last_boxed("a \\boxed 5$ b") == "\\boxed 5"
    assert last_boxed("none") is None


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("The answer is 72", 0.0),
        ("The answer is 7", 0.0),
        ("The answer is 72.", 1.0),
        ("The answer is 72 because", 1.0),
        ("#### 72", 1.0),
        ("#### 72.00", 0.0),
        ("total 72.50", 0.0),
        ("1,072", 0.0),
        ("so 72", 1.0),
        ("", 0.0),
    ],
)
def test_espo_gsm8k(text: str, score: float) -> None:
    assert compat_verify.espo_gsm8k(text, "72") == score


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("", 0.0),
        ("\\boxed{5}", 0.0),
        ("short", 1.0),
        ("word " * 60 + "\\boxed{5}", 1.0),
        ("a" * 60 + "\\boxed{5}", 1.0),
        ("a" * 30 + "\\boxed{5}", 0.0),
    ],
)
def test_anti_short_box(text: str, score: float) -> None:
    assert compat_verify.anti_short_box(text) == score


def test_library_based_rewards() -> None:
    assert compat_verify.verify_sign("\\boxed{0.5}", "\\boxed{\\frac{1}{2}}") == 1.0
    assert compat_verify.verify_sign("\\boxed{0.6}", "\\boxed{\\frac{1}{2}}") == -1.0
    assert compat_verify.verify_sign("\\boxed{9^{9^{9^9}}}", "\\boxed{1}") == -1.0
    assert compat_verify.espo_math("\\boxed{3}, no: \\boxed{4}", "\\boxed{4}") == 1.0
    assert compat_verify.tracerl_math("\\boxed{4}", "4") == 1.0
    assert compat_verify.tracerl_math("4", "4") == 0.0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("\\boxed{43,500}", 43.0),
        ("\\boxed{1}\\boxed{2}", 1.0),
        ("\\boxed{...} <answer>7</answer>", 7.0),
        ("<answer>5 of 7</answer>", 7.0),
        ("7", None),
    ],
)
def test_gsm8k_evaluation_parser(text: str, value: float | None) -> None:
    assert compat_eval.gsm8k_number(text) == value


def test_other_evaluation_parsers() -> None:
    assert compat_eval.gsm8k_number("so 7", last_number=True) == 7.0
    assert compat_eval.math_text("\\boxed{2 <answer>3</answer>") == "3"
    assert compat_eval.math_text("\\boxed{2") is None
    assert compat_eval.math_text("plain") == "plain"
    assert compat_eval.countdown_text("\\boxed{2 \\times 3 = 6}") == "2 * 3"
    assert compat_eval.sudoku_digits("<answer>12 34</answer>") == "1234" + "0" * 12
    assert compat_eval.sudoku_digits("none") == ""


def test_an_unknown_name_is_refused_and_the_strict_verdict_kept() -> None:
    strict = Grade(reward=0.0, correct=False, status="wrong", parts={"cell_accuracy": 0.5})
    with pytest.raises(UserError, match="did you mean 'compat_d1'"):
        compat_grade("sudoku", "compat_d", "", {}, strict)
    grade = compat_grade("sudoku", "compat_stabledrl", "", {"puzzle": "0" * 16, "solution": "1" * 16}, strict)
    assert (grade.correct, grade.status, grade.reward, grade.parts["cell_accuracy"]) == (False, "wrong", 0.0, 0.5)


def test_every_reward_survives_hostile_text() -> None:
    columns = {"answer": "72", "numbers": [1, 2], "target": 3, "puzzle": "0" * 16, "solution": "1" * 16}
    for text in (
        "",
        "\\boxed{" * 200,
        "<answer>" * 50,
        "9**9**9",
        "<answer>9**9**9</answer>",
        "\\frac" * 50,
        "\x00",
        "\\boxed{9^{9^{9}}}",
    ):
        for rewards in COMPAT.values():
            for reward in rewards.values():
                assert all(isinstance(value, float) for value in reward(text, columns).values())
