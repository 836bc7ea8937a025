"""Who sees whom. Masks are bool with True = may look; shapes: `B` sequences, `T` positions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def bidirectional_mask(attend: Tensor) -> Tensor:
    """Mask bool [B,1,T,T] of full attention that hides padding (`attend` bool [B,T], False on padding) as keys.

    A padded query sees itself alone: its output means nothing, but the softmax of a row without any key is NaN in
    some kernels, and one NaN poisons the gradient of the whole batch.
    """
    real = attend[:, None, :] & attend[:, :, None]
    itself = torch.eye(attend.shape[1], dtype=torch.bool, device=attend.device)
    return (real | itself)[:, None]


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


def block_causal_mask(block: Tensor, attend: Tensor) -> Tensor:
    """Mask bool [B,1,T,T]: a position sees its own and earlier blocks (`block` int64 [B,T]); padding sees itself."""
    earlier = block[:, None, :] <= block[:, :, None]
    real = attend[:, None, :] & attend[:, :, None]
    itself = torch.eye(attend.shape[1], dtype=torch.bool, device=attend.device)
    return (earlier & real | itself)[:, None]


def make_bidirectional(backbone: Any) -> int:
    """Clear the causal flag of every attention module; returns how many there were."""
    count = 0
    for module in backbone.modules():
        if hasattr(module, "is_causal"):
            # without a mask the SDPA path asks the module, not the config, whether to be causal
            module.is_causal = False
            count += 1
    return count
