"""Reading and judging the answer to a word problem whose gold is one number (GSM8K)."""

from __future__ import annotations

from fractions import Fraction

from maskgrad.tasks.answers import EXTRACTOR, Extracted, final_answer
from maskgrad.tasks.base import Grade, Status
from maskgrad.tasks.math_expression import Unreadable, read_expression
from maskgrad.tasks.math_values import NoValue, exact
from maskgrad.tasks.numbers import Number, last_number, plain_text, read_number

GRADER = f"gsm8k strict 2, {EXTRACTOR}"
PERCENT = ("ignore_sign", "exact", "percent_or_fraction")


def read_gold(text: str) -> Fraction | None:
    """The gold value: the number after the last `####`, else the number the text states. None if there is none."""
    number = read_number(text.rsplit("####", 1)[-1].strip())
    return None if number is None else number.value


def stated_number(answer: Extracted) -> Number | None:
    """The number an answer states: the number it is, the value of its arithmetic, what follows its last equals sign,
    else the last number in it."""
    text = answer.text
    number = read_number(text)
    if number is not None:
        return number
    if len(text) <= 300:
        right = text.rsplit("=", 1)[-1].strip()
        number = read_number(right) if "=" in text else None
        if number is None:
            number = _arithmetic(plain_text(right))
        if number is not None:
            return number
    return last_number(text)


def _arithmetic(text: str) -> Number | None:
    """Value of arithmetic that was not worked out, such as 144/2; an exclamation mark is none of its signs here."""
    if "!" in text:
        return None
    try:
        return Number(exact(read_expression(text).tree, {}))
    except (Unreadable, NoValue):
        return None


def values_equal(gold: Fraction, number: Number, percent: str) -> bool:
    """Equality of rationals under the percent policy.

    "ignore_sign": 72% is 72. "exact": 72% is 0.72. "percent_or_fraction": it may be either.
    """
    if not number.percent or percent == "ignore_sign":
        return number.value == gold
    hundredth = number.value / 100
    return hundredth == gold or (percent == "percent_or_fraction" and number.value == gold)


def grade_number(gold: Fraction, completion: str, percent: str = "ignore_sign") -> Grade:
    """Strict verdict, 1 or 0. `detail` names what was read."""
    answer = final_answer(completion)
    if answer.status != "ok":
        detail = "answer not closed" if answer.status == "truncated" else "no answer"
        return Grade(reward=0.0, correct=False, status="no_answer", detail=detail)
    number = stated_number(answer)
    if number is None:
        detail = f"no number in {answer.text[:40]!r}"
        return Grade(reward=0.0, correct=False, status="no_answer", detail=detail, extracted=answer.text)
    right = values_equal(gold, number, percent)
    detail = "" if right else f"{number.value}{'%' if number.percent else ''}, not {gold}"
    status: Status = "ok" if right else "wrong"
    return Grade(reward=float(right), correct=right, status=status, detail=detail[:200], extracted=answer.text)
