"""Command line: options and exit codes. What the commands do is in commands.py and evaluation_commands.py.

Exit codes: 0 success, 2 a user's mistake (one sentence), 1 failure, 130 interrupted and saved.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from maskgrad import commands, evaluation_commands
from maskgrad.errors import BrokenModel, UserError

COMMANDS = {**commands.COMMANDS, **evaluation_commands.COMMANDS}

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
    sample.add_argument("--prompt-ids", action="append", default=[], metavar="1,2,3", help="prompt as token ids")
    sample.add_argument("--task", help="take prompts from a task instead, as name or name:key=value,...")
    sample.add_argument("--count", type=_count, default=4, help="prompts to take from the task (default 4)")
    sample.add_argument("--trace", metavar="FILE", help="write every denoising step as JSON")
    evaluate = commands.add_parser("eval", help="accuracy of models on tasks, and comparison of two results")
    _eval_options(evaluate)
    score = commands.add_parser("score", help="grade saved generations again")
    score.add_argument("saved", metavar="FILE.jsonl", help="one JSON object per line: the task's columns, completion")
    score.add_argument("--task", required=True, help="task name, or name:key=value,...")
    score.add_argument("--protocol", help="prompt protocol the completions answer (default: told from each completion)")
    stress = commands.add_parser(
        "stress",
        help="methods side by side under noisy or inflated ratios",
        epilog=SETTINGS_HELP,
        allow_abbrev=False,  # --seed and --algorithm are settings of a run, not short for --seeds and --algorithms
    )
    stress.add_argument("recipe", help="recipe name or a YAML file: gives model, task and rollouts to every arm")
    stress.add_argument("--algorithms", metavar="A,B,C", help="arms, for example grpo,stabledrl (default: all)")
    stress.add_argument(
        "--inflate", metavar="FRACTION:FACTOR", help="setting inflate: multiply this share of the ratios"
    )
    stress.add_argument("--negative-only", action="store_true", help="setting inflate: only where the advantage is < 0")
    stress.add_argument("--setting", default="both", metavar="NAME", help="noisy, inflate or both (default)")
    stress.add_argument("--seeds", default="0,1,2", metavar="N,N,N")
    stress.add_argument("--out", required=True, metavar="DIR", help="folder of the runs, stress.json and stress.png")
    stress.add_argument("--jobs", type=_count, default=1, help="runs at a time (default 1)")
    recipes = commands.add_parser("recipes", help="list recipes, algorithms, tasks and models that ship in the package")
    recipes.add_argument("name", nargs="?", help="print this recipe's settings")
    for command in (evaluate, score, train):
        command.add_argument("--sandbox", choices=["bwrap", "rlimit"], help="for model-written code (rlimit is weaker)")
    for command in (evaluate, recipes, sample, score, stress):
        command.add_argument("--json", metavar="FILE", help="write the result as JSON")
    return parser


def _run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="DIR", help="folder of the run (default: runs/RECIPE[-ALGORITHM]-seedN)")
    parser.add_argument("--resume", metavar="DIR", help="continue an interrupted run from its last checkpoint")
    parser.add_argument("--json", metavar="FILE", help="write the final evaluation as JSON")
    parser.add_argument("--quiet", action="store_true", help="print warnings only")


def _eval_options(parser: argparse.ArgumentParser) -> None:
    """Models, tasks and sampler settings that are given several times make a grid."""
    parser.add_argument("--model", action="append", help="folder, hub id, or maskgrad:NAME; may be repeated")
    parser.add_argument("--task", action="append", help="task name, or name:key=value,...; may be repeated")
    parser.add_argument("--protocol", help="prompt protocol of the task, for example compact or d1")
    parser.add_argument("--file", help="data file of the task (its public test set)")
    parser.add_argument("--split", choices=["train", "validation", "test"], default="test")
    parser.add_argument("--limit", type=_count, help="at most this many items (default: all, or 200 generated ones)")
    parser.add_argument("--repeats", type=_count, default=1, help="completions per item; repeat r uses seed + r")
    parser.add_argument("--outputs", metavar="FILE", help="keep one JSON line per completion; go on from what is there")
    parser.add_argument("--compare", nargs=2, metavar=("A.json", "B.json"), help="paired test of two results instead")
    parser.add_argument("--across-samplers", action="store_true", help="let --compare take results of other samplers")
    _sampler_options(parser, {"nargs": "+"})
    _run_model_options(parser)


def _model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, help="folder, hub id, or maskgrad:NAME")
    _sampler_options(parser, {})
    _run_model_options(parser)


def _steps(text: str) -> int | str:
    if not re.fullmatch(r"L(/[1-9]\d*)?", text) and not text.lstrip("-").isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a whole number nor a share of the length such as L/2")
    return text if text.startswith("L") else int(text)


def _sampler_options(parser: argparse.ArgumentParser, several: dict[str, Any]) -> None:
    """Options of the sampler; with `several` most of them take more than one value."""
    more = " (several: a grid)" if several else ""
    add = parser.add_argument
    add("--gen-length", type=int, help=f"canvas length in tokens{more}", **several)
    add("--block-length", type=int, help=f"tokens per block{more}", **several)
    paired = "; several: one per length" if several else ""
    add("--steps", type=_steps, help=f"passes per completion, or L/2{paired}", **several)
    limit = f"commit every token at least this confident instead of --steps{more}"
    add("--threshold", type=float, help=limit, **several)
    add("--temperature", type=float, help=f"of the token choice{more}", **several)
    orders = ["low_confidence", "max_prob", "entropy", "margin", "random", "sequential", "origin"]
    add("--remasking", choices=orders, help=f"order of the commits{more}", **several)
    add("--guidance", type=float, help="classifier-free guidance scale")
    add("--suppress-stop", choices=["none", "never", "delay"])
    add("--steps-per-block", type=int, help="passes per block instead of --steps; with --threshold at least as many")
    add("--top-k", type=int, help="draw from the k most probable ids")
    add("--top-p", type=float, help="draw from the most probable ids that hold this mass")
    add("--order-temperature", type=float, help="draw which positions are committed instead of taking the best")
    add("--confidence", choices=["model", "sampling"], help="rank by the model's probabilities or by those drawn from")
    add(
        "--grid",
        choices=["absolute", "response"],
        help="blocks begin at the first prompt token | at the canvas",
    )
    add(
        "--cache",
        choices=["none", "exact", "prefix", "dual"],
        help="reuse keys and values, see docs/caches.md",
    )


def _run_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--adapter", metavar="DIR", help="LoRA adapter on top of the model")
    parser.add_argument("--mask-token", metavar="TOKEN", help="of a plain decoder whose config.json names none")
    parser.add_argument("--block", type=_count, help="of a plain decoder: block-causal with blocks of this length")
    parser.add_argument("--logit-shift", type=int, choices=[0, 1], help="of a plain decoder: 1 predicts the next token")
    parser.add_argument("--attn", default="sdpa", choices=["sdpa", "eager", "flex"], help="kernel (flex: CUDA only)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float64"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--micro-batch", type=_count, default=256, help="rows sampled at once")
    parser.add_argument("--max-prompt-length", type=_count, default=2048)
    parser.add_argument("--threads", type=_count, default=1, help="CPU threads (default 1: safe on a busy machine)")


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
    except BrokenModel as error:
        print(f"maskgrad: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("maskgrad: interrupted", file=sys.stderr)
        return 130


def entry() -> None:
    sys.exit(main())


if __name__ == "__main__":
    entry()
