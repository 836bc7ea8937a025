"""Command line. Heavy imports happen inside the commands: `--help` answers at once.

Exit codes: 0 success, 2 a user's mistake (one sentence), 1 failure, 130 interrupted and saved.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from maskgrad.errors import UserError

SETTINGS_HELP = "any setting can be changed as --leaf.path VALUE, for example --optim.lr 1e-4 (see the recipe's YAML)"


class _Parser(argparse.ArgumentParser):
    """Reports a mistake as one sentence, like every other command of ours, instead of the usage block."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 up")
    return int(text)


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="maskgrad", description="Reinforcement learning for masked-diffusion language models.")
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    train = commands.add_parser("train", help="reinforcement learning on a task", epilog=SETTINGS_HELP)
    train.add_argument("recipe", nargs="?", help="recipe name (see `maskgrad recipes`) or a YAML file")
    train.add_argument("--algorithm", metavar="NAME", help="method to use, with the recipe's settings for it")
    _run_options(train)
    sft = commands.add_parser("sft", help="supervised masked-diffusion training", epilog=SETTINGS_HELP)
    sft.add_argument("recipe", nargs="?", help="recipe name or a YAML file")
    _run_options(sft)
    sample = commands.add_parser("sample", help="complete prompts and show how the canvas was filled")
    _model_options(sample)
    sample.add_argument("--prompt", action="append", default=[], help="prompt text; may be repeated")
    sample.add_argument("--task", help="take prompts from a task instead, as name or name:key=value,...")
    sample.add_argument("--count", type=_count, default=4, help="prompts to take from the task (default 4)")
    sample.add_argument("--trace", metavar="FILE", help="write every denoising step as JSON")
    evaluate = commands.add_parser("eval", help="accuracy of a model on a task")
    _model_options(evaluate)
    evaluate.add_argument("--task", required=True, help="task name, or name:key=value,...")
    evaluate.add_argument("--protocol", help="prompt protocol of the task, for example compact or d1")
    evaluate.add_argument("--file", help="data file of the task (its public test set)")
    evaluate.add_argument("--split", choices=["train", "validation", "test"], default="test")
    evaluate.add_argument("--limit", type=_count, help="at most this many items (default: all, or 200 generated ones)")
    evaluate.add_argument("--outputs", metavar="FILE", help="write one JSON line per item")
    recipes = commands.add_parser("recipes", help="list recipes, algorithms, tasks and models that ship in the package")
    recipes.add_argument("name", nargs="?", help="print this recipe's settings")
    for command in (evaluate, recipes, sample):
        command.add_argument("--json", metavar="FILE", help="write the result as JSON")
    return parser


def _run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="DIR", help="folder of the run (default: runs/RECIPE[-ALGORITHM]-seedN)")
    parser.add_argument("--resume", metavar="DIR", help="continue an interrupted run from its last checkpoint")
    parser.add_argument("--json", metavar="FILE", help="write the final evaluation as JSON")
    parser.add_argument("--quiet", action="store_true", help="print warnings only")


