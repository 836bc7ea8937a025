"""AdamW, its learning-rate schedule as a pure function of the update, and the finite guard."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from maskgrad.config import OptimConfig


def adamw(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad],
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
    )


def learning_rate(config: OptimConfig, update: int, total: int) -> float:
    """Rate of update number `update` (from 0) of `total`."""
    if update < config.warmup_updates:
        return config.lr * (update + 1) / (config.warmup_updates + 1)
    share = (update - config.warmup_updates) / max(1, total - config.warmup_updates)
    if config.schedule == "constant":
        scale = 1.0
    elif config.schedule == "linear":
        scale = 1 - share
    else:
        scale = 0.5 * (1 + math.cos(math.pi * share))
    return config.lr * (config.final_share + (1 - config.final_share) * scale)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def clip_gradients(model: nn.Module, limit: float) -> float:
    """Clip the global gradient norm in place; returns the norm before clipping (may be non-finite)."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    return float(nn.utils.clip_grad_norm_(parameters, limit))


def guarded_step(optimizer: torch.optim.Optimizer, loss: float, norm: float) -> bool:
    """Step only if loss and gradient are finite; otherwise the weights stay as they are. Clears the gradients."""
    healthy = math.isfinite(loss) and math.isfinite(norm)
    if healthy:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return healthy


def weight_norm(model: nn.Module) -> float:
    norms: list[Tensor] = [p.detach().norm() for p in model.parameters()]
    return float(torch.stack(norms).norm())


def distance(model: nn.Module, start: list[Tensor]) -> float:
    """Euclidean distance of the parameters from `start`, in the order of `model.parameters()`."""
    parts = [(p.detach() - s).norm() for p, s in zip(model.parameters(), start, strict=True)]
    return float(torch.stack(parts).norm())
