"""Learning curves and gradient norms of a stress as one picture."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

from maskgrad.errors import UserError


def plot(result: dict[str, Any], file: Path) -> None:
    """One column per setting: mean reward of the rollouts above, pre-clip gradient norm below.

    A thin line per seed, a thick one for their mean.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("the plot needs matplotlib: pip install matplotlib, then give the same command again") from None
    settings = list(dict.fromkeys(run["setting"] for run in result["runs"]))
    figure = Figure(figsize=(6 * len(settings) + 2, 7), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, len(settings), squeeze=False)
    handles: dict[str, Any] = {}
    for column, setting in enumerate(settings):
        above, below = axes[0, column], axes[1, column]
        for number, arm in enumerate(result["arms"]):
            curves = [run["curve"] for run in result["runs"] if run["setting"] == setting and run["arm"] == arm]
            for panel, name in ((above, "reward"), (below, "grad_norm")):
                for curve in curves:
                    panel.plot(*_points(name, curve[name]), color=f"C{number}", linewidth=0.6, alpha=0.35)
                (line,) = panel.plot(*_mean(name, [curve[name] for curve in curves]), color=f"C{number}", linewidth=2)
                handles.setdefault(arm, line)
        above.set(title=setting, ylabel="mean reward of the rollouts")
        below.set(yscale="log", xlabel="update", ylabel="gradient norm before clipping")
    figure.legend(handles.values(), handles.keys(), loc="outside right upper", fontsize="small")
    figure.savefig(file, dpi=90)


def _points(name: str, curve: list[list[float]]) -> tuple[list[float], list[float]]:
    """A norm of 0, an update without signal, has no place on a logarithmic axis and leaves a gap."""
    empty = math.nan if name == "grad_norm" else 0.0
    return [point[0] for point in curve], [point[1] or empty for point in curve]


def _mean(name: str, curves: list[list[list[float]]]) -> tuple[list[float], list[float]]:
    """Over seeds at each step: the mean of rewards, the geometric mean of the norms that are not 0."""
    table: dict[float, list[float]] = {}
    for step, value in (point for curve in curves for point in curve):
        table.setdefault(step, []).append(value)
    steps = sorted(table)
    if name == "reward":
        return steps, [statistics.fmean(table[step]) for step in steps]
    kept = [[value for value in table[step] if value > 0] for step in steps]
    return steps, [statistics.geometric_mean(values) if values else math.nan for values in kept]
