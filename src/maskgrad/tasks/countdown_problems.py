"""Countdown problems: drawing them, telling their split, and solving them."""

from __future__ import annotations

import functools
import hashlib
import itertools
import random
from collections.abc import Iterator, Sequence
from fractions import Fraction

from maskgrad.errors import UserError
from maskgrad.tasks.draws import below
from maskgrad.tasks.expression import apply

Problem = tuple[tuple[int, ...], int]
Term = tuple[Fraction, str, int]  # value, text, binding strength: 1 sum, 2 product, 3 number

_MAX_TRIES = 20_000


def split_of(numbers: Sequence[int], target: int) -> str:
    """Split of a problem, from a hash of its sorted numbers and target: about 80, 10 and 10 per cent."""
    key = repr((sorted(numbers), target)).encode()
    bucket = int.from_bytes(hashlib.blake2b(key, digest_size=4).digest(), "little") % 10
    return "train" if bucket < 8 else "validation" if bucket == 8 else "test"


def draw_problem(
    rng: random.Random,
    split: str,
    count: int,
    max_number: int,
    operators: str,
    targets: tuple[int, int],
    held_out: frozenset[Problem] = frozenset(),
) -> Problem:
    """A problem of the split whose target is a whole number in range, reachable with every number once.

    held_out: problems, their numbers sorted, that are never drawn.

    With + and - alone the signs are drawn in the order of the numbers, so that a solution without brackets
    keeps that order. Raises UserError when the settings leave nothing to draw.
    """
    draw_target = _signed_total if set(operators) <= set("+-") else _tree_value
    for _ in range(_MAX_TRIES):
        numbers = tuple(1 + below(rng, max_number) for _ in range(count))
        target = draw_target(rng, numbers, operators)
        if target is None or not targets[0] <= target <= targets[1] or split_of(numbers, target) != split:
            continue
        if (tuple(sorted(numbers)), target) not in held_out:
            return numbers, target
    raise UserError(
        f"task countdown: no {split} problem found with {count} numbers up to {max_number}, operators {operators} "
        f"and targets {targets[0]} to {targets[1]}; widen one of them"
    )


def _signed_total(rng: random.Random, numbers: Sequence[int], operators: str) -> int:
    total = numbers[0]
    for number in numbers[1:]:
        total += number if operators[below(rng, len(operators))] == "+" else -number
    return total


def _tree_value(rng: random.Random, numbers: Sequence[int], operators: str) -> int | None:
    """Value of a random expression tree over the numbers; None if it is undefined or not whole."""
    pool: list[Fraction | int] = list(numbers)
    while len(pool) > 1:
        left = pool.pop(below(rng, len(pool)))
        right = pool.pop(below(rng, len(pool)))
        sign = operators[below(rng, len(operators))]
        if sign == "/":
            if right == 0:
                return None
            ratio = Fraction(left) / right
            pool.append(ratio.numerator if ratio.denominator == 1 else ratio)
        else:
            pool.append(left + right if sign == "+" else left - right if sign == "-" else left * right)
    return int(pool[0]) if pool[0].denominator == 1 else None


@functools.lru_cache(maxsize=4096)
def solve(numbers: tuple[int, ...], target: int, operators: str) -> str | None:
    """A fixed solution of a problem as text with as few brackets as its tree needs; None if there is none.

    Sums and differences without brackets are tried first, in the order of the numbers where that works.
    """
    signs = "".join(sign for sign in "+-" if sign in operators)
    if signs and (plain := _solve_by_signs(numbers, target, signs)) is not None:
        return plain
    if operators in ("+", "+-"):
        return None  # brackets around sums only change signs, and every pattern of signs has been tried
    terms: tuple[Term, ...] = tuple((Fraction(number), str(number), 3) for number in numbers)
    return next((text for value, text in _combinations(terms, operators) if value == target), None)


def _solve_by_signs(numbers: Sequence[int], target: int, signs: str) -> str | None:
    """The sum of signed numbers that meets the target, the first positive number leading."""
    for first, *rest in itertools.product("+-", repeat=len(numbers)):
        chosen = [first, *rest]
        total = sum(number if sign == "+" else -number for sign, number in zip(chosen, numbers, strict=True))
        if total != target or "+" not in chosen:
            continue
        lead = chosen.index("+")
        order = [lead, *(place for place in range(len(numbers)) if place != lead)]
        if all(chosen[place] in signs for place in order[1:]):
            return str(numbers[lead]) + "".join(f"{chosen[place]}{numbers[place]}" for place in order[1:])
    return None


def _combinations(terms: tuple[Term, ...], operators: str) -> Iterator[tuple[Fraction, str]]:
    """Every way to join all terms, two at a time, as (value, text)."""
    if len(terms) == 1:
        yield terms[0][0], terms[0][1]
        return
    for i, j in itertools.permutations(range(len(terms)), 2):
        rest = tuple(term for place, term in enumerate(terms) if place not in (i, j))
        for sign in operators:
            if sign in "+*" and i > j:
                continue  # the same value as the pair the other way round
            value = apply(sign, terms[i][0], terms[j][0])
            if value is not None:
                yield from _combinations((*rest, (value, *_joined(sign, terms[i], terms[j]))), operators)


def _joined(sign: str, left: Term, right: Term) -> tuple[str, int]:
    """Text and binding strength of an operation, with brackets only where leaving them out changes the value."""
    strength = 1 if sign in "+-" else 2
    left_text = f"({left[1]})" if left[2] < strength else left[1]
    bracket = right[2] < strength or (sign in "-/" and right[2] == strength)
    return f"{left_text}{sign}{f'({right[1]})' if bracket else right[1]}", strength
