from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

SIZES: dict[str, Any] = {
    "d_model": 32,
    "n_layers": 2,
    "n_heads": 4,
    "mlp_hidden_size": 48,
    "max_sequence_length": 64,
    "vocab_size": 40,
    "mask_token_id": 36,
    "eos_token_id": 31,
    "pad_token_id": 31,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "base": {},
    "gqa": {"n_kv_heads": 2},
    "mqa": {"multi_query_attention": True},
    "tied": {"weight_tying": True},
    "qkv_bias": {"include_qkv_bias": True},
    "bias": {"include_bias": True},
    "padded_vocab": {"vocab_size": 38, "embedding_size": 40},
    "scale_logits": {"scale_logits": True},
    "scaled_embedding": {"input_emb_norm": True},
    "mlp_ratio": {"mlp_hidden_size": None, "mlp_ratio": 2},
}


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The config of a tiny model in one variant of the LLaDA format."""
    return {**SIZES, **VARIANTS[request.param]}


@pytest.fixture
def sizes() -> dict[str, Any]:
    return dict(SIZES)


@pytest.fixture
def shared() -> Path:
    return Path(__file__).parents[3].parent / "shared"


PLAIN: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "vocab_size": 40,
    "mask_token_id": 36,
    "eos_token_id": 31,
    "pad_token_id": 31,
}
MOE: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 16}
FAMILY_CASES: dict[str, dict[str, Any]] = {
    "dream": {**PLAIN, "model_type": "Dream"},
    "dream tied": {**PLAIN, "model_type": "Dream", "tie_word_embeddings": True},
    "sdar": {**PLAIN, "model_type": "sdar", "head_dim": 16, "block_size": 4},
    "sdar bias": {**PLAIN, "model_type": "sdar", "head_dim": 16, "attention_bias": True, "block_size": 3},
    "sdar tied": {**PLAIN, "model_type": "sdar", "head_dim": 16, "tie_word_embeddings": True},
    "sdar moe": {**PLAIN, **MOE, "model_type": "sdar_moe"},
    "sdar moe dense layer": {**PLAIN, **MOE, "model_type": "sdar_moe", "mlp_only_layers": [0], "norm_topk_prob": False},
    "llama": {**PLAIN, "model_type": "llama"},
    "llama blocks": {**PLAIN, "model_type": "llama", "block_size": 4, "attention_bias": True, "mlp_bias": True},
    "qwen2": {**PLAIN, "model_type": "qwen2", "logit_shift": 1},
    "qwen2 blocks": {**PLAIN, "model_type": "qwen2", "block_size": 5},
    "qwen3": {**PLAIN, "model_type": "qwen3", "head_dim": 8},
}


@pytest.fixture(params=FAMILY_CASES)
def family_case(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The config of a tiny model of another family than LLaDA."""
    return dict(FAMILY_CASES[request.param])


@pytest.fixture
def headers(shared: Path) -> Path:
    """Headers of published checkpoints: configurations, tokenizers and tensor names."""
    folder = shared / "data" / "checkpoint_headers"
    if not folder.is_dir():
        pytest.skip("headers of published checkpoints not beside the repository")
    return folder
