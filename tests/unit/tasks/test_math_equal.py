"""Equality of mathematical answers: every kind of object with right and wrong neighbours."""

from __future__ import annotations

import threading

import pytest

from maskgrad.tasks.math_equal import MathPolicy, Verdict, compare
from maskgrad.tasks.math_expression import Unreadable, read_expression
from maskgrad.tasks.math_library import MAX_EXPONENT, parsed, too_large
from maskgrad.tasks.math_objects import read_value

EQUAL = [
    ("\\frac{1}{2}", "0.50"),
    ("\\frac{1}{2}", "\\tfrac12"),
    ("\\frac{1}{2}", ".5"),
    ("\\frac{1}{2}", "x=\\frac{1}{2}"),
    ("x=5", "5"),
    ("2^{10}", "1024"),
    ("120", "5!"),
    ("2x+3", "3+2x"),
    ("\\pi r^2", "r^2\\pi"),
    ("2k+2", "2(k+1)"),
    ("(a+5)(b+2)", "ab+2a+5b+10"),
    ("1, 2", "2, 1"),
    ("1, 2", "2 \\text{ and } 1"),
    ("1,-2", "\\{-2, 1\\}"),
    ("\\{1, 2\\}", "2, 1"),
    ("(6,31,-1)", "(6, 31, -1)"),
    ("(6,31,-1)", "6, 31, -1"),
    ("(-\\infty,3)", "x \\in (-\\infty, 3)"),
    ("(-\\infty,3)", "x<3"),
    ("(5,\\infty)", "(5, +\\infty)"),
    ("[-2,7]", "-2 \\le x \\le 7"),
    ("[-2,7]", "7 \\ge x \\ge -2"),
    ("(2,12) \\cup (12,102)", "(12,102)\\cup(2,12)"),
    ("y = 2x + 3", "2y = 4x + 6"),
    ("y = 2x + 3", "2x+3"),
    ("5x - 7y = 4", "4 = 5x - 7y"),
    ("\\begin{pmatrix} 1/5 \\\\ 2 \\end{pmatrix}", "\\begin{bmatrix}0.2\\\\2\\end{bmatrix}"),
    ("204_5", "204_{5}"),
    ("\\text{(E)}", "E"),
    ("A", "\\text{(A)}"),
    ("\\text{east}", "East"),
    ("58,500", "58{,}500"),
    ("10", "10\\%"),
    ("90^\\circ", "90"),
    ("864 \\mbox{ inches}^2", "864"),
    ("12\\pi", "12\\pi \\text{ cm}^2"),
    ("5", "\\boxed{5}"),
    ("5", "**5**"),
]

DIFFERENT = [
    ("5", "-5"),
    ("3", "3.0000001"),
    ("\\frac{1}{3}", "0.3333333"),
    ("\\pi", "3.14159265"),
    ("2x+3", "2x+4"),
    ("x", "y"),
    ("r", "R"),
    ("x^2", "x^3"),
    ("6+9i", "6-9i"),
    ("1, 2", "1, 3"),
    ("1, 2", "1"),
    ("1, 2", "1, 2, 2"),
    ("1, 1", "1, 2"),
    ("(1,2)", "(2,1)"),
    ("(1,2)", "[1,2]"),
    ("(-\\infty,3)", "(-\\infty,3]"),
    ("(-\\infty,3)", "x \\le 3"),
    ("(0,9) \\cup (9,36)", "(0,36)"),
    ("y = 2x + 3", "y = 2x - 3"),
    ("\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "\\begin{pmatrix} 1 & 2 \\end{pmatrix}"),
    ("52_8", "53_8"),
    ("52_8", "52_9"),
    ("\\text{(E)}", "D"),
    ("\\text{east}", "west"),
    ("5", "\\text{five}"),
    ("\\sqrt{18}", "2\\sqrt{3}"),
    ("\\sqrt{2}", "1.4142"),
]

UNDECIDED = [
    ("204_5", "204"),  # a dropped base mark
    ("3", "3_a"),
    ("\\sqrt{18}", "\\sqrt"),  # a root of nothing
    ("9", "9^{9^{9^9}}"),
    ("\\frac{1}{2}", "\\frac{1}{2"),  # an open brace
    ("5", "\\unknown{5}"),
    ("5", "2+3=6"),  # a value worked out wrongly on the way
    ("6", "2+3=6"),
    ("\\sqrt{2}", "1.414213562373"),  # a rounded decimal
    ("\\sqrt{x^2}", "x"),  # equal for positive x only
    ("5", "5" + "0" * 70 + "!"),
]


@pytest.mark.parametrize(("gold", "answer"), EQUAL)
def test_equal(gold: str, answer: str) -> None:
    assert compare(gold=gold, answer=answer).outcome == "equal"


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT)
def test_different(gold: str, answer: str) -> None:
    assert compare(gold=gold, answer=answer).outcome == "different"
    assert compare(gold=answer, answer=gold).outcome in ("different", "unknown")


