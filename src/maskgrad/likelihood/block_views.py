"""Views socket for block-causal policies: every block has its own noise, given the clean text before it.

A view hides something in every block at once, and one staircase pass (models/staircase.py) reads them all. Like the
other builders these are pure functions of the batch and of named draws. Shapes: `N` views, `L` canvas positions.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from maskgrad.likelihood.elbo_views import _token_views, canvas_views
from maskgrad.likelihood.views import _draws
from maskgrad.records import MaskedViews, RolloutBatch

#: count: exactly l of the block's n tokens hidden, weight n/l. rate: each hidden with probability t, weight 1/t.
Weights = Literal["count", "rate"]
#: antithetic: views in pairs (t, 1-t) on one order of the tokens. complementary: the second view hides the rest.
Pairing = Literal["independent", "antithetic", "complementary"]


def blocks_of(batch: RolloutBatch) -> Tensor:
    """Block int64 [B,L] of each canvas position; an invariant of rollouts of a block-causal policy."""
    assert batch.block is not None, "these views need a block-causal policy"
    return batch.block


def per_block(values: Tensor, block: Tensor) -> Tensor:
    """Sum of `values` [B,...,L] over the block of each position, at each position: same shape; block int64 [B,L]."""
    shape = (block.shape[0], *([1] * (values.dim() - 2)), block.shape[1])
    index = block.view(shape).expand(values.shape)
    total = torch.zeros(*values.shape[:-1], int(block.max()) + 1, dtype=values.dtype, device=values.device)
    return total.scatter_add_(-1, index, values).gather(-1, index)


def rank_in_block(noise: Tensor, allowed: Tensor, block: Tensor) -> Tensor:
    """Rank (0 = smallest) of each allowed position among the allowed ones of its block.

    noise in (0,1) [B,N,L], allowed bool [B,N,L], block int64 [B,L] -> int64 [B,N,L]; L where not allowed.
    """
    number = block[:, None].expand(noise.shape)
    order = torch.where(allowed, number + noise, torch.inf).argsort(dim=-1, stable=True)
    rank = torch.empty_like(order)
    rank.scatter_(-1, order, torch.arange(order.shape[-1], device=order.device).expand_as(order))
    total = torch.zeros(*noise.shape[:-1], int(block.max()) + 1, dtype=torch.int64, device=noise.device)
    total.scatter_add_(-1, number, allowed.to(torch.int64))
    before = total.cumsum(-1) - total  # allowed positions in earlier blocks
    return torch.where(allowed, rank - before.gather(-1, number), noise.shape[-1])


def block_elbo(
    batch: RolloutBatch,
    seed: int,
    use: int = 0,
    *,
    draws: int,
    weights: Weights = "count",
    pairing: Pairing = "independent",
) -> MaskedViews:
    """Block-diffusion ELBO (2503.09573 eq. 8; StableDRL 2603.06743 section 6): independent noise in every block.

    lower = sum_b (1/N) sum_views w sum_hidden lp,   E[lower] = sum_b ELBO_b  (enumerated in the tests)
    count: l ~ U{1..n}, w = n/l. rate: t ~ U(0,1) given that something is hidden, w = P(something hidden | t) / t.
    complementary: l ~ U{0..n}, w = (n+1)/l, and the rest of each block in the next view. In the other pairings every
    view hides a token in every block with live ones. n counts live tokens: what lies behind the stop stays MASK and
    is never scored.
    """
    assert weights == "count" or pairing != "complementary", "complementary views are counted"
    block, live = blocks_of(batch), batch.live
    drawn = -(-draws // 2) if pairing != "independent" else draws
    length = live.shape[1]
    start = _first_of_block(block)

    def uniform(purpose: str, per_token: bool) -> Tensor:
        # a block's draw is that of its first position, so that it does not depend on how many blocks other rows have
        out = _draws(batch, seed, purpose, use, drawn, length)
        out = out if per_token else out.gather(2, start[:, None].expand(out.shape))
        return torch.stack([out, 1 - out], 2).flatten(1, 2)[:, :draws] if pairing == "antithetic" else out

    level, noise = uniform("views.level", False), uniform("views.token", True)
    allowed = live[:, None].expand(noise.shape)
    n = per_block(allowed.to(torch.int64), block)
    if weights == "rate":
        place = rank_in_block(torch.full_like(noise, 0.5), allowed, block)
        scored, weight = _hide_rate(noise, place, level, n, uniform("views.first", False))
    else:
        rank = rank_in_block(noise, allowed, block)
        scored, weight = _hide_count(rank, level, n, pairing == "complementary", draws)
    scored = scored & live[:, None]
    weight = torch.where(scored, weight / draws, 0.0)
    hidden = scored | ~live[:, None]
    return canvas_views(batch, hidden, scored, weight, torch.zeros_like(scored, dtype=torch.int64), 1)


def counted_pairs(batch: RolloutBatch, seed: int, use: int, *, draws: int, coupled: bool) -> MaskedViews:
    """ESPO's estimate (2512.03759) block by block: `draws` masks of each row, with their complements if `coupled`."""
    pairing: Pairing = "complementary" if coupled else "independent"
    return block_elbo(batch, seed, use, draws=2 * draws if coupled else draws, pairing=pairing)


