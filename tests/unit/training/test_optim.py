"""Learning-rate schedule and the finite guard."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from maskgrad.config import OptimConfig
from maskgrad.training.optim import adamw, clip_gradients, guarded_step, learning_rate, set_rate


def rates(total: int = 10, **settings: object) -> list[float]:
    config = OptimConfig.model_validate({"lr": 2.0, **settings})
    return [learning_rate(config, update, total) for update in range(total)]


def test_constant() -> None:
    assert rates() == [2.0] * 10


def test_linear_decays_towards_the_final_share() -> None:
    found = rates(schedule="linear", final_share=0.5)
    assert found == pytest.approx([2.0 - u / 10 for u in range(10)])
    assert learning_rate(OptimConfig(lr=2.0, schedule="linear", final_share=0.5), 10, 10) == pytest.approx(1.0)


def test_cosine() -> None:
    found = rates(schedule="cosine", final_share=0.1)
    expected = [2.0 * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * u / 10))) for u in range(10)]
    assert found == pytest.approx(expected)
    assert all(a > b for a, b in pairwise(found))


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_warm_up_rises_and_never_starts_at_zero(schedule: str) -> None:
    found = rates(warmup_updates=4, schedule=schedule)
    assert found[:4] == pytest.approx([0.4, 0.8, 1.2, 1.6])
    assert found[4] == pytest.approx(2.0) and max(found) == found[4]


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_a_warm_up_as_long_as_the_run(schedule: str) -> None:
    found = rates(total=3, warmup_updates=5, schedule=schedule)
    assert found == pytest.approx([2 / 6, 4 / 6, 1.0])


def model() -> nn.Module:
    layer = nn.Module()
    layer.weight = nn.Parameter(torch.arange(6.0).view(2, 3))
    return layer


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (1.0, math.nan), (1.0, math.inf), (-math.inf, 1.0)])
def test_a_non_finite_step_changes_nothing(loss: float, norm: float) -> None:
    layer = model()
    optimizer = adamw(layer, OptimConfig(lr=0.1, weight_decay=0.1))
    layer.weight.grad = torch.ones(2, 3)
    assert guarded_step(optimizer, 1.0, 1.0)
    weight, state = layer.weight.detach().clone(), optimizer.state_dict()["state"][0]
    moments = {k: v.clone() for k, v in state.items()}
    layer.weight.grad = torch.full((2, 3), math.nan)
    assert not guarded_step(optimizer, loss, norm)
    assert torch.equal(layer.weight, weight) and layer.weight.grad is None
    after = optimizer.state_dict()["state"][0]
    assert all(torch.equal(after[k], v) for k, v in moments.items())


def test_clipping_returns_the_norm_before_it() -> None:
    layer = model()
    layer.weight.grad = torch.full((2, 3), 2.0)
    assert clip_gradients(layer, 1.0) == pytest.approx(math.sqrt(24))
    assert float(layer.weight.grad.norm()) == pytest.approx(1.0, rel=1e-4)
    layer.weight.grad = torch.full((2, 3), 0.1)
    clip_gradients(layer, 1.0)
    assert torch.equal(layer.weight.grad, torch.full((2, 3), 0.1)), "a small gradient stays as it is"


def test_the_rate_reaches_every_group() -> None:
    optimizer = adamw(model(), OptimConfig(lr=0.1))
    set_rate(optimizer, 0.25)
    assert [g["lr"] for g in optimizer.param_groups] == [0.25]
