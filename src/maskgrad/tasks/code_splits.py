"""Where the code data sets come from, and which rows train, validate and test."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from maskgrad.errors import UserError
from maskgrad.tasks.code_rows import CodeRow
from maskgrad.tasks.contamination import known_test_of

VALIDATION_SHARE = 0.1  # of a training set, as published for KodCode


@dataclass(frozen=True)
class Source:
    """A data set on the hub. `trains` says whether its rows are for training; the others are test sets.

    "code" has none: it serves problems of the user's own, in MBPP's columns.
    """

    hub: str
    config: str | None
    split: str
    trains: bool = False


SOURCES = {
    "code": Source("", None, "", trains=True),
    "mbpp": Source("google-research-datasets/mbpp", "sanitized", "test"),
    "humaneval": Source("openai/openai_humaneval", None, "test"),
    "kodcode": Source("KodCode/KodCode-Light-RL-10K", None, "train", trains=True),
}


def hub_rows(name: str) -> Iterable[Mapping[str, Any]]:
    """Rows from the hub through the `datasets` library; UserError when that is absent or cannot reach them."""
    source = SOURCES[name]
    if not source.hub:
        raise UserError(f"task {name} is for problems of your own: give file=PATH (JSON lines with prompt, test, code)")
    try:
        library = importlib.import_module("datasets")
    except ImportError:
        raise UserError(
            f"task {name} needs its data: give file=PATH (JSON lines), or pip install datasets to load {source.hub}"
        ) from None
    try:
        rows: Iterable[Mapping[str, Any]] = library.load_dataset(source.hub, source.config, split=source.split)
    except Exception as error:  # network, cache and format errors of a foreign library
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"task {name}: {source.hub} cannot be loaded ({type(error).__name__}: {reason}): give file=PATH instead"
        ) from error
    return rows


def without_test_rows(rows: Sequence[CodeRow], where: str) -> list[CodeRow]:
    """Rows of a training set that are no problems of a known test set. UserError if half of them or more are."""
    tests = [known_test_of(row.question, " ".join(row.tests.tests)) for row in rows]
    found = [test for test in tests if test]
    if 2 * len(found) >= len(rows):
        raise UserError(
            f"{where} holds {len(found)} problems of the test set {found[0]} in {len(rows)} rows; do not train on it "
            f"(task {found[0].partition('_')[0]} serves it as test data)"
        )
    return [row for row, test in zip(rows, tests, strict=True) if not test]


def split_rows(name: str, rows: Sequence[CodeRow], seed: int) -> dict[str, Sequence[CodeRow]]:
    """Rows by split. A test set serves "test" alone; a training set gives a tenth, by content and seed, to validation.

    Rows with the same question always share a split.
    """
    if not SOURCES[name].trains:
        return {"train": (), "validation": (), "test": rows}
    held = [row for row in rows if _share(row.question, seed) < VALIDATION_SHARE]
    kept = [row for row in rows if _share(row.question, seed) >= VALIDATION_SHARE]
    return {"train": kept, "validation": held, "test": ()}


def _share(question: str, seed: int) -> float:
    digest = hashlib.blake2b(f"{seed}:{' '.join(question.split())}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64
