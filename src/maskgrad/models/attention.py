"""Who sees whom. Masks are bool with True = may look; shapes: `B` sequences, `T` positions, `Q` queries, `K` keys.

A visibility is a `Rule`: a predicate on (row, head, query, key) indices. `dense` writes it out for SDPA, `blockwise`
hands the same predicate to FlexAttention; there is no second description of any pattern.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

#: (row, head, query, key), int64 tensors that broadcast or scalars -> bool, True = may look.
Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def full(attend: Tensor) -> Rule:
    """Everybody sees every real position (`attend` bool [B,T], False on padding).

    A padded query sees itself alone, here and in every rule below: its output means nothing, but the softmax of a row
    without any key is NaN in some kernels, and one NaN poisons the gradient of the whole batch.
    """

    def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (attend[b, q] & attend[b, k]) | (q == k)

    return rule


def block_causal(block: Tensor) -> Rule:
    """A position sees its own and earlier blocks. `block` int64 [B,T], -1 on padding."""

    def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        own, other = block[b, q], block[b, k]
        return ((other >= 0) & (other <= own)) | (q == k)

    return rule


def staircase(block: Tensor, copy: Tensor, place: Tensor, clean: str = "block") -> Rule:
    """Clean and noisy copies of a sequence in one pass (block diffusion 2503.09573; StableDRL 2603.06743 section 6).

    noisy sees its own block in its own copy, and clean tokens of strictly earlier blocks; clean sees clean tokens up to
    the end of its block (`clean` "block") or up to itself ("causal"); clean never sees noisy.
    int64 [B,T] each: `block` number, -1 where there is nothing; `copy` 0 clean, 1.. noisy; `place` in the sequence.
    """
    assert clean in ("block", "causal"), clean

    def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        own, other, mine, theirs = block[b, q], block[b, k], copy[b, q], copy[b, k]
        inside = (mine > 0) & (theirs == mine) & (other == own)
        stair = (mine > 0) & (theirs == 0) & (other < own)
        past = other <= own if clean == "block" else place[b, k] <= place[b, q]
        stream = (mine == 0) & (theirs == 0) & past
        return ((own >= 0) & (other >= 0) & (inside | stair | stream)) | (q == k)

    return rule


def dense(rule: Rule, rows: int, queries: int, keys: int, device: torch.device | str = "cpu") -> Tensor:
    """The rule written out, bool [B,1,Q,K], for SDPA and for tests."""
    index = [torch.arange(n, device=device) for n in (rows, 1, queries, keys)]
    b, h, q, k = (x.view([-1 if i == axis else 1 for i in range(4)]) for axis, x in enumerate(index))
    return rule(b, h, q, k).expand(rows, 1, queries, keys)


def blockwise(rule: Rule, rows: int, queries: int, keys: int, device: torch.device | str = "cuda") -> BlockMask:
    """The rule as a block-sparse mask of FlexAttention: tiles that nobody sees are never computed."""
    return create_block_mask(rule, rows, None, queries, keys, device=str(device))


def visible(rule: Rule, rows: int, length: int, attn: str, device: torch.device) -> Tensor | BlockMask:
    """The mask that the attention implementation `attn` takes, for `length` queries and keys."""
    build = blockwise if attn == "flex_attention" else dense
    return build(rule, rows, length, length, device)


def bidirectional_mask(attend: Tensor) -> Tensor:
    """Mask bool [B,1,T,T] of full attention that hides padding (`attend` bool [B,T], False on padding) as keys."""
    rows, length = attend.shape
    return dense(full(attend), rows, length, length, attend.device)


def block_causal_mask(block: Tensor, attend: Tensor) -> Tensor:
    """Mask bool [B,1,T,T]: a position sees its own and earlier blocks (`block` int64 [B,T]); padding sees itself."""
    rows, length = attend.shape
    return dense(block_causal(torch.where(attend, block, -1)), rows, length, length, attend.device)


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The same mask as a term for the scores: 0 where visible, the lowest number of `dtype` elsewhere."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)


def positions(attend: Tensor) -> Tensor:
    """Position ids int64 [B,T] counted from each row's first real token, so that padding moves no rotary angle."""
    first = attend.to(torch.int8).argmax(1, keepdim=True)
    return (torch.arange(attend.shape[1], device=attend.device) - first).clamp_(min=0)


def block_ids(attend: Tensor, prompt_length: int, block: int, grid: str = "absolute") -> Tensor:
    """Block number int64 [B,T] of each position, -1 on padding. Padding never moves a boundary.

    `absolute`: blocks count from the first real token, so the prompt's last tokens may share a block with the first of
    the canvas. `response`: blocks count from the canvas (which starts at `prompt_length`) in both directions, so the
    prompt's first block may be short.
    """
    place = positions(attend)
    if grid == "response":
        start = prompt_length - (~attend[:, :prompt_length]).sum(1, keepdim=True)
        place = place - start + (start + block - 1) // block * block
    return torch.where(attend, place // block, -1)


def make_bidirectional(backbone: Any) -> int:
    """Clear the causal flag of every attention module; returns how many there were."""
    count = 0
    for module in backbone.modules():
        if hasattr(module, "is_causal"):
            # without a mask the SDPA path asks the module, not the config, whether to be causal
            module.is_causal = False
            count += 1
    return count
