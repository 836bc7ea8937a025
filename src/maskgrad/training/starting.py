"""The policy a run starts from, and the one it goes on with, as the settings of its model say."""

from __future__ import annotations

from pathlib import Path

from maskgrad.config import RunConfig
from maskgrad.models.adapters import add_adapter
from maskgrad.models.load import load_policy
from maskgrad.models.policy import Policy
from maskgrad.models.settings import ModelConfig


def starting_policy(config: RunConfig) -> Policy:
    """The model of the settings, with a new LoRA adapter where they ask for one. The same whenever it is called."""
    policy = configured(config.model, config.model.adapter)
    if (lora := config.model.lora) is not None:
        add_adapter(policy, lora.rank, lora.scale, lora.targets, seed=config.seed)
    return policy


def continued_policy(config: RunConfig, saved: Path) -> Policy:
    """The policy of a checkpoint: `saved` holds its adapter, or the whole model where no adapter is trained."""
    model = config.model
    if model.lora is None and model.adapter is None:
        return configured(model.model_copy(update={"path": str(saved)}), None)
    return configured(model, str(saved))


def configured(model: ModelConfig, adapter: str | None) -> Policy:
    """The model at `model.path`, with this adapter."""
    return load_policy(model.path, adapter=adapter, **model.reading)
