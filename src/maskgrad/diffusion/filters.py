"""Truncation of the distribution a token is drawn from: temperature, then top-k, then top-p, as SDAR releases them."""

from __future__ import annotations

import torch
from torch import Tensor


def top_k_logits(logits: Tensor, k: int) -> Tensor:
    """The `k` largest logits of the last axis (more where the k-th is tied), -inf elsewhere. `k` 0 keeps all."""
    if k <= 0 or k >= logits.shape[-1]:
        return logits
    floor = logits.topk(k, dim=-1).values[..., -1:]
    return logits.masked_fill(logits < floor, -torch.inf)


def top_p_logits(logits: Tensor, p: float) -> Tensor:
    """The fewest most probable ids whose probabilities exceed `p` together, -inf elsewhere. `p` 1 keeps all."""
    if p >= 1.0:
        return logits
    ordered, index = logits.sort(dim=-1, descending=True)
    mass = ordered.softmax(-1).cumsum(-1)
    # an id goes if the mass before it already exceeds p, so that the best one always stays
    gone = torch.cat([torch.zeros_like(mass[..., :1], dtype=torch.bool), mass[..., :-1] > p], -1)
    return logits.masked_fill(torch.zeros_like(gone).scatter(-1, index, gone), -torch.inf)


def sampling_logits(logits: Tensor, temperature: float, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    """Logits [..., V] of the distribution tokens are drawn from. Temperature 0 filters the untempered ones."""
    tempered = logits / temperature if temperature > 0 else logits
    return top_p_logits(top_k_logits(tempered, top_k), top_p)
