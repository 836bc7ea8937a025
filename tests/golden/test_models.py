"""Logits and hidden states of tiny LLaDA checkpoints against those of the authors' code."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from maskgrad.models import Policy, load_policy

LLADA = Path(__file__).parents[2].parent / "shared" / "golden" / "models" / "llada_tiny"
VARIANTS = sorted(file.parent for file in LLADA.glob("*/golden.safetensors"))
ATOL = 2e-4

pytestmark = pytest.mark.skipif(not VARIANTS, reason="golden data of LLaDA checkpoints not beside the repository")
each_variant = pytest.mark.parametrize("folder", VARIANTS, ids=lambda folder: folder.name)
each_attention = pytest.mark.parametrize("attn", ["sdpa", "eager"])


def logits(policy: Policy, ids: Tensor, attend: Tensor | None = None) -> Tensor:
    with torch.no_grad():
        return policy.logits(policy.hidden(ids, attend))


@each_attention
@each_variant
def test_logits_without_padding(folder: Path, attn: str) -> None:
    golden, policy = load_file(folder / "golden.safetensors"), load_policy(folder, attn=attn)
    ids = golden["unpadded.input_ids"]
    torch.testing.assert_close(logits(policy, ids), golden["unpadded.logits"], atol=ATOL, rtol=0)
    everything = torch.ones_like(ids, dtype=torch.bool)
    assert torch.equal(logits(policy, ids, everything), logits(policy, ids))


@each_variant
def test_hidden_states(folder: Path) -> None:
    golden, policy = load_file(folder / "golden.safetensors"), load_policy(folder)
    seen: list[Tensor] = []
    policy.backbone.embed_tokens.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    policy.backbone.layers[0].register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    with torch.no_grad():
        seen.append(policy.hidden(golden["unpadded.input_ids"]))
    assert len(seen) == 3
    for i, states in enumerate(seen):
        torch.testing.assert_close(states, golden[f"unpadded.hidden_states.{i}"], atol=ATOL, rtol=0)


@each_attention
@each_variant
def test_logits_with_padding(folder: Path, attn: str) -> None:
    golden, policy = load_file(folder / "golden.safetensors"), load_policy(folder, attn=attn)
    ids, attend = golden["padded.input_ids"], golden["padded.attention_mask"].bool()
    ours = logits(policy, ids, attend)
    wanted = golden["padded.logits_bidirectional_dllm"]
    torch.testing.assert_close(ours[attend], wanted[attend], atol=ATOL, rtol=0)
    assert torch.isfinite(ours).all()
    for row in range(len(ids)):
        alone = golden[f"padded.row{row}_unpadded_logits"]
        torch.testing.assert_close(ours[row, attend[row]], alone, atol=ATOL, rtol=0)


@each_variant
def test_golden_data_catches_a_causal_network_and_visible_padding(folder: Path) -> None:
    golden, policy = load_file(folder / "golden.safetensors"), load_policy(folder)
    ids, attend = golden["padded.input_ids"], golden["padded.attention_mask"].bool()
    wanted = golden["padded.logits_bidirectional_dllm"]
    assert (logits(policy, ids) - wanted)[attend].abs().max() > 1.0
    for layer in policy.backbone.layers:
        layer.self_attn.is_causal = True
    assert (logits(policy, golden["unpadded.input_ids"]) - golden["unpadded.logits"]).abs().max() > 1.0
