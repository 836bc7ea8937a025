"""What the command line's options stand for: files to write, tasks and samplers spelled as text, models to load.

Heavy imports happen inside the functions, as in the commands.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Mapping
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
