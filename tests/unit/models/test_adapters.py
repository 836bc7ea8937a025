"""LoRA adapters: counted, drawn by name, saved under the authors' names, read by peft on the authors' network."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Qwen2ForCausalLM, Qwen3ForCausalLM

from maskgrad.errors import UserError
from maskgrad.models import LLADA, Policy, family_of, load_policy, new_policy, save_policy
from maskgrad.models.adapters import adapter_off, adapter_weights, add_adapter, save_adapter


def ids() -> Tensor:
    return torch.randint(0, 30, (2, 10), generator=torch.Generator().manual_seed(5))


def logits(policy: Policy) -> Tensor:
    with torch.no_grad():
        return policy.logits(policy.hidden(ids()))


def trained(config: dict[str, Any], folder: Path, **options: Any) -> Policy:
    """A saved base, loaded again and given an adapter whose B is not zero."""
    save_policy(new_policy(family_of(config), config, None, seed=2), folder)
    policy = load_policy(folder)
    add_adapter(policy, 3, 6.0, seed=1, **options)
    draws = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=draws))
    return policy


def test_every_family_trains_saves_loads_and_switches_off(family_case: dict[str, Any], tmp_path: Path) -> None:
    policy = trained(family_case, tmp_path / "base")
    base = load_policy(tmp_path / "base")
    targets, layers = policy.family.lora_targets, len(policy.backbone.layers)
    assert len(policy.adapter.modules) == len(targets) * layers
    before = {name: tensor.clone() for name, tensor in policy.weights().items()}
    policy.logits(policy.hidden(ids())).square().mean().backward()
    for name, parameter in policy.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad == (".lora_" in name), name
    adapted = logits(policy)
    assert (adapted - logits(base)).abs().max() > 1e-3
    with adapter_off(policy):
        assert torch.equal(logits(policy), logits(base))
    assert torch.equal(logits(policy), adapted)
    assert {n for n, p in policy.named_parameters() if p.requires_grad} == {
        n for n, _ in policy.named_parameters() if ".lora_" in n
    }
    save_adapter(policy, tmp_path / "adapter")
    for again in (load_policy(tmp_path / "base", adapter=tmp_path / "adapter"), load_policy(tmp_path / "adapter")):
        assert torch.equal(logits(again), adapted)
        assert set(adapter_weights(again)) == set(adapter_weights(policy))
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.weights().items())


@pytest.mark.parametrize(("name", "network"), [("Dream", Qwen2ForCausalLM), ("sdar", Qwen3ForCausalLM)])
def test_peft_reads_it_on_the_authors_names(name: str, network: Any, tmp_path: Path) -> None:
    config = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config |= {
        "num_key_value_heads": 2,
        "vocab_size": 40,
        "mask_token_id": 36,
        "eos_token_id": 31,
        "model_type": name,
        "head_dim": 8,
    }
    policy = trained(config, tmp_path / "base")
    save_adapter(policy, tmp_path / "adapter")
    file = tmp_path / "base" / "config.json"
    plain = {**json.loads(file.read_text()), "model_type": network.config_class.model_type, "auto_map": None}
    file.write_text(json.dumps(plain))
    oracle = network.from_pretrained(tmp_path / "base", attn_implementation="eager")
    wrapped = PeftModel.from_pretrained(oracle, str(tmp_path / "adapter")).eval()
    block = torch.arange(10) // (policy.traits.block or 10)
    hidden = torch.where(block[None] <= block[:, None], 0.0, torch.finfo(torch.float32).min)
    with torch.no_grad():
        wanted = wrapped(input_ids=ids(), attention_mask=hidden.expand(2, 1, -1, -1)).logits
    torch.testing.assert_close(logits(policy), wanted, atol=2e-5, rtol=1e-5)


def test_written_targets_reach_the_layers_of_llada_and_not_its_head(sizes: dict[str, Any], tmp_path: Path) -> None:
    policy = trained({**sizes, "model_type": "llada"}, tmp_path / "base")
    save_adapter(policy, tmp_path / "adapter")
    pattern = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["target_modules"]
    modules = {name.rpartition(".")[0] for name in load_policy(tmp_path / "base").weights()}
    matched = {name for name in modules if re.fullmatch(pattern, name)}
    assert "model.transformer.ff_out" in modules - matched and len(matched) == 14
    wanted = {name.removeprefix("base_model.model.").partition(".lora_")[0] for name in adapter_weights(policy)}
    assert matched == wanted
    some = trained({**sizes, "model_type": "llada"}, tmp_path / "base", targets=("q_proj", "v_proj"))
    save_adapter(some, tmp_path / "some")
    assert json.loads((tmp_path / "some" / "adapter_config.json").read_text())["target_modules"] == ["q_proj", "v_proj"]


def test_a_new_adapter_changes_nothing_and_its_draws_are_named(sizes: dict[str, Any]) -> None:
    def made(seed: int) -> Policy:
        policy = new_policy(LLADA, sizes, None, seed=0)
        add_adapter(policy, 2, 4.0, seed=seed)
        return policy

    before = torch.get_rng_state()
    one, same, other = made(1), made(1), made(2)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(logits(one), logits(new_policy(LLADA, sizes, None, seed=0)))
    a, b, c = (adapter_weights(policy) for policy in (one, same, other))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not all(torch.equal(a[name], c[name]) for name in a)
    for name, tensor in a.items():
        assert tensor.eq(0).all() if ".lora_B." in name else 0.3 < tensor.std() * tensor.shape[1] ** 0.5 < 0.8


def test_low_precision_bases_have_adapters_in_fp32(sizes: dict[str, Any]) -> None:
    policy = new_policy(LLADA, sizes, None, seed=0, dtype="bfloat16")
    add_adapter(policy, 2, 4.0)
    assert {tensor.dtype for tensor in adapter_weights(policy).values()} == {torch.float32}
    assert policy.hidden(ids()).dtype == torch.bfloat16 == policy.dtype


def test_targets_that_do_not_exist_are_refused(sizes: dict[str, Any]) -> None:
    for targets, words in (
        (("q_prog",), "did you mean 'q_proj'"),
        (("attn_out",), "attn_out"),
        ((), "match 0 modules"),
    ):
        with pytest.raises(UserError, match=words):
            add_adapter(new_policy(LLADA, sizes, None, seed=0), 2, 4.0, targets)
    policy = new_policy(LLADA, sizes, None, seed=0)
    del policy.backbone.layers[1].mlp.up_proj
    with pytest.raises(UserError, match="match 13 modules in 2 layers, not 7 per layer"):
        add_adapter(policy, 2, 4.0)


def test_broken_adapter_folders_are_sentences(sizes: dict[str, Any], tmp_path: Path) -> None:
    base, folder = tmp_path / "base", tmp_path / "adapter"
    policy = trained({**sizes, "model_type": "llada"}, base)

    def broken(words: str, tensors: dict[str, Tensor] | None = None, **settings: Any) -> None:
        save_adapter(policy, folder)
        config = json.loads((folder / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(json.dumps({**config, **settings}))
        if tensors is not None:
            save_file(tensors, folder / "adapter_model.safetensors")
        with pytest.raises(UserError, match=words) as error:
            load_policy(base, adapter=folder)
        assert "\n" not in str(error.value)

    save_adapter(policy, folder)
    good = load_file(folder / "adapter_model.safetensors")
    first = next(iter(good))
    broken("use_dora = True", use_dora=True)
    broken("modules_to_save", modules_to_save=["wte"])
    broken("peft_type = 'IA3'", peft_type="IA3")
    broken("holds no adapter weights", tensors={})
    broken("lacks 1 tensors", tensors={name: t for name, t in good.items() if name != first})
    broken("has a tensor stranger", tensors={**good, "stranger": torch.zeros(1)})
    broken("has shape", tensors={**good, first: torch.zeros(1, 1)})
    broken("has shape", r=5)
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(UserError, match=r"no adapter_model\.safetensors"):
        load_policy(base, adapter=folder)
    with pytest.raises(UserError, match="is an adapter itself"):
        load_policy(folder, adapter=folder)
