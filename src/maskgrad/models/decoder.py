"""The layout that transformers' own Llama and Qwen decoders share: config keys, tensor names, what is refused.

Dream (Qwen2) and SDAR (Qwen3) checkpoints keep these keys and names, and so does every plain decoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from maskgrad.errors import UserError
from maskgrad.models.layout import NameMap

NAMES = NameMap(
    (
        ("model.embed_tokens", "backbone.embed_tokens"),
        ("model.layers.{n}", "backbone.layers.{n}"),
        ("model.norm", "backbone.norm"),
        ("lm_head", "head"),
    )
)
LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

# Keys with one value under which the network is the same deterministic function in training and in sampling, and
# under which every layer may look at every position.
FIXED: dict[str, Any] = {
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "use_mrope": False,
    "use_sliding_window": False,
}
_SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
# kinds of rotary scaling whose angles do not depend on the length of the sequence at hand
_STATIC_ROPE = ("default", "linear", "llama3", "yarn")


def backbone_settings(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Arguments of the backbone's config class that all these decoders have; `name` is the family in messages.

    A setting outside `FIXED` or a size that cannot be is a `UserError`.
    """
    check(config, name)
    heads = config["num_attention_heads"]
    return {
        "vocab_size": config["vocab_size"],
        "hidden_size": config["hidden_size"],
        "intermediate_size": config["intermediate_size"],
        "num_hidden_layers": config["num_hidden_layers"],
        "num_attention_heads": heads,
        "num_key_value_heads": config.get("num_key_value_heads") or heads,
        "hidden_act": "silu",
        "max_position_embeddings": config.get("max_position_embeddings", 32768),
        "rms_norm_eps": config.get("rms_norm_eps", 1e-6),
        "rope_parameters": rope(config, name),
        "tie_word_embeddings": bool(config.get("tie_word_embeddings", False)),
        # a padding row of an embedding gets no gradient, and these families pad with their end-of-text token
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
        "use_cache": False,
    }


def common_keys(config: Any) -> dict[str, Any]:
    """The keys of config.json that `backbone_settings` reads, from a backbone's config."""
    parameters = dict(config.rope_parameters)
    scaling = None if parameters["rope_type"] == "default" else parameters
    return {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.max_position_embeddings,
        "num_attention_heads": config.num_attention_heads,
        "num_hidden_layers": config.num_hidden_layers,
        "num_key_value_heads": config.num_key_value_heads,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_scaling": None if scaling is None else {k: v for k, v in scaling.items() if k != "rope_theta"},
        "rope_theta": parameters["rope_theta"],
        "tie_word_embeddings": config.tie_word_embeddings,
        "vocab_size": config.vocab_size,
    }


def rope(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Rotary settings, from the keys of transformers 4 (`rope_theta`, `rope_scaling`) or 5 (`rope_parameters`)."""
    stated = config.get("rope_parameters") or {}
    scaling = {**(config.get("rope_scaling") or {}), **stated}
    kind = scaling.pop("rope_type", scaling.pop("type", "default"))
    if kind not in _STATIC_ROPE:
        raise UserError(f"the model config has rope type {kind!r}; {name} models may have {', '.join(_STATIC_ROPE)}")
    theta = scaling.pop("rope_theta", config.get("rope_theta"))
    if not isinstance(theta, (int, float)) or isinstance(theta, bool) or theta <= 0:
        raise UserError(f"the model config has rope_theta = {theta!r}; give a positive number")
    return {"rope_type": kind, "rope_theta": float(theta), **{k: v for k, v in scaling.items() if k != "type"}}


def check(config: Mapping[str, Any], name: str) -> None:
    """Refuse, by key and value, what the backbone cannot represent."""
    for key in _SIZES:
        value = config.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise UserError(f"the model config has {key} = {value!r}; give a positive integer")
    for key, required in FIXED.items():
        if config.get(key, required) != required:
            raise UserError(f"the model config has {key} = {config[key]!r}; only {required!r} is supported for {name}")
    heads, kv = config["num_attention_heads"], config.get("num_key_value_heads")
    if kv is not None and (not isinstance(kv, int) or kv < 1 or heads % kv):
        raise UserError(f"num_key_value_heads is {kv!r}, which does not divide num_attention_heads {heads}")


def head_dim(config: Mapping[str, Any]) -> int:
    """Width of a head: stated, or the hidden size over the heads. Rotary embeddings need an even one."""
    width, heads = config["hidden_size"], config["num_attention_heads"]
    stated = config.get("head_dim")
    if stated is None and width % heads:
        raise UserError(f"hidden_size {width} is no multiple of num_attention_heads {heads}; give head_dim")
    size = width // heads if stated is None else stated
    if not isinstance(size, int) or size < 2 or size % 2:
        raise UserError(f"a head has {size!r} dimensions; rotary embeddings need an even number")
    return size
