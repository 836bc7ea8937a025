"""Counting how completions fared."""

from __future__ import annotations

from collections.abc import Sequence

from maskgrad.tasks.base import Grade

#: Outcomes that say something about the grading, nothing about the answer.
FAILURES = ("timeout", "crash", "infra", "error")


def failures(grades: Sequence[Grade]) -> dict[str, int]:
    """How often grading itself failed, per kind."""
    return {kind: sum(grade.status == kind for grade in grades) for kind in FAILURES}


def statuses(grades: Sequence[Grade]) -> dict[str, int]:
    """Count of every status that occurred."""
    return {s: sum(grade.status == s for grade in grades) for s in sorted({grade.status for grade in grades})}
