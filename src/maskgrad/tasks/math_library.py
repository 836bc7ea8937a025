"""The door to Math-Verify: loaded on first use, called without its alarm clocks, and only with text of bounded size.

Math-Verify limits its own running time with SIGALRM, which works in a main thread only. Its clocks are therefore off
here; whoever needs a limit on time runs the caller in a worker process.
"""

from __future__ import annotations

import functools
import logging
import re
from typing import Any

MAX_LENGTH = 10_000
MAX_DIGITS = 60
MAX_EXPONENT = 2_000
MAX_NESTING = 100

_LONG_NUMBER = re.compile(rf"\d{{{MAX_DIGITS + 1}}}")
_TOWER = re.compile(r"(?:\^|\*\*)\s*[{(]?\s*-?[\w.]+\s*[})]?\s*(?:\^|\*\*)|(?:\^|\*\*)\s*[{(][^})]{0,60}(?:\^|\*\*)")
_EXPONENT = re.compile(r"(?:\^|\*\*)\s*[{(]?\s*-?(\d+)")
_FACTORIAL = re.compile(r"(\d+|\))\s*!")
_MAX_FACTORIAL = 200


class LibraryError(RuntimeError):
    """Math-Verify raised; the message holds the kind and text of its exception."""


def too_large(text: str) -> str:
    """Why the text must not reach the library; empty when it may.

    Refused are towers of powers, exponents above 2,000, factorials above 200 or of a bracket, numbers of more than 60
    digits, more than 100 nested brackets, and text of more than 10,000 characters.
    """
    if len(text) > MAX_LENGTH:
        return f"longer than {MAX_LENGTH} characters"
    if _LONG_NUMBER.search(text):
        return f"a number of more than {MAX_DIGITS} digits"
    if any(len(found) > 4 or int(found) > MAX_EXPONENT for found in _EXPONENT.findall(text)):
        return f"an exponent above {MAX_EXPONENT}"
    if _TOWER.search(text):
        return "a tower of powers"
    for found in _FACTORIAL.findall(text):
        if found == ")" or len(found) > 4 or int(found) > _MAX_FACTORIAL:
            return f"a factorial above {_MAX_FACTORIAL}"
    return f"brackets nested deeper than {MAX_NESTING}" if _nesting(text) > MAX_NESTING else ""


def _nesting(text: str) -> int:
    depth = deepest = 0
    for match in re.finditer(r"[{(\[]|[})\]]", text):
        depth = depth + 1 if match.group() in "{([" else max(0, depth - 1)
        deepest = max(deepest, depth)
    return deepest


@functools.cache
def _library() -> Any:
    """The package; its log messages about time limits and failed parses are turned off."""
    import math_verify

    for name in ("math_verify", "latex2sympy2_extended"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return math_verify


def version() -> str:
    """Installed version, part of the grader's name."""
    from importlib.metadata import version as installed

    return installed("math-verify")


def parsed(text: str) -> list[Any]:
    """What the library finds in a text: expressions first, the text it read last; empty if it finds nothing."""
    return list(_guarded(lambda: _library().parse(text, parsing_timeout=None)))


def verified(*, gold: list[Any], answer: list[Any]) -> bool:
    """The library's verdict on two results of `parsed`. It is not symmetric: see its `gold` and `target`."""
    return bool(_guarded(lambda: _library().verify(gold, answer, timeout_seconds=None)))


def _guarded(call: Any) -> Any:
    # The library evaluates what a model wrote: any exception of its depths is a verdict here, not a fault of ours.
    try:
        return call()
    except Exception as error:
        raise LibraryError(f"{type(error).__name__}: {error}"[:200]) from error
