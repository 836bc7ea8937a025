"""Groups with equal rewards give exactly zero, also where the reward has no exact binary form."""

from __future__ import annotations

import pytest
import torch

from maskgrad.algorithms import advantages


@pytest.mark.parametrize("value", [0.7, 1 / 3, 0.1, 1e-3, 123.456])
@pytest.mark.parametrize("size", [2, 3, 6, 8, 16])
def test_equal_rewards_give_exactly_zero(value: float, size: int) -> None:
    """Catches: the mean subtracted from the raw reward (residue of 1e-8, which AdamW scales to full steps)."""
    group = torch.arange(2).repeat_interleave(size)
    reward = torch.full((2 * size,), value)
    reward[size:] += 0.25
    returns = reward[:, None].repeat(1, 3)
    used = torch.ones_like(returns, dtype=torch.bool)
    used[0, 2] = False
    returns[0, 2] = -5.0  # an unused slot must not count
    for out in (
        advantages.centred(reward, group),
        advantages.centred(reward, group, "population"),
        advantages.leave_one_out(reward, group),
        advantages.stepwise(reward, returns, used, group, "pooled_loo"),
        advantages.stepwise(reward, returns, used, group, "rank_mean"),
        advantages.stepwise(reward, returns, used, group, "outcome_loo"),
    ):
        assert bool((out == 0).all())
