"""Ratio inflation: off it changes nothing, on it reaches the ratio alone, and its draws are named."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from maskgrad.algorithms import SPG, GRPOElbo, StableDRL
from maskgrad.algorithms.objective import Objective
from maskgrad.algorithms.surrogate import policy_loss
from maskgrad.config import InflateConfig, RunConfig
from maskgrad.errors import UserError
from maskgrad.records import Counts, LossSum, Units
from maskgrad.reporting.journal import read, without_time
from maskgrad.training.inflate import log_ratio_shift
from maskgrad.training.loop import TrainingRun

COUNTS = Counts(rows=4, groups=1, live_tokens=8, units=4, scored_tokens=8)
GROUP = torch.zeros(4, dtype=torch.int64)
LIVE = torch.ones(4, 2, dtype=torch.bool)
A = torch.tensor([[0.5], [0.5], [-0.5], [-0.5]], dtype=torch.float64)
SHIFT = torch.tensor([[0.0], [math.log(1000)], [0.0], [math.log(1000)]], dtype=torch.float64)


def units(values: list[float]) -> Units:
    lower = torch.tensor(values, dtype=torch.float64)[:, None].requires_grad_(True)
    ones = torch.ones_like(lower)
    return Units(lower=lower, upper=2 * lower, mask=ones.bool(), size=2 * ones, per_token=True, views="")


def both(
    objective: Objective, new: Units, old: Units | None, shift: Tensor | None, **more: Any
) -> tuple[LossSum, Tensor]:
    loss = policy_loss(objective, new, A, GROUP, LIVE, COUNTS, old, log_ratio_shift=shift, **more)
    (grad,) = torch.autograd.grad(loss.total, new.lower, retain_graph=True)
    return loss, grad[:, 0]


def test_ratio_form_by_hand() -> None:
    """rho -> 1000 rho: the clip holds the positive sample, the negative one gets 1000 times its gradient."""
    objective = GRPOElbo(ratio_scale="token").objective()
    new, old = units([-1.0, -1.1, -0.9, -1.0]), units([-1.05, -1.0, -1.0, -0.95])
    calm, before = both(objective, new, old, None)
    wild, after = both(objective, new, old, SHIFT)
    assert torch.equal(before[[0, 2]], after[[0, 2]])
    assert after[1] == 0
    assert float(after[3]) == pytest.approx(1000 * float(before[3]), rel=1e-12)
    rho = [math.exp(0.05), min(1000 * math.exp(-0.1), 1.2), math.exp(0.1), 1000 * math.exp(-0.05)]
    assert float(wild.total.detach()) == pytest.approx(-sum(r * float(a) for r, a in zip(rho, A, strict=True)) / 4)
    assert wild.metrics["inflated_fraction"] == (2.0, 4.0) and "inflated_fraction" not in calm.metrics


def test_score_form_by_hand() -> None:
    """The weight becomes min(1000 rho, 6) / sum; the bound that carries gradient and value stays what it was."""
    new, old = units([-1.0, -1.1, -0.9, -1.0]), units([-1.05, -1.0, -1.0, -0.95])
    wild, after = both(StableDRL().objective(), new, old, SHIFT)
    c = torch.tensor([math.exp(0.05), 6.0, math.exp(0.1), 6.0], dtype=torch.float64)
    w, a = c / c.sum(), A[:, 0]
    torch.testing.assert_close(after, -w * a * torch.tensor([1.0, 1.0, 2.0, 2.0]), rtol=1e-12, atol=0)
    bound = torch.where(a > 0, new.lower[:, 0], new.upper[:, 0]).detach()
    assert float(wild.total.detach()) == pytest.approx(float(-(w * a * bound).sum()))


def test_it_enters_an_on_policy_update() -> None:
    """The ratio that is 1 by construction becomes 1000 where it is hit."""
    new = units([-1.0, -1.1, -0.9, -1.0])
    _, grad = both(GRPOElbo(ratio_scale="token").objective(), new, None, SHIFT)
    assert grad.tolist() == pytest.approx([-0.125, 0.0, 0.125, 125.0])


def test_a_method_without_ratio_and_a_kl_do_not_see_it() -> None:
    new, old = units([-1.0, -1.1, -0.9, -1.0]), units([-1.05, -1.0, -1.0, -0.95])
    plain, before = both(SPG().objective(), new, old, None)
    wild, after = both(SPG().objective(), new, old, SHIFT)
    assert torch.equal(before, after) and torch.equal(plain.total, wild.total) and plain.metrics == wild.metrics
    kl = [
        both(GRPOElbo(beta=0.1, ratio_scale="token").objective(), new, old, s, reference=old)[0].metrics["kl"]
        for s in (None, SHIFT)
    ]
    assert kl[0] == kl[1]


@pytest.mark.parametrize("algorithm", [GRPOElbo(), StableDRL(), SPG()], ids=lambda a: a.name)
def test_zero_shift_changes_no_bit(algorithm: Any) -> None:
    new, old = units([-1.0, -1.1, -0.9, -1.0]), units([-1.05, -1.0, -1.0, -0.95])
    plain, before = both(algorithm.objective(), new, old, None)
    zero, after = both(algorithm.objective(), new, old, torch.zeros(4, 1))
    assert torch.equal(plain.total, zero.total) and torch.equal(before, after)


def test_effective_share_and_order_statistics() -> None:
    """(sum w)^2 / (G sum w^2), whether or not weights are normalised; a unit that does not exist counts nowhere."""
    new = units([-1.0, -1.0, -1.0, -1.0])
    some = replace(new, mask=torch.tensor([[True], [True], [True], [False]]))
    w = [1.0, 6.0, 1.0]
    for objective in (StableDRL().objective(), StableDRL(self_normalise=False).objective()):
        loss = policy_loss(objective, some, A, GROUP, LIVE, COUNTS, log_ratio_shift=SHIFT)
        share, groups = loss.metrics["ess_share"]
        assert groups == pytest.approx(1) and share == pytest.approx(sum(w) ** 2 / (3 * sum(x**2 for x in w)))
        assert loss.log_ratio is not None and loss.log_ratio.tolist() == pytest.approx([0, math.log(1000), 0])


def test_draws_are_named() -> None:
    config = InflateConfig(fraction=0.3, factor=1000)
    sample, advantage = torch.arange(2000), torch.linspace(-1, 1, 2000)[:, None]
    shift = log_ratio_shift(config, 3, sample, advantage, 2, 0)
    assert shift is not None and shift.shape == (2000, 2)
    assert set(shift.unique().tolist()) == {0.0, math.log(1000)}
    sigma = math.sqrt(0.3 * 0.7 / shift.numel())
    assert abs(float((shift > 0).double().mean()) - 0.3) < 3 * sigma
    order = torch.randperm(2000, generator=torch.Generator().manual_seed(0))[:7]
    mine = log_ratio_shift(config, 3, sample[order], advantage[order], 2, 0)
    assert mine is not None and torch.equal(mine, shift[order])
    for seed, update in ((4, 0), (3, 1)):
        other = log_ratio_shift(config, seed, sample, advantage, 2, update)
        assert other is not None and not torch.equal(other, shift)
    negative = log_ratio_shift(config.model_copy(update={"only_negative": True}), 3, sample, advantage, 2, 0)
    assert negative is not None and torch.equal(negative, torch.where(advantage < 0, shift, 0.0))
    assert log_ratio_shift(None, 3, sample, advantage, 2, 0) is None


@pytest.mark.parametrize(
    "values", [{"fraction": 0}, {"fraction": 1.1}, {"factor": 1}, {"factor": ".inf"}, {"factr": 2}], ids=str
)
def test_refused(values: dict[str, Any], smoke: Callable[..., RunConfig]) -> None:
    with pytest.raises(UserError, match=r"train\.inflate"):
        smoke(None, {"train": {"inflate": {"fraction": 0.2, "factor": 10, **values}}})


def test_a_stressed_run_resumes_to_the_bit(smoke: Callable[..., RunConfig], tmp_path: Path) -> None:
    """Drift and inflation too: the starting weights come from the file, the draws from their names."""
    train = {"max_updates": 4, "eval_every": 0, "track_drift": True, "inflate": {"fraction": 0.5, "factor": 1000}}
    config = smoke("stabledrl", {"eval": {"count": 2}, "train": train})
    TrainingRun.new(config, tmp_path / "whole").start()
    run = TrainingRun.new(config, tmp_path / "broken")
    after = run._after_update

    def stop() -> None:
        after()
        if run.progress.step == 2:
            raise RuntimeError("power cut")

    run._after_update = stop  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="power cut"):
        run.start()
    TrainingRun.reopen(tmp_path / "broken").resume()
    whole, broken = (without_time(read(tmp_path / name / "journal.jsonl")) for name in ("whole", "broken"))
    assert whole == broken
    drift = [r["drift"] for r in whole if r["event"] == "update"]
    assert len(drift) == 4 and all(d > 0 for d in drift)
    assert any(r.get("inflated_fraction") for r in whole if r["event"] == "update")
    one, two = (load_file(tmp_path / n / "final" / "model.safetensors") for n in ("whole", "broken"))
    assert all(torch.equal(one[k], two[k]) for k in one)
