from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from maskgrad.errors import UserError
from maskgrad.models import LLADA, Policy, family_of, new_policy
from maskgrad.models.families import special_ids


def test_family_is_found_by_model_type() -> None:
    assert family_of({"model_type": "llada"}) is LLADA
    for bad in ({"model_type": "lladda"}, {"model_type": "bert"}, {}):
        with pytest.raises(UserError, match=r"'llada'|valid: .*llada"):
            family_of(bad)


def test_config_round_trip(variant: dict[str, Any]) -> None:
    there = LLADA.to_backbone(LLADA.defaults | variant)
    again = LLADA.to_backbone(LLADA.from_backbone(there))
    assert there.to_dict() == again.to_dict()
    assert LLADA.traits(LLADA.from_backbone(there)).output_bias == LLADA.traits(variant).output_bias


def test_published_checkpoint_maps_one_to_one(shared: Path) -> None:
    folder = shared / "data" / "checkpoint_headers" / "LLaDA-8B-Instruct"
    if not folder.is_dir():
        pytest.skip("headers of the published checkpoint not beside the repository")
    config = json.loads((folder / "config.json").read_text())
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    ids = special_ids(LLADA, config, None, config["embedding_size"])
    assert (ids.mask, ids.pad, ids.eos, ids.stops) == (126336, 126081, 126081, (126081, 126348))
    policy = Policy(LLADA, config, ids)
    assert all(parameter.is_meta for parameter in policy.parameters())
    assert set(policy.weights()) == set(index["weight_map"]) and len(index["weight_map"]) == 291
    assert {LLADA.names.theirs(str(LLADA.names.ours(name))) for name in index["weight_map"]} == set(index["weight_map"])
    assert 2 * policy.num_parameters() == index["metadata"]["total_size"]


def test_golden_names_are_the_saved_names(shared: Path) -> None:
    file = shared / "golden" / "models" / "llada_tiny" / "comparison.json"
    if not file.is_file():
        pytest.skip("golden data not beside the repository")
    for variant, facts in json.loads(file.read_text()).items():
        config_file = file.parent / variant / "config.json"
        if not config_file.is_file() or "keys" not in facts:
            continue
        config = json.loads(config_file.read_text())
        policy = Policy(LLADA, config, special_ids(LLADA, config, None, 512))
        assert {name: list(tensor.shape) for name, tensor in policy.weights().items()} == facts["keys"]


def test_names_carry_adapters_and_refuse_strangers() -> None:
    theirs = "model.transformer.blocks.11.ff_out.lora_A.weight"
    ours = "backbone.layers.11.mlp.down_proj.lora_A.weight"
    assert LLADA.names.ours(theirs) == ours and LLADA.names.theirs(ours) == theirs
    assert LLADA.names.ours("model.transformer.ff_out.weight") == "head.weight"
    for stranger in ("model.transformer.wpe.weight", "model.transformer.blocks.x.ff_out.weight", "lm_head.weight"):
        assert LLADA.names.ours(stranger) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("alibi", True),
        ("layer_norm_type", "default"),
        ("block_type", "sequential"),
        ("attention_layer_norm", True),
        ("activation_type", "swiglu"),
        ("rope", False),
        ("bias_for_layer_norm", True),
        ("residual_dropout", 0.1),
        ("clip_qkv", 8.0),
        ("d_model", None),
        ("n_heads", 0),
        ("rope_theta", "10000"),
        ("d_model", 12),
        ("n_kv_heads", 3),
        ("embedding_size", 10),
        ("mask_token_id", 40),
        ("mask_token_id", None),
        ("mask_token_id", 31),
    ],
)
def test_what_cannot_be_represented_is_refused_by_name(sizes: dict[str, Any], key: str, value: object) -> None:
    with pytest.raises(UserError) as error:
        new_policy(LLADA, sizes | {key: value}, None, seed=0)
    assert key in str(error.value) and "\n" not in str(error.value)
    assert (str(value) if value is not None else "126336" if "mask" in key else "None") in str(error.value)


def test_grouped_heads(sizes: dict[str, Any]) -> None:
    def heads(**settings: Any) -> int:
        return LLADA.to_backbone(LLADA.defaults | sizes | settings).num_key_value_heads

    assert (heads(), heads(n_kv_heads=2), heads(multi_query_attention=True)) == (4, 2, 1)
    assert heads(multi_query_attention=False, n_kv_heads=4) == 4
    for multi_query in (True, False):
        with pytest.raises(UserError, match="n_kv_heads is 2 but multi_query_attention"):
            heads(multi_query_attention=multi_query, n_kv_heads=2)


def test_null_norm_bias_follows_include_bias(sizes: dict[str, Any]) -> None:
    new_policy(LLADA, sizes | {"bias_for_layer_norm": None}, None, seed=0)
    with pytest.raises(UserError, match="bias_for_layer_norm"):
        new_policy(LLADA, sizes | {"bias_for_layer_norm": None, "include_bias": True}, None, seed=0)


def test_initial_scale_is_sane(sizes: dict[str, Any]) -> None:
    policy = new_policy(LLADA, sizes, None, seed=0)
    hidden = policy.hidden(torch.arange(30)[None])
    assert 0.5 < hidden.std().item() < 1.5
    assert policy.logits(hidden).std().item() < 0.3