def _first_of_block(block: Tensor) -> Tensor:
    """First canvas position int64 [B,L] of the block of each position."""
    first = torch.cat([torch.ones_like(block[:, :1], dtype=torch.bool), block[:, 1:] > block[:, :-1]], 1)
    return torch.where(first, torch.arange(block.shape[1], device=block.device), 0).cummax(1).values


def _hide_count(rank: Tensor, level: Tensor, n: Tensor, complementary: bool, draws: int) -> tuple[Tensor, Tensor]:
    """(hidden, weight) [B,N,L] of the `l` first of each block's random order; `level` in (0,1) picks l."""
    if not complementary:
        count = torch.minimum((level * n).floor().to(torch.int64) + 1, n)
        return rank < count, n / count.clamp(min=1)
    count = torch.minimum((level * (n + 1)).floor().to(torch.int64), n)
    hidden = torch.stack([rank < count, rank >= count], 2).flatten(1, 2)[:, :draws]
    number = torch.stack([count, n - count], 2).flatten(1, 2)[:, :draws]
    total = n.repeat_interleave(2, 1)[:, :draws]
    return hidden, (total + 1) / number.clamp(min=1)


def _hide_rate(noise: Tensor, place: Tensor, level: Tensor, n: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """(hidden, weight) [B,N,L]: each token with probability t = level, given that at least one of the block is.

    The block's first hidden token i has P(i) = t (1-t)^i / (1 - (1-t)^n), drawn by `first` in (0,1); those behind it
    are independent. The weight is the probability of the condition over t, so leaving out empty masks biases nothing.
    """
    some = -torch.expm1(n * torch.log1p(-level))
    chosen = torch.floor(torch.log1p(-first * some) / torch.log1p(-level)).to(torch.int64)
    chosen = torch.minimum(chosen, (n - 1).clamp(min=0))
    return (place == chosen) | ((place > chosen) & (noise < level)), some / level


def slice_in_block(commit_step: Tensor, block: Tensor, shrink: int) -> Tensor:
    """Slice number int64 [B,L] of each position inside its block; never-committed positions (-1) come behind all.

    Every `shrink` consecutive distinct steps of a block form one slice. commit_step [B,L], block int64 [B,L].
    """
    step = commit_step.to(torch.int64)
    span = int(step.max().clamp(min=0)) + 1
    present = torch.zeros(len(step), (int(block.max()) + 1) * span + 1, dtype=torch.int64, device=step.device)
    code = torch.where(step >= 0, block * span + step + 1, 0)
    present.scatter_(1, code, 1)
    present[:, 0] = 0
    order = present.cumsum(1)  # rank of each step among the distinct steps of all blocks up to its own
    rank = order.gather(1, code) - 1 - order.gather(1, block * span)
    number = torch.div(rank, shrink, rounding_mode="floor")
    last = int(torch.where(step >= 0, number, -1).max()) + 1
    return torch.where(step >= 0, number, last)


def block_slices(batch: RolloutBatch, *, shrink: int = 1) -> MaskedViews:
    """TraceRL (2509.06949) and DiPO (2512.22234) on block models: view n shows, in every block, what was committed
    before the block's slice n, beside the clean text of earlier blocks.

    scored = live tokens of slice n; hidden = tokens of this and later slices and never-committed ones. With `shrink` 1
    every committed live token is scored exactly once, in the state in which the sampler committed it.
    """
    assert batch.trajectory is not None, "trace slices need the commit map of the rollouts"
    commit = batch.trajectory.commit_step
    number = slice_in_block(commit, blocks_of(batch), shrink)
    committed = commit >= 0
    slices = int(number[committed].max()) + 1 if bool(committed.any()) else 1
    index = torch.arange(slices, device=number.device)[None, :, None]
    scored = (number[:, None] == index) & (batch.live & committed)[:, None]
    return _token_views(batch, number[:, None] >= index, scored)
