"""Run configuration: YAML in, YAML out. A resolved configuration is sufficient to re-run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import ConfigDict, Field, model_validator

from maskgrad.algorithms import AlgorithmConfig
from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.errors import UserError, nearest
from maskgrad.models.settings import ModelConfig, SftModelConfig
from maskgrad.settings import Settings, parse
from maskgrad.tasks.grading import GradingSettings


class RolloutConfig(Settings):
    """A batch is prompts_per_batch x group_size completions; the library derives everything else."""

    prompts_per_batch: int = Field(default=16, ge=1)
    group_size: int = Field(default=8)
    max_prompt_length: int = Field(default=512, ge=1)  # tokens; a longer prompt is an error, never cut
    micro_batch: int = Field(default=256, ge=1)  # rows sampled at once
    sampler: SamplerConfig

    @model_validator(mode="after")
    def _group(self) -> RolloutConfig:
        if self.group_size < 2:
            raise ValueError(f"group_size {self.group_size} gives no baseline: use at least 2")
        return self


class OptimConfig(Settings):
    """AdamW with gradient-norm clipping."""

    model_config = ConfigDict(allow_inf_nan=False)

    lr: float = Field(gt=0)
    betas: tuple[float, float] = (0.9, 0.99)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    warmup_updates: int = Field(default=0, ge=0)
    # linear and cosine fall towards `final_share` of lr, which the update after the last one would have.
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    final_share: float = Field(default=0.0, ge=0, le=1)


class InflateConfig(Settings):
    """Stress test: multiply a random share of the importance ratios, see training/inflate.py."""

    model_config = ConfigDict(allow_inf_nan=False)

    fraction: float = Field(gt=0, le=1)  # of the ratios, drawn anew at every update
    factor: float = Field(gt=1)
    only_negative: bool = False  # only where the advantage is below 0


class TrainConfig(Settings):
    max_updates: int = Field(ge=1)  # optimiser steps
    micro_batch: int = Field(default=512, ge=1)  # masked views scored at once; never changes the result beyond rounding
    checkpoint_every: int = Field(default=50, ge=1)  # optimiser steps
    keep_checkpoints: int = Field(default=2, ge=1)
    eval_every: int = Field(default=0, ge=0)  # optimiser steps; 0 = only at the start and the end
    threads: int = Field(default=1, ge=0)  # intra-op CPU threads; 0 = torch's own choice
    max_skipped_in_row: int = Field(default=3, ge=1)  # stop after this many non-finite updates in a row
    samples_every: int = Field(default=10, ge=0)  # rollout batches between saved samples; 0 = never
    track_drift: bool = False  # keep the starting weights and journal the distance from them
    inflate: InflateConfig | None = None  # stress test of the method


class EvalConfig(Settings):
    """Held-out evaluation with the sampler of the rollouts, except for what is named here."""

    split: Literal["validation", "test", "train"] = "validation"
    count: int = Field(default=200, ge=1)
    temperature: float = Field(default=0.0, ge=0)
    steps: int | None = Field(default=None, gt=0)
    micro_batch: int = Field(default=256, ge=1)

    def changed(self, sampler: SamplerConfig) -> SamplerConfig:
        """The sampler with what this evaluation changes."""
        update: dict[str, Any] = {"temperature": self.temperature}
        if self.steps is not None:
            update |= {"steps": self.steps, "threshold": None, "steps_per_block": None}
        return SamplerConfig.model_validate({**sampler.model_dump(), **update})


class GradingConfig(Settings):
    """Worker processes that judge completions, for tasks that are not judged in the process itself."""

    workers: int = Field(default=2, ge=1)
    seconds: float = Field(default=5.0, gt=0)  # CPU time of one completion; code tasks have their own limits
    patience: float = Field(default=3.0, ge=1)  # wall time of one completion, as a multiple of that
    memory: int = Field(default=8192, ge=0)  # MiB of a worker; 0 = no limit

    def settings(self) -> GradingSettings:
        return GradingSettings(
            workers=self.workers, seconds=self.seconds, patience=self.patience, memory=self.memory * 2**20
        )


class RunConfig(Settings):
    recipe: str = "custom"
    seed: int = 0
    model: ModelConfig
    task: dict[str, Any]
    rollout: RolloutConfig
    algorithm: AlgorithmConfig
    optim: OptimConfig
    train: TrainConfig
    eval: EvalConfig = EvalConfig()
    grading: GradingConfig = GradingConfig()

    def eval_sampler(self) -> SamplerConfig:
        return self.eval.changed(self.rollout.sampler)

    @model_validator(mode="after")
    def _fits(self) -> RunConfig:
        self.eval_sampler()
        if self.eval.split == "test" and self.train.eval_every:
            raise ValueError(
                f"train.eval_every {self.train.eval_every} would watch the test split during training, and checkpoints "
                "are not to be chosen by it: set eval.split to validation, or train.eval_every to 0"
            )
        prompts, steps = self.rollout.prompts_per_batch, getattr(self.algorithm, "steps", 1)
        split = getattr(self.algorithm, "split", "groups")
        most = {"groups": prompts, "slots": steps, "states": prompts * self.rollout.group_size * steps}[split]
        if self.algorithm.minibatches > most:
            raise ValueError(
                f"algorithm.minibatches {self.algorithm.minibatches} leaves some without anything to score: "
                f"use at most {most} with split by {split}"
            )
        return self


class StageConfig(Settings):
    """One stretch of supervised training with its own cosine schedule."""

    updates: int = Field(ge=1)
    lr: float = Field(gt=0)
    wrong_share: float = Field(default=0.0, ge=0, le=1)  # share of targets that follow the task's consistent wrong mode
    warmup_updates: int = Field(default=20, ge=0)
    final_share: float = Field(default=0.05, ge=0, le=1)


class SftConfig(Settings):
    recipe: str = "custom"
    seed: int = 0
    model: SftModelConfig
    task: dict[str, Any]
    objective: Literal["count", "time"] = "count"  # count: L/l on l ~ U{1..L} masked | time: 1/t on t ~ U(0,1)
    padding: Literal["score", "first_eos"] = "score"  # EOS padding behind the answer, see training/sft.py
    batch: int = Field(default=64, ge=1)
    max_prompt_length: int = Field(default=512, ge=1)
    optim: OptimConfig
    stages: list[StageConfig] = Field(min_length=1)
    sampler: SamplerConfig  # of the evaluation; gen_length is the width of the training canvas
    eval: EvalConfig = EvalConfig()
    checkpoint_every: int = Field(default=500, ge=1)
    threads: int = Field(default=1, ge=0)

    def eval_sampler(self) -> SamplerConfig:
        return self.eval.changed(self.sampler)

    @model_validator(mode="after")
    def _eval_fits(self) -> SftConfig:
        self.eval_sampler()
        return self


def recipe_names() -> list[str]:
    folder = resources.files("maskgrad") / "recipes"
    return sorted(p.name.removesuffix(".yaml") for p in folder.iterdir() if p.name.endswith(".yaml"))


def read_recipe(name: str) -> dict[str, Any]:
    """Settings of a recipe by name, or of a YAML file by path."""
    if name.endswith((".yaml", ".yml")):
        file = Path(name)
        if not file.is_file():
            raise UserError(f"recipe file {name} does not exist: {nearest(name, recipe_names())}")
        return read_yaml(file)
    else:
        if name not in recipe_names():
            raise UserError(f"unknown recipe {name!r}: {nearest(name, recipe_names())}")
        return read_yaml(Path(str(resources.files("maskgrad"))) / "recipes" / f"{name}.yaml")


def read_yaml(file: Path) -> dict[str, Any]:
    """The settings in a YAML file."""
    try:
        values = yaml.safe_load(file.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{file} is not valid YAML: {' '.join(str(error).split())}") from None
    except OSError as error:
        raise UserError(f"cannot read {file} ({error.strerror})") from None
    if not isinstance(values, dict):
        raise UserError(f"{file} must be a mapping of settings, not {type(values).__name__}")
    return values


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Recursive merge of mappings; `over` wins. Another `name` is another thing, so the settings of the first go."""
    out = dict(base)
    for key, value in over.items():
        before = out.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping) and _same_name(before, value):
            out[key] = merge(before, value)
        else:
            out[key] = value
    return out


