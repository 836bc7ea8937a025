"""What a stressed run says: its journal as one row, and the rows of an arm over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from maskgrad.reporting.journal import Record
from maskgrad.reporting.summary import training_seconds

COLUMNS = ("setting", "arm", "start (%)", "end (%)", "best (%)", "max grad norm", "median", "max log-ratio", "min ESS")


def _numbers(records: Iterable[Record], name: str) -> list[float]:
    """Values of a field where it is known; the journal writes non-finite numbers as text."""
    return [float(r[name]) for r in records if r.get(name) is not None]


def _of(choose: Callable[[list[float]], float], values: list[float]) -> float | None:
    """None without values; a number that is not finite is None too: strict JSON has no word for it."""
    finite = [v for v in values if abs(v) < float("inf")]
    return choose(finite) if finite else None


def digest(setting: str, arm: str, seed: int, run: str, records: Sequence[Record]) -> dict[str, Any]:
    """One row. Non-finite gradients are counted in `skipped` and left out of the norms."""
    evals = _numbers((r for r in records if r["event"] == "eval"), "accuracy")
    updates = [r for r in records if r["event"] == "update"]
    rewards = _numbers((r for r in records if r["event"] == "rollout"), "reward")
    return {
        "setting": setting,
        "arm": arm,
        "seed": seed,
        "run": run,
        "updates": len(updates),
        "start": evals[0] if evals else None,
        "end": evals[-1] if evals else None,
        "best": _of(max, evals),
        "n": next((r["n"] for r in records if r["event"] == "eval"), None),
        "reward_first": rewards[0] if rewards else None,
        "reward_last": rewards[-1] if rewards else None,
        "reward_best": _of(max, rewards),
        "grad_norm_max": _of(max, _numbers(updates, "grad_norm")),
        "grad_norm_median": _of(statistics.median, _numbers(updates, "grad_norm")),
        "log_ratio_max": _of(max, _numbers(updates, "log_ratio_max")),
        "log_ratio_q95": _of(max, _numbers(updates, "log_ratio_q95")),
        "log_ratio_q05": _of(min, _numbers(updates, "log_ratio_q05")),
        "clip_fraction_positive": _of(statistics.fmean, _numbers(updates, "clip_fraction_positive")),
        "clip_fraction_negative": _of(statistics.fmean, _numbers(updates, "clip_fraction_negative")),
        "ess_share_min": _of(min, _numbers(updates, "ess_share")),
        "weight_max": _of(max, _numbers(updates, "weight_max")),
        "inflated_fraction": _of(statistics.fmean, _numbers(updates, "inflated_fraction")),
        "drift": _of(lambda v: v[-1], _numbers(updates, "drift")),
        "skipped": sum(bool(r["skipped"]) for r in updates),
        "no_signal": sum(r.get("views") == 0 for r in updates),
        "seconds": round(training_seconds(records), 1),
        "curve": _curve(records),
    }


def _curve(records: Sequence[Record]) -> dict[str, list[Any]]:
    """Points of the plot: rewards and accuracies with the step they belong to, and the norm of every update."""
    kinds = {"reward": ("rollout", "reward"), "accuracy": ("eval", "accuracy"), "grad_norm": ("update", "grad_norm")}
    found = {
        name: [[r["step"], r[key]] for r in records if r["event"] == event and isinstance(r.get(key), (int, float))]
        for name, (event, key) in kinds.items()
    }
    return {**found}


def summary(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per setting and arm: means and extremes, and the least factor, seed by seed, over StableDRL's norm."""
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in runs:
        cells.setdefault((run["setting"], run["arm"]), []).append(run)
    calm = {(r["setting"], r["seed"]): r["grad_norm_max"] for r in runs if r["arm"] == "stabledrl"}
    rows = []
    for (setting, arm), mine in cells.items():
        ratios = [
            r["grad_norm_max"] / calm[setting, r["seed"]]
            for r in mine
            if r["grad_norm_max"] is not None and calm.get((setting, r["seed"]))
        ]
        rows.append(
            {
                "setting": setting,
                "arm": arm,
                "seeds": [r["seed"] for r in mine],
                **{key: _spread([r[key] for r in mine]) for key in ("start", "end", "best")},
                "grad_norm_max": _of(max, [r["grad_norm_max"] for r in mine if r["grad_norm_max"] is not None]),
                "grad_norm_median": _spread([r["grad_norm_median"] for r in mine])["mean"],
                "grad_norm_over_stabledrl_min": min(ratios) if ratios else None,
                "log_ratio_max": _of(max, [r["log_ratio_max"] for r in mine if r["log_ratio_max"] is not None]),
                "ess_share_min": _of(min, [r["ess_share_min"] for r in mine if r["ess_share_min"] is not None]),
                "skipped": sum(r["skipped"] for r in mine),
            }
        )
    return rows


def _spread(values: Sequence[float | None]) -> dict[str, float | None]:
    known = [v for v in values if v is not None]
    if not known:
        return {"mean": None, "min": None, "max": None}
    return {"mean": sum(known) / len(known), "min": min(known), "max": max(known)}


def table_rows(result: dict[str, Any]) -> list[dict[str, str]]:
    """The summary as cells of `COLUMNS`."""
    return [
        {
            "setting": row["setting"],
            "arm": row["arm"],
            **{f"{key} (%)": _percent(row[key]) for key in ("start", "end", "best")},
            "max grad norm": _short(row["grad_norm_max"]),
            "median": _short(row["grad_norm_median"]),
            "max log-ratio": _short(row["log_ratio_max"]),
            "min ESS": _short(row["ess_share_min"]),
        }
        for row in result["summary"]
    ]


def _percent(spread: dict[str, float | None]) -> str:
    mean, low, high = spread["mean"], spread["min"], spread["max"]
    if mean is None or low is None or high is None:
        return "-"
    return f"{100 * mean:.1f}" if low == high else f"{100 * mean:.1f} ({100 * low:.1f}..{100 * high:.1f})"


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
