"""Reading data sets of problems with gold answers: a local file first, else a data set of the hub.

Formats that hold data only (JSON lines, JSON, CSV, parquet) are read; scripts never run. Every row is checked. A file
that lacks its columns stops loading; single rows without a usable problem or gold answer are dropped and counted.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from maskgrad.errors import UserError
from maskgrad.tasks.puzzle_files import read_text

SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")


@dataclass(frozen=True)
class Problem:
    """One row: the problem text, the gold as the data state it, and an id that is unique within its source."""

    id: str
    text: str
    gold: str


@dataclass
class ProblemSet:
    """Rows in file order; `dropped` counts what was left out, by reason."""

    problems: list[Problem]
    dropped: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class HubSource:
    """A data set of the hub by its full name, with configuration and split."""

    repo: str
    split: str
    config: str | None = None


@dataclass(frozen=True)
class Columns:
    """Names a column may have, in order of preference. A gold is text or a number."""

    problem: tuple[str, ...]
    gold: tuple[str, ...]


def load_problems(source: Path | HubSource, columns: Columns, gold_problem: Callable[[str], str]) -> ProblemSet:
    """Rows of a file or hub data set.

    `gold_problem` says why a gold answer cannot be used (empty if it can); such rows are dropped and counted, as are
    rows whose problem is missing or repeated. UserError for a missing file or column, a bad line, no network, and no
    usable rows.
    """
    name = str(source) if isinstance(source, Path) else source.repo
    rows = _file_rows(source) if isinstance(source, Path) else _hub_rows(source)
    found = ProblemSet([])
    seen: set[str] = set()
    for number, row in enumerate(rows):
        if number == 0:
            problem_key = _column(name, row, columns.problem)
            gold_key = _column(name, row, columns.gold)
        text, gold = _text(row.get(problem_key)), _text(row.get(gold_key))
        reason = _row_problem(text, gold, seen) or gold_problem(gold)
        if reason:
            found.dropped[reason] += 1
            continue
        seen.add(text)
        found.problems.append(Problem(str(row.get("id", row.get("unique_id", number))), text, gold))
    if not found.problems:
        lost = "; ".join(f"{count} dropped: {reason}" for reason, count in found.dropped.items())
        raise UserError(f"{name} holds no usable problems{f' ({lost})' if lost else ''}")
    return found


def _row_problem(text: str, gold: str, seen: set[str]) -> str:
    if not text:
        return "no problem text"
    if not gold:
        return "no gold answer"
    return "the problem was there before" if text in seen else ""


def _text(value: object) -> str:
    """Text of a cell; whole floats lose their `.0`, other kinds count as missing."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return ""
    return str(int(value)) if float(value).is_integer() else str(value)


def _column(name: str, row: Mapping[str, Any], wanted: Sequence[str]) -> str:
    for key in wanted:
        if key in row:
            return key
    raise UserError(
        f"{name} lacks a column {' or '.join(map(repr, wanted))}; found {', '.join(map(str, row)) or 'none'}"
    )


def _file_rows(path: Path) -> Iterable[Mapping[str, Any]]:
    if path.is_dir():
        raise UserError(f"{path} is a folder; pass one file ({', '.join(SUFFIXES)})")
    if path.suffix not in SUFFIXES:
        raise UserError(f"{path} has no known format; pass a file that ends in {', '.join(SUFFIXES)}")
    if path.suffix == ".parquet":
        return _parquet_rows(path)
    text = read_text(path)
    if path.suffix == ".csv":
        return list(csv.DictReader(io.StringIO(text, newline="")))
    if path.suffix == ".json":
        rows = _json(str(path), text)
        if not isinstance(rows, list):
            raise UserError(f"{path} must hold a list of rows, not {type(rows).__name__}")
        return [_dict(f"{path}, row {number}", row) for number, row in enumerate(rows, start=1)]
    return [
        _dict(where, _json(where, line))
        for where, line in ((f"{path}, line {number}", line) for number, line in enumerate(text.split("\n"), start=1))
        if line.strip()
    ]


def _json(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"{where}: not JSON ({error})") from error


def _dict(where: str, row: object) -> Mapping[str, Any]:
    if not isinstance(row, dict):
        raise UserError(f"{where}: a row must be a JSON object, not {type(row).__name__}")
    return row


def _parquet_rows(path: Path) -> Iterable[Mapping[str, Any]]:
    if importlib.util.find_spec("pyarrow") is None:
        raise UserError(f"reading {path} needs pyarrow: pip install 'maskgrad[data]', or convert the file to .jsonl")
    import pyarrow
    import pyarrow.parquet

    if not path.exists():
        raise UserError(f"cannot read {path}: no such file")
    try:
        rows: list[Mapping[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    return rows


def _hub_rows(source: HubSource) -> Iterable[Mapping[str, Any]]:
    if importlib.util.find_spec("datasets") is None:
        raise UserError(
            f"{source.repo} is a data set of the hub: pip install 'maskgrad[data]', or pass a local file with `file` "
            "or `train_file`"
        )
    import datasets

    try:
        return datasets.load_dataset(source.repo, source.config, split=source.split)  # type: ignore[no-any-return]
    except (RuntimeError, ValueError, OSError) as error:
        raise UserError(_hub_problem(source, error)) from error


def _hub_problem(source: HubSource, error: Exception) -> str:
    """One sentence for what the data-set library raises: a script-only data set, an unknown name, or no network."""
    text = f"{type(error).__name__}: {error}"
    if "script" in text.lower() or "trust_remote_code" in text:
        return f"{source.repo} is made by a script, which is never run; pass its rows as a local file instead"
    if "NotFound" in text or "doesn't exist" in text:
        return f"there is no data set {source.repo!r} (split {source.split}) on the hub; pass a local file instead"
    return (
        f"cannot load {source.repo} (is there a network?): {text[:200]}; pass a local file with `file` or `train_file`"
    )
