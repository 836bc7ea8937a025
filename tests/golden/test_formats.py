"""LoRA adapters with d1's settings over a tiny LLaDA: logits, gradients and names of peft on the authors' code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from maskgrad.models import load_policy
from maskgrad.models.adapters import adapter_off, save_adapter

GOLDEN = Path(__file__).parents[2].parent / "shared" / "golden"
FORMATS, BASE = GOLDEN / "formats", GOLDEN / "models" / "llada_tiny" / "base"
MASK, ATOL = 500, 2e-4

pytestmark = pytest.mark.skipif(not FORMATS.is_dir(), reason="golden adapters not beside the repository")
each_adapter = pytest.mark.parametrize("name", ["lora_d1_rl", "lora_d1_sft"])


@each_adapter
def test_logits_with_and_without_the_adapter(name: str) -> None:
    golden = load_file(FORMATS / name / "golden.safetensors")
    policy = load_policy(BASE, adapter=FORMATS / name)
    with torch.no_grad():
        ours = policy.logits(policy.hidden(golden["input_ids"]))
        with adapter_off(policy):
            base = policy.logits(policy.hidden(golden["input_ids"]))
    torch.testing.assert_close(ours, golden["logits"], atol=ATOL, rtol=0)
    torch.testing.assert_close(ours, golden["logits_merged"], atol=ATOL, rtol=0)
    torch.testing.assert_close(base, golden["logits_adapter_disabled"], atol=ATOL, rtol=0)
    assert (ours - base).abs().max() > 1.0  # the adapter is there to be seen


@each_adapter
def test_modules_are_those_that_were_adapted(name: str) -> None:
    """d1 lists o_proj, gate_proj and down_proj, which LLaDA does not have under these names."""
    facts = json.loads((FORMATS / "index.json").read_text())[name]
    policy = load_policy(BASE, adapter=FORMATS / name)
    names = policy.family.names
    assert sorted(str(names.theirs(f"backbone.{module}")) for module in policy.adapter.modules) == facts["adapted"]
    assert sum(p.numel() for p in policy.parameters() if p.requires_grad) == facts["trainable"]


@each_adapter
def test_gradients_of_the_adapter(name: str) -> None:
    golden = load_file(FORMATS / name / "golden.safetensors")
    policy = load_policy(BASE, adapter=FORMATS / name)
    hidden = golden["input_ids"] == MASK
    logits = policy.logits(policy.hidden(golden["input_ids"]))
    loss = F.cross_entropy(logits[hidden], golden["targets"][hidden])
    torch.testing.assert_close(loss.detach(), golden["loss_ce_at_mask_no_dropout"].reshape(()), atol=0, rtol=1e-4)
    loss.backward()
    checked = 0
    for key, wanted in golden.items():
        if key.startswith("grad."):
            theirs = key.removeprefix("grad.base_model.model.")
            gradient = policy.get_parameter(str(policy.family.names.ours(theirs))).grad
            torch.testing.assert_close(gradient, wanted, atol=1e-4, rtol=1e-3)
            checked += 1
    assert checked >= 4 and all(p.grad is None for p in policy.parameters() if not p.requires_grad)


@each_adapter
def test_it_is_written_back_as_it_was(name: str, tmp_path: Path) -> None:
    save_adapter(load_policy(BASE, adapter=FORMATS / name), tmp_path)
    mine = load_file(tmp_path / "adapter_model.safetensors")
    theirs = load_file(FORMATS / name / "adapter_model.safetensors")
    assert set(mine) == set(theirs) and all(torch.equal(mine[key], theirs[key]) for key in mine)
    mine, theirs = (json.loads((f / "adapter_config.json").read_text()) for f in (tmp_path, FORMATS / name))
    for key in ("r", "lora_alpha", "peft_type", "bias", "use_dora", "use_rslora"):
        assert mine[key] == theirs[key], key
    assert set(mine["target_modules"]) <= set(theirs["target_modules"])
