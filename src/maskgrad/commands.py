"""What each command does. Heavy imports happen inside, so that the command line answers at once."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from maskgrad.command_options import (
    SAMPLER_OPTIONS,
    load_model,
    no_rest,
    sampler_settings,
    spelled_out,
    task_settings,
    writable,
    write_json,
)
from maskgrad.errors import UserError


def _start_or_resume(known: argparse.Namespace, rest: list[str]) -> None:
    other = (getattr(known, name, None) for name in ("recipe", "out", "algorithm", "sandbox"))
    if known.resume is not None and (rest or any(other)):
        raise UserError("--resume takes every setting from the run's own config.yaml: leave other options out")
    if known.resume is None and known.recipe is None:
        raise UserError("give either a recipe to start or --resume DIR to continue")


def train(known: argparse.Namespace, rest: list[str]) -> int:
    writable(known.json)
    _start_or_resume(known, rest)
    from maskgrad.reporting.console import Console
    from maskgrad.training.loop import TrainingRun

    console = Console(quiet=known.quiet)
    if known.resume is not None:
        out = Path(known.resume)
        return _finish(known, out, TrainingRun.reopen(out, console=console).resume)
    from maskgrad.config import merge, parse_overrides, run_config

    overrides = spelled_out(parse_overrides(rest))
    if known.sandbox is not None:
        overrides = merge(overrides, {"task": {"sandbox": known.sandbox}})
    config = run_config(known.recipe, overrides, known.algorithm)
    out = Path(known.out or f"runs/{config.recipe}-{config.algorithm.name}-seed{config.seed}")
    return _finish(known, out, TrainingRun.new(config, out, console=console).start)


def sft(known: argparse.Namespace, rest: list[str]) -> int:
    writable(known.json)
    _start_or_resume(known, rest)
    from maskgrad.reporting.console import Console
    from maskgrad.training.sft import SupervisedRun

    console = Console(quiet=known.quiet)
    if known.resume is not None:
        out = Path(known.resume)
        run = SupervisedRun.reopen(out, console)
    else:
        from maskgrad.config import parse_overrides, sft_config

        config = sft_config(known.recipe, spelled_out(parse_overrides(rest)))
        out = Path(known.out or f"runs/{config.recipe}-seed{config.seed}")
        run = SupervisedRun.new(config, out, console)
    return _finish(known, out, run.train)


def _finish(known: argparse.Namespace, out: Path, run: Callable[[], dict[str, Any]]) -> int:
    """Run to the end and report; an interrupted run exits with 130, one that cannot go on with 1."""
    from maskgrad.training.interrupt import Interrupted, TrainingStopped

    try:
        result = run()
    except (Interrupted, TrainingStopped) as stop:
        print(f"maskgrad: {stop}", file=sys.stderr)
        return 130 if isinstance(stop, Interrupted) else 1
    write_json(known.json, result)
    if not known.quiet:
        print(f"model: {out}/final   journal: {out}/journal.jsonl")
    return 0


def _token_ids(text: str) -> list[int]:
    """`1,2,3` as token ids."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise UserError(f"--prompt-ids {text!r} is not a list of token ids such as 1,2,3")
    return [int(part) for part in parts]


def sample(known: argparse.Namespace, rest: list[str]) -> int:
    no_rest(rest, "sample")
    writable(known.json)
    writable(known.trace)
    prompts, as_ids = _prompts(known)
    sampler = sampler_settings(known.model, {name: getattr(known, name) for name in SAMPLER_OPTIONS}, known.adapter)
    policy = load_model(known, known.model)
    import torch

    from maskgrad.diffusion.batching import decode, id_batch, prompt_batch, sample_in_chunks
    from maskgrad.diffusion.gap import journal_gap
    from maskgrad.diffusion.grid import fitted
    from maskgrad.diffusion.sampler import Record
    from maskgrad.evaluation.trace import trace

    sampler = fitted(policy, sampler)
    limit, order = known.max_prompt_length, torch.arange(len(prompts))
    batch = (id_batch if as_ids else prompt_batch)(policy, prompts, order, limit, sampler.gen_length)
    path = sample_in_chunks(policy, batch, sampler, known.seed, Record(), known.micro_batch)
    # without a tokenizer the completion is its token ids
    texts: list[Any] = path.tokens.tolist() if policy.tokenizer is None else decode(policy, path.tokens)
    for prompt, text in zip(prompts, texts, strict=True):
        print(f"{prompt}\n  -> {text}")
    gap = journal_gap(policy, batch, path, sampler, known.seed)
    if gap:
        print(f"cache {sampler.cache}: log-probs are {gap['sampler_gap']:.3g} nats off those of the scorer on average")
    rows = [
        {"prompt": p, "completion": None if policy.tokenizer is None else t, "tokens": path.tokens[i].tolist()}
        for i, (p, t) in enumerate(zip(prompts, texts, strict=True))
    ]
    about = {"model": known.model, "sampler": sampler.model_dump(mode="json"), **gap}
    write_json(known.json, {**about, "samples": rows})
    if known.trace:
        write_json(known.trace, trace(policy, prompts, path, sampler))
    return 0


