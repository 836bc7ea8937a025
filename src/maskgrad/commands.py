"""What each command does. Heavy imports happen inside, so that the command line answers at once."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from maskgrad.errors import UserError


def no_rest(rest: list[str], command: str) -> None:
    if rest:
        raise UserError(f"{command} does not know {rest[0]!r}: see maskgrad {command} --help")


def write_json(path: str | None, value: Any) -> None:
    if path is None:
        return
    try:
        Path(path).write_text(json.dumps(value, indent=1) + "\n")
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror}): choose another file") from None


def writable(path: str | None) -> None:
    """Refuse an output file that cannot be written before any long work."""
    if path is not None and not os.access(Path(path).resolve().parent, os.W_OK):
        raise UserError(f"cannot write {path}: its folder does not exist or is read-only")
    if path is not None and Path(path).is_dir():
        raise UserError(f"cannot write {path}: it is a folder, name a file in it")
    if path is not None and Path(path).is_file() and Path(path).suffix not in (".json", ".jsonl"):
        raise UserError(f"{path} exists and is no .json or .jsonl file: choose another name")


def apart(**paths: str | None) -> None:
    """Refuse two options that name one file: the second would be written over the first."""
    seen: dict[Path, str] = {}
    for option, path in paths.items():
        if path is not None and (other := seen.setdefault(Path(path).resolve(), option)) != option:
            raise UserError(f"{other} and {option} name the same file {path}: give each its own")


def spelled_out(overrides: dict[str, Any]) -> dict[str, Any]:
    """`--task name:key=value` and `--model PATH` as the settings they stand for."""
    out = dict(overrides)
    if isinstance(out.get("task"), str):
        out["task"] = task_settings(out["task"])
    if isinstance(out.get("model"), str):
        out["model"] = {"path": out["model"]}
    return out


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


def task_settings(text: str, **extra: Any) -> dict[str, Any]:
    """`name:key=value,key=value` as task settings; values are read as YAML. `gym:NAME` is a name."""
    from maskgrad.config import _yaml_value

    prefix = "gym:" if text.startswith("gym:") else ""  # gym:NAME is a name
    name, _, pairs = text.removeprefix(prefix).partition(":")
    name = prefix + name
    out: dict[str, Any] = {"name": name}
    for pair in filter(None, re.split(r",(?=\w+=)", pairs)):  # a value may hold commas: blanks=[8,12]
        key, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"--task {text!r}: {pair!r} is not key=value")
        out[key] = _yaml_value(value)
    return {**out, **{k: v for k, v in extra.items() if v is not None}}


def load_model(known: argparse.Namespace, path: str) -> Any:
    import torch

    from maskgrad.models.load import load_policy
    from maskgrad.models.settings import ModelConfig
    from maskgrad.settings import parse

    torch.set_num_threads(known.threads)
    given = {name: getattr(known, name) for name in MODEL_OPTIONS}
    model = parse(ModelConfig, {"path": path, **given}, "model options")
    return load_policy(model.path, adapter=model.adapter, **model.reading)


#: Options of the command line that say how a checkpoint is read.
MODEL_OPTIONS = ("adapter", "mask_token", "block", "logit_shift", "attn", "dtype", "device")
SAMPLER_OPTIONS = (
    "gen_length",
    "block_length",
    "steps",
    "threshold",
    "temperature",
    "remasking",
    "guidance",
    "suppress_stop",
    "steps_per_block",
    "top_k",
    "top_p",
    "order_temperature",
    "confidence",
    "grid",
    "cache",
)
#: Which of them say how many passes there are: one given replaces the model's own.
PLANS = {"steps": ("threshold", "steps_per_block"), "threshold": ("steps",), "steps_per_block": ("steps",)}


def sampler_settings(path: str, options: Mapping[str, Any], adapter: str | None = None) -> Any:
    """Sampler from options that are not None; the rest from the sampler.json of the adapter, or else of the model.

    `steps` may be a share of the canvas, "L" or "L/2".
    """
    from maskgrad.diffusion.schedule import SAMPLER_FILE, SamplerConfig
    from maskgrad.models.files import find_folder, read_json
    from maskgrad.settings import parse

    files = [find_folder(folder) / SAMPLER_FILE for folder in (adapter, path) if folder is not None]
    values: dict[str, Any] = next((read_json(file) for file in files if file.is_file()), {})
    given = {name: value for name, value in options.items() if value is not None}
    if given.get("gen_length", values.get("gen_length")) != values.get("gen_length"):
        values = {name: v for name, v in values.items() if name not in ("block_length", "steps")}  # of another canvas
    replaced = {other for name in given for other in PLANS.get(name, ())}
    values = {name: value for name, value in values.items() if name not in replaced} | given
    if "gen_length" not in values:
        raise UserError(f"{path} states no canvas length: give --gen-length")
    if isinstance(values.get("steps"), str):  # only an option can be one
        values["steps"] = values["gen_length"] // int(values["steps"].partition("/")[2] or 1)
    return parse(SamplerConfig, values, "sampler options")


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
