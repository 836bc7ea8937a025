"""Expression trees written in one plain LaTeX notation, so that a library reads exactly what our reader read."""

from __future__ import annotations

from fractions import Fraction

from maskgrad.tasks.math_expression import Tree


def latex(tree: Tree) -> str:
    """Text of a tree in which every argument stands in braces or brackets."""
    kind = tree[0]
    if kind == "n":
        return _number(tree[1])
    if kind == "s":
        return f"\\{tree[1]}" if tree[1] == "pi" else str(tree[1])
    if kind == "f":
        return f"\\{tree[1]}{_bracketed(tree[2])}"
    if kind == "neg":
        return f"-{_bracketed(tree[1])}"
    if kind == "abs":
        return f"\\left|{latex(tree[1])}\\right|"
    if kind == "!":
        return f"{_atom(tree[1])}!"
    first, second = tree[1], tree[2]
    if kind == "binom":
        return f"\\binom{{{latex(first)}}}{{{latex(second)}}}"
    if kind == "root":
        degree = "" if second == ("n", Fraction(2)) else f"[{latex(second)}]"
        return f"\\sqrt{degree}{{{latex(first)}}}"
    if kind == "^":
        return f"{_atom(first)}^{{{latex(second)}}}"
    if kind == "/":
        return f"\\frac{{{latex(first)}}}{{{latex(second)}}}"
    if kind == "*":
        return f"{_bracketed(first)} \\cdot {_bracketed(second)}"
    return f"{latex(first)} {kind} {_bracketed(second)}"


def _number(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    sign = "-" if value < 0 else ""
    return f"{sign}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def _bracketed(tree: Tree) -> str:
    text = latex(tree)
    return text if tree[0] in ("root", "/", "^", "binom", "f") or _simple(tree) else f"\\left({text}\\right)"


def _atom(tree: Tree) -> str:
    return latex(tree) if _simple(tree) else f"\\left({latex(tree)}\\right)"


def _simple(tree: Tree) -> bool:
    return tree[0] == "s" or (tree[0] == "n" and tree[1] >= 0 and tree[1].denominator == 1)
