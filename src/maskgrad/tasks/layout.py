"""The format part of a reward: whether a completion has the layout that a tagged protocol asks for."""

from __future__ import annotations

import re
from dataclasses import replace

from maskgrad.tasks.base import Grade

_LAYOUT = re.compile(r"\s*<reasoning>.*</reasoning>\s*<answer>(.*)</answer>\s*", re.DOTALL)
_TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")


def has_layout(completion: str) -> bool:
    """Whether all four tags stand there exactly once and in order, nothing but space around them, the answer not
    empty. Text inside the tags may have many lines.
    """
    if any(completion.count(tag) != 1 for tag in _TAGS):
        return False
    match = _LAYOUT.fullmatch(completion)
    return match is not None and bool(match.group(1).strip())


def paid_for_layout(grade: Grade, completion: str, weight: float) -> Grade:
    """The grade with `weight` added to its reward where the layout is kept, and the part `format` (1 or 0) beside it.

    With weight 0, and for a row without reward, the grade is left as it is. `correct` never depends on the layout.
    """
    if weight == 0.0 or grade.reward is None:
        return grade
    kept = float(has_layout(completion))
    return replace(grade, reward=grade.reward + weight * kept, parts={**grade.parts, "format": kept})
