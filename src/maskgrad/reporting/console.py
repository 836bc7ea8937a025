"""Live progress of a run, from the records the journal gets."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from maskgrad.reporting.journal import Record
from maskgrad.reporting.progress import Progress, percent, score, shown

if TYPE_CHECKING:
    from rich.live import Live


class Console:
    """Prints records as they come: a header, one moving progress line, evaluations, warnings, the end.

    On a terminal the progress line is redrawn in place. Elsewhere lines are plain text without control
    characters, and progress is printed at most every `every` seconds of the records' own clock and beside every
    evaluation. `quiet` leaves only warnings.
    """

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None, every: float = 10.0) -> None:
        self._stream = sys.stdout if stream is None else stream
        self._quiet, self._every = quiet, every
        self._progress = Progress()
        self._printed_at = float("-inf")
        self._live: Live | None = None
        self._moving = not quiet and self._stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
        self._shows: dict[str, Callable[[Record], None]] = {
            "run": self._show_run,
            "rollout": self._show_progress,
            "update": self._show_progress,
            "eval": self._show_eval,
            "warning": self._show_warning,
            "end": self._show_end,
        }

    def show(self, record: Record) -> None:
        """Show one journal record; events without a line of their own are passed over."""
        event = record["event"]
        if event not in self._shows or (self._quiet and event != "warning"):
            return
        self._progress.take(record)
        self._shows[event](record)

    def close(self) -> None:
        """Leave the terminal as it was; safe to call twice."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __enter__(self) -> Console:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _show_run(self, record: Record) -> None:
        names = ("recipe", "algorithm", "task", "model", "params", "adapted_modules", "seed")
        parts = [f"{name} {shown(record[name])}" for name in names if record.get(name) is not None]
        self._line("run: " + ", ".join(parts))

    def _show_progress(self, record: Record) -> None:
        if self._moving:
            self._redraw()
        elif record["event"] == "update" and self._progress.now - self._printed_at >= self._every:
            self._print_progress()

    def _show_eval(self, record: Record) -> None:
        if not self._moving and self._progress.step and self._progress.now > self._printed_at:
            self._print_progress()
        interval = record.get("interval")
        between = f" [{percent(interval[0])}, {percent(interval[1])}]" if interval else ""
        metrics = "".join(f", {name} {shown(value)}" for name, value in (record.get("metrics") or {}).items())
        label = "accuracy " if record.get("accuracy") is not None else ""
        where = f"{record.get('split', 'held-out')}, step {record.get('step') or 0}"
        self._line(f"eval ({where}): {label}{score(record)}{between}, n {record['n']}{metrics}")

    def _show_warning(self, record: Record) -> None:
        self._line(f"warning: {record['message']}")

    def _show_end(self, record: Record) -> None:
        self._line(self._progress.line())
        self._line(f"end: {record.get('reason', 'finished')}")
        self.close()

    def _print_progress(self) -> None:
        self._printed_at = self._progress.now
        self._line(self._progress.line())

    def _redraw(self) -> None:
        from rich.console import Console as RichConsole
        from rich.live import Live
        from rich.text import Text

        text = Text(self._progress.line(), no_wrap=True, overflow="ellipsis")
        if self._live is None:
            screen = RichConsole(file=self._stream)
            self._live = Live(text, console=screen, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(text, refresh=True)

    def _line(self, text: str) -> None:
        clean = "".join(letter if letter.isprintable() else " " for letter in text)
        encoding = self._stream.encoding or "utf-8"
        clean = clean.encode(encoding, "backslashreplace").decode(encoding)
        if self._live is not None:
            self._live.console.print(clean, markup=False, highlight=False, emoji=False)
        else:
            print(clean, file=self._stream, flush=True)
