"""Reading puzzle files. Every row is checked; a bad one stops loading and is named by its line."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

from maskgrad.errors import UserError
from maskgrad.tasks.grids import CELLS, grid_texts
from maskgrad.tasks.sudoku_answer import keeps_clues

CountdownRow = tuple[tuple[int, ...], int]

MAX_NUMBERS = 6


def read_text(path: Path) -> str:
    """Content of a UTF-8 file; UserError where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start})") from error


def load_sudoku_csv(path: Path) -> tuple[tuple[str, str], ...]:
    """Rows (puzzle, solution) of a CSV with columns Puzzle and Solution.

    A puzzle whose leading zeros were lost is padded back to 16 digits. Refused: a missing file or column, no
    rows, a puzzle that is not 16 digits 0 to 4 with at least one 0, a solution that is no solved grid or changes a
    clue. Puzzles with several solutions are accepted.
    """
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""))
    missing = {"Puzzle", "Solution"} - set(reader.fieldnames or ())
    if missing:
        raise UserError(
            f"{path} lacks column {' and '.join(sorted(missing))}; found {', '.join(reader.fieldnames or ()) or 'none'}"
        )
    rows = []
    try:
        for row in reader:
            puzzle = (row["Puzzle"] or "").strip().zfill(CELLS)
            rows.append((puzzle, _checked_solution(f"{path}, line {reader.line_num}", puzzle, row["Solution"] or "")))
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: {error}") from error
    if not rows:
        raise UserError(f"{path} holds no puzzles")
    return tuple(rows)


def _checked_solution(where: str, puzzle: str, field: str) -> str:
    solution = field.strip()
    if not re.fullmatch("[0-4]{16}", puzzle):
        raise UserError(f"{where}: puzzle {puzzle!r} is not 16 digits from 0 to 4")
    if "0" not in puzzle:
        raise UserError(f"{where}: puzzle {puzzle!r} has no empty cell")
    if not re.fullmatch("[1-4]{16}", solution):
        raise UserError(f"{where}: solution {solution!r} is not 16 digits from 1 to 4")
    if solution not in grid_texts():
        raise UserError(f"{where}: solution {solution!r} repeats a digit in a row, column or box")
    if not keeps_clues(puzzle, solution):
        raise UserError(f"{where}: solution {solution!r} changes a given digit of puzzle {puzzle!r}")
    return solution


def load_countdown_jsonl(path: Path) -> tuple[CountdownRow, ...]:
    """Rows (numbers, target) of a JSON-lines file with `input` like "30,100,93" and `output` like "23".

    Blank lines are skipped. Refused: a missing file, no rows, a line that is no JSON object with both fields as
    text, numbers that are not two to six whole numbers from 0 up, a target that is no whole number.
    """
    rows = [
        _countdown_row(f"{path}, line {number}", line)
        for number, line in enumerate(read_text(path).split("\n"), start=1)
        if line.strip()
    ]
    if not rows:
        raise UserError(f"{path} holds no problems")
    return tuple(rows)


def _countdown_row(where: str, line: str) -> CountdownRow:
    try:
        row = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"{where}: not JSON ({error})") from error
    if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in ("input", "output")):
        raise UserError(f"{where}: needs the text fields 'input' and 'output'")
    numbers = [part.strip() for part in row["input"].split(",")]
    if not all(re.fullmatch("[0-9]{1,9}", part) for part in numbers) or not 2 <= len(numbers) <= MAX_NUMBERS:
        raise UserError(f"{where}: input {row['input']!r} is not two to {MAX_NUMBERS} whole numbers with commas")
    if not re.fullmatch("-?[0-9]{1,9}", row["output"].strip()):
        raise UserError(f"{where}: output {row['output']!r} is not a whole number")
    return tuple(map(int, numbers)), int(row["output"])
