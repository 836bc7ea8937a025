"""Expressions compared by their values at fixed points: exactly where they are rational, else in floating point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TypeVar

from maskgrad.tasks.draws import below, keyed_random
from maskgrad.tasks.math_expression import Expression, Tree
from maskgrad.tasks.math_values import NoValue, approximate, exact

V = TypeVar("V")

POINTS = 6
RELATIVE = 1e-7


def same_function(first: Expression, second: Expression) -> bool | None:
    """Whether two expressions have the same values; None where that is not settled.

    Rational functions are settled exactly (a false "same" needs six random roots among 2**40 points). Others can only
    be told apart, by a relative difference above 1e-7 at a positive point.
    """
    symbols = sorted(first.symbols | second.symbols)
    pairs = _at_points(lambda tree, key: exact(tree, _rational_point(symbols, key)), first.tree, second.tree)
    if len(pairs) == POINTS:
        return all(one == other for one, other in pairs)
    for one, other in _at_points(
        lambda tree, key: approximate(tree, _float_point(symbols, key)), first.tree, second.tree
    ):
        if abs(one - other) > RELATIVE * max(abs(one), abs(other), 1e-30) and abs(one - other) > 1e-12:
            return False
    return None


def _at_points(value: Callable[[Tree, int], V], first: Tree, second: Tree) -> list[tuple[V, V]]:
    """Pairs of values at the points where both have one."""
    pairs = []
    for key in range(POINTS):
        try:
            pairs.append((value(first, key), value(second, key)))
        except NoValue:
            continue
    return pairs


def proportional(first: Expression, second: Expression) -> bool | None:
    symbols = sorted(first.symbols | second.symbols)
    pairs = _at_points(lambda tree, key: exact(tree, _rational_point(symbols, key)), first.tree, second.tree)
    if len(pairs) < POINTS or any(other == 0 for _, other in pairs):
        return None
    ratios = {one / other for one, other in pairs}
    return len(ratios) == 1 and 0 not in ratios


def _rational_point(symbols: Sequence[str], key: int) -> dict[str, Fraction]:
    rng = keyed_random("rational point", key)
    return {
        symbol: Fraction(1 + below(rng, 2**40), 1 + below(rng, 2**20)) for symbol in [*sorted({*symbols, "pi", "e"})]
    }


def _float_point(symbols: Sequence[str], key: int) -> dict[str, float]:
    rng = keyed_random("float point", key)
    return {symbol: 0.3 + 2.2 * rng.random() for symbol in symbols}
