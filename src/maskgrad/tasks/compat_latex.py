r"""The string comparison of MATH answers used by d1, wd1, SPG and EGSPO, faults included.

The rules are those of the public MATH comparison (Hendrycks et al., arXiv 2103.03874): both sides are rewritten by
fixed string substitutions and compared as text. Nothing here is used by the strict grader; see `math_equal.py`.
"""

from __future__ import annotations

import re

_FIRST = (
    ("\n", ""),
    ("\\!", ""),
    ("\\\\", "\\"),
    ("tfrac", "frac"),
    ("dfrac", "frac"),
    ("\\left", ""),
    ("\\right", ""),
    ("^{\\circ}", ""),
    ("^\\circ", ""),
    ("\\$", ""),
)
_THEN = (("\\%", ""), (" .", " 0."), ("{.", "{0."))
MAX_LENGTH = 20_000


class CompatFailure(ValueError):
    """The released code raises here; its caller then falls back."""


def last_boxed(text: str) -> str | None:
    r"""The last `\boxed` or `\fbox` with its macro, as released: None without one or when braces never balance.

    A `\boxed` followed by a space anywhere takes precedence: all text after the last such macro, up to a dollar.
    """
    if "\\boxed " in text:
        return "\\boxed " + text.split("\\boxed ")[-1].split("$")[0]
    start = text.rfind("\\boxed")
    if start < 0:
        start = text.rfind("\\fbox")
    if start < 0:
        return None
    depth = 0
    for match in re.compile("[{}]").finditer(text, start):
        depth += 1 if match.group() == "{" else -1
        if depth == 0:
            return text[start : match.end()]
    return None


def unboxed(boxed: str | None) -> str:
    r"""Content of what `last_boxed` found. CompatFailure for nothing, and for `\fbox`, which it does not know."""
    if boxed is None:
        raise CompatFailure("no box")
    if "\\boxed " in boxed:
        if not boxed.startswith("\\boxed "):
            raise CompatFailure("the box does not come first")
        return boxed[len("\\boxed ") :]
    if not boxed.startswith("\\boxed{") or not boxed.endswith("}"):
        raise CompatFailure("not a braced box")
    return boxed[len("\\boxed{") : -1]


def strings_equal(first: str | None, second: str | None) -> bool:
    """Whether the rewritten texts agree; where rewriting fails the raw texts are compared. Two Nones are equal."""
    if first is None or second is None:
        return first is second
    try:
        return rewritten(first) == rewritten(second)
    except CompatFailure:
        return first == second


def rewritten(text: str) -> str:
    """The text after all substitutions, in the released order."""
    if len(text) > MAX_LENGTH:
        raise CompatFailure("too long")
    for old, new in _FIRST:
        text = text.replace(old, new)
    text = _without_right_unit(text)
    for old, new in _THEN:
        text = text.replace(old, new)
    if not text:
        return text
    if text[0] == ".":
        text = "0" + text
    sides = text.split("=")
    if len(sides) == 2 and len(sides[0]) <= 2:
        text = sides[1]
    text = _braced_fractions(_braced_roots(text).replace(" ", ""))
    return _slash_fraction("\\frac{1}{2}" if text == "0.5" else text)


def _without_right_unit(text: str) -> str:
    """Text before a unit written as `\\text{ unit}`; several such marks are a failure."""
    if "\\text{ " not in text:
        return text
    parts = text.split("\\text{ ")
    if len(parts) != 2:
        raise CompatFailure("two units")
    return parts[0]


def _braced_roots(text: str) -> str:
    """`\\sqrt3` becomes `\\sqrt{3}`."""
    if "\\sqrt" not in text:
        return text
    first, *rest = text.split("\\sqrt")
    done = first
    for part in rest:
        if not part:
            raise CompatFailure("a root of nothing")
        done += "\\sqrt" + (part if part[0] == "{" else "{" + part[0] + "}" + part[1:])
    return done


def _braced_fractions(text: str) -> str:
    """`\\frac12` becomes `\\frac{1}{2}`, `\\frac1{72}` becomes `\\frac{1}{72}`; a lone digit after it leaves all as
    it was.
    """
    first, *rest = text.split("\\frac")
    done = first
    for part in rest:
        done += "\\frac"
        if not part:
            raise CompatFailure("a fraction of nothing")
        if part[0] == "{":
            done += part
            continue
        if len(part) < 2:
            return text
        above, below, tail = part[0], part[1], part[2:]
        done += "{" + above + "}" + (below + tail if below == "{" else "{" + below + "}" + tail)
    return done


def _slash_fraction(text: str) -> str:
    """`3/4` of two plain integers becomes `\\frac{3}{4}`."""
    sides = text.split("/")
    if len(sides) != 2 or not all(_is_int(side) for side in sides):
        return text
    above, below = (int(side) for side in sides)
    return f"\\frac{{{above}}}{{{below}}}" if text == f"{above}/{below}" else text


def _is_int(text: str) -> bool:
    return re.fullmatch(r"\s*[+-]?\d{1,4000}(?:_\d+)*\s*", text) is not None