def _same_name(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether both are settings of one thing: only two different names tell them apart."""
    return "name" not in before or "name" not in after or before["name"] == after["name"]


def parse_overrides(arguments: Sequence[str]) -> dict[str, Any]:
    """`--leaf.path VALUE` and `--leaf.path=VALUE` pairs as a nested mapping; values are read as YAML."""
    out: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        flag = rest.pop(0)
        if not flag.startswith("--") or len(flag) < 3:
            raise UserError(f"unexpected argument {flag!r}: settings are given as --leaf.path VALUE")
        name, equals, value = flag[2:].partition("=")
        if not equals:
            if not rest:
                raise UserError(f"--{name} needs a value")
            value = rest.pop(0)
        leaf: Any = _yaml_value(value)
        for key in reversed(name.replace("-", "_").split(".")):
            leaf = {key: leaf}
        out = merge(out, leaf)
    return out


def _yaml_value(text: str) -> Any:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    if isinstance(value, str):  # YAML 1.1 reads 3e-4 as text
        try:
            return float(value)
        except ValueError:
            return value
    return value


def run_config(name: str, overrides: Mapping[str, Any] | None = None, algorithm: str | None = None) -> RunConfig:
    """Resolve a recipe: its settings, then its variant for the algorithm, then the overrides."""
    values = read_recipe(name)
    over = dict(overrides or {})
    variants = _mapping(values.pop("variants", None), "variants", name)
    own = _named(values.get("algorithm"))
    asked = _named(over.get("algorithm"))
    chosen = algorithm or asked.get("name") or own.get("name")
    if chosen is not None:  # another method's settings would be unknown keys
        values["algorithm"] = own if own.get("name") == chosen else {"name": chosen}
    if asked:
        over["algorithm"] = {**asked, "name": chosen}
    values = merge(values, _mapping(variants.get(str(chosen)), f"variants.{chosen}", name))
    values.setdefault("recipe", Path(name).stem)
    values.pop("about", None)
    if "stages" in values:
        raise UserError(f"recipe {name} is for supervised training: use maskgrad sft {name}")
    return parse(RunConfig, merge(values, over), f"recipe {name}")


def _named(value: Any) -> dict[str, Any]:
    """An algorithm given by its name alone, or by its settings."""
    return {"name": value} if isinstance(value, str) else dict(value) if isinstance(value, Mapping) else {}


def _mapping(value: Any, key: str, recipe: str) -> Mapping[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise UserError(f"{key} of recipe {recipe} must be a mapping of settings, not {value!r}")
    return value or {}


def sft_config(name: str, overrides: Mapping[str, Any] | None = None) -> SftConfig:
    values = read_recipe(name)
    values.setdefault("recipe", Path(name).stem)
    values.pop("about", None)
    if "algorithm" in values:
        raise UserError(f"recipe {name} is for reinforcement learning: use maskgrad train {name}")
    return parse(SftConfig, merge(values, overrides or {}), f"recipe {name}")


def dump(config: Settings) -> str:
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
