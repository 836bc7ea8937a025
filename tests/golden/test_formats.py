"""LoRA adapters with d1's settings over a tiny LLaDA: logits, gradients and names of peft on the authors' code. All
gradients of the base, and three steps of AdamW."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from maskgrad.config import OptimConfig
from maskgrad.models import load_policy
from maskgrad.models.adapters import adapter_off, save_adapter
from maskgrad.models.policy import Policy
from maskgrad.training import optim

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


def mask_loss(policy: Policy, file: dict[str, torch.Tensor]) -> torch.Tensor:
    hidden = file["input_ids"] == MASK
    return F.cross_entropy(policy.logits(policy.hidden(file["input_ids"]))[hidden], file["targets"][hidden])


@pytest.mark.parametrize("recorded", sorted(FORMATS.glob("full_gradients_*.safetensors")), ids=lambda f: f.stem)
def test_gradient_of_every_weight(recorded: Path) -> None:
    """Loss and gradient of all parameters under the authors' names. Error caught: gate and up projection exchanged."""
    file, policy = load_file(recorded), load_policy(BASE)
    loss = mask_loss(policy, file)
    torch.testing.assert_close(loss.detach(), file["loss"].reshape(()), atol=0, rtol=1e-4)
    loss.backward()
    weights = policy.weights()
    wanted = {key.removeprefix("grad."): value for key, value in file.items() if key.startswith("grad.")}
    assert set(wanted) == set(weights)
    for name, gradient in wanted.items():
        torch.testing.assert_close(weights[name].grad, gradient, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("recorded", sorted(FORMATS.glob("adamw_3steps_*.safetensors")), ids=lambda f: f.stem)
def test_three_steps_of_the_optimiser(recorded: Path) -> None:
    """Our AdamW, clip and guard: losses and norms of three steps, two weights after them.

    Errors caught: norm taken after the clip; no decay."""
    file, policy = load_file(recorded), load_policy(BASE)
    inputs = load_file(recorded.with_name(recorded.name.replace("adamw_3steps", "full_gradients")))
    optimizer = optim.adamw(policy, OptimConfig(lr=3e-4, betas=(0.9, 0.99), weight_decay=0.1))
    for loss_then, norm_then in file["losses_and_grad_norms"].tolist():
        loss = mask_loss(policy, inputs)
        loss.backward()
        norm = optim.clip_gradients(policy, 0.2)
        assert float(loss.detach()) == pytest.approx(loss_then, rel=1e-4)
        assert norm == pytest.approx(norm_then, rel=1e-3)
        assert optim.guarded_step(optimizer, float(loss.detach()), norm)
    weights = policy.weights()
    for name, value in file.items():
        if name in weights:
            torch.testing.assert_close(weights[name].detach(), value, atol=5e-6, rtol=2e-5)
