"""The Dream and DiffuCoder checkpoint format: a Qwen2 decoder without the causal mask.

The state at a position predicts the token one to the right, as in the autoregressive model Dream was trained from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import Qwen2Config

from maskgrad.errors import UserError
from maskgrad.models import decoder
from maskgrad.models.layout import Traits

# What the published checkpoints write, so that a model created here loads in the authors' code too.
DEFAULTS: dict[str, Any] = {
    "architectures": ["DreamModel"],
    "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_dream.DreamConfig", "AutoModel": "modeling_dream.DreamModel"},
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 131072,
    "model_type": "Dream",
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "use_cache": True,
    "use_mrope": False,
    "use_sliding_window": False,
}


def to_backbone(config: Mapping[str, Any]) -> Qwen2Config:
    """The Qwen2 config of a Dream `config.json`; a setting no such network has is a `UserError`."""
    settings = decoder.backbone_settings(config, "Dream")
    stated, derived = config.get("head_dim"), decoder.head_dim({**config, "head_dim": None})
    if stated not in (None, derived):
        raise UserError(
            f"the model config has head_dim = {stated!r}; Dream's heads have hidden_size / heads = {derived}"
        )
    return Qwen2Config(**settings, use_sliding_window=False, sliding_window=None)


def from_backbone(config: Any) -> dict[str, Any]:
    """The Dream `config.json` of a Qwen2 config. Token ids are not part of it."""
    return DEFAULTS | decoder.common_keys(config)


def traits(config: Mapping[str, Any]) -> Traits:
    """What `to_backbone` cannot carry."""
    return Traits(vocab_size=config["vocab_size"], tied=bool(config.get("tie_word_embeddings", False)))
