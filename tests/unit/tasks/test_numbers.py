"""One reader of numbers."""

from __future__ import annotations

from fractions import Fraction

import pytest

from maskgrad.tasks.numbers import last_number, read_number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("72", 72),
        ("72.", 72),
        ("072", 72),
        ("-5", -5),
        ("- 5", -5),
        ("−5", -5),
        ("+5", 5),
        ("72.50", "72.5"),
        (".35625", "0.35625"),
        ("5.", 5),
        ("$72", 72),
        ("\\$36", 36),
        ("-$5", -5),
        ("$-5", -5),
        ("€5", 5),
        ("1,080", 1080),
        ("1,080.25", "1080.25"),
        ("1{,}080", 1080),
        ("1\\,080", 1080),
        ("10,\\!080", 10080),
        ("11,\\! 111,\\! 111,\\! 100", 11111111100),
        ("12 345", 12345),
        ("12\u202f345", 12345),
        ("１２", 12),
        ("3/4", "3/4"),
        ("144/2", 72),
        ("\\frac{3}{4}", "3/4"),
        ("\\dfrac34", "3/4"),
        ("\\frac 34", "3/4"),
        ("\\frac9{19}", "9/19"),
        ("-\\frac{1}{2}", "-1/2"),
        ("\\frac{-1}{2}", "-1/2"),
        ("1\\frac{4}{5}", "9/5"),
        ("3 1/2", "7/2"),
        ("3 and 1/2", "7/2"),
        ("-1 1/2", "-3/2"),
        ("3e5", 300000),
        ("6.72 \\times 10^{-5}", "0.0000672"),
        ("1.5*10^3", 1500),
        ("5 million", 5000000),
        ("**72**", 72),
        ("$72$", 72),
        ("\\(72\\)", 72),
        ("`72`", 72),
        ("(72)", 72),
        ("{72}", 72),
        ("\\text{72}", 72),
        ("10\\text{ cm}", 10),
        ("15\\mbox{ cm}^2", 15),
        ("5cm", 5),
        ("72 miles per hour", 72),
        ("$72/month", 72),
        ("90^\\circ", 90),
        ("90^{\\circ}", 90),
        ("90°", 90),
    ],
)
def test_numbers_that_are_read(text: str, value: int | str) -> None:
    number = read_number(text)
    assert number is not None
    assert number.value == Fraction(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "...",
        "-",
        "seventy-two",
        "7 2",
        "1,08",
        "1,0800",
        "12 34",
        "1.080,50",
        "1, 2",
        "1 or 2",
        "5 and 6",
        "2k",
        "5x",
        "5 x",
        "2\\pi",
        "2pi",
        "5i",
        "5!",
        "2^3",
        "10^5",
        "204_5",
        "0x10",
        "12:30",
        "3-1/2",
        "1/0",
        "\\frac{1}{0}",
        "\\frac{1{2}",
        "--5",
        "(5,\\infty)",
        "٥",
        "²",
        "1e999",
        "1" * 400,
    ],
)
def test_texts_that_are_not_one_number(text: str) -> None:
    assert read_number(text) is None


def test_unit_and_percent_are_told() -> None:
    cents, share = read_number("5.4 \\text{ cents}"), read_number("72\\%")
    assert cents is not None and (cents.unit, cents.percent) == ("cents", False)
    assert share is not None and (share.value, share.percent) == (72, True)
    assert all(
        number is not None and number.percent for number in map(read_number, ["72%", "72 %", "72 percent", "７２％"])
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("We get 72 apples and then 10 pears remain.", 10),
        ("The answer is $1,080.", 1080),
        ("total 72.50", "72.5"),
        ("it is 3/4.", "3/4"),
        ("half is \\frac{1}{2} of it", "1/2"),
        ("it was .5", "0.5"),
        ("48-24", 24),
        ("10 - 5", 5),
        ("x = -5", -5),
        ("costs -$5", -5),
        ("between 5 and 10", 10),
        ("x1 is 7 and x2", 7),
        ("1. first", 1),
    ],
)
def test_last_number_of_a_text(text: str, value: int | str) -> None:
    number = last_number(text)
    assert number is not None
    assert number.value == Fraction(value)


def test_texts_without_numbers_and_long_texts() -> None:
    assert last_number("none") is None
    assert last_number("") is None
    for text in ("1," * 10**6, "1 " * 10**6, "- " * 10**6, "\\frac{" * 10**5, "9" * 10**6):
        last_number(text)
        assert read_number(text) is None
