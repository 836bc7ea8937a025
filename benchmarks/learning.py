"""Held-out accuracy before and after training: recipes x algorithms x seeds, as one table.

    python benchmarks/learning.py --recipes quickstart,countdown_tiny --algorithms egspo,egspo_sa,stabledrl --out DIR

Runs `maskgrad train` once per cell, `--jobs` at a time with one CPU thread each. Finished runs in DIR are reused, so
an interrupted table can be continued. Settings come from the recipes; they were tuned on the validation split, the
table is made on the test split.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from maskgrad.reporting.journal import FILE_NAME, read
from maskgrad.reporting.tables import COLUMNS, before_after, results_table


def finished(run: Path) -> bool:
    file = run / FILE_NAME
    return file.is_file() and read(file)[-1]["event"] == "end"


def train(recipe: str, algorithm: str, seed: int, out: Path, extra: list[str]) -> Path:
    run = out / f"{recipe}-{algorithm}-seed{seed}"
    if finished(run):
        return run
    resume = ["--resume", str(run)]
    start = [recipe, "--algorithm", algorithm, "--seed", str(seed), "--train.threads", "1", "--out", str(run), *extra]
    command = [sys.executable, "-m", "maskgrad.cli", "train", *(resume if run.exists() else start)]
    with open(out / f"{run.name}.log", "w") as log:
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=True)
    print(f"done: {run.name}", file=sys.stderr, flush=True)
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", default="quickstart,countdown_tiny")
    parser.add_argument("--algorithms", default="egspo,egspo_sa,stabledrl,diffu_grpo")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2)
    known, extra = parser.parse_known_args()
    known.out.mkdir(parents=True, exist_ok=True)
    names = itertools.product(map(int, known.seeds.split(",")), known.recipes.split(","), known.algorithms.split(","))
    with ThreadPoolExecutor(known.jobs) as pool:
        runs = list(pool.map(lambda cell: train(cell[1], cell[2], cell[0], known.out, extra), names))
    runs.sort(key=lambda run: run.name)
    table = results_table(before_after(runs), COLUMNS)
    (known.out / "table.md").write_text(table + "\n")
    print(table)


if __name__ == "__main__":
    main()
