"""`maskgrad eval` and `maskgrad score`. Heavy imports happen inside, so that the command line answers at once."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maskgrad.command_options import (
    SAMPLER_OPTIONS,
    apart,
    load_model,
    no_rest,
    sampler_settings,
    task_settings,
    writable,
    write_json,
)
from maskgrad.errors import UserError

if TYPE_CHECKING:
    from maskgrad.evaluation.outputs import OutputsFile

#: Seconds between progress lines where the screen cannot be redrawn.
QUIET = 60.0


@dataclass(frozen=True)
class Cell:
    """One evaluation of the grid."""

    model: str
    settings: dict[str, Any]  # of the task
    task: Any
    sampler: Any

    @property
    def label(self) -> str:
        sampler = self.sampler
        passes = f"threshold {sampler.threshold}" if sampler.threshold is not None else f"steps {sampler.passes}"
        temperature = f", temperature {sampler.temperature}" if sampler.temperature else ""
        return f"{self.model}, {self.settings['name']}, length {sampler.gen_length}, {passes}{temperature}"


def evaluate(known: argparse.Namespace, rest: list[str]) -> int:
    no_rest(rest, "eval")
    writable(known.json)
    writable(known.outputs)
    apart(**{"--json": known.json, "--outputs": known.outputs})
    if known.compare is not None:
        return _compare(known)
    if known.across_samplers:
        raise UserError("--across-samplers belongs to --compare A.json B.json: leave it out, or compare")
    if known.model is None or known.task is None:
        missing = "--model" if known.model is None else "--task"
        raise UserError(f"{missing} is missing: give --model and --task, or --compare A.json B.json")
    if known.file is not None and len(known.task) > 1:
        raise UserError(f"--file {known.file} beside {len(known.task)} tasks: write --task NAME:file=PATH for each")
    cells = list(_cells(known))
    results: list[dict[str, Any]] = []
    try:
        for model, group in itertools.groupby(cells, lambda cell: cell.model):
            results += _evaluate_model(known, model, list(group), cells)
    except KeyboardInterrupt:
        kept = f"; completions are kept in {known.outputs}, the same command goes on" if known.outputs else ""
        print(f"\nmaskgrad: interrupted{kept}", file=sys.stderr)
        return 130
    write_json(known.json, results[0] if len(cells) == 1 else {"results": results})
    return 0


def _cells(known: argparse.Namespace) -> Iterator[Cell]:
    """The grid: every model with every task and every sampler. Everything is checked before a model is loaded."""
    from maskgrad.tasks.registry import make_task

    settings = [
        task_settings(text, prompt=known.protocol, file=known.file, sandbox=known.sandbox) for text in known.task
    ]
    tasks = [make_task(given) for given in settings]
    for task in tasks:
        task.check()
    for model, (given, task), options in itertools.product(
        known.model, zip(settings, tasks, strict=True), list(_sampler_grid(known))
    ):
        yield Cell(model, given, task, sampler_settings(model, options, known.adapter))


def _sampler_grid(known: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Combinations of the sampler options. Several `--steps` beside several `--gen-length` belong together in order."""
    given = {name: getattr(known, name) for name in SAMPLER_OPTIONS}
    given = {name: value if isinstance(value, list) else [value] for name, value in given.items()}
    lengths, steps = given.pop("gen_length"), given.pop("steps")
    if len(lengths) > 1 and len(steps) > 1 and len(lengths) != len(steps):
        raise UserError(
            f"{len(lengths)} values for --gen-length and {len(steps)} for --steps: give one for all, or one per length"
        )
    paired = len(lengths) == len(steps)
    pairs = list(zip(lengths, steps, strict=True)) if paired else list(itertools.product(lengths, steps))
    for (length, count), *others in itertools.product(pairs, *given.values()):
        yield {"gen_length": length, "steps": count, **dict(zip(given, others, strict=True))}


