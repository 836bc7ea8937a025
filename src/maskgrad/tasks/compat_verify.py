r"""Training rewards of ESPO (arXiv 2512.03759), StableDRL (2603.06743) and TraceRL (2509.06949), faults included.

ESPO pins Math-Verify 0.5.2 and StableDRL names no version; both are computed here with the version installed. 0.5.2
settles on the last of several boxes, later versions do not, so ESPO's text is cut to its last box first. Text that is
too large for the library (see `math_library.too_large`) scores as wrong; the released code may run for ever on it.
"""

from __future__ import annotations

import re

from maskgrad.tasks.answers import last_box
from maskgrad.tasks.math_library import LibraryError, parsed, too_large, verified

_PHRASE = re.compile(r"The answer is (-?[0-9.,]+).")
_HASHES = re.compile(r"#### (-?[0-9.,]+)")
_INTEGER = re.compile(r"-?\d+")
_BOX_TO_FIRST_BRACE = re.compile(r"\\boxed\{[^}]*\}")


def espo_gsm8k(completion: str, gold: str) -> float:
    """1 if the text found equals the gold as a string: the answer phrase, else `####`, else the last integer.

    The phrase pattern demands one more character and gives up the last digit to get it; the last integer splits
    decimals and separators.
    """
    for pattern in (_PHRASE, _HASHES):
        match = pattern.search(completion)
        if match:
            return float(match.group(1) == gold)
    found = _INTEGER.findall(completion)
    return float(bool(found) and found[-1] == gold)


def espo_math(completion: str, gold: str) -> float:
    """1 if the library accepts the gold as an answer to the completion: the arguments are swapped, as released."""
    box = last_box(completion)
    several = len(re.findall(r"\\boxed", completion)) > 1
    text = f"\\boxed{{{box.text}}}" if several and box.status == "ok" else completion
    return float(_library_says(gold=text, answer=gold))


def verify_sign(completion: str, gold: str) -> float:
    """+1 if the library accepts the completion, else -1 (StableDRL, GSM8K and MATH)."""
    return 1.0 if _library_says(gold=gold, answer=completion) else -1.0


def anti_short_box(completion: str) -> float:
    """0 for an empty text, and for fewer than 200 visible characters of which boxes make up more than 15 %; else 1."""
    visible = len("".join(completion.split()))
    if visible == 0:
        return 0.0
    rest = _BOX_TO_FIRST_BRACE.sub("", completion)
    share = len("".join(rest.split())) / visible
    return 0.0 if visible < 200 and share < 0.85 else 1.0


def tracerl_math(completion: str, gold: str) -> float:
    """1 if the last balanced box is accepted. The released rule that near-limit lengths score 0 needs token counts:
    not here.
    """
    box = last_box(completion)
    return float(box.status == "ok" and _library_says(gold=gold, answer=f"\\boxed{{{box.text}}}"))


def _library_says(*, gold: str, answer: str) -> bool:
    if too_large(gold) or too_large(answer):
        return False
    try:
        return verified(gold=parsed(gold), answer=parsed(answer))
    except LibraryError:  # the released callers take an exception for a wrong answer
        return False
