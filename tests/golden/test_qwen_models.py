"""Logits and hidden states of tiny Dream and SDAR checkpoints against those of the authors' code."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from maskgrad.models import Policy, load_policy

MODELS = Path(__file__).parents[2].parent / "shared" / "golden" / "models"
SDAR_VARIANTS = sorted(file.parent for file in (MODELS / "sdar_tiny").glob("*/golden.safetensors"))
DREAM = MODELS / "dream_tiny" / "base"
ATOL = 2e-4

pytestmark = pytest.mark.skipif(not DREAM.is_dir(), reason="golden data of Dream and SDAR not beside the repository")
each_sdar = pytest.mark.parametrize("folder", SDAR_VARIANTS, ids=lambda folder: folder.name)
each_attention = pytest.mark.parametrize("attn", ["sdpa", "eager"])


def logits(policy: Policy, ids: Tensor, attend: Tensor | None = None, *, aligned: bool = False) -> Tensor:
    with torch.no_grad():
        hidden = policy.hidden(ids, attend)
        return policy.logits(policy.aligned(hidden) if aligned else hidden)


@each_attention
def test_dream_logits(attn: str) -> None:
    golden, policy = load_file(DREAM / "golden.safetensors"), load_policy(DREAM, attn=attn)
    ids = golden["plain.input_ids"]
    torch.testing.assert_close(logits(policy, ids), golden["plain.logits_raw"], atol=ATOL, rtol=0)
    torch.testing.assert_close(logits(policy, ids, aligned=True), golden["plain.logits_shifted"], atol=ATOL, rtol=0)
    assert (logits(policy, ids) - golden["plain.logits_shifted"]).abs().max() > 1.0  # the shift is there to be seen


@each_attention
def test_dream_logits_with_padding(attn: str) -> None:
    golden, policy = load_file(DREAM / "golden.safetensors"), load_policy(DREAM, attn=attn)
    ids, attend = golden["padded.input_ids"], golden["padded.attention_mask"].bool()
    ours = logits(policy, ids, attend)
    torch.testing.assert_close(ours[attend], golden["padded.logits_raw_dllm"][attend], atol=ATOL, rtol=0)
    for row in range(len(ids)):
        alone = golden[f"padded.row{row}_unpadded_logits_raw"]
        torch.testing.assert_close(ours[row, attend[row]], alone, atol=ATOL, rtol=0)


@each_attention
@each_sdar
def test_sdar_logits_and_hidden_states(folder: Path, attn: str) -> None:
    golden, policy = load_file(folder / "golden.safetensors"), load_policy(folder, attn=attn)
    ids, seen = golden["block_causal.input_ids"], []
    policy.backbone.embed_tokens.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    policy.backbone.layers[0].register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    with torch.no_grad():
        seen.append(policy.hidden(ids))
    for i, states in enumerate(seen):
        torch.testing.assert_close(states, golden[f"block_causal.hidden_states.{i}"], atol=ATOL, rtol=0)
    torch.testing.assert_close(logits(policy, ids), golden["block_causal.logits"], atol=ATOL, rtol=0)


@each_sdar
def test_sdar_padding_moves_nothing(folder: Path) -> None:
    golden, policy = load_file(folder / "golden.safetensors"), load_policy(folder)
    ids = golden["block_causal.input_ids"]
    for amount in (1, 3, 4):
        padded = torch.cat((torch.full((len(ids), amount), policy.special.pad), ids), 1)
        attend = torch.arange(padded.shape[1])[None].expand_as(padded) >= amount
        ours = logits(policy, padded, attend)[:, amount:]
        torch.testing.assert_close(ours, golden["block_causal.logits"], atol=ATOL, rtol=0)
