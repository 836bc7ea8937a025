from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from maskgrad.errors import UserError
from maskgrad.models import LLADA, Policy, new_policy
from maskgrad.models.attention import bidirectional_mask, positions


def tokens(rows: int = 3, length: int = 9) -> Tensor:
    return torch.randint(0, 30, (rows, length), generator=torch.Generator().manual_seed(5))


def logits(policy: Policy, ids: Tensor, attend: Tensor | None = None) -> Tensor:
    with torch.no_grad():
        return policy.logits(policy.hidden(ids, attend))


def perturbed(config: dict[str, Any]) -> Policy:
    """A model with every parameter away from its initial value, biases and norms included."""
    policy, draws = new_policy(LLADA, config, None, seed=3), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=draws))
    return policy


def test_variant_equals_transformers_with_a_full_mask(variant: dict[str, Any]) -> None:
    policy, ids = perturbed(variant), tokens()
    oracle = LlamaForCausalLM(LLADA.to_backbone(policy.config)).eval()
    state = {"lm_head." + k.removeprefix("head."): v for k, v in policy.state_dict().items() if k.startswith("head.")}
    state |= {"model." + k.removeprefix("backbone."): v for k, v in policy.state_dict().items() if "backbone" in k}
    extra = oracle.load_state_dict(state, strict=False)
    # the only differences there may be: no bias on the attention output, a bias on the head
    assert all(name.endswith("o_proj.bias") for name in extra.missing_keys), extra
    assert all(name == "lm_head.bias" for name in extra.unexpected_keys), extra
    with torch.no_grad():
        for layer in oracle.model.layers:
            if layer.self_attn.o_proj.bias is not None and extra.missing_keys:
                layer.self_attn.o_proj.bias.zero_()
        x = oracle.model.embed_tokens(ids) * (math.sqrt(32) if variant.get("input_emb_norm") else 1.0)
        visible = torch.zeros(len(ids), 1, ids.shape[1], ids.shape[1])
        wanted = oracle(inputs_embeds=x, attention_mask=visible).logits
    if policy.head.bias is not None:
        wanted = wanted + policy.head.bias.detach()
    wanted = wanted / (math.sqrt(32) if variant.get("scale_logits") else 1.0)
    torch.testing.assert_close(logits(policy, ids), wanted, atol=1e-5, rtol=1e-5)


def test_biases_are_where_the_config_says(sizes: dict[str, Any]) -> None:
    def biased(**settings: Any) -> set[str]:
        names = new_policy(LLADA, sizes | settings, None, seed=0).weights()
        return {name.removesuffix(".bias").rsplit(".", 1)[1] for name in names if name.endswith(".bias")}

    assert biased() == set()
    assert biased(include_qkv_bias=True) == {"q_proj", "k_proj", "v_proj"}
    assert biased(include_bias=True) == {"q_proj", "k_proj", "v_proj", "attn_out", "ff_proj", "up_proj", "ff_out"}
    assert "model.transformer.ff_out.bias" in new_policy(LLADA, sizes | {"include_bias": True}, None, seed=0).weights()


@pytest.mark.parametrize("attn", ["sdpa", "eager"])
def test_first_position_depends_on_last_token(sizes: dict[str, Any], attn: str) -> None:
    base = perturbed(sizes)
    policy = Policy(LLADA, base.config, base.special, attn=attn).fill(dict(base.named_parameters()))
    ids = tokens()
    changed = ids.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 30
    pad = torch.ones_like(ids, dtype=torch.bool)
    pad[0, :2] = False
    for attend in (None, pad):
        moved = (logits(policy, ids, attend) - logits(policy, changed, attend)).abs()[1:, 0].amax(-1)
        assert (moved > 1e-3).all()
    torch.testing.assert_close(logits(policy, ids, pad)[pad], logits(base, ids, pad)[pad], atol=1e-5, rtol=0)


@pytest.mark.parametrize("amount", [1, 4, 17])
def test_padding_moves_nothing(sizes: dict[str, Any], amount: int) -> None:
    policy, ids = perturbed(sizes), tokens()
    alone = logits(policy, ids)
    real = torch.cat((torch.zeros(3, amount), torch.ones(3, 9)), 1).bool()
    for content in (31, 36, 0):
        padded = torch.cat((torch.full((3, amount), content), ids), 1)
        torch.testing.assert_close(logits(policy, padded, real)[:, amount:], alone, atol=1e-5, rtol=0)
    assert (logits(policy, padded)[:, amount:] - alone).abs().max() > 1e-3  # the padding is there to be seen


