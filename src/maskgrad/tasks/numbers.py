r"""One reader of numbers for all tasks: text to an exact rational, with its unit and whether it is a percentage.

Read are signs, decimals with a leading or trailing point, thousands separators (comma, thin space, LaTeX `{,}`,
`,\!`, `\,`), currency marks, fractions (`3/4`, `\frac{3}{4}`, `\frac34`), mixed numbers, repeating decimals
(`0.1\overline{6}`), scientific notation, percent and unit words, and "negative" or "minus" in place of a sign. Digits
with spaces between them are one number only where the groups are valid. Full-width digits count as digits, digits of
other scripts do not. Equality of numbers is equality of rationals, never of text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_LENGTH = 300
MAX_DIGITS = 200
MAX_EXPONENT = 100


@dataclass(frozen=True)
class Number:
    """An exact value. `percent` says that a percent sign or word followed; the value is what was written before it."""

    value: Fraction
    unit: str = ""
    percent: bool = False


_CHARACTERS = str.maketrans(
    {
        **{chr(0xFF10 + digit): str(digit) for digit in range(10)},
        "−": "-",
        "–": "-",
        "﹣": "-",
        "－": "-",
        "，": ",",
        "．": ".",
        "％": "%",
        "×": "*",
        **dict.fromkeys("\u00a0\u2002\u2003\u2007\u2008\u2009\u200a\u202f", " "),
    }
)
_SPACES = re.compile(r"(?<!\\)\\[,;:> ]|~|\\(?:quad|qquad|thinspace|medspace)(?![A-Za-z])")
_NOTHING = re.compile(r"\\!|\\(?:displaystyle|left|right|big|Big)(?![A-Za-z])")
_MARKS = (
    ("$$", "$$"),
    ("$", "$"),
    ("\\(", "\\)"),
    ("\\[", "\\]"),
    ("***", "***"),
    ("**", "**"),
    ("*", "*"),
    ("__", "__"),
    ("`", "`"),
)
_TEXT_MACRO = re.compile(r"\\(?:text|mbox|textbf|mathbf|mathrm|textit|textrm|boldsymbol|bf|rm)\s*\{([^{}]*)\}")
_CURRENCY = re.compile(r"^(?:\\?\$|€|£|¥|₹|USD|EUR|GBP|US\$)\s*", re.IGNORECASE)
_PERCENT = re.compile(r"\s*(?:\\?%|\bper\s?cent\b|\bpercent\b)\s*$", re.IGNORECASE)
_GROUPED = r"[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,3}(?: [0-9]{3})+|[0-9]+"
_DECIMAL = rf"(?:(?:{_GROUPED})(?:\.[0-9]*)?|\.[0-9]+)"
_FRACTION = (
    rf"\\[dtc]?frac\s*(?:\{{\s*(?P<fa>-?\s*{_DECIMAL})\s*\}}|(?P<fb>[0-9]))"
    rf"\s*(?:\{{\s*(?P<fc>-?\s*{_DECIMAL})\s*\}}|(?P<fd>[0-9]))"
)
_CORE = re.compile(
    rf"(?P<whole>{_DECIMAL})?\s*(?:{_FRACTION})"
    rf"|(?P<mixed>[0-9]+)(?:\s+|\s+and\s+)(?P<ma>[0-9]+)\s*/\s*(?P<mb>[0-9]+)"
    rf"|(?P<sa>{_DECIMAL})\s*/\s*(?P<sb>{_DECIMAL})"
    rf"|(?P<plain>{_DECIMAL})(?:\s*(?:[eE](?P<ea>[+-]?[0-9]{{1,4}})|(?:\*|\\times|\\cdot|x)\s*10\s*(?:\^|\*\*)\s*"
    r"(?:\{\s*(?P<eb>[+-]?[0-9]{1,4})\s*\}|\(?(?P<ec>[+-]?[0-9]{1,4})\)?)))?"
)
_DEGREES = re.compile(r"\s*(?:\^\s*\{?\s*\\circ\s*\}?|°|\\degree)\s*")
_UNIT = re.compile(
    r"[A-Za-z][A-Za-z.'’]*(?:\s*(?:\^\s*\{?[0-9]\}?|²|³))?(?:[\s/·-]+[A-Za-z][A-Za-z.'’]*(?:\s*(?:\^\s*\{?[0-9]\}?|²|³))?)*"
)
_REPEATING = re.compile(r"([0-9]*)\.([0-9]*)\\overline\s*\{\s*([0-9]{1,40})\s*\}")
_SIMPLE = re.compile(r"-?(?:[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)(?:\.[0-9]+)?")
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_SHORT_UNITS = frozenset([
    "m", "g", "s", "h", "l", "mm", "cm", "dm", "km", "mg", "kg", "ml", "cl", "dl", "lb", "lbs", "oz", "ft",
    "in", "mi", "yd", "yr", "mph", "kph", "min", "hr", "hrs", "sec", "am", "pm"
])  # fmt: skip
_NOT_UNITS = frozenset([
    "and", "or", "to", "by", "pi", "sqrt", "sin", "cos", "tan", "log", "ln", "exp", "mod", "i", "e", "x",
    "y", "z", "n", "over", "times", "plus", "minus", "not", "is", "are", "frac", "if", "no"
])  # fmt: skip


def plain_text(text: str) -> str:
    r"""Text with typographic characters mapped, LaTeX spacing and text macros resolved, and marks around it removed."""
    text = _NOTHING.sub("", text.translate(_CHARACTERS))
    text = _SPACES.sub(" ", text.replace("{,}", ",")).strip()
    text = _TEXT_MACRO.sub(lambda match: f" {match.group(1)} ", text).strip()
    text = re.sub(r"(?<=[0-9]),\s(?=[0-9]{3}(?![0-9]))", ", ", text)
    for _ in range(4):
        bare = _without_marks(text.rstrip(" .,;:").strip() if not re.fullmatch(r"\.*", text) else "")
        if bare == text:
            break
        text = bare
    return text


def _without_marks(text: str) -> str:
    for opening, closing in _MARKS:
        inner = text[len(opening) : -len(closing)]
        if (
            len(text) > len(opening + closing)
            and text.startswith(opening)
            and text.endswith(closing)
            and opening not in inner
        ):
            return inner.strip()
    return text


def read_number(text: str) -> Number | None:
    """The number that the whole text states, or None: for words, lists, expressions and more than 300 characters."""
    if len(text) > MAX_LENGTH:
        return None
    if _SIMPLE.fullmatch(text):
        value = decimal(text)
        return None if value is None else Number(value)
    # A thin space after a LaTeX comma belongs to the separator: the group continues.
    rest = plain_text(re.sub(r",\\!\s*", ",", text))
    while len(rest) > 2 and rest[0] in "({" and rest[-1] in ")}" and not re.search(r"[(){}]", rest[1:-1]):
        rest = rest[1:-1].strip()
    return _read_plain(rest)


def _read_plain(rest: str) -> Number | None:
    negative, rest = _sign(rest)
    repeating = _REPEATING.fullmatch(rest)
    if repeating:
        value = _repeating(*repeating.groups())
        return None if value is None else Number(-value if negative else value)
    match = _CORE.match(rest)
    if match is None or not match.group():
        return None
    value = _value(match)
    if value is None:
        return None
    tail = rest[match.end() :]
    percent = _PERCENT.search(tail)
    if percent:
        tail = tail[: percent.start()]
    unit = _unit(tail, spaced=tail[:1].isspace())
    if unit is None:
        return None
    word = unit.split(" ")[0].lower()
    return Number((-value if negative else value) * _SCALES.get(word, 1), unit, bool(percent))


def _sign(text: str) -> tuple[bool, str]:
    """Sign and currency mark in either order, taken off the front."""
    text, negative = _NEGATIVE_WORD.sub("-", text), False
    for _ in range(2):
        text = _CURRENCY.sub("", text)
        if text[:1] in ("-", "+"):
            if negative:
                return False, ""
            negative = text[0] == "-"
            text = text[1:].lstrip()
    return negative, text


def _value(match: re.Match[str]) -> Fraction | None:
    """Value of a matched core; None for a division by zero and beyond the bounds on digits."""
    part = match.groupdict()
    above, below = (
        part["fa"] or part["fb"] or part["ma"] or part["sa"],
        part["fc"] or part["fd"] or part["mb"] or part["sb"],
    )
    lead = part["whole"] or part["mixed"]
    if above is None:
        exponent = int(part["ea"] or part["eb"] or part["ec"] or 0)
        plain = decimal(part["plain"])
        return None if plain is None or abs(exponent) > MAX_EXPONENT else plain * Fraction(10) ** exponent
    numerator, denominator = decimal(above), decimal(below)
    if numerator is None or not denominator:
        return None
    fraction = numerator / denominator
    if lead is None:
        return fraction
    whole = decimal(lead)
    if whole is None or whole.denominator != 1 or not fraction >= 0:
        return None
    return whole + fraction


def _repeating(whole: str, fixed: str, period: str) -> Fraction | None:
    """Value of a decimal whose period has a bar over it."""
    start = decimal(f"{whole}.{fixed}")
    return None if start is None else start + Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(fixed))


def decimal(text: str | None) -> Fraction | None:
    """Digits with valid separators and at most one point, as a rational; None beyond 200 digits."""
    plain = re.sub(r"[ ,]", "", text or "")
    if not plain or len(plain) > MAX_DIGITS:
        return None
    negative, plain = plain.startswith("-"), plain.lstrip("-")
    whole, _, part = plain.partition(".")
    value = Fraction(int((whole + part) or "0"), 10 ** len(part))
    return -value if negative else value


def _unit(tail: str, *, spaced: bool) -> str | None:
    """The unit words after a number, empty for none; None if what follows is not a unit (a variable, more
    mathematics).
    """
    degrees = _DEGREES.match(tail)
    if degrees:
        tail = tail[degrees.end() :]
        mark = "degrees"
    else:
        mark = ""
    tail = tail.strip().rstrip(".")
    if tail.startswith("/"):
        tail, spaced = tail[1:].lstrip(), False
    if not tail:
        return mark
    if not _UNIT.fullmatch(tail):
        return None
    words = re.findall(r"[A-Za-z]+", tail.lower())
    if any(word in _NOT_UNITS for word in words[:1]) or (
        not spaced and words[0] not in _SHORT_UNITS and len(words[0]) < 3
    ):
        return None
    if any(len(word) < 3 and word not in _SHORT_UNITS for word in words[:1]):
        return None
    return tail


_IN_PROSE = re.compile(
    rf"{_FRACTION.replace('(?P<f', '(?P<p')}|(?<![0-9A-Za-z.]){_DECIMAL}(?:\s*/\s*[0-9]+(?![0-9,.]*[A-Za-z]))?"
)
_BEFORE = re.compile(r"(?P<term>[\w)\]}]?)(?P<gap>\s*)-(?P<space>\s*)(?:\\?[$€£])?\s*$")
_NEGATIVE_WORD = re.compile(r"^(?:negative|minus)\s+", re.IGNORECASE)
_NEGATIVE_BEFORE = re.compile(r"\bnegative\s+(?:\\?[$€£])?\s*$", re.IGNORECASE)
_REACH = 120  # characters looked at before the last digit


def last_number(text: str) -> Number | None:
    """The last number in running text. A minus sign belongs to it unless it stands between two terms."""
    end = max((text.rfind(digit) for digit in "0123456789"), default=-1) + 1
    if not end:
        return None
    flat = re.sub(r",\\!\s*", ",", text[max(0, end - _REACH) : end + 8]).translate(_CHARACTERS)
    flat = _NOTHING.sub("", flat.replace("{,}", ","))
    found = list(_IN_PROSE.finditer(flat))
    if found and found[-1].start() == 0 and end > _REACH:
        return None  # a run of digits longer than what is looked at
    number = _read_plain(found[-1].group().strip().rstrip(",")) if found else None
    if number is None:
        return None
    percent = re.match(r"\s*(?:\\?%|percent\b)", flat[found[-1].end() :]) is not None
    lead = flat[: found[-1].start()]
    before = _BEFORE.search(lead)
    minus = before is not None and (not before["term"] or (bool(before["gap"]) and not before["space"]))
    minus = minus or _NEGATIVE_BEFORE.search(lead) is not None
    return Number(-number.value if minus else number.value, "", percent)
