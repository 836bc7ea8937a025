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
