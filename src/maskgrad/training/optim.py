"""AdamW, its learning-rate schedule as a pure function of the update, and the finite guard."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from maskgrad.config import OptimConfig


class MasterAdamW(torch.optim.AdamW):
    """AdamW that keeps fp32 masters of low-precision parameters.

    A step of 1e-6 is far below half a unit in the last place of a bf16 weight and would be lost without them.
    Parameters in fp32 or fp64 are their own masters. The masters are part of `state_dict`.
    """

    def __init__(self, parameters: list[nn.Parameter], **options: Any):
        low = (torch.bfloat16, torch.float16)
        masters = [p.detach().float().clone().requires_grad_(True) if p.dtype in low else p for p in parameters]
        self.pairs = [(p, m) for p, m in zip(parameters, masters, strict=True) if m is not p]
        super().__init__(masters, **options)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for parameter, master in self.pairs:
            master.grad = None if parameter.grad is None else parameter.grad.float()
        result = super().step(closure)
        for parameter, master in self.pairs:
            parameter.copy_(master)
        return result

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        for parameter, _ in self.pairs:
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "masters": [master.detach() for _, master in self.pairs]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        state = dict(state_dict)
        masters = state.pop("masters")
        super().load_state_dict(state)
        with torch.no_grad():
            for (_, master), saved in zip(self.pairs, masters, strict=True):
                master.copy_(saved)


def adamw(model: nn.Module, config: OptimConfig) -> MasterAdamW:
    return MasterAdamW(
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


def distance(model: nn.Module, start: list[Tensor]) -> float:
    """Euclidean distance of the parameters from `start`, in the order of `model.parameters()`."""
    parts = [(p.detach() - s).norm() for p, s in zip(model.parameters(), start, strict=True)]
    return float(torch.stack(parts).norm())
