"""Low-precision weights are trained through fp32 masters."""

from __future__ import annotations

import torch

from maskgrad.config import OptimConfig
from maskgrad.training.optim import adamw


def trained(dtype: torch.dtype, steps: int) -> tuple[torch.nn.Linear, torch.optim.Optimizer]:
    model = torch.nn.utils.skip_init(torch.nn.Linear, 4, 3, bias=False, dtype=dtype)  # leaves the generator alone
    with torch.no_grad():
        model.weight.fill_(1.0)
    optimizer = adamw(model, OptimConfig(lr=1e-4))
    for _ in range(steps):
        model.weight.grad = torch.ones_like(model.weight)
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def test_small_steps_are_not_lost_in_bf16() -> None:
    """Fifty steps of 1e-4 move a weight of 1 by 0.005; each alone is below half a unit of bf16 (0.002)."""
    model, _ = trained(torch.bfloat16, 50)
    exact, _ = trained(torch.float32, 50)
    torch.testing.assert_close(model.weight.float(), exact.weight, atol=4e-3, rtol=0)
    assert bool((model.weight < 1).all())


def test_masters_survive_a_checkpoint() -> None:
    model, optimizer = trained(torch.bfloat16, 7)
    state = optimizer.state_dict()
    other, fresh = trained(torch.bfloat16, 0)
    other.load_state_dict(model.state_dict())
    fresh.load_state_dict(state)
    for pair in ((model, optimizer), (other, fresh)):
        for _ in range(30):
            pair[0].weight.grad = torch.ones_like(pair[0].weight)
            pair[1].step()
            pair[1].zero_grad()
    assert torch.equal(model.weight, other.weight)
