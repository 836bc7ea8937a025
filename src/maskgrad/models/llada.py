"""The LLaDA checkpoint format: its config keys and tensor names in terms of a Llama backbone.

A LLaDA network is a Llama decoder without the causal mask. Settings of the format under which that is no longer
true are refused by name rather than ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import LlamaConfig

from maskgrad.errors import UserError
from maskgrad.models.layout import NameMap, Traits

NAMES = NameMap(
    (
        ("model.transformer.wte", "backbone.embed_tokens"),
        ("model.transformer.ln_f", "backbone.norm"),
        ("model.transformer.ff_out", "head"),
        ("model.transformer.blocks.{n}.attn_norm", "backbone.layers.{n}.input_layernorm"),
        ("model.transformer.blocks.{n}.q_proj", "backbone.layers.{n}.self_attn.q_proj"),
        ("model.transformer.blocks.{n}.k_proj", "backbone.layers.{n}.self_attn.k_proj"),
        ("model.transformer.blocks.{n}.v_proj", "backbone.layers.{n}.self_attn.v_proj"),
        ("model.transformer.blocks.{n}.attn_out", "backbone.layers.{n}.self_attn.o_proj"),
        ("model.transformer.blocks.{n}.ff_norm", "backbone.layers.{n}.post_attention_layernorm"),
        ("model.transformer.blocks.{n}.ff_proj", "backbone.layers.{n}.mlp.gate_proj"),
        ("model.transformer.blocks.{n}.up_proj", "backbone.layers.{n}.mlp.up_proj"),
        ("model.transformer.blocks.{n}.ff_out", "backbone.layers.{n}.mlp.down_proj"),
    )
)

# Keys with one value that a Llama backbone can represent. Dropout is among them because the likelihoods that form
# a ratio must come from the same deterministic network.
FIXED: dict[str, Any] = {
    "activation_type": "silu",
    "alibi": False,
    "attention_dropout": 0.0,
    "attention_layer_norm": False,
    "bias_for_layer_norm": False,
    "block_group_size": 1,
    "block_type": "llama",
    "clip_qkv": None,
    "embedding_dropout": 0.0,
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "residual_dropout": 0.0,
    "rope": True,
    "rope_scaling": None,
}
_SIZES = ("d_model", "n_heads", "n_layers", "vocab_size")

# What the published checkpoints write, so that a model created here loads in the authors' code too.
DEFAULTS: dict[str, Any] = {
    **{key: value for key, value in FIXED.items() if key not in ("clip_qkv", "rope_scaling")},
    "alibi_bias_max": 8.0,
    "architectures": ["LLaDAModelLM"],
    "attention_layer_norm_with_affine": True,
    "auto_map": {
        "AutoConfig": "configuration_llada.LLaDAConfig",
        "AutoModel": "modeling_llada.LLaDAModelLM",
        "AutoModelForCausalLM": "modeling_llada.LLaDAModelLM",
    },
    "embedding_size": None,
    "flash_attention": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "init_cutoff_factor": None,
    "init_device": "meta",
    "init_fn": "mitchell",
    "init_std": 0.02,
    "input_emb_norm": False,
    "max_sequence_length": 4096,
    "mlp_hidden_size": None,
    "mlp_ratio": 4,
    "model_type": "llada",
    "multi_query_attention": None,
    "n_kv_heads": None,
    "precision": "amp_bf16",
    "rms_norm_eps": 1e-5,
    "rope_full_precision": True,
    "rope_theta": 500000.0,
    "scale_logits": False,
    "torch_dtype": "float32",
    "use_cache": False,
    "weight_tying": False,
}


def to_backbone(config: Mapping[str, Any]) -> LlamaConfig:
    """The Llama config of a LLaDA `config.json`; a setting no Llama network has is a `UserError`."""
    _refuse_foreign(config)
    width, heads = config["d_model"], config["n_heads"]
    hidden = config.get("mlp_hidden_size")
    return LlamaConfig(
        vocab_size=_rows(config),
        hidden_size=width,
        intermediate_size=int(config.get("mlp_ratio", 4) * width) if hidden is None else hidden,
        num_hidden_layers=config["n_layers"],
        num_attention_heads=heads,
        num_key_value_heads=_kv_heads(config),
        head_dim=width // heads,
        hidden_act="silu",
        max_position_embeddings=config.get("max_sequence_length", 4096),
        rms_norm_eps=config.get("rms_norm_eps", 1e-5),
        rope_parameters={"rope_type": "default", "rope_theta": float(config["rope_theta"])},
        attention_bias=_flag(config, "include_bias") or _flag(config, "include_qkv_bias"),
        mlp_bias=_flag(config, "include_bias"),
        tie_word_embeddings=_flag(config, "weight_tying"),
        # a padding row of an embedding gets no gradient, and LLaDA pads with its end-of-text token
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
    )


def from_backbone(config: LlamaConfig) -> dict[str, Any]:
    """The LLaDA `config.json` of a Llama config. Token ids are not part of it."""
    assert config.hidden_act == "silu" and config.attention_bias >= config.mlp_bias, config
    rope = config.rope_parameters
    assert isinstance(rope, dict) and rope["rope_type"] == "default", rope
    return DEFAULTS | {
        "d_model": config.hidden_size,
        "embedding_size": config.vocab_size,
        "include_bias": config.mlp_bias,
        # only in LLaDA's own reading, where the attention output has no bias then (`Traits.output_bias`)
        "include_qkv_bias": config.attention_bias and not config.mlp_bias,
        "max_sequence_length": config.max_position_embeddings,
        "mlp_hidden_size": config.intermediate_size,
        "n_heads": config.num_attention_heads,
        "n_kv_heads": config.num_key_value_heads,
        "n_layers": config.num_hidden_layers,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": rope["rope_theta"],
        "vocab_size": config.vocab_size,
        "weight_tying": config.tie_word_embeddings,
    }


def traits(config: Mapping[str, Any]) -> Traits:
    """What `to_backbone` cannot carry."""
    everywhere, tied = _flag(config, "include_bias"), _flag(config, "weight_tying")
    width = config["d_model"]
    return Traits(
        vocab_size=config["vocab_size"],
        tied=tied,
        head_bias=everywhere and not tied,
        output_bias=everywhere,
        embed_scale=width**0.5 if _flag(config, "input_emb_norm") else 1.0,
        logit_scale=width**-0.5 if _flag(config, "scale_logits") else 1.0,
    )


def _flag(config: Mapping[str, Any], key: str) -> bool:
    return bool(config.get(key, False))


def _rows(config: Mapping[str, Any]) -> int:
    rows = config.get("embedding_size")
    if rows is None:
        return config["vocab_size"]
    if rows < config["vocab_size"]:
        raise UserError(f"embedding_size is {rows}, less than vocab_size {config['vocab_size']}; raise it or set null")
    return rows


def _kv_heads(config: Mapping[str, Any]) -> int:
    heads, kv, multi_query = config["n_heads"], config.get("n_kv_heads"), config.get("multi_query_attention")
    if kv is None:
        return 1 if multi_query else heads
    if multi_query is not None and kv != (1 if multi_query else heads):
        raise UserError(f"n_kv_heads is {kv} but multi_query_attention is {multi_query}; set the latter to null")
    if kv < 1 or heads % kv:
        raise UserError(f"n_kv_heads is {kv}, which does not divide n_heads {heads}; choose a divisor")
    return kv


def _refuse_foreign(config: Mapping[str, Any]) -> None:
    for key in (*_SIZES, "rope_theta"):
        value = config.get(key)
        if not isinstance(value, int if key in _SIZES else (int, float)) or isinstance(value, bool) or value <= 0:
            raise UserError(f"the model config has {key} = {value!r}; give a positive number as LLaDA's config does")
    if config.get("bias_for_layer_norm", False) is None and not _flag(config, "include_bias"):
        config = {**config, "bias_for_layer_norm": False}  # null means "as include_bias"
    for key, required in FIXED.items():
        if config.get(key, required) != required:
            raise UserError(f"the model config has {key} = {config[key]!r}; only {required!r} is supported for LLaDA")
    if config["d_model"] % (2 * config["n_heads"]):
        raise UserError(
            f"d_model {config['d_model']} over n_heads {config['n_heads']} is not an even number; "
            "rotary embeddings need heads of even size"
        )
