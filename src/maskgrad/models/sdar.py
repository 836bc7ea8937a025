"""The SDAR and TraDo checkpoint format: a Qwen3 decoder that sees its own block whole and earlier blocks.

The mixture-of-experts models store every expert by itself; the backbone stacks them, so one of its tensors is many of
the checkpoint's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from transformers import Qwen3Config, Qwen3MoeConfig

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


_MOE_KEYS = (
    "decoder_sparse_step",
    "mlp_only_layers",
    "moe_intermediate_size",
    "norm_topk_prob",
    "num_experts",
    "num_experts_per_tok",
)
MOE_DEFAULTS: dict[str, Any] = {
    **{key: DEFAULTS[key] for key in ("attention_bias", "attention_dropout", "hidden_act", "initializer_range")},
    **{key: DEFAULTS[key] for key in ("max_position_embeddings", "rms_norm_eps", "rope_scaling", "rope_theta")},
    **{key: DEFAULTS[key] for key in ("sliding_window", "tie_word_embeddings", "torch_dtype", "use_sliding_window")},
    "architectures": ["SDARMoeForCausalLM"],
    "auto_map": {
        "AutoConfig": "configuration_sdar_moe.SDARMoeConfig",
        "AutoModel": "modeling_sdar_moe.SDARMoeModel",
        "AutoModelForCausalLM": "modeling_sdar_moe.SDARMoeForCausalLM",
    },
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "model_type": "sdar_moe",
    "norm_topk_prob": True,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
    "use_cache": True,
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


def to_moe_backbone(config: Mapping[str, Any]) -> Qwen3MoeConfig:
    """The Qwen3-MoE config of an SDAR mixture-of-experts `config.json`."""
    for key in ("moe_intermediate_size", "num_experts", "num_experts_per_tok"):
        value = config.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UserError(f"the model config has {key} = {value!r}; give a positive integer")
    if config["num_experts_per_tok"] > config["num_experts"]:
        raise UserError(
            f"num_experts_per_tok {config['num_experts_per_tok']} is more than num_experts {config['num_experts']}"
        )
    experts = {key: config[key] for key in _MOE_KEYS if key in config}
    experts["head_dim"] = decoder.head_dim(config)  # read by the network, no field of the config class
    return Qwen3MoeConfig(
        **decoder.backbone_settings(config, "SDAR"),
        attention_bias=bool(config.get("attention_bias", False)),
        use_sliding_window=False,
        sliding_window=None,
        **experts,
    )


def from_moe_backbone(config: Any) -> dict[str, Any]:
    """The SDAR `config.json` of a Qwen3-MoE config. Token ids and the block size are not part of it."""
    keys = decoder.common_keys(config) | {"head_dim": config.head_dim, "attention_bias": config.attention_bias}
    return MOE_DEFAULTS | keys | {key: getattr(config, key) for key in _MOE_KEYS}


def expert_parts(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Views of a stacked tensor, one per expert and projection; other tensors are whole.

    `gate_up_proj` [E,2I,d] holds the gate's rows first, `down_proj` [E,d,I] one matrix per expert.
    """
    path, _, last = name.rpartition(".")
    if not path.endswith(".experts"):
        return {name: tensor}
    if last == "down_proj":
        return {f"{path}.{e}.down_proj.weight": tensor[e] for e in range(len(tensor))}
    assert last == "gate_up_proj", name
    half = tensor.shape[1] // 2
    gates = {f"{path}.{e}.gate_proj.weight": tensor[e, :half] for e in range(len(tensor))}
    return gates | {f"{path}.{e}.up_proj.weight": tensor[e, half:] for e in range(len(tensor))}


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
