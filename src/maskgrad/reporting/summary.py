"""One run directory as a few numbers: accuracy before and after, and the time it took."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from maskgrad.errors import UserError
from maskgrad.reporting.journal import FILE_NAME, Record, read

TRAINING_EVENTS = ("rollout", "update")
COMPLETED = "completed"


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """Accuracies are shares in [0, 1]; None where the journal has no such evaluation."""

    run: str  # folder name
    task: str
    algorithm: str
    recipe: str
    model: str
    seed: int | None
    split: str
    n: int  # examples of the latest evaluation
    before: float | None  # at step 0
    after: float | None  # at the latest evaluated step above 0
    interval: tuple[float, float] | None  # of `after`
    step: int  # where `after` was measured, 0 without it
    seconds: float  # training alone, see `training_seconds`
    ended: str  # reason of the closing `end` record, "unfinished" without one

    @property
    def gain(self) -> float | None:
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def key(self) -> tuple[str, ...]:
        """Runs that share it differ by seed alone."""
        return self.task, self.algorithm, self.split, self.recipe, self.model


def summarize(run_dir: str | os.PathLike[str]) -> list[RunSummary]:
    """One summary per evaluated split of a run directory."""
    path = Path(run_dir) / FILE_NAME
    if not path.is_file():
        raise UserError(f"{os.fspath(run_dir)!r} is not a run directory: it has no {FILE_NAME}")
    records = read(path)
    config = next((record for record in records if record["event"] == "run"), None)
    if config is None:
        raise UserError(f"{os.fspath(path)!r} has no 'run' record: the run did not start")
    evals: dict[str, list[Record]] = {}
    for record in records:
        if record["event"] == "eval":
            evals.setdefault(str(record.get("split", "held-out")), []).append(record)
    if not evals:
        raise UserError(f"{os.fspath(path)!r} has no evaluation yet: let the run reach its first one")
    last, seconds = records[-1], training_seconds(records)
    ended = str(last.get("reason", COMPLETED)) if last["event"] == "end" else "unfinished"
    name = Path(run_dir).resolve().name
    return [_summary(name, config, split, found, seconds, ended) for split, found in evals.items()]


def _summary(name: str, config: Record, split: str, evals: Sequence[Record], seconds: float, ended: str) -> RunSummary:
    before = next((record for record in evals if not record.get("step")), None)
    after = next((record for record in reversed(evals) if record.get("step")), None)
    interval = after.get("interval") if after else None
    return RunSummary(
        run=name,
        task=str(config.get("task") or "-"),
        algorithm=str(config.get("algorithm") or "-"),
        recipe=str(config.get("recipe") or "-"),
        model=str(config.get("model") or "-"),
        seed=config.get("seed"),
        split=split,
        n=int(evals[-1]["n"]),
        before=_accuracy(before),
        after=_accuracy(after),
        interval=(float(interval[0]), float(interval[1])) if interval else None,
        step=int(after["step"]) if after else 0,
        seconds=seconds,
        ended=ended,
    )


def _accuracy(record: Record | None) -> float | None:
    """Accuracy of an evaluation; None without one, or where the task has no notion of correct."""
    return None if record is None or record["accuracy"] is None else float(record["accuracy"])


def training_seconds(records: Iterable[Record]) -> float:
    """Seconds between each rollout or update record and the record before it, summed.

    Evaluation, start-up and the pause before a resumption are left out: no gap is longer than the session.
    """
    total, previous = 0.0, None
    for record in records:
        wall = record["time"]["wall"]
        if previous is not None and record["event"] in TRAINING_EVENTS:
            total += max(0.0, min(wall - previous, record["time"]["session"]))
        previous = wall
    return total


def by_seed(summaries: Iterable[RunSummary]) -> list[list[RunSummary]]:
    """Runs that differ by seed alone, together; runs that repeat a seed or have none each stay alone."""
    groups: dict[tuple[str, ...], list[RunSummary]] = {}
    for summary in summaries:
        groups.setdefault(summary.key, []).append(summary)
    result: list[list[RunSummary]] = []
    for group in groups.values():
        seeds = {summary.seed for summary in group}
        distinct = len(seeds) == len(group) and None not in seeds
        result += [group] if distinct else [[summary] for summary in group]
    return result
