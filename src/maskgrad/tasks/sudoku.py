"""4x4 Sudoku: endless puzzles with one solution, split by solved grid, or a test set from a file."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from maskgrad.errors import UserError
from maskgrad.tasks.answers import EXTRACTOR, final_answer, tagged_answer
from maskgrad.tasks.base import Example, Grade, Task, require_index, require_split, short_hash
from maskgrad.tasks.compat import COMPAT, compat_grade
from maskgrad.tasks.draws import keyed_random
from maskgrad.tasks.grids import CELLS, MAX_BLANKS, draw_puzzle, split_grids
from maskgrad.tasks.layout import paid_for_layout
from maskgrad.tasks.prompts import PROTOCOLS, completion_text, sudoku_prompt
from maskgrad.tasks.puzzle_files import checked_solution, load_sudoku_csv
from maskgrad.tasks.settings import choice, layout_weight, optional_path, span, whole
from maskgrad.tasks.sudoku_answer import GRADER, grade_grid

REWARDS = ("cells", "solved", *COMPAT["sudoku"])
REASONING = "Each empty cell takes the digit that its row, column and box still lack."

MOST_DRAWS = 1000
_EXCHANGED = str.maketrans("1234", "2143")


@dataclass(frozen=True, kw_only=True)
class SudokuSettings:
    """Settings of the task.

    prompt: "compact" (16 digits in, 16 digits out; an answer in tags or a box is read too), or "d1" and "tracerl"
    (instructions; the answer stands in its tag), "espo" (the same with one worked grid), "spg" (the same with three
    solved puzzles).
    blanks: fewest and most empty cells of generated puzzles, within 1 to 12.
    reward: "solved" pays 1 for a solved grid, "cells" the share of empty cells that are right; a name such as
    "compat_d1" pays what that release pays, see `tasks/compat.py`.
    seed: chooses the stream of generated puzzles; which grid belongs to which split does not depend on it.
    file: CSV with columns Puzzle and Solution, served as the test split. Its puzzles are never generated for the other
    splits, its solutions may be: with only 288 grids a foreign test set usually shares some with training.
    format_weight: added to the reward for the layout of a tagged protocol, see `layout.has_layout`.
    """

    prompt: str = "compact"
    blanks: tuple[int, int] = (8, 12)
    reward: str = "solved"
    seed: int = 0
    file: str | Path | None = None
    format_weight: float = 0.0

    def __post_init__(self) -> None:
        choice("sudoku", "prompt", self.prompt, PROTOCOLS)
        choice("sudoku", "reward", self.reward, REWARDS)
        whole("sudoku", "seed", self.seed, 0)
        object.__setattr__(self, "blanks", span("sudoku", "blanks", self.blanks, 1, MAX_BLANKS))
        weight = layout_weight("sudoku", self.format_weight, self.prompt, PROTOCOLS[1:], self.reward)
        object.__setattr__(self, "format_weight", weight)
        object.__setattr__(self, "file", optional_path("sudoku", "file", self.file))


class SudokuTask(Task):
    """Examples carry the columns `puzzle` and `solution`, 16 digits each."""

    name = "sudoku"
    grader = GRADER
    metrics = ("cell_accuracy",)
    bounded = True
    columns = ("puzzle", "solution")
    aliases = {"Puzzle": "puzzle", "Solution": "solution"}

    def __init__(self, settings: SudokuSettings | None = None) -> None:
        self.settings = settings or SudokuSettings()
        self.pays_in_full = not self.settings.reward.startswith("compat") and not self.settings.format_weight
        self._rows = None if self.settings.file is None else load_sudoku_csv(Path(self.settings.file))
        self._held_out = frozenset(puzzle for puzzle, _ in self._rows or ())

    def size(self, split: str) -> int | None:
        require_split(split)
        return len(self._rows) if split == "test" and self._rows is not None else None

    def example(self, split: str, index: int) -> Example:
        require_index(split, index, self.size(split))
        if split == "test" and self._rows is not None:
            puzzle, solution = self._rows[index]
        else:
            rng = keyed_random("sudoku", self.settings.seed, split, index)
            puzzle, solution = self._draw(rng, split)
        return Example(
            id=f"sudoku/{split}/{index}",
            prompt=sudoku_prompt(self.settings.prompt, puzzle),
            columns={"puzzle": puzzle, "solution": solution},
        )

    def _draw(self, rng: random.Random, split: str) -> tuple[str, str]:
        """A puzzle of the split that is not in the test file, and its solution."""
        for _ in range(MOST_DRAWS):
            puzzle, solution = draw_puzzle(rng, split_grids(split), self.settings.blanks)
            if puzzle not in self._held_out:
                return puzzle, solution
        raise UserError(f"task sudoku: {self.settings.file} holds nearly all {split} puzzles; widen blanks")

    def from_row(self, row: Mapping[str, Any], where: str = "row") -> Example:
        """Puzzle and solution are checked like those of a file; lost leading zeros of the puzzle are put back."""
        found = super().from_row(row, where)
        puzzle = str(found.columns["puzzle"]).strip().zfill(CELLS)
        solution = checked_solution(where, puzzle, str(found.columns["solution"]))
        return replace(found, columns={"puzzle": puzzle, "solution": solution})

    def target(self, example: Example, index: int = 0) -> str:
        """The stored solution in the protocol's form; there is only one, so `index` changes nothing."""
        return completion_text(self.settings.prompt, example.columns["solution"], REASONING)

    def wrong_mode_target(self, example: Example) -> str:
        """A consistent wrong completion: in the empty cells 1 and 2 trade places, and so do 3 and 4."""
        puzzle, solution = example.columns["puzzle"], example.columns["solution"]
        wrong = solution.translate(_EXCHANGED)
        cells = "".join(w if clue == "0" else clue for clue, w in zip(puzzle, wrong, strict=True))
        return completion_text(self.settings.prompt, cells, REASONING)

    def grade(self, example: Example, completion: str) -> Grade:
        answer = final_answer(completion) if self.settings.prompt == "compact" else tagged_answer(completion)
        columns, reward = example.columns, self.settings.reward
        strict = grade_grid(columns["puzzle"], columns["solution"], answer, pay_cells=reward == "cells")
        if reward in ("cells", "solved"):
            return paid_for_layout(strict, completion, self.settings.format_weight)
        return compat_grade("sudoku", reward, completion, columns, strict)

    def hash(self) -> str:
        settings = self.settings
        prompt = sudoku_prompt(settings.prompt, "0" * 16)
        return short_hash(
            prompt,
            GRADER,
            EXTRACTOR,
            settings.reward,
            settings.format_weight,
            settings.blanks,
            settings.seed,
            self._rows,
        )
