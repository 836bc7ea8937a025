"""docs/metrics.md names every field of the journal, and no other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from maskgrad.config import RunConfig
from maskgrad.reporting.journal import FILE_NAME, read
from maskgrad.training.loop import TrainingRun

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
EVERYWHERE = {"event", "step", "time.wall", "time.session"}
#: Fields that a healthy run on a task without foreign code does not write.
RARE = {("update", "skip_reason"), ("eval", "sandbox"), ("warning", "message")}


def documented() -> set[tuple[str, str]]:
    """(event, field) of every row of the page's tables."""
    found, events = set(), []
    for line in PAGE.read_text("utf-8").splitlines():
        if line.startswith("## "):
            events = re.findall(r"`(\w+)`", line.partition(",")[0])
        elif line.startswith("| `"):
            names = re.findall(r"`([\w.]+)`", line.split("|")[1])
            own = {"message": ["warning"], "reason": ["end"]}
            found |= {(event, name) for name in names for event in own.get(name, events)}
    return found


def written(records: Iterable[dict[str, Any]]) -> set[tuple[str, str]]:
    found = set()
    for record in records:
        names = {*record, *(f"time.{name}" for name in record["time"])} - {"time"} - EVERYWHERE
        found |= {(record["event"], name) for name in names}
    return found


def test_the_page_and_a_run_name_the_same_fields(tmp_path: Path, smoke: Callable[..., RunConfig]) -> None:
    settings: dict[str, Any] = {
        "model": {"lora": {"rank": 2}},
        "rollout": {"sampler": {"cache": "dual", "block_length": 8}},
        "algorithm": {"kl": "k3", "beta": 0.01},
        "train": {"max_updates": 4, "eval_every": 0, "track_drift": True, "inflate": {"fraction": 0.5, "factor": 2.0}},
    }
    TrainingRun.new(smoke("egspo", settings), tmp_path / "run").start()
    names, page = written(read(tmp_path / "run" / FILE_NAME)), documented()
    assert names - page == set(), "written and not on the page"
    assert page - names == RARE, "on the page and not written"
