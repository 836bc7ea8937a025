"""What the released Countdown rewards compute with Python's evaluator, computed here from a syntax tree with bounds."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Sequence

Number = int | float | complex

MAX_LENGTH = 400
MAX_BITS = 4096  # of any whole number on the way: towers of powers end here

_ALLOWED = re.compile(r"[\d+\-*/().\s]+")


class Refused(ValueError):
    """The expression has no value: bad syntax, a division by zero, or larger than the bounds."""


def python_value(text: str) -> Number:
    """Value of an arithmetic text as Python would give it, including `**`, `//` and decimals.

    Refused is raised where Python raises, and for text of more than 400 characters or whole numbers of more than 4096
    bits, on which the released code may run for ever. Nothing is executed.
    """
    if len(text) > MAX_LENGTH or not _ALLOWED.fullmatch(text):
        raise Refused("too long, or a character is not allowed")
    try:
        return _value(ast.parse(text.lstrip(" \t"), mode="eval").body)
    except (SyntaxError, ArithmeticError, RecursionError, MemoryError, TypeError) as error:
        raise Refused(str(error)) from error


def _value(node: ast.expr) -> Number:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        return _bounded(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.UAdd, ast.USub)):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _bounded(_OPERATIONS[type(node.op)](_value(node.left), _value(node.right)))
    raise Refused(f"{type(node).__name__} has no number as value")


def _bounded(value: Number) -> Number:
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise Refused(f"a whole number of more than {MAX_BITS} bits")
    return value


def _power(base: Number, exponent: Number) -> Number:
    small = not isinstance(base, int) or base.bit_length() < 2
    if isinstance(exponent, int) and not small and abs(exponent) * base.bit_length() > 2 * MAX_BITS:  # type: ignore[union-attr]
        raise Refused(f"a power of more than {MAX_BITS} bits")
    result: Number = base**exponent
    return result


_OPERATIONS: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.Div: lambda left, right: left / right,
    ast.FloorDiv: lambda left, right: left // right,  # type: ignore[operator]
    ast.Pow: _power,
}


def written_numbers(text: str) -> list[int]:
    """Every run of decimal digits as a whole number; a decimal counts as two. Refused for absurdly long runs."""
    found = re.findall(r"\d+", text)
    if any(len(run) > 100 for run in found):
        raise Refused("a number of more than 100 digits")
    return [int(run) for run in found]


def uses_all(text: str, numbers: Sequence[int]) -> bool:
    """Whether the digit runs are exactly the given numbers."""
    return sorted(written_numbers(text)) == sorted(numbers)


def uses_some(text: str, numbers: Sequence[int]) -> bool:
    """Whether no given number is used more often than it was given, and no other is used."""
    return not Counter(written_numbers(text)) - Counter(numbers)


def reaches(text: str, target: float, tolerance: float) -> bool:
    """Whether the value lies within the tolerance of the target; False without a value."""
    try:
        return abs(python_value(text) - target) < tolerance
    except (Refused, OverflowError):
        return False