def _evaluate_model(
    known: argparse.Namespace, model: str, group: list[Cell], cells: list[Cell]
) -> list[dict[str, Any]]:
    from maskgrad.diffusion.grid import fitted
    from maskgrad.evaluation.outputs import OutputsFile
    from maskgrad.evaluation.result import settings_hash
    from maskgrad.models.fingerprint import weights_hash
    from maskgrad.reporting.console import Console

    policy = load_model(known, model)
    group = [replace(cell, sampler=fitted(policy, cell.sampler)) for cell in group]
    about = {"adapter": known.adapter, "weights": weights_hash(policy), "dtype": known.dtype, "device": known.device}
    about |= {"max_prompt_length": known.max_prompt_length}
    about |= {
        name: getattr(known, name) for name in ("mask_token", "block", "logit_shift")
    }  # same weights, other model
    names = [
        settings_hash(**about, task=sorted(cell.settings.items()), split=known.split, sampler=cell.sampler.model_dump())
        for cell in group
    ]
    store = OutputsFile(known.outputs, model, names, known.model) if known.outputs else None
    results = []
    for cell, name in zip(group, names, strict=True):
        result = _evaluate_cell(known, policy, cell, {"model": model, **about, "settings": name}, store)
        if len(cells) > 1:
            print(cell.label)
        Console().show({"event": "eval", "step": None, **result, "time": {"wall": time.time()}})
        results.append(result)
    return results


def _evaluate_cell(
    known: argparse.Namespace, policy: Any, cell: Cell, about: dict[str, Any], store: OutputsFile | None
) -> dict[str, Any]:
    from maskgrad.evaluation.evaluate import evaluate as run
    from maskgrad.evaluation.result import record

    found = run(
        policy,
        cell.task,
        known.split,
        known.limit or cell.task.size(known.split) or 200,
        cell.sampler,
        micro_batch=known.micro_batch,
        max_prompt_length=known.max_prompt_length,
        seed=known.seed,
        repeats=known.repeats,
        outputs=None if store is None else store.part(about["settings"]),
        progress=_progress(),
    )
    cell.task.close()  # the workers of many tasks would add up
    task = {key: value for key, value in cell.settings.items() if key != "file"}
    details = {**about, "file": cell.settings.get("file"), "task_settings": task, "grader": cell.task.grader}
    result = record(found, seed=known.seed, repeats=known.repeats, about=details)
    result["time"] |= {"micro_batch": known.micro_batch, "threads": known.threads}
    if store is not None:
        store.finish(about["settings"], [{**item, "task": task} for item in found.items])
    return result


def _progress() -> Callable[[int, int], None]:
    """Redraws a count on a terminal, prints one now and then elsewhere."""
    last = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal last
        if sys.stderr.isatty():
            print(f"\r{done}/{total}", end="\n" if done == total else "", file=sys.stderr, flush=True)
        elif time.monotonic() - last > QUIET:
            last = time.monotonic()
            print(f"{done}/{total}", file=sys.stderr, flush=True)

    return show


def _compare(known: argparse.Namespace) -> int:
    for name in ("model", "task", "outputs", "adapter", "file", "protocol", "limit"):
        if getattr(known, name) is not None:
            raise UserError(f"--{name} has no effect beside --compare, which samples nothing: leave one of them out")
    from maskgrad.evaluation.compare import compare, load_result, sentence

    first, second = map(load_result, known.compare)
    found = compare(first, second, seed=known.seed, across=known.across_samplers)
    write_json(known.json, {**found, "files": known.compare})
    print(sentence(found))
    return 0


def score(known: argparse.Namespace, rest: list[str]) -> int:
    """Rows go to standard output as JSON lines, the summary to standard error; with --json the summary is printed."""
    no_rest(rest, "score")
    writable(known.json)
    apart(**{"FILE": known.saved, "--json": known.json})
    from maskgrad.evaluation.score import read_rows, score_rows

    settings = task_settings(known.task, prompt=known.protocol, sandbox=known.sandbox)
    rows, summary = score_rows(settings, read_rows(known.saved))
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    lines = lines.encode("utf-8", "backslashreplace").decode("utf-8")  # half of a surrogate pair, as JSON escapes it
    shown = json.dumps(summary, ensure_ascii=False)
    if known.json is None:
        print(lines, end="")
        print(shown, file=sys.stderr)
        return 0
    if known.json.endswith(".jsonl"):
        Path(known.json).write_text(lines, "utf-8")
    else:
        write_json(known.json, {"summary": summary, "rows": rows})
    print(shown)
    return 0


COMMANDS = {"eval": evaluate, "score": score}
