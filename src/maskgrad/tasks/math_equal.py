r"""Whether two mathematical answers are equal: a strict first pass here, Math-Verify for what it cannot decide.

Verdicts: `equal`, `different`, `unknown`, `timeout`, `error`; only `equal` scores. Numbers are compared as exact
rationals. Expressions built from + - * / and whole powers are compared exactly at random rational points (Schwartz
1980, Zippel 1979), others are probed in floating point, which can only tell them apart; if they agree there, the
library has the last word and its refusal is `unknown`. Both sides must have been read completely by our own reader,
so nothing the library drops can make them equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from maskgrad.tasks.math_expression import Expression
from maskgrad.tasks.math_latex import latex
from maskgrad.tasks.math_library import LibraryError, parsed, too_large, verified
from maskgrad.tasks.math_objects import Value, read_value
from maskgrad.tasks.math_points import proportional, same_function
from maskgrad.tasks.numbers import Number

Outcome = Literal["equal", "different", "unknown", "timeout", "error"]

PERCENT = ("ignore_sign", "exact", "percent_or_fraction")
UNITS = ("ignore", "match")
LISTS = ("unordered", "ordered")
INTERVALS = ("inequality", "brackets")

_MAX_DECIMALS = 6


@dataclass(frozen=True, kw_only=True)
class MathPolicy:
    """What a task declares.

    percent: "ignore_sign" (72% is 72), "exact" (72% is 0.72), "percent_or_fraction" (either).
    units: "ignore", or "match": where both sides name a unit the words must agree.
    lists: whether bare lists are "unordered" or "ordered"; sets never have an order, tuples always do.
    intervals: whether an answer may state an interval as an "inequality", or must use "brackets". The gold may always.
    """

    percent: str = "ignore_sign"
    units: str = "ignore"
    lists: str = "unordered"
    intervals: str = "inequality"


@dataclass(frozen=True)
class Verdict:
    """`reason` is empty for equal. `library` says whether Math-Verify was asked."""

    outcome: Outcome
    reason: str = ""
    library: bool = False


_EQUAL = Verdict("equal")


def compare(*, gold: str, answer: str, policy: MathPolicy | None = None, library: bool = True) -> Verdict:
    """Verdict on an answer text. The roles differ: only an answer may leave out the name before an equals sign, be a
    bare list where the gold is a set or tuple, or state an interval as an inequality.
    """
    comparison = _Comparison(policy or MathPolicy(), library)
    return comparison.values(read_value(gold), read_value(answer), answer)


class _Comparison:
    def __init__(self, policy: MathPolicy, library: bool) -> None:
        self._policy = policy
        self._library = library

    def values(self, gold: Value, answer: Value, text: str = "") -> Verdict:
        gold, answer = _named_values(gold, answer)
        if "unknown" in (gold.kind, answer.kind):
            same = gold.kind == answer.kind and gold.text == answer.text
            return _EQUAL if same else Verdict("unknown", f"not read completely: {_first_unknown(gold, answer)[:60]!r}")
        if answer.kind == "list" and gold.kind in ("set", "ordered"):
            if gold.kind == "ordered":
                return self._in_order(gold.parts, answer.parts)
            return self._in_any_order(gold.parts, answer.parts)
        if gold.kind == "list" and answer.kind == "set":
            return self._in_any_order(gold.parts, answer.parts)
        if gold.kind in _LEAVES and answer.kind in _LEAVES:
            return self._leaves(gold, answer)
        if gold.kind != answer.kind:
            if "based" in (gold.kind, answer.kind):
                return Verdict("unknown", "one side names a number base")
            if answer.kind == "equation":
                return self._chain(gold, answer.parts)
            if gold.kind == "equation":
                return Verdict("unknown", "a value against an equation")
            return Verdict("different", f"a {answer.kind} where a {gold.kind} was asked for")
        return self._same_kind(gold, answer, text)

    def _same_kind(self, gold: Value, answer: Value, text: str) -> Verdict:
        if gold.kind == "equation":
            return self._equations(gold.parts, answer.parts)
        if gold.shape != answer.shape:
            return Verdict("different", f"{answer.shape} where {gold.shape} was asked for")
        if gold.kind == "based":
            return _EQUAL if gold.text == answer.text else Verdict("different", "other digits")
        if (
            gold.kind == "ordered"
            and self._policy.intervals == "brackets"
            and text
            and text.strip()[-1:] not in ")]}$."
        ):
            return Verdict("different", "an inequality where brackets were asked for")
        if gold.kind in ("ordered", "matrix") or (gold.kind == "list" and self._policy.lists == "ordered"):
            return self._in_order(gold.parts, answer.parts)
        return self._in_any_order(gold.parts, answer.parts)

    def _in_order(self, gold: Sequence[Value], answer: Sequence[Value]) -> Verdict:
        if len(gold) != len(answer):
            return Verdict("different", f"{len(answer)} parts instead of {len(gold)}")
        return _joined([self.values(one, other) for one, other in zip(gold, answer, strict=True)])

    def _in_any_order(self, gold: Sequence[Value], answer: Sequence[Value]) -> Verdict:
        """Every gold part takes the first answer part equal to it; equality is transitive, so greedy choice
        suffices.
        """
        if len(gold) != len(answer):
            return Verdict("different", f"{len(answer)} parts instead of {len(gold)}")
        left, verdicts = list(answer), []
        for part in gold:
            tried = [self.values(part, other) for other in left]
            hit = next((place for place, verdict in enumerate(tried) if verdict.outcome == "equal"), None)
            if hit is None:
                undecided = [verdict for verdict in tried if verdict.outcome != "different"]
                return undecided[0] if undecided else Verdict("different", "a part has no counterpart")
            verdicts.append(tried[hit])
            left.pop(hit)
        return _joined(verdicts)

    def _leaves(self, gold: Value, answer: Value) -> Verdict:
        if gold.number is not None and answer.number is not None:
            return self._numbers(gold.number, answer.number)
        if gold.text == answer.text:
            return _EQUAL
        first, second = _expression(gold), _expression(answer)
        if first is None or second is None:
            return Verdict("different", f"a {answer.kind} where a {gold.kind} was asked for")
        return self._expressions(first, second, gold.text, answer.text)

    def _numbers(self, gold: Number, answer: Number) -> Verdict:
        if self._policy.units == "match" and gold.unit and answer.unit and _stem(gold.unit) != _stem(answer.unit):
            return Verdict("different", f"{answer.unit} instead of {gold.unit}")
        values = _readings(answer, self._policy.percent)
        if set(values) & set(_readings(gold, self._policy.percent)):
            return _EQUAL
        return Verdict("different", f"{answer.value} instead of {gold.value}")

    def _expressions(self, gold: Expression, answer: Expression, gold_text: str, answer_text: str) -> Verdict:
        decided = same_function(gold, answer)
        if decided is not None:
            return _EQUAL if decided else Verdict("different", "another value")
        if any(_decimals(text) > _MAX_DECIMALS for text in (gold_text, answer_text)):
            return Verdict("unknown", "a rounded decimal against an irrational number")
        if not self._library:
            return Verdict("unknown", "undecided by the first pass")
        gold_text, answer_text = latex(gold.tree), latex(answer.tree)
        reason = too_large(gold_text) or too_large(answer_text)
        if reason:
            return Verdict("unknown", reason)
        try:
            accepted = verified(gold=parsed(f"${gold_text}$"), answer=parsed(f"${answer_text}$"))
        except LibraryError as error:
            return Verdict("error", str(error), True)
        return (
            Verdict("equal", "", True)
            if accepted
            else Verdict("unknown", "the library does not see them as equal", True)
        )

    def _chain(self, gold: Value, sides: Sequence[Value]) -> Verdict:
        """A value worked out in steps, such as x = 6/4 = 3/2: equal if every side but a name in front is."""
        stated = sides[1:] if _is_name(sides[0]) else sides
        verdicts = [self.values(gold, side) for side in stated]
        if stated and all(verdict.outcome == "equal" for verdict in verdicts):
            return _joined(verdicts)
        return Verdict("unknown", "an equation against a value")

    def _equations(self, gold: Sequence[Value], answer: Sequence[Value]) -> Verdict:
        """Equal if the differences of the sides are proportional, or if the sides agree one by one or crosswise."""
        if len(gold) != 2 or len(answer) != 2:
            return self._in_order(gold, answer)
        trees = [_difference(gold), _difference(answer)]
        if trees[0] is not None and trees[1] is not None:
            decided = proportional(trees[0], trees[1])
            if decided is not None:
                return _EQUAL if decided else Verdict("different", "another equation")
        for order in (answer, answer[::-1]):
            verdict = self._in_order(gold, order)
            if verdict.outcome == "equal":
                return verdict
        return Verdict("unknown", "equations that cannot be compared")


_LEAVES = ("number", "expression", "text")


def _named_values(gold: Value, answer: Value) -> tuple[Value, Value]:
    """What a lone name equals, where only one side has one."""
    if answer.kind == "equation" and gold.kind != "equation":
        return gold, _named(answer)
    if gold.kind == "equation" and answer.kind != "equation":
        return _named(gold), answer
    return gold, answer


def _named(equation: Value) -> Value:
    """The other side of a name, in x = 5 or 5 = x; else the equation."""
    if len(equation.parts) != 2:
        return equation
    first, second = equation.parts
    return second if _is_name(first) else first if _is_name(second) else equation


def _is_name(side: Value) -> bool:
    """A letter, a product of letters such as AB, a function of letters such as f(x), or a tuple of letters."""
    if side.kind == "ordered":
        return all(part.kind in ("expression", "text") and len(part.text) == 1 for part in side.parts)
    bare = side.text.replace("(", "").replace(")", "").replace("\\", "").replace(" ", "")
    return side.kind in ("expression", "text") and bare.isalpha() and len(bare) <= 12


def _first_unknown(*values: Value) -> str:
    return next(value.text for value in values if value.kind == "unknown")


def _joined(verdicts: Sequence[Verdict]) -> Verdict:
    """Different if any part is, else the first undecided part, else equal."""
    for wanted in ("different", "error", "unknown"):
        for verdict in verdicts:
            if verdict.outcome == wanted:
                return verdict
    return Verdict("equal", "", any(verdict.library for verdict in verdicts))


def _readings(number: Number, percent: str) -> tuple[Fraction, ...]:
    if not number.percent or percent == "ignore_sign":
        return (number.value,)
    return (number.value / 100,) if percent == "exact" else (number.value / 100, number.value)


def _stem(unit: str) -> str:
    return unit.lower().replace(" ", "").rstrip("s.")


def _decimals(text: str) -> int:
    return max((len(piece) - len(piece.lstrip("0123456789")) for piece in text.split(".")[1:]), default=0)


def _expression(value: Value) -> Expression | None:
    if value.number is not None:
        return Expression(("n", value.number.value), frozenset())
    return value.expression


def _difference(sides: Sequence[Value]) -> Expression | None:
    first, second = _expression(sides[0]), _expression(sides[1])
    if first is None or second is None:
        return None
    return Expression(("-", first.tree, second.tree), first.symbols | second.symbols)
