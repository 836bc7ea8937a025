"""What a task is: examples with a prompt, and a grader for completions. Plain Python, no tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from maskgrad.errors import UserError, nearest

Status = Literal["ok", "wrong", "no_answer", "timeout", "crash", "infra", "error"]
Prompt = str | list[dict[str, Any]]

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, kw_only=True)
class Example:
    """One item of a task.

    `prompt` is the content of the single user turn, or a list of chat messages with `role` and `content`.
    `columns` holds whatever grading needs; reward functions receive each column as a keyword list.
    """

    id: str
    prompt: Prompt
    columns: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Grade:
    """Verdict on one completion.

    `reward` None means abstain: the row leaves the statistics. `correct` is the strict verdict, None when the
    task cannot tell. `parts` holds named numbers beside the reward, `detail` a short reason for reports,
    `extracted` the text that was judged as the answer, None where there was none.
    """

    reward: float | None
    correct: bool | None
    status: Status
    parts: Mapping[str, float] = field(default_factory=dict)
    detail: str = ""
    extracted: str | None = None


class Task(Protocol):
    """A source of examples with a strict grader.

    `metrics` names the entries of `Grade.parts` that evaluation averages beside accuracy. `has_gold` says
    whether `target` can be called. `bounded`: grading any text takes milliseconds and runs no foreign code, so it may
    happen in the caller's process; all others are judged by worker processes. `made_in_worker`: examples are made by
    foreign code, in the worker too. `item_seconds`: limit on grading one completion, None for the general one.
    `pays_in_full`: the gold completion earns exactly 1 (published rewards with other scales do not). `columns` names
    what grading reads from `Example.columns`, `aliases` maps other names these columns have in public data to ours.
    `grader` names the rules of grading and their version. `sandbox`: where foreign code runs, empty if none does.
    """

    name: str
    metrics: tuple[str, ...] = ()
    has_gold: bool = True
    bounded: bool = False
    made_in_worker: bool = False
    item_seconds: float | None = None
    pays_in_full: bool = True
    columns: tuple[str, ...] = ()
    aliases: Mapping[str, str] = {}
    grader: str = ""
    sandbox: str = ""

    def size(self, split: str) -> int | None:
        """Number of examples in the split; None for an endless generator."""
        ...

    def example(self, split: str, index: int) -> Example:
        """Example number `index` of a split: a pure function of the task settings, the split and the index."""
        ...

    def target(self, example: Example, index: int = 0) -> str:
        """A gold completion for supervised training; `index` chooses among several where a task has them."""
        ...

    def grade(self, example: Example, completion: str) -> Grade:
        """Judge one completion. Never raises on account of the completion text."""
        ...

    def hash(self) -> str:
        """Short hash of prompt text, grader version and split settings, recorded with every result."""
        ...

    def warm_up(self) -> None:
        """Import what grading needs; called once in a worker, outside of any completion's time."""
        return None

    def worker_prefix(self) -> list[str]:
        """Command that starts this task's workers inside a sandbox; empty for none."""
        return []

    def check(self) -> None:
        """Refuse to start (UserError) where this machine lacks what grading needs."""
        return None

    def close(self) -> None:
        """End what grading holds, worker processes for one; grading again starts it anew."""
        return None

    def from_row(self, row: Mapping[str, Any], where: str = "row") -> Example:
        """An example from a row of data, enough to grade a completion of it.

        Columns stand in the row itself or in its mapping `prompt_fields`. A missing one is a UserError that starts
        with `where`. Tasks that can be misled by a column's content check it here.
        """
        nested = row.get("prompt_fields")
        fields = {**row, **nested} if isinstance(nested, Mapping) else dict(row)
        found = {self.aliases[key]: value for key, value in fields.items() if key in self.aliases} | fields
        for column in self.columns:
            if column not in found:
                raise UserError(
                    f"{where}: column {column!r} is missing, which task {self.name} needs; "
                    f"found {', '.join(sorted(map(str, fields))) or 'none'}"
                )
        columns = {key: found[key] for key in self.columns} if self.columns else found
        prompt = fields.get("prompt")
        return Example(
            id=str(fields.get("id", where)), prompt=prompt if isinstance(prompt, (str, list)) else "", columns=columns
        )

    def grade_batch(self, examples: Sequence[Example], completions: Sequence[str]) -> list[Grade]:
        """Judge completions, one per example and in order. The default grades them one by one."""
        if len(examples) != len(completions):
            raise UserError(f"{len(completions)} completions for {len(examples)} examples; pass one per example")
        return [self.grade(example, text) for example, text in zip(examples, completions, strict=True)]


def require_split(split: str, valid: Sequence[str] = SPLITS) -> None:
    """Refuse a split the task does not serve."""
    if split not in valid:
        raise UserError(f"unknown split {split!r}; {nearest(split, valid)}")


def require_index(split: str, index: int, size: int | None) -> None:
    """Refuse an index outside the split; a generated split (`size` None) accepts every index from 0 up."""
    if index < 0 or (size is not None and index >= size):
        extent = "any index from 0 up" if size is None else f"{size} examples"
        raise UserError(f"index {index} is outside split {split!r}, which has {extent}")


def short_hash(*parts: object) -> str:
    """Twelve hexadecimal digits that change with any of the parts (compared by their repr)."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


class GoldFailure(UserError, RuntimeError):
    """A task does not pay its own gold completion: the row's solution is wrong, or the grader is."""


def self_test(task: Task, count: int = 4) -> None:
    """Check that the task pays its own gold completion in full and an empty completion nothing.

    Looks at the first `count` examples of every split the task serves. Tasks without gold completions are
    passed over, as are examples whose correctness the task cannot tell. GoldFailure names the example. A task that
    runs programs is checked with one known to be right first (UserError).
    """
    task.check()
    if not task.has_gold:
        return
    for split in SPLITS:
        size = task.size(split)
        for index in range(count if size is None else min(count, size)):
            _check_example(task, task.example(split, index))


def _check_example(task: Task, example: Example) -> None:
    gold, empty = task.grade_batch([example, example], [task.target(example), ""])
    if gold.correct is None and gold.status != "infra":
        return
    if not gold.correct or (task.pays_in_full and gold.reward != 1.0):
        reason = " ".join(f"{gold.status}: {gold.detail}".split())
        raise GoldFailure(
            f"{example.id}: the gold completion earned {gold.reward} ({reason}): correct the row or leave it out"
        )
    if empty.correct or (task.pays_in_full and empty.reward not in (0.0, None)):
        raise GoldFailure(
            f"{example.id}: the empty completion earned {empty.reward}: the row's tests ask for nothing, leave it out"
        )
