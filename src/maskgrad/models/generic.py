"""Any Llama, Qwen2 or Qwen3 decoder turned into a diffusion model, as conversions of autoregressive models are.

What its own library has no word for is declared in config.json: `mask_token_id` (needed), `block_size` (block-causal
attention with blocks of this length; absent: full attention) and `logit_shift` (1: the state at a position predicts
the token one to the right, as in the model it was made from; 0, the default: the token at the position).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import (
    LlamaConfig,
    LlamaModel,
    PreTrainedConfig,
    Qwen2Config,
    Qwen2Model,
    Qwen3Config,
    Qwen3Model,
)

from maskgrad.errors import UserError
from maskgrad.models import decoder
from maskgrad.models.layout import Traits

MASK_TOKEN = "<|mask|>"  # of a model made here; others say in their tokenizer or config what it is
_COMMON: dict[str, Any] = {
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


@dataclass(frozen=True)
class Kind:
    """One architecture of plain decoders."""

    backbone: Callable[[Any], nn.Module]
    config: Callable[..., PreTrainedConfig]
    own: tuple[str, ...]  # keys besides the common ones
    defaults: Mapping[str, Any]


MODEL_TYPES: dict[str, Kind] = {
    "llama": Kind(
        LlamaModel,
        LlamaConfig,
        ("attention_bias", "mlp_bias", "head_dim"),
        {**_COMMON, "architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    ),
    "qwen2": Kind(
        Qwen2Model,
        Qwen2Config,
        (),
        {**_COMMON, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "use_sliding_window": False},
    ),
    "qwen3": Kind(
        Qwen3Model,
        Qwen3Config,
        ("attention_bias", "head_dim"),
        {**_COMMON, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "use_sliding_window": False},
    ),
}


@dataclass(frozen=True)
class Declaration:
    """What config.json says about diffusion. -1 stands for an id it does not state."""

    mask: int
    eos: int
    block: int | None
    shift: int


def declaration(config: Mapping[str, Any]) -> Declaration:
    """Read and check the declared keys; a block size or shift that cannot be is a `UserError`."""
    block, shift = config.get("block_size"), config.get("logit_shift", 0)
    eos: Any = config.get("eos_token_id")
    if block is not None and (not isinstance(block, int) or isinstance(block, bool) or block < 1):
        raise UserError(f"the model config has block_size = {block!r}; give a positive integer, or none")
    if shift not in (0, 1) or isinstance(shift, bool):
        raise UserError(f"the model config has logit_shift = {shift!r}; 0 and 1 are possible")
    first: int | None = eos[0] if isinstance(eos, list) and eos else eos
    mask = config.get("mask_token_id")
    return Declaration(-1 if mask is None else mask, -1 if first is None else first, block, shift)


def to_backbone(config: Mapping[str, Any]) -> PreTrainedConfig:
    """The config of the plain decoder; a setting under which attention is not full is a `UserError`."""
    kind = MODEL_TYPES[str(config["model_type"])]
    settings = decoder.backbone_settings(config, str(config["model_type"]))
    own = {key: config[key] for key in kind.own if config.get(key) is not None}
    if "head_dim" in kind.own:
        own["head_dim"] = decoder.head_dim(config)
    if "use_sliding_window" in kind.defaults:
        own |= {"use_sliding_window": False, "sliding_window": None}
    return kind.config(**settings, **own)


def from_backbone(config: Any) -> dict[str, Any]:
    """The config.json of a plain decoder. Token ids and the declaration are not part of it."""
    kind = MODEL_TYPES[config.model_type]
    return {**kind.defaults, **decoder.common_keys(config), **{key: getattr(config, key) for key in kind.own}}


def traits(config: Mapping[str, Any]) -> Traits:
    """What `to_backbone` cannot carry."""
    tied = bool(config.get("tie_word_embeddings", False))
    return Traits(vocab_size=config["vocab_size"], tied=tied, block=declaration(config).block)
