"""Values of expression trees: exact over the rationals with letters as unknowns, and in floating point."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Mapping
from fractions import Fraction

from maskgrad.tasks.math_expression import Tree

MAX_POWER = 200
MAX_BITS = 8192
MAX_FACTORIAL = 100


class NoValue(ArithmeticError):
    """The tree has no value of the wanted kind at this point, or one beyond the bounds."""


def exact(tree: Tree, point: Mapping[str, Fraction]) -> Fraction:
    """Value of a tree built from + - * / and whole powers, its letters (pi among them) taken from `point`.

    NoValue for roots, functions, the imaginary unit, divisions by zero and values of more than 8,192 bits.
    """
    kind = tree[0]
    if kind == "n":
        return Fraction(tree[1])
    if kind == "s":
        if tree[1] == "i" or tree[1] not in point:
            raise NoValue("not a rational unknown")
        return point[tree[1]]
    if kind == "neg":
        return -exact(tree[1], point)
    if kind == "!":
        return Fraction(_factorial(exact(tree[1], point)))
    if kind == "binom":
        return Fraction(_binomial(exact(tree[1], point), exact(tree[2], point)))
    if kind == "root":
        return _exact_root(exact(tree[1], point) if not _has_letter(tree[1]) else None, exact(tree[2], {}))
    if kind not in ("+", "-", "*", "/", "^"):
        raise NoValue(f"{kind} is not rational")
    left, right = exact(tree[1], point), exact(tree[2], point if kind != "^" else {})
    if kind == "^":
        return _exact_power(left, right)
    if kind == "/" and right == 0:
        raise NoValue("a division by zero")
    value = (
        left + right if kind == "+" else left - right if kind == "-" else left * right if kind == "*" else left / right
    )
    return _bounded(value)


def _has_letter(tree: Tree) -> bool:
    return tree[0] == "s" or any(isinstance(part, tuple) and _has_letter(part) for part in tree[1:])


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise NoValue(f"a value of more than {MAX_BITS} bits")
    return value


def _exact_power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1 or abs(exponent) > MAX_POWER or (base == 0 and exponent <= 0):
        raise NoValue("not a whole power within bounds")
    if max(base.numerator.bit_length(), base.denominator.bit_length()) * abs(int(exponent)) > 2 * MAX_BITS:
        raise NoValue("a power beyond the bounds")
    return _bounded(base ** int(exponent))


def _exact_root(radicand: Fraction | None, degree: Fraction) -> Fraction:
    """Rational root of a perfect square; any other root is not rational."""
    if radicand is None or degree != 2 or radicand < 0:
        raise NoValue("not a rational root")
    above, below = math.isqrt(radicand.numerator), math.isqrt(radicand.denominator)
    if above * above != radicand.numerator or below * below != radicand.denominator:
        raise NoValue("not a rational root")
    return Fraction(above, below)


def _factorial(value: Fraction) -> int:
    if value.denominator != 1 or not 0 <= value <= MAX_FACTORIAL:
        raise NoValue("not a factorial within bounds")
    return math.factorial(int(value))


def _binomial(above: Fraction, below: Fraction) -> int:
    if any(part.denominator != 1 or not 0 <= part <= 1000 for part in (above, below)):
        raise NoValue("not a binomial coefficient within bounds")
    return math.comb(int(above), int(below))


_REAL: dict[str, Callable[[complex], complex]] = {
    "sin": cmath.sin,
    "cos": cmath.cos,
    "tan": cmath.tan,
    "cot": lambda value: 1 / cmath.tan(value),
    "sec": lambda value: 1 / cmath.cos(value),
    "csc": lambda value: 1 / cmath.sin(value),
    "arcsin": cmath.asin,
    "arccos": cmath.acos,
    "arctan": cmath.atan,
    "sinh": cmath.sinh,
    "cosh": cmath.cosh,
    "tanh": cmath.tanh,
    "ln": cmath.log,
    "log": cmath.log,
    "exp": cmath.exp,
}
_CONSTANTS = {"pi": complex(math.pi), "e": complex(math.e), "i": 1j}


def approximate(tree: Tree, point: Mapping[str, float]) -> complex:
    """Value in complex floating point. NoValue where it overflows, divides by zero or leaves a function's domain."""
    try:
        value = _float(tree, point)
    except (ArithmeticError, ValueError) as error:
        raise NoValue(str(error)) from error
    if not cmath.isfinite(value):
        raise NoValue("not finite")
    return value


def _float(tree: Tree, point: Mapping[str, float]) -> complex:
    kind = tree[0]
    if kind == "n":
        return complex(float(tree[1]))
    if kind == "s":
        return _CONSTANTS[tree[1]] if tree[1] in _CONSTANTS else complex(point[tree[1]])
    if kind == "f":
        return _REAL[tree[1]](_float(tree[2], point))
    first = _float(tree[1], point)
    if kind == "neg":
        return -first
    if kind == "abs":
        return complex(abs(first))
    if kind == "!":
        return complex(_factorial(_whole(first)))
    second = _float(tree[2], point)
    if kind == "binom":
        return complex(_binomial(_whole(first), _whole(second)))
    if kind == "root":
        return _float_root(first, second)
    if kind == "^":
        return first**second
    return (
        first + second
        if kind == "+"
        else first - second
        if kind == "-"
        else first * second
        if kind == "*"
        else first / second
    )


def _float_root(radicand: complex, degree: complex) -> complex:
    """Principal root; an odd root of a negative number is the real one."""
    odd = degree.imag == 0 and degree.real % 2 == 1
    if odd and radicand.imag == 0 and radicand.real < 0:
        return -((-radicand) ** (1 / degree))
    return cmath.sqrt(radicand) if degree == 2 else radicand ** (1 / degree)


def _whole(value: complex) -> Fraction:
    if value.imag or abs(value.real) > 10**4 or value.real != int(value.real):
        raise NoValue("not a whole number")
    return Fraction(int(value.real))