def _model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, help="folder, hub id, or maskgrad:NAME")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float64"])
    parser.add_argument("--gen-length", type=int, help="canvas length in tokens")
    parser.add_argument("--block-length", type=int)
    parser.add_argument("--steps", type=int, help="network passes per completion")
    parser.add_argument("--threshold", type=float, help="commit every token at least this confident instead of --steps")
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--remasking", choices=["low_confidence", "max_prob", "entropy", "margin", "random"])
    parser.add_argument("--guidance", type=float, help="classifier-free guidance scale")
    parser.add_argument("--suppress-stop", choices=["none", "never", "delay"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--micro-batch", type=_count, default=256, help="rows sampled at once")
    parser.add_argument("--max-prompt-length", type=_count, default=2048)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = build_parser()
    try:
        known, rest = parser.parse_known_args(arguments)
        if known.version:
            from maskgrad import __version__

            print(__version__)
            return 0
        if known.command is None:
            parser.print_help()
            return 2
        return COMMANDS[known.command](known, rest)
    except UserError as error:
        print(f"maskgrad: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("maskgrad: interrupted", file=sys.stderr)
        return 130


def entry() -> None:
    sys.exit(main())


def _no_rest(rest: list[str], command: str) -> None:
    if rest:
        raise UserError(f"{command} does not know {rest[0]!r}: see maskgrad {command} --help")


def _write_json(path: str | None, value: Any) -> None:
    if path is None:
        return
    try:
        Path(path).write_text(json.dumps(value, indent=1) + "\n")
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror}): choose another file") from None


def _writable(path: str | None) -> None:
    """Refuse an output file that cannot be written before any long work."""
    if path is not None and not os.access(Path(path).resolve().parent, os.W_OK):
        raise UserError(f"cannot write {path}: its folder does not exist or is read-only")
    if path is not None and Path(path).is_dir():
        raise UserError(f"cannot write {path}: it is a folder, name a file in it")


def _start_or_resume(known: argparse.Namespace, rest: list[str]) -> None:
    if known.resume is not None and (rest or known.recipe or known.out or getattr(known, "algorithm", None)):
        raise UserError("--resume takes every setting from the run's own config.yaml: leave other options out")
    if known.resume is None and known.recipe is None:
        raise UserError("give either a recipe to start or --resume DIR to continue")


def train(known: argparse.Namespace, rest: list[str]) -> int:
    _writable(known.json)
    _start_or_resume(known, rest)
    from maskgrad.reporting.console import Console
    from maskgrad.training.loop import Interrupted, TrainingRun, TrainingStopped

    console = Console(quiet=known.quiet)
    try:
        if known.resume is not None:
            result = TrainingRun.reopen(Path(known.resume), console=console).resume()
            out = Path(known.resume)
        else:
            from maskgrad.config import parse_overrides, run_config

            config = run_config(known.recipe, parse_overrides(rest), known.algorithm)
            out = Path(known.out or f"runs/{config.recipe}-{config.algorithm.name}-seed{config.seed}")
            result = TrainingRun.new(config, out, console=console).start()
    except Interrupted as stop:
        print(f"maskgrad: {stop}", file=sys.stderr)
        return 130
    except TrainingStopped as stop:
        print(f"maskgrad: {stop}", file=sys.stderr)
        return 1
    _write_json(known.json, result)
    return _told(known.quiet, f"model: {out}/final   journal: {out}/journal.jsonl")


def sft(known: argparse.Namespace, rest: list[str]) -> int:
    _writable(known.json)
    _start_or_resume(known, rest)
    from maskgrad.reporting.console import Console
    from maskgrad.training.loop import TrainingStopped
    from maskgrad.training.sft import SupervisedRun

    console = Console(quiet=known.quiet)
    if known.resume is not None:
        out = Path(known.resume)
        run = SupervisedRun.reopen(out, console)
    else:
        from maskgrad.config import parse_overrides, sft_config

        config = sft_config(known.recipe, parse_overrides(rest))
        out = Path(known.out or f"runs/{config.recipe}-seed{config.seed}")
        run = SupervisedRun.new(config, out, console)
    try:
        result = run.train()
    except KeyboardInterrupt:
        print(f"maskgrad: interrupted; continue from the last checkpoint with --resume {out}", file=sys.stderr)
        return 130
    except TrainingStopped as stop:
        print(f"maskgrad: {stop}", file=sys.stderr)
        return 1
    _write_json(known.json, result)
    return _told(known.quiet, f"model: {out}/final   journal: {out}/journal.jsonl")


def _told(quiet: bool, text: str) -> int:
    if not quiet:
        print(text)
    return 0


def task_settings(text: str, **extra: Any) -> dict[str, Any]:
    """`name:key=value,key=value` as task settings; values are read as YAML."""
    from maskgrad.config import _yaml_value

    name, _, pairs = text.partition(":")
    out: dict[str, Any] = {"name": name}
    for pair in filter(None, re.split(r",(?=\w+=)", pairs)):  # a value may hold commas: blanks=[8,12]
        key, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"--task {text!r}: {pair!r} is not key=value")
        out[key] = _yaml_value(value)
    return {**out, **{k: v for k, v in extra.items() if v is not None}}


def _load(known: argparse.Namespace) -> Any:
    from maskgrad.config import ModelConfig
    from maskgrad.models.load import load_policy
    from maskgrad.settings import parse
    from maskgrad.training.loop import set_threads

    model = parse(ModelConfig, {"path": known.model, "dtype": known.dtype, "device": known.device}, "model options")
    set_threads(0)
    return load_policy(model.path, dtype=model.dtype, device=model.device)


def sampler_settings(known: argparse.Namespace) -> Any:
    """Sampler from the options; what is left out comes from the model's own sampler.json, if it has one."""
    from maskgrad.diffusion.schedule import SAMPLER_FILE, SamplerConfig
    from maskgrad.models.files import find_folder, read_json
    from maskgrad.settings import parse

    file = find_folder(known.model) / SAMPLER_FILE
    values: dict[str, Any] = read_json(file) if file.is_file() else {}
    names = [
        "gen_length",
        "block_length",
        "steps",
        "threshold",
        "temperature",
        "remasking",
        "guidance",
        "suppress_stop",
    ]
    given = {name: getattr(known, name) for name in names if getattr(known, name) is not None}
    if given.get("gen_length", values.get("gen_length")) != values.get("gen_length"):
        values = {name: v for name, v in values.items() if name not in ("block_length", "steps")}  # of another canvas
    if "threshold" in given:
        values.pop("steps", None)
    if "steps" in given:
        values.pop("threshold", None)
    values |= given
    if "gen_length" not in values:
        raise UserError(f"{known.model} states no canvas length: give --gen-length")
    return parse(SamplerConfig, values, "sampler options")


