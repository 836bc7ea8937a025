r"""The structure of a mathematical answer: number, text, expression, tuple or interval, set, list, union, equation,
matrix.

An answer is taken apart at its outermost marks until its leaves are numbers, words or expressions. What cannot be
read completely becomes a part of kind "unknown", which is equal only to the very same text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from maskgrad.tasks.math_expression import Expression, Unreadable, has_angle, read_expression
from maskgrad.tasks.numbers import Number, plain_text, read_number

MAX_LENGTH = 1000
MAX_DEPTH = 6
MAX_PARTS = 64

_BOX = re.compile(r"\\?(?:boxed|fbox)\s*\{(.*)\}", re.DOTALL)
_MATRIX = re.compile(r"\\begin\{([pbvBV]?matrix|array)\}(?:\{[lcr|]*\})?(.*)\\end\{\1\}", re.DOTALL)
_UNIT_AT_END = re.compile(
    r"(?<=[^\s(,=])\s*\\(?:text|mbox|mathrm|textrm)\s*\{\s*[A-Za-z][A-Za-z .]*\}\s*(?:\^\s*(?:\d|\{\d\}))?\s*$"
)
_DEGREES_AT_END = re.compile(r"(?<=[^\s(,=])\s*(?:\^\s*\{?\s*\\circ\s*\}?|°)\s*$")
_TEXT_WHOLE = re.compile(r"\s*\\(?:text|mbox|textbf|mathbf|mathrm|textrm|textit)\s*\{\s*([^{}\\]*)\}\s*")
_WORDS = re.compile(r"[A-Za-z][A-Za-z'’\-]*(?: [A-Za-z][A-Za-z'’\-]*){0,7}")
_CHOICE = re.compile(r"\(?([A-Za-z])\)?")
_MEMBER = re.compile(r"\s*\\?[A-Za-z]+\s*(?:\\in(?![A-Za-z])|∈)\s*(.*)", re.DOTALL)
_BASED = re.compile(r"([0-9A-F]+)\s*_\s*(?:\{\s*([0-9]{1,2})\s*\}|([0-9]{1,2}))")
_RELATION = re.compile(r"\\(?:leq?|geq?|lt|gt|neq?)(?![A-Za-z])|[<>≤≥]")
_RELATION_SIGN = {
    "\\le": "<=",
    "\\leq": "<=",
    "≤": "<=",
    "\\ge": ">=",
    "\\geq": ">=",
    "≥": ">=",
    "\\lt": "<",
    "<": "<",
    "\\gt": ">",
    ">": ">",
}
_UNION = re.compile(r"\\cup(?![A-Za-z])|∪")
_SEPARATOR_WORDS = re.compile(r"\s+(?:and|or)\s+|\\text\s*\{\s*(?:and|or)\s*\}")
_OR = re.compile(r"\s+or\s+|\\text\s*\{\s*or\s*\}|\\lor(?![A-Za-z])|\\vee(?![A-Za-z])")
_OPENING = "([{"
_CLOSING = ")]}"


@dataclass(frozen=True)
class Value:
    """One part of an answer.

    `kind`: number, text, expression, ordered, set, list, union, equation, matrix, based, unknown. `shape` tells parts
    of one kind
    apart: the two brackets of an ordered part, rows x columns of a matrix, the base of a based numeral. `text` is the
    normalised text.
    """

    kind: str
    text: str
    parts: tuple[Value, ...] = ()
    shape: str = ""
    number: Number | None = None
    expression: Expression | None = field(default=None, compare=False)


def read_value(text: str, depth: int = 0) -> Value:
    """The structure of an answer. Never raises: what is not understood, too long or too deep has the kind unknown."""
    if len(text) > MAX_LENGTH or depth > MAX_DEPTH:
        return Value("unknown", text[:MAX_LENGTH])
    text = _cleaned(text)
    whole = _TEXT_WHOLE.fullmatch(text)
    if whole:
        return _from_words(whole.group(1).strip(" .")) or read_value(whole.group(1), depth + 1)
    number = read_number(text)
    if number is not None:
        return Value("number", text, number=number, expression=_expression_of(text))
    text = _UNIT_AT_END.sub("", text).strip()
    text = text if has_angle(text) else _DEGREES_AT_END.sub("", text).strip()
    for reader in (
        _empty,
        _matrix,
        _membership,
        _alternatives,
        _union,
        _relation,
        _enclosed,
        _list,
        _plus_minus,
        _based,
    ):
        value = reader(text, depth)
        if value is not None:
            return value
    return _leaf(text)


def _cleaned(text: str) -> str:
    r"""Text without boxes, math marks, spacing and sizing macros; `,\!` keeps its separator."""
    for _ in range(3):
        box = _BOX.fullmatch(text.strip())
        if not box:
            break
        text = box.group(1)
    text = re.sub(r",\\!\s*", ",", text)
    held = re.sub(r"\\(text|mbox|textbf|mathbf|mathrm|textit|textrm)(?=\s*\{)", "\x00\\1", text)
    text = plain_text(held).replace("\x00", "\\")
    return re.sub(r"\s+", " ", text).strip()


def _from_words(words: str) -> Value | None:
    choice = _CHOICE.fullmatch(words)
    if choice:
        return Value("text", choice.group(1), expression=_expression_of(choice.group(1)))
    return Value("text", words.casefold()) if _WORDS.fullmatch(words) else None


def _expression_of(text: str) -> Expression | None:
    try:
        return read_expression(text)
    except Unreadable:
        return None


def _leaf(text: str) -> Value:
    expression = _expression_of(text)
    words = _from_words(text)
    if words is not None and (expression is None or len(text) > 3 or words.expression is not None):
        return words  # a longer word is no product of its letters
    if expression is None:
        return Value("unknown", re.sub(r"\s", "", text))
    return Value("expression", re.sub(r"\s", "", text), expression=expression)


def split_outside(text: str, pattern: re.Pattern[str] | str) -> list[str]:
    """Pieces between the separators that stand outside all brackets."""
    separators = re.compile(re.escape(pattern)) if isinstance(pattern, str) else pattern
    pieces, start, depth, place = [], 0, 0, 0
    while place < len(text):
        char = text[place]
        match = separators.match(text, place) if depth == 0 else None
        if match and match.end() > place:
            pieces.append(text[start:place])
            start = place = match.end()
            continue
        if char == "\\" and place + 1 < len(text) and text[place + 1] not in "{}":
            place += 2
            continue
        depth += (char in _OPENING) - (char in _CLOSING)
        place += 1
    return [*pieces, text[start:]]


def _parts(texts: list[str], depth: int) -> tuple[Value, ...]:
    if len(texts) > MAX_PARTS:
        return (Value("unknown", "too many parts"),)
    return tuple(read_value(part, depth + 1) for part in texts)


def _matrix(text: str, depth: int) -> Value | None:
    match = _MATRIX.fullmatch(text)
    if match is None:
        return None
    rows = [row.split("&") for row in re.split(r"\\\\(?:\[[^\]]*\])?", match.group(2)) if row.strip()]
    if not rows or len({len(row) for row in rows}) != 1:
        return Value("unknown", re.sub(r"\s", "", text))
    cells = _parts([cell for row in rows for cell in row], depth)
    return Value("matrix", text, cells, f"{len(rows)}x{len(rows[0])}")


def _empty(text: str, depth: int) -> Value | None:
    return Value("set", text) if text in ("\\emptyset", "\\varnothing", "∅") else None


def _alternatives(text: str, depth: int) -> Value | None:
    """Inequalities joined by "or" are the union of their intervals."""
    pieces = split_outside(text, _OR)
    if len(pieces) < 2 or not all(_RELATION.search(piece) for piece in pieces):
        return None
    parts = _parts(pieces, depth)
    return Value("union", text, parts) if all(part.kind == "ordered" for part in parts) else None


def _membership(text: str, depth: int) -> Value | None:
    match = _MEMBER.fullmatch(text)
    return read_value(match.group(1), depth + 1) if match else None


def _union(text: str, depth: int) -> Value | None:
    pieces = split_outside(text, _UNION)
    return Value("union", text, _parts(pieces, depth)) if len(pieces) > 1 else None


def _relation(text: str, depth: int) -> Value | None:
    """An equation of two sides or more, or an inequality in one letter as the interval it describes."""
    relations = [match.group() for match in _RELATION.finditer(text)]
    sides = split_outside(text, _RELATION)
    if relations and len(sides) == len(relations) + 1:
        return _interval(text, sides, [_RELATION_SIGN.get(sign, "?") for sign in relations], depth)
    sides = split_outside(text, "=")
    if len(sides) < 2 or any(len(split_outside(text, mark)) > 1 for mark in (",", _SEPARATOR_WORDS)):
        return None
    if not all(side.strip() for side in sides):
        return Value("unknown", re.sub(r"\s", "", text))
    return Value("equation", text, _parts(sides, depth))


def _interval(text: str, sides: list[str], signs: list[str], depth: int) -> Value | None:
    unknown = Value("unknown", re.sub(r"\s", "", text))
    sides = [side.strip() for side in sides]
    if "?" in signs or len(split_outside(text, ",")) > 1 or "=" in text:
        return unknown
    letters = [place for place, side in enumerate(sides) if re.fullmatch(r"\\?[A-Za-z]+", side)]
    if len(letters) != 1 or len(sides) > 3 or (len(sides) == 3 and letters != [1]):
        return unknown
    if len(sides) == 3:
        if signs[0][0] != signs[1][0]:
            return unknown
        if signs[0][0] == ">":
            sides, signs = sides[::-1], ["<" + sign[1:] for sign in signs[::-1]]
        low, high, open_low, open_high = sides[0], sides[2], signs[0] == "<", signs[1] == "<"
    else:
        below = (signs[0][0] == "<") == (letters[0] == 0)
        bound, strict = sides[1 - letters[0]], len(signs[0]) == 1
        low, high = ("-\\infty", bound) if below else (bound, "\\infty")
        open_low, open_high = below or strict, not below or strict
    shape = ("(" if open_low else "[") + (")" if open_high else "]")
    return Value("ordered", text, _parts([low, high], depth), shape)


def _enclosed(text: str, depth: int) -> Value | None:
    """A set in escaped braces, or a tuple, interval or lone part in brackets."""
    if text.startswith("\\{") and text.endswith("\\}") and len(text) >= 4:
        inner = text[2:-2]
        pieces = split_outside(inner, ",") if inner.strip() else []
        return Value("set", text, _flat(_parts(pieces, depth)))
    if len(text) < 3 or text[0] not in "([" or text[-1] not in ")]" or not _closes_at_end(text):
        return None
    pieces = split_outside(text[1:-1], ",")
    if len(pieces) > 1:
        return Value("ordered", text, _parts(pieces, depth), text[0] + text[-1])
    choice = _CHOICE.fullmatch(text)
    if choice:
        return _from_words(choice.group(1))
    return read_value(text[1:-1], depth + 1) if text[0] + text[-1] == "()" else None


def _closes_at_end(text: str) -> bool:
    depth = 0
    for place, char in enumerate(text):
        depth += (char in _OPENING) - (char in _CLOSING)
        if depth == 0:
            return place == len(text) - 1
    return False


def _list(text: str, depth: int) -> Value | None:
    pieces = [piece for part in split_outside(text, ",") for piece in split_outside(part, _SEPARATOR_WORDS)]
    pieces = [re.sub(r"^\s*(?:and|or)\s+", "", piece) for piece in pieces]
    if len(pieces) < 2:
        return None
    if not all(piece.strip() for piece in pieces):
        return Value("unknown", re.sub(r"\s", "", text))
    return Value("list", text, _flat(_parts(pieces, depth)))


def _flat(parts: tuple[Value, ...]) -> tuple[Value, ...]:
    """Parts that are themselves two values (plus or minus) count as two parts."""
    return tuple(inner for part in parts for inner in (part.parts if part.kind == "list" else (part,)))


def _plus_minus(text: str, depth: int) -> Value | None:
    pieces = re.split(r"\\pm(?![A-Za-z])|±", text)
    if len(pieces) != 2:
        return None
    return Value("list", text, _parts([pieces[0] + sign + pieces[1] for sign in "+-"], depth))


def _based(text: str, depth: int) -> Value | None:
    match = _BASED.fullmatch(text)
    if match is None:
        return None
    return Value("based", match.group(1).lstrip("0") or "0", shape=str(match.group(2) or match.group(3)))
