"""Learning curves and gradient norms of a stress as one picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from maskgrad.errors import UserError


def plot(result: dict[str, Any], file: Path) -> None:
    """One column per setting: mean reward of the rollouts above, pre-clip gradient norm below; a line per seed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("the plot needs matplotlib: pip install matplotlib, then give the same command again") from None
    settings = list(dict.fromkeys(run["setting"] for run in result["runs"]))
    figure = Figure(figsize=(6.5 * len(settings), 7), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, len(settings), squeeze=False)
    colours = {arm: f"C{number}" for number, arm in enumerate(result["arms"])}
    for column, setting in enumerate(settings):
        above, below = axes[0, column], axes[1, column]
        named: set[str] = set()
        for run in (r for r in result["runs"] if r["setting"] == setting):
            arm, curve = run["arm"], run["curve"]
            look = {"color": colours[arm], "linewidth": 1.2, "alpha": 0.8}
            above.plot(*_points(curve["reward"]), **look, label=None if arm in named else arm)
            below.plot(*_points(curve["grad_norm"]), **look)
            named.add(arm)
        above.set(title=setting, ylabel="mean reward of the rollouts")
        below.set(yscale="log", xlabel="update", ylabel="gradient norm before clipping")
        above.legend(fontsize="small")
    figure.savefig(file, dpi=120)


def _points(curve: list[list[float]]) -> tuple[list[float], list[float]]:
    return [point[0] for point in curve], [point[1] for point in curve]