def evaluate(known: argparse.Namespace, rest: list[str]) -> int:
    _no_rest(rest, "eval")
    _writable(known.json)
    _writable(known.outputs)
    from maskgrad.tasks.registry import make_task

    task = make_task(task_settings(known.task, prompt=known.protocol, file=known.file))
    sampler = sampler_settings(known)
    policy = _load(known)
    from maskgrad.evaluation.evaluate import evaluate as run

    size = task.size(known.split)
    count = known.limit or size or 200
    found = run(
        policy,
        task,
        known.split,
        count,
        sampler,
        micro_batch=known.micro_batch,
        max_prompt_length=known.max_prompt_length,
        seed=known.seed,
        progress=lambda done, total: (
            print(f"\r{done}/{total}", end="", file=sys.stderr) if sys.stderr.isatty() else None
        ),
    )
    result = {"model": known.model, "file": known.file, **found.result}
    _write_json(known.json, result)
    if known.outputs:
        Path(known.outputs).write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in found.items))
    from maskgrad.reporting.console import Console

    Console().show({"event": "eval", "step": None, **result, "time": {"wall": time.time()}})
    return 0


def sample(known: argparse.Namespace, rest: list[str]) -> int:
    _no_rest(rest, "sample")
    _writable(known.json)
    _writable(known.trace)
    prompts: list[Any] = list(known.prompt)
    if bool(prompts) == bool(known.task):
        raise UserError("give --prompt TEXT (may be repeated) or --task NAME")
    if not all(str(prompt).strip() for prompt in prompts):
        raise UserError(f"--prompt {prompts!r} has an empty text: give every prompt some")
    if known.task:
        from maskgrad.tasks.registry import make_task

        task = make_task(task_settings(known.task))
        prompts = [task.example("test", i).prompt for i in range(min(known.count, task.size("test") or known.count))]
    sampler = sampler_settings(known)
    policy = _load(known)
    import torch

    from maskgrad.diffusion.batching import decode, prompt_batch, sample_in_chunks
    from maskgrad.diffusion.sampler import Record
    from maskgrad.evaluation.trace import trace

    batch = prompt_batch(policy, prompts, torch.arange(len(prompts)), known.max_prompt_length)
    path = sample_in_chunks(policy, batch, sampler, known.seed, Record(), known.micro_batch)
    texts = decode(policy, path.tokens)
    for prompt, text in zip(prompts, texts, strict=True):
        print(f"{prompt}\n  -> {text}")
    rows = [
        {"prompt": p, "completion": t, "tokens": path.tokens[i].tolist()}
        for i, (p, t) in enumerate(zip(prompts, texts, strict=True))
    ]
    _write_json(known.json, {"model": known.model, "sampler": sampler.model_dump(mode="json"), "samples": rows})
    if known.trace:
        _write_json(known.trace, trace(policy, prompts, path, sampler))
    return 0


def recipes(known: argparse.Namespace, rest: list[str]) -> int:
    _no_rest(rest, "recipes")
    _writable(known.json)
    from importlib import resources

    from maskgrad.algorithms import ALGORITHMS
    from maskgrad.config import read_recipe, recipe_names
    from maskgrad.tasks.registry import TASKS

    if known.name is not None:
        import yaml

        settings = read_recipe(known.name)
        print(yaml.safe_dump(settings, sort_keys=False), end="")
        _write_json(known.json, settings)
        return 0
    listed = {name: read_recipe(name) for name in recipe_names()}
    assets = resources.files("maskgrad") / "assets"
    models = sorted(p.name for p in assets.iterdir() if p.is_dir()) if assets.is_dir() else []
    for name, values in listed.items():
        print(f"{name:28} {'sft' if 'stages' in values else 'train'}   {values.get('about', '')}")
    print(f"\nalgorithms  {', '.join(ALGORITHMS)}\ntasks       {', '.join(sorted(TASKS))}")
    print(f"models      {', '.join('maskgrad:' + m for m in models)}")
    about = {name: values.get("about", "") for name, values in listed.items()}
    _write_json(
        known.json, {"recipes": about, "algorithms": list(ALGORITHMS), "tasks": sorted(TASKS), "models": models}
    )
    return 0


COMMANDS = {"train": train, "sft": sft, "sample": sample, "eval": evaluate, "recipes": recipes}

if __name__ == "__main__":
    entry()
