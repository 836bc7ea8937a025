"""The answer parsers of d1's evaluation script (arXiv 2504.12216), which wd1, SPG and EGSPO use, faults included.

Each returns what it takes for the answer; the verdict functions compare it with the gold as released.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from maskgrad.tasks.compat_arithmetic import Refused, reaches, uses_all
from maskgrad.tasks.compat_latex import CompatFailure, last_boxed, strings_equal, unboxed

_BOX = re.compile(r"\\boxed{(.*?)}")
_FIRST_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_NUMBER = re.compile(r"-?\d+\.?\d*")
_EQUATION = re.compile(r"([0-9+\-*/() ]+)=[0-9. ]+")
_LATEX_SIGNS = (("\\div", "/"), ("\\times", "*"), ("\\cdot", "*"))
_GRIDS = (
    re.compile(r"<answer>.*?```\s*([\d\s]+)```", re.DOTALL),
    re.compile(r"<answer>(.*?)(?:<\|eot_id\|>|<\|endoftext\|>|</answer>)", re.DOTALL),
    re.compile(r"</answer>\s*(.*?)(?:<\|eot_id\|>|<\|endoftext\|>|$)", re.DOTALL),
    re.compile(r"(\d{16})\s*</answer>"),
    re.compile(r"\b(\d{16})\b"),
)


def gsm8k_number(text: str, *, last_number: bool = False) -> float | None:
    """The first box whose content starts a number, else the first closed answer tag; SPG adds the text's last
    number.
    """
    for content in _BOX.findall(text):
        content = content.strip()
        if not content or re.fullmatch(r"\.+", content):
            continue
        value = _float(content)
        numbers = _NUMBER.findall(content)
        if value is None and numbers:
            value = _float(numbers[0])
        if value is not None:
            return value
    tag = _FIRST_TAG.search(text)
    value = _tag_number(tag.group(1).strip()) if tag else None
    if value is None and last_number:
        numbers = _NUMBER.findall(text)
        value = _float(numbers[-1]) if numbers else None
    return value


def gold_number(text: str) -> float | None:
    """A gold number, separators removed."""
    return _float(text.replace(",", ""))


def _tag_number(text: str) -> float | None:
    value = _float(text) if text else None
    numbers = _NUMBER.findall(text)
    return _float(numbers[-1]) if value is None and numbers else value


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _box_or_tag(text: str, *, keep_empty: bool) -> str | None:
    """Content of the last box; without any box the whole text; for a damaged box the first closed answer tag, if any.

    An empty box counts as damaged unless `keep_empty`.
    """
    if "\\boxed" not in text and "\\fbox" not in text:
        return text
    tag = _FIRST_TAG.search(text)
    try:
        answer: str | None = unboxed(last_boxed(text))
    except CompatFailure:
        answer = None
    if answer or (answer == "" and keep_empty):
        return answer
    return tag.group(1).strip() if tag else None


def math_text(text: str) -> str | None:
    """What the MATH evaluation compares; None for a damaged box without an answer tag."""
    return _box_or_tag(text, keep_empty=False)


def math_correct(text: str, gold: str) -> bool:
    return strings_equal(math_text(text), gold)


def countdown_text(text: str) -> str:
    """As for MATH, LaTeX signs replaced; what stands before the first `= number` is kept."""
    answer = _box_or_tag(text, keep_empty=True)
    if answer is None:
        answer = text
    for latex, sign in _LATEX_SIGNS:
        answer = answer.replace(latex, sign)
    equation = _EQUATION.search(answer)
    return equation.group(1).strip() if equation else answer


def countdown_correct(text: str, numbers: Sequence[int], target: int) -> bool:
    answer = countdown_text(text)
    try:
        return uses_all(answer, numbers) and reaches(answer, target, 1e-5)
    except Refused:
        return False


def sudoku_digits(text: str) -> str:
    """Digits found by the first of five patterns that matches, padded with 0 or cut to 16; empty if none matches."""
    for pattern in _GRIDS:
        match = pattern.search(text)
        if match and match.group(1).strip():
            digits = re.sub(r"\s", "", match.group(1))
            break
    else:
        return ""
    return digits[:16].ljust(16, "0")
