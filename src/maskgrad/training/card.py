"""The page beside a finished model: what it came from, how it was made, and the command that scores it again."""

from __future__ import annotations

from typing import Any

from maskgrad.config import RunConfig
from maskgrad.models.policy import Policy
from maskgrad.training.checkpoint import weights_hash

_PAGE = """# {title}

{kind} of `{base}`, trained by maskgrad with `{method}` on task `{task}`.

| | |
|---|---|
| base model | `{base}` |
| recipe | `{recipe}`, seed {seed} |
| optimiser steps | {updates} |
| trainable parameters | {trainable} of {parameters} |
| last evaluation | accuracy {accuracy} over {n} problems, split `{split}` |
| sampler | `sampler.json` |
{base_hash}{again}
Every setting is in the run's `config.yaml`.
"""
_AGAIN = """
Score it again, from the run's folder (the task with the settings of `config.yaml`):

    maskgrad eval --model final --task {task} --split {split} --limit {n}{more}
"""


def _options(config: RunConfig, adapted: bool) -> str:
    """Further options without which `maskgrad eval` would read another model, or draw other completions."""
    model = config.model
    given: dict[str, Any] = {"--dtype": model.dtype} if model.dtype != "float32" else {}
    if adapted:  # the base's own files do not say it
        declared = {"--mask-token": model.mask_token, "--block": model.block, "--logit-shift": model.logit_shift}
        given |= {name: value for name, value in declared.items() if value is not None}
    if config.eval.temperature > 0:
        given["--seed"] = config.seed
    return "".join(f" {name} {value}" for name, value in given.items())


def model_card(config: RunConfig, policy: Policy, result: dict[str, Any], updates: int) -> str:
    """Markdown text for README.md of `final/`; `result` is the last evaluation."""
    adapted, task = policy.adapter is not None, str(config.task.get("name", "custom"))
    again = _AGAIN.format(task=task, split=config.eval.split, n=result["n"], more=_options(config, adapted))
    return _PAGE.format(
        title=f"{config.recipe}-{config.algorithm.name}-seed{config.seed}",
        kind="LoRA adapter" if adapted else "Fine-tuned model",
        base=config.model.path,
        method=config.algorithm.name,
        task=task,
        again="" if task == "custom" else again,
        base_hash=f"| hash of the base's weights | `{weights_hash(policy, adapter=False)}` |\n" if adapted else "",
        recipe=config.recipe,
        seed=config.seed,
        updates=updates,
        trainable=sum(p.numel() for p in policy.parameters() if p.requires_grad),
        parameters=policy.num_parameters(),
        accuracy="unknown" if result["accuracy"] is None else f"{result['accuracy']:.4f}",
        n=result["n"],
        split=config.eval.split,
    )
