"""Arithmetic expressions read by a small parser into exact rationals. Nothing is ever executed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_LENGTH = 256
MAX_DEPTH = 32
MAX_FRACTIONS = 8
OPERATORS = "+-*/"

_FULL_WIDTH = str.maketrans("０１２３４５６７８９＋－＊／（）＝", "0123456789+-*/()=")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_WRAPPERS = (("```", "```"), ("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("**", "**"), ("`", "`"))
_LATEX = re.compile(r"\\(times|cdot|div|left\(|right\))(?![A-Za-z])")
_LATEX_MEANING = {"times": "*", "cdot": "*", "div": "/", "left(": "(", "right)": ")"}
_SIGNS = str.maketrans({"×": "*", "·": "*", "⋅": "*", "∙": "*", "∗": "*", "÷": "/", "∕": "/", "−": "-", "–": "-"})
_TOKEN = re.compile(r"\s*([0-9]+|[-+*/()])")
_CLAIM = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")


class IllegalExpression(ValueError):
    """The text is not an expression of the accepted grammar; the message says why."""


@dataclass(frozen=True)
class Statement:
    """A parsed answer: literals in reading order, exact value (None after a division by zero), claimed result."""

    numbers: tuple[int, ...]
    value: Fraction | None
    claim: Fraction | None


def read_statement(text: str, operators: str = OPERATORS, *, unary_minus: bool = False) -> Statement:
    """Parse an expression with at most one trailing `= number`.

    Accepted: decimal integers without leading zeros, the given operators, round brackets, Unicode and LaTeX
    signs for them (fractions too), a full stop at the end, and one pair of math or code marks around the whole.
    Everything else raises IllegalExpression: powers, floor division, names, decimals, numbers side by side, signs
    before a number (unless `unary_minus`), more than 256 characters or 32 levels of brackets.
    """
    if len(text) > MAX_LENGTH:
        raise IllegalExpression(f"longer than {MAX_LENGTH} characters")
    left, equals, right = _plain(text).partition("=")
    claim = right.strip()
    if equals and not _CLAIM.fullmatch(claim):
        raise IllegalExpression("what follows the equals sign is not one number")
    parser = _Parser(_tokens(left), operators, unary_minus)
    value = parser.whole()
    return Statement(tuple(parser.numbers), value, Fraction(claim) if equals else None)


def _plain(text: str) -> str:
    """Text with marks around it removed and operator variants mapped to + - * / ( )."""
    plain = text.strip().translate(_FULL_WIDTH).rstrip(".").rstrip()
    for opening, closing in _WRAPPERS:
        if len(plain) > len(opening + closing) and plain.startswith(opening) and plain.endswith(closing):
            plain = plain[len(opening) : -len(closing)].strip()
            break
    for _ in range(MAX_FRACTIONS):
        plain, replaced = _FRACTION.subn(r"((\1)/(\2))", plain)
        if not replaced:
            break
    return _LATEX.sub(lambda match: _LATEX_MEANING[match.group(1)], plain).translate(_SIGNS)


def _tokens(text: str) -> list[str]:
    tokens, place, text = [], 0, text.rstrip()
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise IllegalExpression(f"character {text[place:].lstrip()[:1]!r} is not allowed")
        tokens.append(match.group(1))
        place = match.end()
    return tokens


class _Parser:
    """Recursive descent over sum := product ((+|-) product)*, product := atom ((*|/) atom)*."""

    def __init__(self, tokens: list[str], operators: str, unary_minus: bool) -> None:
        self._tokens = tokens
        self._place = 0
        self._operators = operators
        self._unary_minus = unary_minus
        self.numbers: list[int] = []

    def whole(self) -> Fraction | None:
        value = self._sum(0)
        if self._place < len(self._tokens):
            raise IllegalExpression(f"{self._tokens[self._place]!r} is out of place")
        return value

    def _next(self, wanted: str) -> str | None:
        """Take the next token if it is one of the wanted signs."""
        if self._place < len(self._tokens) and self._tokens[self._place] in wanted:
            self._place += 1
            return self._tokens[self._place - 1]
        return None

    def _operator(self, wanted: str) -> str | None:
        sign = self._next(wanted)
        if sign is not None and sign not in self._operators:
            raise IllegalExpression(f"operator {sign} is not allowed")
        return sign

    def _sum(self, depth: int) -> Fraction | None:
        value = self._product(depth)
        while sign := self._operator("+-"):
            value = apply(sign, value, self._product(depth))
        return value

    def _product(self, depth: int) -> Fraction | None:
        value = self._atom(depth)
        while sign := self._operator("*/"):
            value = apply(sign, value, self._atom(depth))
        return value

    def _atom(self, depth: int) -> Fraction | None:
        negative = self._unary_minus and self._next("-") is not None
        if self._next("("):
            if depth == MAX_DEPTH:
                raise IllegalExpression(f"more than {MAX_DEPTH} levels of brackets")
            value = self._sum(depth + 1)
            if not self._next(")"):
                raise IllegalExpression("a bracket is not closed")
        else:
            value = self._literal()
        return apply("-", Fraction(0), value) if negative else value

    def _literal(self) -> Fraction:
        token = self._tokens[self._place] if self._place < len(self._tokens) else "the end"
        if not token.isdigit():
            raise IllegalExpression(f"a number is missing before {token}")
        if token != "0" and token.startswith("0"):
            raise IllegalExpression(f"number {token} has a leading zero")
        self._place += 1
        self.numbers.append(int(token))
        return Fraction(int(token))


def apply(sign: str, left: Fraction | None, right: Fraction | None) -> Fraction | None:
    """Exact result of one operation; None when an operand is undefined or the divisor is zero."""
    if left is None or right is None or (sign == "/" and right == 0):
        return None
    if sign == "+":
        return left + right
    if sign == "-":
        return left - right
    return left * right if sign == "*" else left / right
