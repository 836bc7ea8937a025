"""Visibility rules: against loops, against FlexAttention's own reading of them, and as block-sparse masks.

Errors caught: a rule that lets a noisy token see its own clean block; causal and block clean streams exchanged; padding
that sees its neighbours; a tile called full that is not; a block number that counts padding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_mask, flex_attention

from maskgrad.models import attention
from maskgrad.models.families import SDAR
from maskgrad.models.load import new_policy
from maskgrad.models.staircase import pack

LENGTH, PROMPT = 150, 61  # more than one tile of FlexAttention, and no multiple of a block


def padded() -> Tensor:
    attend = torch.ones(2, LENGTH, dtype=torch.bool)
    attend[1, :7] = False
    return attend


def staircase_slots(grid: str, layout: str):
    attend = padded()
    block = attention.block_ids(attend, PROMPT, 4, grid)
    read = torch.zeros(3, LENGTH - PROMPT, dtype=torch.bool)
    read[:, 2::5] = True
    return pack(attend, block, torch.tensor([0, 1, 1]), read, layout)


RULES: dict[str, Callable[[], tuple[attention.Rule, int]]] = {
    "full": lambda: (attention.full(padded()), LENGTH),
    "block_causal": lambda: (attention.block_causal(attention.block_ids(padded(), PROMPT, 4)), LENGTH),
}
for _grid in ("absolute", "response"):
    for _layout in ("needed", "shared", "doubled"):
        for _clean in ("block", "causal"):

            def _rule(grid: str = _grid, layout: str = _layout, clean: str = _clean) -> tuple[attention.Rule, int]:
                slots = staircase_slots(grid, layout)
                return slots.rule(clean), slots.block.shape[1]

            RULES[f"staircase-{_grid}-{_layout}-{_clean}"] = _rule
each_rule = pytest.mark.parametrize("make", RULES.values(), ids=list(RULES))


@each_rule
def test_dense_mask_and_flex_mask_agree(make: Callable[[], tuple[attention.Rule, int]]) -> None:
    rule, width = make()
    dense = attention.dense(rule, 2, width, width)
    assert dense.shape == (2, 1, width, width) and dense.dtype == torch.bool
    assert bool(dense.any(-1).all()), "a query without any key"
    assert torch.equal(create_mask(rule, 2, 1, width, width, device="cpu"), dense)


@each_rule
def test_tiles_hold_what_the_dense_mask_shows(make: Callable[[], tuple[attention.Rule, int]]) -> None:
    rule, width = make()
    dense, mask = attention.dense(rule, 2, width, width), attention.blockwise(rule, 2, width, width, "cpu")
    size = mask.BLOCK_SIZE[0]
    present = mask.to_dense().bool()
    whole = torch.zeros_like(present)
    assert mask.full_kv_num_blocks is not None and mask.full_kv_indices is not None
    for b, q in torch.cartesian_prod(*map(torch.arange, present.shape[::2])).tolist():
        count = int(mask.full_kv_num_blocks[b, 0, q])
        whole[b, 0, q, mask.full_kv_indices[b, 0, q, :count].long()] = True
    for b, q, k in torch.cartesian_prod(*(torch.arange(n) for n in (2, *present.shape[2:]))).tolist():
        tile = dense[b, 0, q * size : (q + 1) * size, k * size : (k + 1) * size]
        assert bool(present[b, 0, q, k]) == bool(tile.any())
        if bool(whole[b, 0, q, k]):
            assert bool(tile.all())


@pytest.mark.parametrize("name", ["full", "block_causal", "staircase-absolute-needed-block"])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_computes_the_same(name: str) -> None:
    rule, width = RULES[name]()
    draws = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, width, 16, generator=draws) for _ in range(3))
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=attention.dense(rule, 2, width, width))
    found = flex_attention(q, k, v, block_mask=attention.blockwise(rule, 2, width, width, "cpu"))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("clean", ["block", "causal"])
def test_staircase_equals_a_loop(clean: str) -> None:
    slots = staircase_slots("absolute", "doubled")
    mask = attention.dense(slots.rule(clean), 2, *slots.block.shape[1:] * 2)[:, 0]
    draws = torch.Generator().manual_seed(1)
    for b, q, k in torch.randint(0, slots.block.shape[1], (6000, 3), generator=draws).tolist():
        row = b % 2
        bq, bk, cq, ck = (int(x[row, i]) for x in (slots.block, slots.copy) for i in (q, k))
        if q == k:
            seen = True
        elif bq < 0 or bk < 0:
            seen = False
        elif cq > 0:
            seen = (ck == cq and bk == bq) or (ck == 0 and bk < bq)
        elif clean == "block":
            seen = ck == 0 and bk <= bq
        else:
            seen = ck == 0 and int(slots.place[row, k]) <= int(slots.place[row, q])
        assert bool(mask[row, q, k]) == seen


def test_block_numbers_of_both_grids() -> None:
    attend = torch.tensor([[False, False, True, True, True, True, True, True, True, True]])
    assert attention.block_ids(attend, 5, 4).tolist() == [[-1, -1, 0, 0, 0, 0, 1, 1, 1, 1]]
    assert attention.block_ids(attend, 5, 4, "response").tolist() == [[-1, -1, 0, 0, 0, 1, 1, 1, 1, 2]]
    assert attention.block_ids(attend[:, 1:], 4, 4).tolist() == [[-1, 0, 0, 0, 0, 1, 1, 1, 1]]


def test_padding_sees_itself_alone() -> None:
    block = attention.block_ids(padded(), PROMPT, 4)
    for mask in (attention.bidirectional_mask(padded()), attention.block_causal_mask(block, padded())):
        assert torch.equal(mask[1, 0, :7], torch.eye(LENGTH, dtype=torch.bool)[:7])
        assert not bool(mask[1, 0, 7:, :7].any())


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_a_policy_gives_the_same_states_through_flex_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path that CUDA takes, run uncompiled: block masks reach every layer, in plain and in staircase passes."""

    def uncompiled(q: Tensor, k: Tensor, v: Tensor, training: bool = False, **options: Any) -> Any:
        return flex_attention(q, k, v, **options)

    monkeypatch.setattr("transformers.integrations.flex_attention.compile_friendly_flex_attention", uncompiled)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    sizes |= {"head_dim": 16, "intermediate_size": 48, "vocab_size": 40, "mask_token_id": 39, "eos_token_id": 38}
    policy = new_policy(SDAR, sizes, None, 0)
    draws = torch.Generator().manual_seed(0)
    clean = torch.randint(0, 38, (2, 30), generator=draws)
    attend = torch.ones_like(clean, dtype=torch.bool)
    attend[1, :5] = False
    row = torch.tensor([0, 1, 1])
    read = torch.rand(3, 17, generator=draws) < 0.5
    noisy = clean[row].clone()
    noisy[:, 13:][read] = 39
    with torch.no_grad():
        wanted = policy.hidden(clean, attend), policy.staircase_at(clean, attend, noisy, row, read)
        policy.attn = policy.backbone.config._attn_implementation = "flex_attention"
        found = policy.hidden(clean, attend), policy.staircase_at(clean, attend, noisy, row, read)
    torch.testing.assert_close(found[0][attend], wanted[0][attend], rtol=0, atol=1e-5)
    torch.testing.assert_close(found[1], wanted[1], rtol=0, atol=1e-5)