@pytest.mark.parametrize(("gold", "answer"), UNDECIDED)
def test_undecided_never_scores(gold: str, answer: str) -> None:
    verdict = compare(gold=gold, answer=answer)
    assert verdict.outcome == "unknown"
    assert verdict.reason


LIBRARY = [
    ("\\sqrt{18}", "3\\sqrt{2}"),
    ("\\frac{\\sqrt{3}}{3}", "\\frac{1}{\\sqrt{3}}"),
    ("3 \\pm 2 \\sqrt{2}", "3-2\\sqrt2, 3+2\\sqrt2"),
    ("1+274i", "274i+1"),
    ("\\cot x", "\\frac{\\cos x}{\\sin x}"),
]


@pytest.mark.parametrize(("gold", "answer"), LIBRARY)
def test_second_pass_settles_roots_and_functions(gold: str, answer: str) -> None:
    assert compare(gold=gold, answer=answer) == Verdict("equal", "", True)
    assert compare(gold=gold, answer=answer, library=False).outcome == "unknown"


def test_second_pass_works_off_the_main_thread() -> None:
    found: list[Verdict] = []
    thread = threading.Thread(target=lambda: found.append(compare(gold="\\sqrt{18}", answer="3\\sqrt{2}")))
    thread.start()
    thread.join()
    assert [verdict.outcome for verdict in found] == ["equal"]


def test_roles_are_not_exchangeable() -> None:
    """An answer may state an interval as a bare list of a tuple's parts; a gold list does not accept a tuple."""
    assert compare(gold="(1,2)", answer="1, 2").outcome == "equal"
    assert compare(gold="1, 2", answer="(1,2)").outcome == "different"


@pytest.mark.parametrize(
    ("policy", "gold", "answer", "outcome"),
    [
        ({"percent": "ignore_sign"}, "50", "50\\%", "equal"),
        ({"percent": "ignore_sign"}, "0.5", "50\\%", "different"),
        ({"percent": "exact"}, "0.5", "50\\%", "equal"),
        ({"percent": "exact"}, "50", "50\\%", "different"),
        ({"percent": "exact"}, "50\\%", "50\\%", "equal"),
        ({"percent": "percent_or_fraction"}, "50", "50\\%", "equal"),
        ({"percent": "percent_or_fraction"}, "0.5", "50\\%", "equal"),
        ({"percent": "percent_or_fraction"}, "5", "50\\%", "different"),
        ({"units": "ignore"}, "5\\text{ cm}", "5\\text{ m}", "equal"),
        ({"units": "match"}, "5\\text{ cm}", "5\\text{ m}", "different"),
        ({"units": "match"}, "5\\text{ inches}", "5 inches", "equal"),
        ({"units": "match"}, "5\\text{ cm}", "5", "equal"),
        ({"lists": "ordered"}, "1, 2", "2, 1", "different"),
        ({"lists": "ordered"}, "\\{1, 2\\}", "2, 1", "equal"),
        ({"intervals": "brackets"}, "[-2,7]", "-2 \\le x \\le 7", "different"),
        ({"intervals": "brackets"}, "[-2,7]", "x \\in [-2,7]", "equal"),
    ],
)
def test_policies(policy: dict[str, str], gold: str, answer: str, outcome: str) -> None:
    assert compare(gold=gold, answer=answer, policy=MathPolicy(**policy)).outcome == outcome


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x^{2",
        "204_5",
        "\\sqrt",
        "\\frac{1}",
        "2 3",
        "x^2^3",
        "\\foo x",
        "|x",
        "(x",
        "x)",
        "+",
        "1+",
        "\\sin^{-1} x",
        "@",
    ],
)
def test_expressions_are_read_completely_or_not_at_all(text: str) -> None:
    with pytest.raises(Unreadable):
        read_expression(text)


def test_degenerate_texts_are_refused_at_once() -> None:
    for text in (
        "{" * 10**6,
        "(" * 500,
        "x^" * 200 + "2",
        "9" * 10**5,
        "\\frac" * 10**5,
        ",".join("1" * 500),
        "-" * 900,
    ):
        assert compare(gold="5", answer=text).outcome in ("different", "unknown")
    assert read_value("{" * 10**6).kind == "unknown"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("9^{9^9}", "tower"),
        ("9**9**9", "tower"),
        ("(2^{3})^{(4^5)}", "tower"),
        (f"2^{{{MAX_EXPONENT + 1}}}", "exponent"),
        ("2^99999999999", "exponent"),
        ("5000!", "factorial"),
        ("(5+3)!", "factorial"),
        ("9" * 61, "digits"),
        ("{" * 101 + "}" * 101, "nested"),
        ("x" * 60_000, "longer"),
    ],
)
def test_texts_kept_from_the_library(text: str, words: str) -> None:
    assert words in too_large(text)


@pytest.mark.parametrize("text", ["2^{10}", "x^2 + y^2", "100!", "2^{-3}", "e^{2x}", "\\frac{1}{2^{5}}", "(x^2)(y^3)"])
def test_texts_that_may_reach_the_library(text: str) -> None:
    assert too_large(text) == ""


def test_the_library_is_called_without_alarms() -> None:
    assert parsed("$\\frac{1}{2}$")
