"""Forward process: which positions of a sequence are hidden.

Every function takes uniform draws instead of a generator, so that a mask is a pure function of its noise.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rank_of(noise: Tensor, allowed: Tensor) -> Tensor:
    """Rank (0 = smallest) of each allowed entry along the last axis; entries that are not allowed rank last.

    Shapes: noise [..., L], allowed bool [..., L] -> int64 [..., L].
    """
    order = torch.where(allowed, noise, torch.inf).argsort(dim=-1, stable=True)
    return torch.empty_like(order).scatter_(
        -1, order, torch.arange(order.shape[-1], device=order.device).expand_as(order)
    )


def hide_count(noise: Tensor, allowed: Tensor, count: Tensor) -> Tensor:
    """Hide exactly `count` [...] of the allowed positions of each row, uniformly. Returns bool [..., L]."""
    return (rank_of(noise, allowed) < count.unsqueeze(-1)) & allowed


def uniform_count(u: Tensor, low: Tensor | int, high: Tensor | int) -> Tensor:
    """Integer in [low, high], uniform, from u in (0,1). Broadcasts; int64."""
    low = torch.as_tensor(low, device=u.device)
    span = torch.as_tensor(high, device=u.device) - low + 1
    return (low + (u * span).floor().to(torch.int64)).clamp(max=low + span - 1)


def hide_rate(noise: Tensor, allowed: Tensor, rate: Tensor | float) -> Tensor:
    """Hide each allowed position independently with probability `rate`. Returns bool [..., L]."""
    return (noise < rate) & allowed
