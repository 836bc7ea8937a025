"""Guards against training on test data: known test problems by hash, and problems by normalised text.

The package knows public test sets by hashes of their problems only. A file that consists of such problems is refused;
single test problems in a larger file are removed and counted.
"""

from __future__ import annotations

import functools
import hashlib
import re
import unicodedata
from importlib import resources
from pathlib import Path

from maskgrad.errors import UserError
from maskgrad.tasks.problem_files import Problem, ProblemSet

DIGITS = 12  # hexadecimal digits kept of a hash
_REFUSED_SHARE = 0.5


def normalised(text: str) -> str:
    """Lower-case letters and digits of a problem, without spacing, punctuation and LaTeX dressing."""
    plain = unicodedata.normalize("NFKC", text).lower()
    plain = re.sub(
        r"\\(?:left|right|dfrac|tfrac|displaystyle|text|mbox|[,;:! ])",
        lambda m: "frac" if "frac" in m.group() else "",
        plain,
    )
    return re.sub(r"[^a-z0-9+\-*/^=<>]", "", plain)


def problem_hash(text: str) -> str:
    """Hash by which a problem is recognised whatever its spacing."""
    return hashlib.sha256(normalised(text).encode()).hexdigest()[:DIGITS]


@functools.cache
def known_tests() -> dict[str, str]:
    """Hash of every known test problem to the name of its test set."""
    folder = resources.files("maskgrad") / "assets" / "test_hashes"
    table: dict[str, str] = {}
    for entry in folder.iterdir():
        if entry.name.endswith(".txt"):
            table.update(dict.fromkeys(entry.read_text(encoding="ascii").split(), entry.name.removesuffix(".txt")))
    return table


def refuse_known_file(path: Path) -> None:
    """UserError if the file is a public test set, whatever its name (by the hash of its content)."""
    if not path.is_file():
        return
    digest = hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()
    listed = (resources.files("maskgrad") / "assets" / "test_hashes" / "files.sha256").read_text(encoding="ascii")
    for line in listed.splitlines():
        known, _, name = line.partition(" ")
        if known == digest:
            raise UserError(f"{path} is the public test set {name}: it is there to be tested on, not to train on")


def known_test_of(*texts: str) -> str:
    """Name of the known test set that one of the texts (a problem, or its tests) belongs to; empty if none."""
    known = known_tests()
    return next((known[key] for key in map(problem_hash, texts) if key in known), "")


def without_test_problems(source: str | Path, found: ProblemSet, test: list[Problem]) -> ProblemSet:
    """Training rows less those of known test sets and of `test`, with their number in `dropped`.

    UserError if half of the rows or more are known test problems: then the file is a test set.
    """
    known = known_tests()
    hashes = [problem_hash(problem.text) for problem in found.problems]
    names = [known[key] for key in hashes if key in known]
    if names and len(names) >= _REFUSED_SHARE * len(hashes):
        raise UserError(
            f"{source} holds {len(names)} problems of the test set {names[0]} in {len(hashes)} rows; do not train on it"
        )
    banned = known.keys() | {problem_hash(problem.text) for problem in test}
    kept = [problem for problem, key in zip(found.problems, hashes, strict=True) if key not in banned]
    dropped = found.dropped.copy()
    if len(kept) < len(hashes):
        dropped["a problem of a test set"] += len(hashes) - len(kept)
    return ProblemSet(kept, dropped)


def split_validation(problems: list[Problem], seed: int, count: int) -> tuple[list[Problem], list[Problem]]:
    """Train and validation rows: which is which depends on the problem's text and the seed, not on the row order.

    Validation gets `count` rows, at most a tenth of all.
    """
    keys = sorted(_split_key(problem, seed) for problem in problems)
    held = set(keys[: min(count, len(keys) // 10)])
    train = [problem for problem in problems if _split_key(problem, seed) not in held]
    return train, [problem for problem in problems if _split_key(problem, seed) in held]


def _split_key(problem: Problem, seed: int) -> str:
    return hashlib.sha256(f"{seed}/{normalised(problem.text)}".encode()).hexdigest()
