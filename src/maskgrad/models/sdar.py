"""The SDAR and TraDo checkpoint format: a Qwen3 decoder that sees its own block whole and earlier blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import Qwen3Config

from maskgrad.errors import UserError
from maskgrad.models import decoder
from maskgrad.models.layout import Traits

BLOCK = 4  # of the published models; their mixture-of-experts configs do not state it

# What the published checkpoints write, so that a model created here loads in the authors' code too.
DEFAULTS: dict[str, Any] = {
    "architectures": ["SDARForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {
        "AutoConfig": "configuration_sdar.SDARConfig",
        "AutoModel": "modeling_sdar.SDARModel",
        "AutoModelForCausalLM": "modeling_sdar.SDARForCausalLM",
    },
    "block_size": BLOCK,
    "debug": False,
    "ep_size": 1,
    "fuse_cross_entropy": True,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 32768,
    "micro_forward": False,
    "model_type": "sdar",
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "skip_checkpoint": False,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "use_cache": False,
    "use_deepep": False,
    "use_sliding_window": False,
}


def to_backbone(config: Mapping[str, Any]) -> Qwen3Config:
    """The Qwen3 config of an SDAR `config.json`; a setting no such network has is a `UserError`."""
    return Qwen3Config(
        **decoder.backbone_settings(config, "SDAR"),
        head_dim=decoder.head_dim(config),
        attention_bias=bool(config.get("attention_bias", False)),
        use_sliding_window=False,
        sliding_window=None,
    )


def from_backbone(config: Any) -> dict[str, Any]:
    """The SDAR `config.json` of a Qwen3 config. Token ids and the block size are not part of it."""
    keys = decoder.common_keys(config) | {"head_dim": config.head_dim, "attention_bias": config.attention_bias}
    return DEFAULTS | keys


def traits(config: Mapping[str, Any]) -> Traits:
    """What `to_backbone` cannot carry."""
    tied = bool(config.get("tie_word_embeddings", False))
    return Traits(vocab_size=config["vocab_size"], tied=tied, block=block_size(config))


def block_size(config: Mapping[str, Any]) -> int:
    """Block length the network was trained for."""
    block = config.get("block_size", BLOCK)
    if not isinstance(block, int) or isinstance(block, bool) or block < 1:
        raise UserError(f"the model config has block_size = {block!r}; give a positive integer")
    return block
