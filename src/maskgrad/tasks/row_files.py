"""Rows of the user's own data from a file: JSON lines, a JSON list, or CSV."""

from __future__ import annotations

import csv
import io
import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from maskgrad.errors import UserError

Row = dict[str, Any]

FORMATS = (".jsonl", ".json", ".csv")


def read_text(path: Path) -> str:
    """The file's text without a byte order mark; what cannot be read is a UserError."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start})") from error


def load_rows(
    path: str | Path, columns: Sequence[str] = ("prompt",), readable: Callable[[Row], bool] | None = None
) -> list[Row]:
    """Every row of the file, each with the named columns. CSV values are text.

    `readable` says whether a row's gold answer can be read. Rows where it cannot are left out, because they could
    only ever be paid wrongly, and counted in a warning.

    Refused, with the line where there is one: another format, a row that is no object, a missing column, no rows, and
    a file none of whose answers can be read.
    """
    file = Path(path)
    if file.suffix not in FORMATS:
        raise UserError(f"{file} is no data file of a kind that is read: give one of {', '.join(FORMATS)}")
    rows = {".jsonl": json_lines, ".json": _json_list, ".csv": _csv_rows}[file.suffix](file)
    if not rows:
        raise UserError(f"{file} holds no rows")
    for where, row in rows:
        for column in columns:
            if row.get(column) is None:
                raise UserError(f"{where}: column {column!r} is missing; found {', '.join(map(str, row)) or 'none'}")
    if readable is not None:
        rows = _with_readable_gold(file, rows, readable)
    return [row for _, row in rows]


def _with_readable_gold(
    file: Path, rows: list[tuple[str, Row]], readable: Callable[[Row], bool]
) -> list[tuple[str, Row]]:
    kept = [(where, row) for where, row in rows if readable(row)]
    if not kept:
        raise UserError(f"{file}: none of the {len(rows)} gold answers can be read; check the format of the answers")
    if len(kept) < len(rows):
        first = next(where for where, row in rows if not readable(row))
        count = len(rows) - len(kept)
        warnings.warn(
            f"{count} of {len(rows)} rows dropped, their gold answers cannot be read; first {first}", stacklevel=3
        )
    return kept


def json_lines(file: Path) -> list[tuple[str, Row]]:
    """Place and object of every line that is not blank."""
    lines = enumerate(read_text(file).split("\n"), start=1)
    return [
        (f"{file}, line {number}", _object(f"{file}, line {number}", line)) for number, line in lines if line.strip()
    ]


def _object(where: str, line: str) -> Row:
    row = _parsed(where, line)
    if not isinstance(row, dict):
        raise UserError(f"{where}: {type(row).__name__} instead of an object with named columns")
    return row


def _json_list(file: Path) -> list[tuple[str, Row]]:
    value = _parsed(str(file), read_text(file))
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise UserError(f"{file} is no list of objects: write one object per row, or use .jsonl")
    return [(f"{file}, row {number}", row) for number, row in enumerate(value, start=1)]


def _parsed(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"{where}: not JSON ({error})") from error


def _csv_rows(file: Path) -> list[tuple[str, Row]]:
    reader = csv.DictReader(io.StringIO(read_text(file), newline=""), strict=True)
    rows: list[tuple[str, Row]] = []
    try:
        for row in reader:
            if None in row:
                raise UserError(f"{file}, line {reader.line_num}: more fields than the {len(row) - 1} columns")
            rows.append((f"{file}, line {reader.line_num}", row))
    except csv.Error as error:
        raise UserError(f"{file}, line {reader.line_num}: {error}") from error
    return rows
