"""Reveal rules: which masked positions a denoising pass commits.

A rule gives every masked position of the active block a rank value; the n highest are committed, ties by
position (leftmost first). Rank values are rounded to a multiple of `RESOLUTION`: positions the model is sure
of differ only by rounding noise, and without a stated tie they would be committed in an order that depends on
the batch the row happened to be in. Values come from untempered probabilities (temperature must not reorder), unless
the sampler is told to rank as SDAR and Dream do, by the distribution it draws from.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Remasking = Literal["low_confidence", "max_prob", "entropy", "margin", "random", "sequential", "origin"]
RESOLUTION = 2.0**-16
#: Rules whose choice of positions does not depend on the sampled tokens, so the product of the revealed
#: tokens' probabilities already is the kernel of the pass.
TOKEN_FREE_RULES = frozenset({"max_prob", "entropy", "margin", "random", "sequential", "origin"})
#: Rules that look at nothing but positions and noise.
BLIND_RULES = frozenset({"random", "sequential", "origin"})
#: Names under which Dream's code releases the same rules.
ALIASES = {"maskgit_plus": "max_prob", "topk_margin": "margin"}


def quantise(value: Tensor) -> Tensor:
    """Round to the resolution at which positions are ranked."""
    return torch.round(value / RESOLUTION) * RESOLUTION


def token_confidence(logp: Tensor, delayed: Tensor | None = None) -> Tensor:
    """Rank value of committing each token under `low_confidence`: its untempered probability, rounded.

    Shapes: logp [..., V] log-softmax of the raw logits; delayed bool [V], ids that rank below every other
    (stop tokens whose commitment is to be delayed). Returns [..., V].
    """
    confidence = quantise(logp.exp())
    return confidence if delayed is None else torch.where(delayed, -1.0, confidence)


def rank_value(
    rule: Remasking, logp: Tensor, proposal: Tensor, delayed: Tensor | None, noise: Tensor, position: Tensor
) -> Tensor:
    """Rank value of each position. Shapes: logp [n,V], proposal and position int64 [n], noise [n] in (0,1) -> [n]."""
    if rule in BLIND_RULES:
        return {"random": noise, "origin": -noise, "sequential": -position}[rule].to(logp.dtype)
    if rule == "low_confidence":
        value = quantise(logp.gather(-1, proposal[:, None]).squeeze(-1).exp())
    elif rule == "max_prob":
        value = quantise(logp.amax(-1).exp())
    elif rule == "entropy":
        value = quantise(-entropy(logp))
    else:
        top = logp.topk(2, dim=-1).values.exp()
        value = quantise(top[:, 0] - top[:, 1])
    return value if delayed is None else torch.where(delayed[proposal], -1e4, value)


def drawn_order(value: Tensor, temperature: float, noise: Tensor) -> Tensor:
    """Rank values under which the best n are a draw of n without replacement from softmax(value / temperature).

    Dream's `alg_temp` (released), by Gumbel noise: value / temperature - log(-log u). value [n], noise u in (0,1) [n].
    """
    return value / temperature - torch.log(-torch.log(noise.to(value.dtype)))


def entropy(logp: Tensor) -> Tensor:
    """Shannon entropy in nats over the last axis; ids with log-prob -inf contribute nothing."""
    return -torch.where(logp.isneginf(), 0.0, logp.exp() * logp).sum(-1)


def choose(value: Tensor, masked: Tensor, count: Tensor) -> Tensor:
    """The `count` [R] highest-ranked masked positions of each row, ties leftmost first. bool [R,W]."""
    order = torch.where(masked, value, -torch.inf).argsort(dim=1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(
        1, order, torch.arange(order.shape[1], device=order.device).expand_as(order)
    )
    return (rank < count[:, None]) & masked


def schedule(masked: int, passes: int) -> list[int]:
    """Positions to commit in each pass of a block, remainder first: 8 in 3 passes gives [3, 3, 2]."""
    return [masked // passes + (1 if j < masked % passes else 0) for j in range(passes)]


def time_grid(passes: int) -> list[float]:
    """Share of the masked positions that pass i of a time grid uncovers: 1 - s/t, and 1 in the last (Dream, released).

    t and s are neighbours of linspace(1, 1e-3, passes + 1) in fp32, whose rounding decides counts; keep the precision.
    """
    times = torch.linspace(1, 1e-3, passes + 1, dtype=torch.float32)
    return [*(1 - times[1:-1] / times[:-2]).tolist(), 1.0]


def schedule_on_time_grid(masked: int, passes: int) -> list[int]:
    """Positions to commit in each pass under Dream's time grid: 12 in 5 passes gives [2, 2, 2, 2, 4]."""
    counts = []
    for share in time_grid(passes):
        counts.append(int(torch.tensor(masked, dtype=torch.float32) * torch.tensor(share, dtype=torch.float32)))
        masked -= counts[-1]
    return counts
