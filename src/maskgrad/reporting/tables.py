"""Tables of results: markdown, terminal, and the before/after table of run directories.

`python -m maskgrad.reporting.tables RUN_DIR...` prints the before/after table.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from maskgrad.errors import UserError
from maskgrad.reporting.summary import COMPLETED, RunSummary, by_seed, summarize

if TYPE_CHECKING:
    from rich.table import Table

TEXT_COLUMNS = ("run", "task", "algorithm", "split")
NUMBER_COLUMNS = ("n", "step", "before (%)", "after (%)", "gain", "95 % interval", "training (s)")
COLUMNS = TEXT_COLUMNS + NUMBER_COLUMNS
SEVERAL_SEEDS = "Several seeds: mean (min..max); the interval spans the intervals of the single runs."


def results_table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Markdown table, padded so that it reads as plain text too; a missing value is a dash."""
    lines = [list(columns), *(_cells(row, columns) for row in rows)]
    lines = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    widths = [max(3, *(len(line[index]) for line in lines)) for index in range(len(columns))]
    right = [name in NUMBER_COLUMNS for name in columns]
    rule = ["-" * (width - 1) + (":" if end else "-") for width, end in zip(widths, right, strict=True)]
    padded = [
        [f"{cell:{'>' if end else '<'}{width}}" for cell, width, end in zip(line, widths, right, strict=True)]
        for line in [lines[0], rule, *lines[1:]]
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in padded)


def rich_table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], title: str | None = None) -> Table:
    """The same table for `rich.print`; on a narrow terminal words fold, and numbers are never cut."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    lines = [_cells(row, columns) for row in rows]
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for index, name in enumerate(columns):
        if name in NUMBER_COLUMNS:
            width = max((len(word) for line in lines for word in line[index].split()), default=1)
            table.add_column(Text(name), justify="right", overflow="fold", min_width=width)
        else:
            table.add_column(Text(name), overflow="fold")
    for line in lines:
        table.add_row(*(Text(cell) for cell in line))
    return table


def before_after(run_dirs: Iterable[str | os.PathLike[str]]) -> list[dict[str, str]]:
    """Rows of the before/after table under `COLUMNS`; runs that differ by seed alone share a row."""
    groups = by_seed(summary for run_dir in run_dirs for summary in summarize(run_dir))
    return [_row(group) for group in groups]


def _row(group: Sequence[RunSummary]) -> dict[str, str]:
    first = group[0]
    intervals = [run.interval for run in group if run.interval is not None]
    covered = len(intervals) == len(group)
    low = min((interval[0] for interval in intervals), default=0.0)
    high = max((interval[1] for interval in intervals), default=0.0)
    name = first.run if len(group) == 1 else f"{len(group)} seeds"
    early = [run.ended for run in group if run.ended != COMPLETED]
    return {
        "run": f"{name} ({', '.join(early)})" if early else name,
        "task": first.task,
        "algorithm": first.algorithm,
        "split": first.split,
        "n": _range([run.n for run in group]),
        "step": _range([run.step for run in group]),
        "before (%)": _spread([run.before for run in group], lambda share: f"{100 * share:.1f}"),
        "after (%)": _spread([run.after for run in group], lambda share: f"{100 * share:.1f}"),
        "gain": _spread([run.gain for run in group], lambda share: f"{100 * share:+.1f}"),
        "95 % interval": f"[{100 * low:.1f}, {100 * high:.1f}]" if covered else "-",
        "training (s)": _spread([run.seconds for run in group], lambda seconds: f"{seconds:.0f}"),
    }


def _spread(values: Sequence[float | None], form: Callable[[float], str]) -> str:
    """`mean (min..max)`, the value alone for one run, a dash when a run lacks it."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return "-"
    if len(known) == 1:
        return form(known[0])
    return f"{form(sum(known) / len(known))} ({form(min(known))}..{form(max(known))})"


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}..{high}"


def _cells(row: Mapping[str, Any], columns: Sequence[str]) -> list[str]:
    return ["-" if row.get(name) is None else str(row[name]) for name in columns]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the before/after table: drawn on a terminal, markdown elsewhere. Exit code 2 on a user's mistake."""
    parser = argparse.ArgumentParser(prog="python -m maskgrad.reporting.tables", description=main.__doc__)
    parser.add_argument("run_dirs", nargs="+", metavar="RUN_DIR")
    run_dirs = parser.parse_args(arguments).run_dirs
    try:
        rows = before_after(run_dirs)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if sys.stdout.isatty():
        from rich import print as rich_print

        shared = [name for name in ("task", "split", "n", "step") if len({row[name] for row in rows}) == 1]
        title = ", ".join(f"{name} {rows[0][name]}" for name in shared)
        rich_print(rich_table(rows, [name for name in COLUMNS if name not in shared], title=title))
    else:
        print(results_table(rows, COLUMNS))
    if any(".." in row["training (s)"] for row in rows):
        print(SEVERAL_SEEDS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