def test_rotary_angles_of_a_padded_row_are_those_of_the_row_alone(sizes: dict[str, Any]) -> None:
    policy, ids = new_policy(LLADA, sizes, None, seed=0), tokens(rows=1)
    seen: list[Tensor] = []
    policy.backbone.rotary_emb.register_forward_hook(lambda _module, _inputs, output: seen.append(output[0]))
    logits(policy, ids)
    logits(policy, torch.cat((ids[:, :5], ids), 1), torch.arange(14)[None] >= 5)
    assert torch.equal(seen[0], seen[1][:, 5:])


def test_fully_padded_row_and_padded_queries_give_finite_gradients(sizes: dict[str, Any]) -> None:
    policy, ids = perturbed(sizes), tokens()
    attend = torch.ones_like(ids, dtype=torch.bool)
    attend[0] = False
    attend[1, :4] = False
    policy.logits(policy.hidden(ids, attend)).square().mean().backward()
    assert all(torch.isfinite(p.grad).all() for p in policy.parameters() if p.grad is not None)


def test_mask_and_positions_by_hand() -> None:
    attend = torch.tensor([[False, True, True]])
    assert bidirectional_mask(attend)[0, 0].int().tolist() == [[1, 0, 0], [0, 1, 1], [0, 1, 1]]
    assert positions(attend).tolist() == [[0, 0, 1]]
    assert positions(torch.tensor([[True, True], [False, True]])).tolist() == [[0, 1], [0, 0]]


def test_every_embedding_row_is_trained_and_a_tied_table_counted_once(sizes: dict[str, Any]) -> None:
    policy = new_policy(LLADA, sizes | {"weight_tying": True}, None, seed=0)
    assert policy.head.weight is policy.backbone.embed_tokens.weight
    assert copy.deepcopy(policy).head.weight.shape == (40, 32)
    twin = copy.deepcopy(policy)
    assert twin.head.weight is twin.backbone.embed_tokens.weight
    untied = new_policy(LLADA, sizes, None, seed=0)
    assert untied.num_parameters() == policy.num_parameters() + 40 * 32
    untied.hidden(torch.full((1, 4), 31)).sum().backward()
    assert untied.backbone.embed_tokens.weight.grad[31].abs().sum() > 0  # the end-of-text token is also the padding


def test_gradient_checkpointing_gives_the_same_gradient(sizes: dict[str, Any]) -> None:
    policy, ids = perturbed(sizes), tokens()
    attend = torch.ones_like(ids, dtype=torch.bool)
    attend[0, :3] = False
    gradients = []
    for on in (False, True):
        policy.set_gradient_checkpointing(on)
        policy.zero_grad()
        policy.logits(policy.hidden(ids, attend)[:, 3:]).square().mean().backward()
        gradients.append([p.grad.clone() for p in policy.parameters()])
    for plain, recomputed in zip(*gradients, strict=True):
        assert torch.equal(plain, recomputed)


def test_forbidden_ids(sizes: dict[str, Any]) -> None:
    policy = new_policy(LLADA, sizes | {"vocab_size": 38, "embedding_size": 40}, None, seed=0)
    assert policy.vocab_rows == 40
    assert policy.forbidden.nonzero().flatten().tolist() == [36, 38, 39]
    assert "forbidden" not in policy.state_dict()


def test_head_is_fp32_and_family_does_not_shift(sizes: dict[str, Any]) -> None:
    policy = new_policy(LLADA, sizes, None, seed=0).to(torch.bfloat16)
    hidden = policy.hidden(tokens())
    assert hidden.dtype == torch.bfloat16 and policy.logits(hidden[:, :2]).dtype == torch.float32
    assert policy.aligned(hidden) is hidden
    index = torch.tensor([0, 4])
    assert torch.equal(policy.predict_positions(index), index)
    assert not policy.training


def test_global_generator_is_not_touched_and_the_seed_decides(sizes: dict[str, Any]) -> None:
    before = torch.get_rng_state()
    one, same, other = (new_policy(LLADA, sizes, None, seed=seed) for seed in (1, 1, 2))
    logits(one, tokens())
    assert torch.equal(torch.get_rng_state(), before)
    pairs = zip(one.parameters(), same.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(one.head.weight, other.head.weight)


def test_unknown_attention_is_named(sizes: dict[str, Any]) -> None:
    policy = new_policy(LLADA, sizes, None, seed=0)
    with pytest.raises(UserError, match="'sdap'"):
        Policy(LLADA, policy.config, policy.special, attn="sdap")
