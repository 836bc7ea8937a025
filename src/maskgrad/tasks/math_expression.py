r"""Mathematical expressions in LaTeX or plain notation, read completely or not at all.

A small recursive descent over a bounded number of tokens gives a tree of tuples. Unlike a general LaTeX reader it
never drops a
symbol: subscripts, unknown macros, empty roots and open braces make the text unreadable. Trees are evaluated in two
ways: exactly, over the rationals with every letter (and pi) as an unknown, and in floating point. Nothing is ever
executed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from maskgrad.tasks.numbers import decimal

MAX_LENGTH = 600
MAX_TOKENS = 300
MAX_DEPTH = 40

Tree = tuple[Any, ...]

GREEK = frozenset([
    "alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta", "vartheta", "iota",
    "kappa", "lambda", "mu", "nu", "xi", "rho", "sigma", "tau", "phi", "varphi", "chi", "psi", "omega",
    "infty", "Gamma", "Delta", "Theta", "Lambda", "Xi", "Sigma", "Phi", "Psi", "Omega"
])  # fmt: skip
FUNCTIONS = frozenset(
    ["sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "ln", "log", "exp"]
)
_IGNORED = frozenset(["left", "right", "big", "Big", "bigg", "Bigg", "displaystyle", "limits"])
_TOKEN = re.compile(
    r"\s*(?:(?P<number>[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?(?![0-9])|[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
    r"|\\(?P<macro>[A-Za-z]+)|(?P<letter>[A-Za-z])|(?P<sign>\*\*|[-+*/^!(){}\[\]|]))"
)
_TIMES = {"cdot": "*", "times": "*", "ast": "*", "div": "/"}
_WORDS = re.compile(r"(?<![A-Za-z\\])(sqrt|pi|{})(?![A-Za-z])".format("|".join(sorted(FUNCTIONS))))
_SYMBOLS = str.maketrans(
    {
        "π": "\\pi ",
        "·": "*",
        "⋅": "*",
        "∗": "*",
        "×": "*",
        "÷": "/",
        "∞": "\\infty ",
        "²": "^2",
        "³": "^3",
        "θ": "\\theta ",
    }
)


_ROOT_SIGN = re.compile(r"√\s*([0-9]+(?:\.[0-9]+)?)?")
_BARS = re.compile(r"\\[lr]?vert(?![A-Za-z])")
_ANGLE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(?:\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|°)")
_TRIGONOMETRIC = re.compile(r"\\?(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_OVER = re.compile(r"\{([^{}]*)\\over(?![A-Za-z])([^{}]*)\}")


class Unreadable(ValueError):
    """The text is not an expression of the grammar; the message says why."""


@dataclass(frozen=True)
class Expression:
    """A completely read expression. `symbols` are its letters, without pi, e and i."""

    tree: Tree
    symbols: frozenset[str]


def read_expression(text: str) -> Expression:
    """Read the whole text. Unreadable for anything outside the grammar and beyond the bounds on size."""
    if len(text) > MAX_LENGTH:
        raise Unreadable(f"longer than {MAX_LENGTH} characters")
    parser = _Parser(_tokens(text))
    tree = parser.whole()
    return Expression(tree, frozenset(parser.symbols))


def has_angle(text: str) -> bool:
    """Whether degrees stand in the argument of a trigonometric function."""
    return _TRIGONOMETRIC.search(text) is not None and _ANGLE.search(text) is not None


def _one_notation(text: str) -> str:
    """Symbols, words and old macros in the notation that the parser reads."""
    text = _ROOT_SIGN.sub(lambda match: f"\\sqrt{{{match.group(1)}}}" if match.group(1) else "\\sqrt ", text)
    if has_angle(text):
        text = _ANGLE.sub(r"(\1\\pi/180)", text)
    text = _OVER.sub(r"\\frac{\1}{\2}", text)
    if text.count("\\over") == 1 and re.search(r"\\over(?![A-Za-z])", text) and "{" not in text:
        text = "\\frac{{{}}}{{{}}}".format(*text.split("\\over"))
    text = _BARS.sub("|", text).translate(_SYMBOLS)
    return _WORDS.sub(lambda match: "\\" + match.group(1) + " ", text).rstrip()


def _tokens(text: str) -> list[tuple[str, str]]:
    text = _one_notation(text)
    tokens: list[tuple[str, str]] = []
    place = 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise Unreadable(f"character {text[place:].lstrip()[:1]!r} is not understood")
        kind = str(match.lastgroup)
        token = match.group(kind)
        place = match.end()
        if kind == "macro" and token in _IGNORED:
            continue
        tokens.append(
            ("sign", _TIMES[token]) if kind == "macro" and token in _TIMES else (kind, "^" if token == "**" else token)
        )
    if len(tokens) > MAX_TOKENS:
        raise Unreadable(f"more than {MAX_TOKENS} symbols")
    if not tokens:
        raise Unreadable("empty")
    return tokens


class _Parser:
    """sum := product ((+|-) product)*, product := power ((*|/|nothing) power)*, power := atom (! | ^ argument)*."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = [*tokens, ("end", "")]
        self._place = 0
        self._bars = 0
        self.symbols: set[str] = set()

    def whole(self) -> Tree:
        tree = self._sum(0)
        self._take("end", "")
        return tree

    @property
    def _next(self) -> tuple[str, str]:
        return self._tokens[self._place]

    def _accept(self, kind: str, token: str) -> bool:
        if self._next == (kind, token):
            self._place += 1
            return True
        return False

    def _take(self, kind: str, token: str) -> None:
        if not self._accept(kind, token):
            raise Unreadable(f"{self._next[1] or 'the end'!r} where {token or 'the end'!r} was expected")

    def _sum(self, depth: int) -> Tree:
        if depth > MAX_DEPTH:
            raise Unreadable(f"nested deeper than {MAX_DEPTH}")
        if self._accept("sign", "-"):
            tree: Tree = ("neg", self._product(depth))
        else:
            self._accept("sign", "+")
            tree = self._product(depth)
        while self._next in (("sign", "+"), ("sign", "-")):
            sign = self._tokens[self._place][1]
            self._place += 1
            tree = ("+" if sign == "+" else "-", tree, self._product(depth))
        return tree

    def _product(self, depth: int) -> Tree:
        tree = self._power(depth)
        while True:
            if self._next in (("sign", "*"), ("sign", "/")):
                sign = self._next[1]
                self._place += 1
                right = ("neg", self._power(depth)) if self._accept("sign", "-") else self._power(depth)
                tree = (sign, tree, right)
            elif self._starts_factor():
                if self._next[0] == "number" and self._tokens[self._place - 1][0] == "number":
                    raise Unreadable("two numbers side by side")
                tree = ("*", tree, self._power(depth))
            else:
                return tree

    def _starts_factor(self) -> bool:
        kind, token = self._next
        return kind in ("number", "letter", "macro") or token in ("(", "{", "[") or (token == "|" and not self._bars)

    def _power(self, depth: int) -> Tree:
        tree = self._atom(depth + 1)
        while True:
            if self._accept("sign", "!"):
                tree = ("!", tree)
            elif self._accept("sign", "^"):
                if self._next == ("macro", "circ"):
                    raise Unreadable("a degree sign inside an expression")
                if self._next == ("sign", "{") and self._tokens[self._place + 1] == ("macro", "circ"):
                    raise Unreadable("a degree sign inside an expression")
                tree = ("^", tree, self._argument(depth + 1, split=False))
                if self._next == ("sign", "^"):
                    raise Unreadable("two exponents")
            else:
                return tree

    def _argument(self, depth: int, *, split: bool = True) -> Tree:
        """A braced group, else a letter, a macro or a number; with `split` one digit of it, as TeX takes it
        (`\\frac12`).
        """
        if self._next == ("sign", "{"):
            return self._atom(depth)
        if self._accept("sign", "-"):
            return ("neg", self._atom(depth))
        kind, token = self._next
        if split and kind == "number" and len(token) > 1 and "." not in token and "," not in token:
            self._tokens[self._place : self._place + 1] = [(kind, token[0]), (kind, token[1:])]
        return self._atom(depth)

    def _atom(self, depth: int) -> Tree:
        kind, token = self._next
        self._place += 1
        if kind == "number":
            value = decimal(token)
            if value is None:
                raise Unreadable("a number that is too long")
            return ("n", value)
        if kind == "letter":
            if token not in ("e", "i"):
                self.symbols.add(token)
            return ("s", token)
        if kind == "macro":
            return self._macro(token, depth)
        closing = {"(": ")", "{": "}", "[": "]"}.get(token)
        if closing:
            bars, self._bars = self._bars, 0
            tree = self._sum(depth)
            self._take("sign", closing)
            self._bars = bars
            return tree
        if token == "|" and not self._bars:
            self._bars = 1
            tree = ("abs", self._sum(depth))
            self._take("sign", "|")
            self._bars = 0
            return tree
        raise Unreadable(f"{token or 'the end'!r} is out of place")

    def _macro(self, name: str, depth: int) -> Tree:
        if name == "pi":
            return ("s", "pi")
        if name in GREEK:
            self.symbols.add("\\" + name)
            return ("s", "\\" + name)
        if name in ("frac", "dfrac", "tfrac", "cfrac"):
            return ("/", self._argument(depth), self._argument(depth))
        if name in ("binom", "dbinom", "tbinom"):
            return ("binom", self._argument(depth), self._argument(depth))
        if name == "sqrt":
            degree: Tree = ("n", decimal("2"))
            if self._accept("sign", "["):
                degree = self._sum(depth)
                self._take("sign", "]")
            return ("root", self._argument(depth), degree)
        if name in FUNCTIONS:
            return self._function(name, depth)
        raise Unreadable(f"macro \\{name} is not understood")

    def _function(self, name: str, depth: int) -> Tree:
        """`\\sin x`, `\\sin^2 x`, `\\log_2 x` is not read: a base mark is a subscript."""
        power: Tree | None = None
        if self._accept("sign", "^"):
            power = self._argument(depth)
            if power == ("neg", ("n", decimal("1"))):
                raise Unreadable("an inverse function")
        if self._next[1] in ("(", "{", "[") or self._next[0] == "macro":
            argument = self._power(depth) if self._next[0] != "macro" else self._atom(depth)
        else:
            argument = self._power(depth)
            while self._next[0] in ("letter", "number") or self._next == ("macro", "pi"):
                argument = ("*", argument, self._power(depth))
        tree: Tree = ("f", name, argument)
        return ("^", tree, power) if power is not None else tree
