"""The expression parser: what it accepts, what it refuses, and exact values."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskgrad.tasks.expression import IllegalExpression, read_statement


@pytest.mark.parametrize(
    ("text", "value", "numbers"),
    [
        ("12+7-3", 16, (12, 7, 3)),
        (" 2 *\n3*4 ", 24, (2, 3, 4)),
        ("8-3-2", 3, (8, 3, 2)),
        ("8/4/2", 1, (8, 4, 2)),
        ("2+3*4", 14, (2, 3, 4)),
        ("(2+3)*4", 20, (2, 3, 4)),
        ("8/(3-8/3)", 24, (8, 3, 8, 3)),
        ("1/3", Fraction(1, 3), (1, 3)),
        ("2×3·4", 24, (2, 3, 4)),
        ("9÷3−1", 2, (9, 3, 1)),
        (r"2 \times 3 \cdot 4", 24, (2, 3, 4)),
        (r"\left(2+4\right)\div 3", 2, (2, 4, 3)),
        (r"$2+3$", 5, (2, 3)),
        (r"\(2+3\)", 5, (2, 3)),
        ("**2+3**", 5, (2, 3)),
        ("`2+3`", 5, (2, 3)),
        ("```\n2+3\n```", 5, (2, 3)),
        ("2+3.", 5, (2, 3)),
        ("２＋３", 5, (2, 3)),
        (r"\frac{8}{3-\frac{8}{3}}", 24, (8, 3, 8, 3)),
        ("0", 0, (0,)),
        ("(((7)))", 7, (7,)),
        ("(" * 32 + "7" + ")" * 32, 7, (7,)),
    ],
)
def test_legal(text: str, value: int | Fraction, numbers: tuple[int, ...]) -> None:
    statement = read_statement(text)
    assert (statement.value, statement.numbers, statement.claim) == (value, numbers, None)


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "+", "2+", "*2", "2**3", "7//2", "9**9**9", "2^3", "2 3", "(2)(3)", "2(3)", "2.5*4", "1e3", "1_0",
        "-2+3", "2*-3", "2--3", "+2", "(2+3", "2+3)", ")2(", "()", "04+1", "٢*3", "²+1", "2+x", "2;", "2*3#",
        "2,3", "5%3", "5!", "abs(2)", "__import__('os')", "__import__('os').system('true')", "lambda:0",
        r"\frac{1}", r"\frac12", r"\sqrt{4}", r"\timesx", "\\", "[2+3]", "{2}", "2=2=2", "2=", "=2", "2=x", "2=1+1",
        "2=+2",         "2 = 2 apples", "2 if 1 else 3", "\x00", "2\u200b+3", "(" * 33 + "7" + ")" * 33, "(" * 200, 
        "1+" * 150 + "1", "9" * 300,
        "1" * 1_000_000, "(" * 1_000_000,
    ],
)  # fmt: skip
def test_illegal(text: str) -> None:
    with pytest.raises(IllegalExpression):
        read_statement(text)


def test_operators_and_unary_minus_are_options() -> None:
    with pytest.raises(IllegalExpression, match=r"operator \* is not allowed"):
        read_statement("2*3", "+-")
    assert read_statement("-2+3*4+14", unary_minus=True).value == 24
    assert read_statement("2*-(3-1)", unary_minus=True).value == -4
    with pytest.raises(IllegalExpression):
        read_statement("--2", unary_minus=True)


@pytest.mark.parametrize(
    ("text", "claim"), [("2+3=5", 5), ("2+3 = -5", -5), ("2+3=5.0", 5), ("2+3=5.5", Fraction(11, 2))]
)
def test_claim(text: str, claim: Fraction) -> None:
    assert read_statement(text).claim == claim


@pytest.mark.parametrize("text", ["1/0", "1/(2-2)", "3*(1/(2-2))-1", "0/0"])
def test_division_by_zero_has_no_value(text: str) -> None:
    assert read_statement(text).value is None


def value_of(tree: object) -> Fraction | None:
    """Value of a tree (operator, left, right) or int; independent of the parser."""
    if isinstance(tree, int):
        return Fraction(tree)
    assert isinstance(tree, tuple)
    left, right = value_of(tree[1]), value_of(tree[2])
    if left is None or right is None or (tree[0] == "/" and right == 0):
        return None
    return {"+": left.__add__, "-": left.__sub__, "*": left.__mul__, "/": left.__truediv__}[tree[0]](right)


def bracketed(tree: object) -> str:
    return str(tree) if isinstance(tree, int) else f"({bracketed(tree[1])}{tree[0]}{bracketed(tree[2])})"  # type: ignore[index]


def leaves(tree: object) -> tuple[int, ...]:
    return (tree,) if isinstance(tree, int) else leaves(tree[1]) + leaves(tree[2])  # type: ignore[index]


TREES = st.recursive(
    st.integers(0, 999),
    lambda inner: st.tuples(st.sampled_from("+-*/"), inner, inner),
    max_leaves=16,
)


@settings(deadline=None)
@given(TREES)
def test_random_trees_have_their_exact_value(tree: object) -> None:
    statement = read_statement(bracketed(tree))
    assert statement.value == value_of(tree)
    assert statement.numbers == leaves(tree)


@settings(deadline=None)
@given(st.text(alphabet="0123456789+-*/()= .\\xe", max_size=40))
def test_random_text_is_read_or_refused(text: str) -> None:
    try:
        statement = read_statement(text, unary_minus=True)
    except IllegalExpression:
        return
    assert statement.value is None or isinstance(statement.value, Fraction)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("+-*"), st.integers(1, 99)), min_size=1, max_size=8))
def test_precedence_without_brackets(terms: list[tuple[str, int]]) -> None:
    text = str(terms[0][1]) + "".join(f"{sign}{number}" for sign, number in terms[1:])
    total, product = 0, terms[0][1]
    for sign, number in terms[1:]:
        if sign == "*":
            product *= number
        else:
            total, product = total + product, number if sign == "+" else -number
    assert read_statement(text).value == total + product
