"""Noise of log-ratios and of gradients on the shipped tiny models, as two tables, one JSON file and a plot.

    python benchmarks/variance.py --out DIR [--figure docs/figures/variance.png]

Part A redraws only the masks and watches the log-ratio of a sequence; part B redraws masks, step selection and rollouts
and watches each method's gradient, at four scored views per sequence. Seeded; one thread; minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import matplotlib
import torch
import variance_gradients
import variance_ratios

matplotlib.use("Agg")
from matplotlib import pyplot

STOPS = [4, 12]


def number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def markdown(header: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, ["---"] * len(header), *rows])


def by_updates(part: dict[str, Any]) -> dict[tuple[str, int], dict[int, dict[str, Any]]]:
    """Rows of one design and K, keyed by the number of updates."""
    found: dict[tuple[str, int], dict[int, dict[str, Any]]] = {}
    for row in part["rows"]:
        found.setdefault((row["design"], row["k"]), {})[row["updates"]] = row
    return found


def ratio_table(part: dict[str, Any], scale: str) -> str:
    digits = 2 if scale == "sequence" else 3
    header = ["masks", "K", "0: shared", "0: indep."]
    header += [f"{n}: {what}" for n in STOPS for what in ("mean abs.", "shared", "indep.")]
    rows = []
    for (design, k), cells in by_updates(part).items():
        start = cells[0][scale]
        row = [design, str(k), number(start["shared"][0], digits), number(start["independent"][0], digits)]
        for n in STOPS:
            cell = cells[n][scale]
            row += [number(x, digits) for x in (cell["true"], cell["shared"][0], cell["independent"][0])]
        rows.append(row)
    return markdown(header, rows)


def gradient_table(part: dict[str, Any]) -> str:
    header = [
        "method", "SNR", "noise from masks or selection", "cosine, new rollouts", "cosine, same rollouts", "alignment",
    ]  # fmt: skip
    rows = []
    for r in part["rows"]:
        aligned = (
            number(r["alignment"])
            if math.isnan(r["alignment_error"])
            else (f"{number(r['alignment'])} ± {number(r['alignment_error'])}")
        )
        share = f"{100 * min(1.0, r['mask_share']):.0f} %"
        cosines = [number(r["cosine"]), number(r["cosine_same_rollouts"])]
        rows.append([r["method"], f"{number(r['snr'])} ± {number(r['snr_error'])}", share, *cosines, aligned])
    return markdown(header, rows)


def plot(ratios: dict[str, Any], gradients: dict[str, Any], file: Path) -> None:
    figure = pyplot.figure(figsize=(15, 6), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[1.3, 1])
    axes = [*left.subplots(1, 2, sharey=True), right.subplots()]
    cells = by_updates(ratios)
    colours = dict(zip(variance_ratios.DESIGNS, pyplot.get_cmap("tab10").colors, strict=False))
    for axis, updates in zip(axes, STOPS, strict=False):
        for design, (numbers, _) in variance_ratios.DESIGNS.items():
            for kind, style in (("shared", "o-"), ("independent", "o--")):
                values = [cells[design, k][updates]["sequence"][kind][0] for k in numbers]
                label = design if kind == "shared" else None
                axis.plot(numbers, values, style, color=colours[design], label=label)
        level = cells["stratified pairs", 8][updates]["sequence"]["true"]
        axis.axhline(level, color="black", linestyle=":", label="mean |log-ratio|")
        axis.set(xscale="log", yscale="log", xlabel="views per sequence K", ylim=(0.2, 10))
        axis.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
        axis.minorticks_off()
        axis.set_yticks([0.25, 0.5, 1, 2, 4, 8], ["0.25", "0.5", "1", "2", "4", "8"])
        axis.set_title(f"log-ratio after {updates} updates\n(solid: shared masks, dashed: independent)")
    axes[0].set_ylabel("standard deviation over masks, nats per sequence")
    axes[0].legend(fontsize=8)
    rows = gradients["rows"][::-1]
    place = range(len(rows))
    errors = [r["snr_error"] for r in rows]
    axes[2].barh(place, [r["snr"] for r in rows], xerr=errors, color="tab:blue", ecolor="grey")
    axes[2].set_yticks(place, [r["method"] for r in rows], fontsize=8)
    axes[2].set_title("gradient |mean|² / tr cov (± s.e.)")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--figure", type=Path, default=Path("docs/figures/variance.png"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--views", type=int, default=64, help="views per sequence, design and K in part A")
    parser.add_argument("--members", type=int, default=3, help="sequences per prompt group scored in part A")
    parser.add_argument("--batches", type=int, default=24, help="independent rollout batches in part B")
    parser.add_argument("--draws", type=int, default=2, help="mask draws on each batch in part B")
    parser.add_argument("--prompts", type=int, default=8, help="prompts per batch in part B")
    known = parser.parse_args()
    if known.views < 16 or known.batches < 3 or known.draws < 2:
        parser.error("a variance needs repeats: use --views 16, --batches 3 and --draws 2 at least")
    torch.set_num_threads(1)
    known.out.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    sudoku = variance_ratios.study("quickstart", "egspo_sa", STOPS, known.views, known.members, known.seed)
    countdown = variance_ratios.study(
        "countdown_tiny", "egspo_sa", STOPS, known.views, known.members, known.seed, only=4
    )
    halfway = time.perf_counter()
    print(f"part A: {halfway - started:.0f} s", file=sys.stderr, flush=True)
    gradients = variance_gradients.study("quickstart", known.batches, known.draws, known.prompts, known.seed)
    seconds = time.perf_counter() - started
    result = {"sudoku": sudoku, "countdown": countdown, "gradients": gradients}
    (known.out / "variance.json").write_text(json.dumps(result, indent=1))
    tables = [
        "Sudoku, sequence scale\n", ratio_table(sudoku, "sequence"), "\nSudoku, token scale\n",
        ratio_table(sudoku, "token"), "\nCountdown, sequence scale\n", ratio_table(countdown, "sequence"),
        "\nGradients\n", gradient_table(gradients),
    ]  # fmt: skip
    (known.out / "variance.md").write_text("\n".join(tables) + "\n")
    plot(sudoku, gradients, known.figure)
    print("\n".join(tables))
    print(f"{seconds:.0f} s, {time.process_time():.0f} s of one core", file=sys.stderr)


if __name__ == "__main__":
    main()