def _prompts(known: argparse.Namespace) -> tuple[list[Any], bool]:
    """The prompts of `sample`, and whether they are token ids."""
    prompts: list[Any] = list(known.prompt)
    ids = [_token_ids(text) for text in known.prompt_ids]
    if sum(map(bool, (prompts, ids, known.task))) != 1:
        raise UserError("give --prompt TEXT or --prompt-ids IDS (either may be repeated), or --task NAME")
    if not all(str(prompt).strip() for prompt in prompts):
        raise UserError(f"--prompt {prompts!r} has an empty text: give every prompt some")
    if known.task:
        from maskgrad.tasks.registry import make_task

        task = make_task(task_settings(known.task))
        prompts = [task.example("test", i).prompt for i in range(min(known.count, task.size("test") or known.count))]
    return prompts or ids, bool(ids)


def stress(known: argparse.Namespace, rest: list[str]) -> int:
    writable(known.json)
    from maskgrad.config import parse_overrides
    from maskgrad.diagnostics import stress as test
    from maskgrad.diagnostics.arms import ARMS
    from maskgrad.diagnostics.digest import COLUMNS, table_rows
    from maskgrad.diagnostics.plot import plot
    from maskgrad.reporting.tables import results_table
    from maskgrad.training.interrupt import Interrupted, TrainingStopped

    settings = test.parse_setting(known.setting)
    if "inflate" not in settings and (known.inflate is not None or known.negative_only):
        raise UserError("--inflate and --negative-only belong to setting inflate: leave them out, or the --setting")
    inflate = {**test.parse_inflate(known.inflate or "0.2:1000"), "only_negative": known.negative_only}
    arms = test.parse_arms(known.algorithms or ",".join(ARMS))
    out = Path(known.out)
    cells = test.plan(
        known.recipe, arms, settings, test.parse_seeds(known.seeds), inflate, spelled_out(parse_overrides(rest))
    )
    test.claim(out, cells)
    try:
        result = test.run_all(cells, out, known.jobs, lambda text: print(text, file=sys.stderr, flush=True))
    except (Interrupted, KeyboardInterrupt):
        print("maskgrad: interrupted; the same command goes on where it was", file=sys.stderr)
        return 130
    except TrainingStopped as stop:
        print(f"maskgrad: {stop}", file=sys.stderr)
        return 1
    write_json(known.json, result)
    print(results_table(table_rows(result), COLUMNS))
    plot(result, out / "stress.png")
    print(f"\nresult: {out}/stress.json   plot: {out}/stress.png")
    return 0


def recipes(known: argparse.Namespace, rest: list[str]) -> int:
    no_rest(rest, "recipes")
    writable(known.json)
    from importlib import resources

    from maskgrad.algorithms import ALGORITHMS
    from maskgrad.config import read_recipe, recipe_names
    from maskgrad.tasks.registry import TASKS

    if known.name is not None:
        import yaml

        settings = read_recipe(known.name)
        print(yaml.safe_dump(settings, sort_keys=False), end="")
        write_json(known.json, settings)
        return 0
    tasks = [*sorted(TASKS), "gym:NAME"]
    listed = {name: read_recipe(name) for name in recipe_names()}
    assets = resources.files("maskgrad") / "assets"
    models = sorted(p.name for p in assets.iterdir() if (p / "config.json").is_file()) if assets.is_dir() else []
    for name, values in listed.items():
        print(f"{name:28} {'sft' if 'stages' in values else 'train'}   {values.get('about', '')}")
    print(f"\nalgorithms  {', '.join(ALGORITHMS)}\ntasks       {', '.join(tasks)}")
    print(f"models      {', '.join('maskgrad:' + m for m in models)}")
    about = {name: values.get("about", "") for name, values in listed.items()}
    write_json(known.json, {"recipes": about, "algorithms": list(ALGORITHMS), "tasks": tasks, "models": models})
    return 0


COMMANDS = {"train": train, "sft": sft, "sample": sample, "stress": stress, "recipes": recipes}
