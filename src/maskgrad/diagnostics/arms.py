"""Arms and settings of the stress test, as run configurations.

Equals are compared with equals: every arm of a setting has the same model, data, seeds, batch, learning rate, number of
updates and optimiser; every arm with a block bound has the same masks, draws and bound of negative samples. What an arm
changes is in `ARMS`, what its method cannot share is in `notes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from maskgrad.algorithms import ALGORITHMS
from maskgrad.config import RunConfig, merge, read_recipe
from maskgrad.errors import UserError, nearest
from maskgrad.settings import parse

Setting = Literal["noisy", "inflate"]
SETTINGS: tuple[Setting, ...] = ("noisy", "inflate")

#: What makes an arm what it is. Everything else is the same for all arms, as far as the method has it.
ARMS: dict[str, dict[str, Any]] = {
    "grpo": {"name": "grpo_elbo"},
    "grpo_positives": {"name": "grpo_elbo", "positives_only": True},
    "clip_only": {"name": "stabledrl", "self_normalise": False},
    "selfnorm_only": {"name": "stabledrl", "clip": False},
    "stabledrl": {"name": "stabledrl"},
    "stabledrl_elbo": {"name": "stabledrl", "score": "elbo"},
    "stabledrl_positives": {"name": "stabledrl", "score": "zero"},
    "spg": {"name": "spg"},
    "espo": {"name": "espo"},
    "egspo": {"name": "egspo", "steps": 4, "score": "revealed"},
}
ABOUT = {
    "grpo": "PPO clip on ratios of sequence ELBOs",
    "grpo_positives": "control: the same on samples with A > 0 only",
    "clip_only": "StableDRL without self-normalisation",
    "selfnorm_only": "StableDRL without clip",
    "stabledrl": "clipped, self-normalised weights; EUBO for A <= 0",
    "stabledrl_elbo": "control: plain ELBO for A <= 0, the bound that GRPO has",
    "stabledrl_positives": "control: samples with A > 0 only",
    "spg": "weight 1, no ratio is read",
    "espo": "its own coupled masks, shared between old and new, and length-normalised ratio in both settings",
    "egspo": "its own proxy: the sampler's states, no mask noise",
}

#: Sequence proxies: independent masks and a ratio of whole sequences | shared masks and a ratio of means per token.
#: Several draws, because the EUBO of a single one is the ELBO up to a constant.
PROXY: dict[Setting, dict[str, Any]] = {
    "noisy": {"epochs": 2, "draws": 4, "masks": "fresh", "ratio_scale": "sequence"},
    "inflate": {"epochs": 2, "draws": 4, "masks": "shared", "ratio_scale": "token"},
}
BOUND = {"p_context": 0.0, "score": "eubo", "beta_eubo": 1.5}
#: What a method must have differently: ESPO scores old and new on the same masks and its draws are pairs.
OWN: dict[tuple[str, Setting], dict[str, Any]] = {
    ("spg", "noisy"): {"masks": "epoch"},
    ("espo", "noisy"): {"masks": "epoch", "beta": 0.0},
    ("espo", "inflate"): {"beta": 0.0},
    ("egspo", "noisy"): {"masks": "shared"},
}
#: Short runs: what ratios break, they break within three dozen updates.
RUN: dict[Setting, dict[str, Any]] = {
    "noisy": {"optim": {"lr": 2e-4}, "train": {"max_updates": 28}},
    "inflate": {"optim": {"lr": 1.5e-4}, "train": {"max_updates": 36}},
}
SHARED: dict[str, Any] = {
    "optim": {"schedule": "constant", "warmup_updates": 0, "weight_decay": 0.0, "max_grad_norm": 1.0},
    "train": {"eval_every": 0, "samples_every": 0, "track_drift": True, "keep_checkpoints": 1},
    "eval": {"count": 200},
}


def check_arm(name: str) -> str:
    if name not in ARMS:
        raise UserError(f"unknown arm {name!r} of --algorithms: {nearest(name, ARMS)}")
    return name


def arm_config(
    recipe: str,
    arm: str,
    setting: Setting,
    seed: int,
    inflate: Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
) -> RunConfig:
    """The run of one arm. The recipe gives model, task, rollouts and optimiser; its methods are left out."""
    values = read_recipe(recipe)
    values = {key: v for key, v in values.items() if key not in ("variants", "about", "algorithm")}
    values.setdefault("recipe", Path(recipe).stem)
    over = dict(overrides or {})
    asked = over.pop("algorithm", {})
    values = merge(merge(merge(values, SHARED), RUN[setting]), over)
    values |= {"seed": seed, "algorithm": _algorithm(arm, setting, _block(values), asked)}
    updates = merge(values, {"train": {"inflate": dict(inflate)}}) if setting == "inflate" else values
    config = parse(RunConfig, _patient(updates), f"recipe {recipe}")
    config.algorithm.check(config.rollout.sampler, config.rollout.group_size)
    return config


def _patient(values: dict[str, Any]) -> dict[str, Any]:
    """No early stop: a skipped update is part of what is measured."""
    return merge({"train": {"max_skipped_in_row": values["train"]["max_updates"]}}, values)


def _block(values: Mapping[str, Any]) -> int:
    """Block length of the masks: the sampler's."""
    sampler = values.get("rollout", {}).get("sampler", {})
    return int(sampler.get("block_length") or sampler.get("gen_length") or 32)


def _algorithm(arm: str, setting: Setting, block: int, asked: Mapping[str, Any]) -> dict[str, Any]:
    own = ARMS[check_arm(arm)]
    fields = ALGORITHMS[own["name"]].model_fields
    shared = {**PROXY[setting], **BOUND, "block": block, **OWN.get((own["name"], setting), {})}
    chosen = {**shared, **asked, **own}
    if own["name"] == "espo":  # a draw is a pair of views: the same number of forward passes
        chosen["draws"] = max(1, int(chosen["draws"]) // 2)
    return {key: value for key, value in chosen.items() if key in fields}


def check_asked(asked: Any, arms: Sequence[str]) -> None:
    """Refuse `--algorithm.KEY` that no chosen arm has, or that is what an arm is about."""
    if not isinstance(asked, Mapping):
        raise UserError("--algorithm is not an option of stress: name the arms with --algorithms a,b,c")
    for key in asked:
        fields = {f for arm in arms for f in ALGORITHMS[ARMS[arm]["name"]].model_fields}
        if key not in fields:
            raise UserError(f"no chosen arm has a setting algorithm.{key}: {nearest(key, fields)}")
        for arm in arms:
            if key in ARMS[arm]:
                raise UserError(f"algorithm.{key} is what arm {arm} is about: leave the arm out, or the setting")
