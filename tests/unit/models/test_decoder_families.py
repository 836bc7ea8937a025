"""Dream, SDAR and plain decoders: configs, names, networks and files, against transformers where it has the network."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, Qwen3MoeForCausalLM

from maskgrad.errors import UserError
from maskgrad.models import Policy, family_of, load_policy, new_policy, save_policy

ORACLES = {
    "Dream": (Qwen2ForCausalLM, "qwen2"),
    "sdar": (Qwen3ForCausalLM, "qwen3"),
    "sdar_moe": (Qwen3MoeForCausalLM, "qwen3_moe"),
    "llama": (LlamaForCausalLM, "llama"),
    "qwen2": (Qwen2ForCausalLM, "qwen2"),
    "qwen3": (Qwen3ForCausalLM, "qwen3"),
}


def perturbed(config: dict[str, Any]) -> Policy:
    """A model with every parameter away from its initial value, biases and norms included."""
    policy, draws = new_policy(family_of(config), config, None, seed=3), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=draws))
    return policy


def ids(rows: int = 3, length: int = 10) -> Tensor:
    return torch.randint(0, 30, (rows, length), generator=torch.Generator().manual_seed(5))


def logits(policy: Policy, tokens: Tensor, attend: Tensor | None = None) -> Tensor:
    with torch.no_grad():
        return policy.logits(policy.hidden(tokens, attend))


def test_config_round_trip(family_case: dict[str, Any]) -> None:
    family = family_of(family_case)
    there = family.to_backbone({**family.defaults, **family_case})
    stored = {**family.from_backbone(there), "model_type": family_case["model_type"]}
    assert there.to_dict() == family.to_backbone(stored).to_dict()


def test_files_are_read_by_transformers_to_the_same_logits(family_case: dict[str, Any], tmp_path: Path) -> None:
    """Key names, shapes, stacked experts and config in one: the oracle reads what we wrote, with its own loader."""
    policy, tokens = perturbed(family_case), ids()
    save_policy(policy, tmp_path)
    network, model_type = ORACLES[family_case["model_type"]]
    stored = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**stored, "model_type": model_type, "auto_map": None}))
    oracle, info = network.from_pretrained(tmp_path, output_loading_info=True, attn_implementation="eager")
    assert not info["missing_keys"] and not info["unexpected_keys"]
    block = torch.arange(tokens.shape[1]) // (policy.traits.block or tokens.shape[1])
    hidden = torch.where(block[None] <= block[:, None], 0.0, torch.finfo(torch.float32).min)
    with torch.no_grad():
        wanted = oracle.eval()(tokens, attention_mask=hidden.expand(len(tokens), 1, -1, -1)).logits
    torch.testing.assert_close(logits(policy, tokens), wanted, atol=2e-5, rtol=1e-5)


def test_round_trip(family_case: dict[str, Any], tmp_path: Path) -> None:
    policy = perturbed({**family_case, "a_key_of_tomorrow": [1]})
    save_policy(policy, tmp_path / "a", max_shard_bytes=20_000)
    again = load_policy(tmp_path / "a")
    save_policy(again, tmp_path / "b", max_shard_bytes=20_000)
    mine, theirs = dict(policy.named_parameters()), dict(again.named_parameters())
    assert set(mine) == set(theirs) and all(torch.equal(mine[name], theirs[name]) for name in mine)
    files = sorted(file.name for file in (tmp_path / "a").iterdir())
    assert len(files) > 3 and files == sorted(file.name for file in (tmp_path / "b").iterdir())
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    assert again.special == policy.special and again.family.visibility == policy.family.visibility
    assert torch.equal(logits(policy, ids()), logits(again, ids()))


def test_padding_moves_nothing_and_is_there_to_be_seen(family_case: dict[str, Any]) -> None:
    policy, tokens = perturbed(family_case), ids()
    alone = logits(policy, tokens)
    for amount in (1, 4, 6):
        padded = torch.cat((torch.full((3, amount), 36), tokens), 1)
        real = torch.arange(padded.shape[1])[None].expand_as(padded) >= amount
        torch.testing.assert_close(logits(policy, padded, real)[:, amount:], alone, atol=2e-5, rtol=0)
    assert (logits(policy, padded)[:, amount:] - alone).abs().max() > 1e-3


def test_prompts_of_unequal_length_share_a_batch(family_case: dict[str, Any]) -> None:
    policy, tokens = perturbed(family_case), ids()
    real = torch.ones_like(tokens, dtype=torch.bool)
    real[0, :3], real[1, :1] = False, False
    together = logits(policy, tokens, real)
    for row in range(3):
        alone = logits(policy, tokens[row : row + 1, real[row]])
        torch.testing.assert_close(together[row, real[row]], alone[0], atol=2e-5, rtol=0)


def test_a_block_does_not_see_what_follows() -> None:
    config = {"model_type": "sdar", "head_dim": 8, "block_size": 4}
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    policy = perturbed({**config, **sizes, "vocab_size": 40, "mask_token_id": 36, "eos_token_id": 31})
    tokens = ids()
    for place in range(tokens.shape[1]):
        changed = tokens.clone()
        changed[:, place] = (changed[:, place] + 1) % 30
        moved = (logits(policy, tokens) - logits(policy, changed)).abs().amax((0, 2)) > 0
        assert moved.tolist() == [position // 4 >= place // 4 for position in range(tokens.shape[1])]


@pytest.mark.parametrize(
    ("model_type", "key", "value"),
    [
        ("Dream", "use_sliding_window", True),
        ("Dream", "use_mrope", True),
        ("Dream", "head_dim", 12),
        ("Dream", "hidden_size", 0),
        ("sdar", "attention_dropout", 0.1),
        ("sdar", "hidden_act", "gelu"),
        ("sdar", "block_size", 0),
        ("sdar", "head_dim", 7),
        ("sdar", "num_key_value_heads", 3),
        ("sdar", "rope_scaling", {"rope_type": "dynamic", "factor": 2.0}),
        ("sdar", "rope_theta", None),
        ("sdar_moe", "num_experts", None),
        ("sdar_moe", "num_experts_per_tok", 5),
        ("llama", "block_size", "4"),
        ("llama", "logit_shift", 2),
        ("llama", "mask_token_id", 40),
        ("llama", "mask_token_id", None),
    ],
)
def test_what_cannot_be_represented_is_refused_by_name(model_type: str, key: str, value: object) -> None:
    base = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    moe = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8} if model_type == "sdar_moe" else {}
    config = {**base, **moe, "vocab_size": 40, "mask_token_id": 36, "eos_token_id": 31, "model_type": model_type}
    new_policy(family_of(config), config, None, seed=0)
    with pytest.raises(UserError) as error:
        new_policy(family_of({**config, key: value}), {**config, key: value}, None, seed=0)
    word = {"head_dim": "head", "rope_scaling": "rope type", "mask_token_id": "mask_token"}.get(key, key)
    assert word in str(error.value) and "\n" not in str(error.value)


def test_unknown_and_unsupported_families_are_named() -> None:
    with pytest.raises(UserError, match="did you mean 'sdar'"):
        family_of({"model_type": "sdarr"})
    for name in ("llada2_moe", "diffusion_gemma"):
        with pytest.raises(UserError, match=f"{name}.*not supported"):
            family_of({"model_type": name})


def test_rope_of_both_library_generations_is_one() -> None:
    config = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    config |= {"vocab_size": 40, "mask_token_id": 36, "eos_token_id": 31, "model_type": "qwen3"}
    family = family_of(config)
    scaling = {"factor": 2.0, "original_max_position_embeddings": 64}
    old = family.to_backbone({**config, "rope_theta": 5e5, "rope_scaling": {"type": "yarn", **scaling}})
    new = family.to_backbone({**config, "rope_parameters": {"rope_type": "yarn", "rope_theta": 5e5, **scaling}})
    assert old.rope_parameters == new.rope_parameters and old.rope_parameters["rope_theta"] == 5e5


def test_golden_checkpoints_are_written_back_as_they_were(shared: Path, tmp_path: Path) -> None:
    models = shared / "golden" / "models"
    folders = sorted(f.parent for name in ("dream_tiny", "sdar_tiny") for f in (models / name).glob("*/config.json"))
    if not folders:
        pytest.skip("golden data not beside the repository")
    for folder in folders:
        target = tmp_path / f"{folder.parent.name}-{folder.name}"
        save_policy(load_policy(folder), target)
        mine, theirs = load_file(target / "model.safetensors"), load_file(folder / "model.safetensors")
        assert set(mine) == set(theirs) and all(torch.equal(mine[name], theirs[name]) for name in mine)
        assert json.loads((target / "config.json").read_text()) == json.loads((folder / "config.json").read_text())


def test_missing_and_extra_tensors_are_sentences(tmp_path: Path) -> None:
    config = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config |= {"model_type": "sdar", "vocab_size": 40, "mask_token_id": 36, "eos_token_id": 31, "head_dim": 8}
    save_policy(new_policy(family_of(config), config, None, seed=0), tmp_path / "one")
    for change, words in (({"num_hidden_layers": 3}, "lacks 11 tensors"), ({"num_hidden_layers": 1}, "no place for")):
        folder = Path(shutil.copytree(tmp_path / "one", tmp_path / words.replace(" ", "-")))
        stored = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**stored, **change}))
        with pytest.raises(UserError, match=words):
            load_policy(folder)
