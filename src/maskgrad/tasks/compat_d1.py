"""Training rewards of d1 (arXiv 2504.12216), kept by wd1 (2507.08838), SPG (2510.09541) and EGSPO (2603.12554),
faults included.

Each function takes the completion and what the data set gives, and returns the released score. They exist so that
published curves can be repeated; the strict graders stand beside them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from maskgrad.tasks.compat_arithmetic import Refused, reaches, uses_all, uses_some
from maskgrad.tasks.compat_latex import CompatFailure, last_boxed, strings_equal, unboxed

_STRICT = re.compile(r"^<reasoning>\n.*?\n</reasoning>\n<answer>\n.*?\n</answer>\n$")
_SOFT = re.compile(r"<reasoning>.*?</reasoning>\s*<answer>.*?</answer>")
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def tag_text(completion: str) -> str:
    """Text after the last opening answer tag up to its end, the whole text without one."""
    return completion.split("<answer>")[-1].split("</answer>")[0].strip()


def last_closed_tag(completion: str) -> str | None:
    """Content of the last `<answer>...</answer>` read from the left, None without one."""
    found = _ANSWER.findall(completion)
    return str(found[-1]).strip() if found else None


def xml_count(completion: str, last_marker: str = "\n</answer>\n") -> float:
    """Layout score of at most 0.5, less a thousandth per character behind the answer; it may be negative.

    `last_marker` is where the text is split to count what follows. SPG splits at the opening answer tag.
    """
    score = 0.0
    if completion.count("<reasoning>\n") == 1:
        score += 0.125
    if completion.count("\n</reasoning>\n") == 1:
        score += 0.125
    if completion.count("\n<answer>\n") == 1:
        score += 0.125 - len(completion.split(last_marker)[-1]) * 0.001
    if completion.count("\n</answer>") == 1:
        score += 0.125 - (len(completion.split("\n</answer>")[-1]) - 1) * 0.001
    return score


def gsm8k_parts(completion: str, gold: str, last_marker: str = "\n</answer>\n") -> dict[str, float]:
    """The five parts of the GSM8K reward; their sum is the reward (at most 4.0)."""
    answer = tag_text(completion)
    return {
        "correctness": 2.0 if answer == gold else 0.0,
        "integer": 0.5 if answer.isdigit() else 0.0,
        "strict_layout": 0.5 if _STRICT.match(completion) else 0.0,
        "soft_layout": 0.5 if _SOFT.match(completion) else 0.0,
        "xml_count": xml_count(completion, last_marker),
    }


def spg_gsm8k_parts(completion: str, gold: str) -> dict[str, float]:
    """As d1, with SPG's marker."""
    return gsm8k_parts(completion, gold, "\n<answer>\n")


def math_parts(completion: str, gold: str) -> dict[str, float]:
    r"""Correctness 2.0 by string comparison of the last boxes (whole text where there is none), and the format part.

    The format part is 0.75 with answer tags and 0.25 without: the released test for a box looks for a backspace
    character, so the intended 1.0 and 0.5 are never paid.
    """
    return {
        "correctness": 2.0 if strings_equal(boxed_or_whole(completion), boxed_or_whole(gold)) else 0.0,
        "format": 0.75 if "<answer>" in completion and "</answer>" in completion else 0.25,
    }


def boxed_or_whole(text: str) -> str:
    """Content of the last box, the whole text where the released code finds none."""
    try:
        return unboxed(last_boxed(text))
    except CompatFailure:
        return text


def countdown_score(
    completion: str, numbers: Sequence[int], target: int, *, subset: bool = False, tagged: str | None = None
) -> float:
    """0 without a closed answer tag, 1 for a value within 1e-5 of the target, else 0.1.

    With `subset` (StableDRL, arXiv 2603.06743) not every number has to be used. `tagged` replaces the tag's content.
    """
    answer = last_closed_tag(completion) if tagged is None else tagged
    if answer is None:
        return 0.0
    uses: Callable[[str, Sequence[int]], bool] = uses_some if subset else uses_all
    try:
        legal = uses(answer, numbers)
    except Refused:
        return 0.1
    return 1.0 if legal and reaches(answer, target, 1e-5) else 0.1


def tinyzero_score(completion: str, numbers: Sequence[int], target: int) -> float:
    """As d1, with the answer tag looked up on the last line only (TinyZero)."""
    return countdown_score(completion.split("\n")[-1], numbers, target)


def sudoku_score(completion: str, puzzle: str, solution: str) -> float:
    """Share of empty cells that match, from all digit characters of the last closed tag, padded with 0 or cut to 16."""
    answer = last_closed_tag(completion)
    digits = "".join(char for char in answer or "" if char.isdigit())
    if not digits:
        return 0.0
    return cell_share(puzzle, solution, digits)


def cell_share(puzzle: str, solution: str, digits: str) -> float:
    """Share of the puzzle's empty cells in which the padded or cut digits equal the solution; 0 without empty cells."""
    cells = digits[:16].ljust(16, "0")
    empty = [place for place, digit in enumerate(puzzle) if digit == "0"]
    return sum(cells[place] == solution[place] for place in empty) / len(empty) if empty else 0.0
