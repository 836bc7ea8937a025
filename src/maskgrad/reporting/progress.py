"""Where a run is, and how its numbers read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from maskgrad.reporting.journal import Record


class Progress:
    """Where the run is, accumulated from records; all times come from the records' own clock."""

    def __init__(self) -> None:
        self.step = 0
        self.total: int | None = None
        self.now = 0.0
        self._first_step: int | None = None
        self._first_time: float | None = None
        self._latest: dict[str, Any] = {}

    def take(self, record: Record) -> None:
        """Update from one record; a `run` record restarts the clock, so a resumed run estimates from its resumption."""
        clock = record.get("time") or {}
        self.now = float(clock.get("wall", self.now))
        if record["event"] == "run":
            self._first_time, self._first_step = None, record.get("step") or 0
        if self._first_time is None and "wall" in clock:  # a record without a clock starts none
            self._first_time = self.now
            self._first_step = (record.get("step") or 0) if self._first_step is None else self._first_step
        self.total = record.get("total_steps", self.total)
        if record["event"] in ("run", "update"):
            self.step = record.get("step") or 0
        if record["event"] in ("rollout", "update") and record.get("reward") is not None:
            self._latest["reward"] = shown(record["reward"])
        if record["event"] == "eval":
            self._latest["held-out"] = score(record)
        if clock.get("tokens_per_second") is not None:
            self._latest["tokens/s"] = f"{float(clock['tokens_per_second']):.0f}"

    def line(self) -> str:
        """`step 12/200 (6 %), reward 0.41, held-out 31.2 %, tokens/s 850, elapsed 0:42, left 10:58`."""
        share = f"/{self.total} ({100 * self.step // self.total} %)" if self.total else ""
        parts = [f"step {self.step}{share}"]
        parts += [f"{name} {self._latest[name]}" for name in ("reward", "held-out", "tokens/s") if name in self._latest]
        elapsed = self.now - (self.now if self._first_time is None else self._first_time)
        parts.append(f"elapsed {duration(elapsed)}")
        done = self.step - (self._first_step or 0)
        if self.total and done > 0:
            parts.append(f"left {duration(elapsed / done * (self.total - self.step))}")
        return ", ".join(parts)


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, e.g. `0:42`, `1:02:03`."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def score(record: Mapping[str, Any]) -> str:
    """Accuracy of an eval record, or the mean reward where the task has no notion of correct."""
    if record.get("accuracy") is not None:
        return percent(record["accuracy"])
    return f"reward {shown(record.get('reward'))}"


def percent(value: float | str) -> str:
    """A share as per cent; the journal's "nan" and "inf" stay readable."""
    return f"{100 * float(value):.1f} %"


def shown(value: Any) -> str:
    """Floats with four digits, whole numbers with thousands separators, the rest as it is."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
