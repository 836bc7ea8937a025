"""Reading and judging a 4x4 Sudoku answer."""

from __future__ import annotations

import functools
import re

from maskgrad.tasks.answers import Extracted
from maskgrad.tasks.base import Grade
from maskgrad.tasks.grids import CELLS, grid_texts

GRADER = "sudoku strict 2"
MAX_TEXT = 2000

_FULL_WIDTH = str.maketrans("０１２３４５６７８９", "0123456789")
_ROW_LABEL = re.compile(r"\b(?:row|r)\s?[1-4]\s?[:.)]", re.IGNORECASE)
_BREAK = re.compile(r"<br\s?/?>|\\\\")
_GRID_RUN = re.compile(r"(?<![0-9A-Za-z])[0-9]{16}(?![0-9A-Za-z])")
_FENCE = re.compile(r"```[a-z]*")
_SEPARATORS = re.compile("[\\s|+_,;:./&$*`'\"\\[\\](){}\u2500-\u257f-]+")


@functools.cache
def _solved_grids() -> frozenset[str]:
    return frozenset(grid_texts())


def read_cells(text: str) -> str | None:
    """The digits of a grid in reading order, or None when the text is not a grid.

    Whitespace, grid lines, brackets, punctuation, code fences and labels such as "Row 1:" are removed; full-width
    digits count as digits. A line with words in it is commentary and left out, unless it holds the only run of 16
    digits and nothing else is left. Any other character makes the text unreadable. The number of digits is not checked
    here.
    """
    if len(text) > MAX_TEXT:
        return None
    plain = _FENCE.sub(" ", _ROW_LABEL.sub(" ", _BREAK.sub("\n", text.translate(_FULL_WIDTH))))
    grid = " ".join(line for line in plain.split("\n") if not any(char.isalpha() for char in line))
    cells = _SEPARATORS.sub("", grid)
    if cells:
        return cells if re.fullmatch("[0-9]+", cells) else None
    runs = _GRID_RUN.findall(plain)
    return runs[0] if len(runs) == 1 else None


def cell_accuracy(puzzle: str, solution: str, cells: str) -> float:
    """Share of originally empty cells that equal the solution; 0 if a clue changed or there are not 16 cells."""
    if len(cells) != CELLS or not keeps_clues(puzzle, cells):
        return 0.0
    empty = [place for place, digit in enumerate(puzzle) if digit == "0"]
    return sum(cells[place] == solution[place] for place in empty) / len(empty)


def keeps_clues(puzzle: str, cells: str) -> bool:
    """Whether every given digit is still in its place."""
    return all(clue in ("0", cell) for clue, cell in zip(puzzle, cells, strict=True))


def grade_grid(puzzle: str, solution: str, answer: Extracted, *, pay_cells: bool) -> Grade:
    """Strict verdict: 16 cells, clues kept, every row, column and box complete.

    Any such grid is right, the stored solution or not, and has cell accuracy 1. The reward is the cell accuracy
    with `pay_cells`, else 1 or 0.
    """
    if answer.status != "ok":
        detail = "answer not closed" if answer.status == "truncated" else "no answer"
        return Grade(reward=0.0, correct=False, status="no_answer", parts={"cell_accuracy": 0.0}, detail=detail)
    cells = read_cells(answer.text)
    problem = _problem(puzzle, cells)
    accuracy = 1.0 if problem is None else cell_accuracy(puzzle, solution, cells or "")
    return Grade(
        reward=accuracy if pay_cells else float(problem is None),
        correct=problem is None,
        status="wrong" if problem else "ok",
        parts={"cell_accuracy": accuracy},
        detail=problem or "",
        extracted=answer.text,
    )


def _problem(puzzle: str, cells: str | None) -> str | None:
    """What is wrong with the answer, None if nothing."""
    if cells is None:
        return "not a grid of digits"
    if len(cells) != CELLS:
        return f"{len(cells)} cells instead of {CELLS}"
    if not keeps_clues(puzzle, cells):
        return "a given digit was changed"
    if set(cells) - set("1234"):
        return "a cell is not 1 to 4"
    return None if cells in _solved_grids() else "a row, column or box repeats a digit"
