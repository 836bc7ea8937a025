"""The stress test: the same short training for several methods under noisy or inflated ratios.

A stress is a folder of ordinary runs, DIR/SETTING-ARM-seedN, and what they say together in DIR/stress.json. Finished
runs are reused and broken-off ones resumed, so an interrupted stress goes on with the same command.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maskgrad.config import RunConfig, read_yaml
from maskgrad.diagnostics.arms import ABOUT, ARMS, SETTINGS, Setting, arm_config, check_arm, check_asked
from maskgrad.diagnostics.digest import digest, summary
from maskgrad.errors import UserError, nearest
from maskgrad.reporting.journal import FILE_NAME, read
from maskgrad.settings import parse
from maskgrad.training.loop import TrainingRun

RESULT = "stress.json"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of a stress."""

    setting: Setting
    arm: str
    seed: int
    config: RunConfig

    @property
    def name(self) -> str:
        return f"{self.setting}-{self.arm}-seed{self.seed}"


def parse_inflate(text: str) -> dict[str, float]:
    """`FRACTION:FACTOR`, for example 0.2:1000."""
    fraction, colon, factor = text.partition(":")
    try:
        numbers = {"fraction": float(fraction), "factor": float(factor)}
    except ValueError:
        colon = ""
    if not colon:
        raise UserError(f"--inflate {text!r} is not FRACTION:FACTOR: write for example 0.2:1000")
    if not 0 < numbers["fraction"] <= 1:
        raise UserError(f"--inflate {text!r}: fraction {fraction} must lie above 0 and at most at 1")
    if not 1 < numbers["factor"] < float("inf"):
        raise UserError(f"--inflate {text!r}: factor {factor} must be a finite number above 1")
    return numbers


def parse_arms(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UserError(f"--algorithms {text!r} names no arm: choose from {', '.join(ARMS)}")
    return list(dict.fromkeys(check_arm(name) for name in names))


def parse_seeds(text: str) -> list[int]:
    try:
        return list(dict.fromkeys(int(seed) for seed in text.split(",")))
    except ValueError:
        raise UserError(f"--seeds {text!r} is not a list of whole numbers: write for example 0,1,2") from None


def parse_setting(text: str) -> list[Setting]:
    if text != "both" and text not in SETTINGS:
        raise UserError(f"unknown --setting {text!r}: {nearest(text, (*SETTINGS, 'both'))}")
    return [setting for setting in SETTINGS if text in (setting, "both")]


def plan(
    recipe: str,
    arms: Sequence[str],
    settings: Sequence[Setting],
    seeds: Sequence[int],
    inflate: Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
) -> list[Cell]:
    """Every run of the stress, seed by seed, so that an interrupted one has whole comparisons."""
    over = dict(overrides or {})
    check_asked(over.get("algorithm", {}), arms)
    if "seed" in over:
        raise UserError("--seed is not an option of stress: give --seeds 0,1,2")
    return [
        Cell(setting=s, arm=arm, seed=seed, config=arm_config(recipe, arm, s, seed, inflate, over))
        for seed in seeds
        for s in settings
        for arm in arms
    ]


def claim(out: Path, cells: Sequence[Cell]) -> None:
    """Refuse a folder of something else, and runs in it that were made with other settings."""
    if out.is_file():
        raise UserError(f"{out} is a file: choose a folder as --out")
    if out.is_dir() and any(out.iterdir()) and not (out / RESULT).is_file():
        raise UserError(f"{out} holds something that is no stress test: choose another --out")
    for cell in cells:
        file = out / cell.name / "config.yaml"
        if file.is_file() and parse(RunConfig, read_yaml(file), str(file)) != cell.config:
            raise UserError(f"{out / cell.name} was made with other settings: choose another --out")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {out} ({error.strerror}): choose another --out") from None
    if not os.access(out, os.W_OK):
        raise UserError(f"cannot write to {out}: choose another --out")


def finished(run: Path) -> bool:
    file = run / FILE_NAME
    records = read(file) if file.is_file() else []
    return bool(records) and records[-1]["event"] == "end"


def run_cell(config: dict[str, Any], folder: str) -> None:
    """Make, continue or reuse one run. Arguments are plain, so that a process of its own can do it."""
    out = Path(folder)
    if finished(out):
        return
    if (out / "config.yaml").is_file():
        TrainingRun.reopen(out).resume()
    else:
        TrainingRun.new(RunConfig.model_validate(config), out).start()


def run_all(
    cells: Sequence[Cell], out: Path, jobs: int = 1, tell: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Run what is missing, `jobs` runs at a time, and return (and keep up to date in DIR/stress.json) the result."""
    done: list[Cell] = [cell for cell in cells if finished(out / cell.name)]
    missing = [cell for cell in cells if cell not in done]
    result = _store(done, cells, out)
    for cell in _each(missing, out, jobs):
        done.append(cell)
        result = _store([c for c in cells if c in done], cells, out)
        run = next(r for r in result["runs"] if r["run"] == cell.name)
        tell(f"[{len(done)}/{len(cells)}] {cell.name}: {_share(run['start'])} to {_share(run['end'])}")
    return result


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _each(cells: Sequence[Cell], out: Path, jobs: int) -> Iterable[Cell]:
    work = [(cell, cell.config.model_dump(mode="json"), str(out / cell.name)) for cell in cells]
    if jobs == 1 or len(cells) < 2:
        for cell, config, folder in work:
            run_cell(config, folder)
            yield cell
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(run_cell, config, folder): cell for cell, config, folder in work}
        try:
            for future in as_completed(futures):
                future.result()
                yield futures[future]
        finally:
            pool.shutdown(cancel_futures=True)


def _store(done: Sequence[Cell], cells: Sequence[Cell], out: Path) -> dict[str, Any]:
    runs = [digest(c.setting, c.arm, c.seed, c.name, read(out / c.name / FILE_NAME)) for c in done]
    first = {(c.setting, c.arm): c.config for c in reversed(cells)}
    result = {
        "recipe": cells[0].config.recipe,
        "seeds": sorted({c.seed for c in cells}),
        "arms": {arm: ABOUT[arm] for arm in dict.fromkeys(c.arm for c in cells)},
        "settings": {
            setting: {
                "optim": config.optim.model_dump(mode="json"),
                "train": config.train.model_dump(mode="json"),
                "algorithms": {a: c.algorithm.model_dump(mode="json") for (s, a), c in first.items() if s == setting},
            }
            for (setting, _), config in first.items()
        },
        "summary": summary(runs),
        "runs": runs,
    }
    temporary = out / f".{RESULT}"
    temporary.write_text(json.dumps(result, indent=1) + "\n")
    os.replace(temporary, out / RESULT)
    return result
