"""The exact KL to the starting policy: its value, its gradient, and its place in the update."""

from __future__ import annotations

import pytest
import torch
from test_surrogate import SAMPLER, Spy, moved, new_toy, rollouts, run_config

from maskgrad.algorithms import EGSPO
from maskgrad.algorithms.base import count
from maskgrad.algorithms.objective import Objective
from maskgrad.algorithms.surrogate import kl_estimate
from maskgrad.likelihood.exact import divergence
from maskgrad.likelihood.score import active_views
from maskgrad.training.update import prepare, update


def tables() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(3)
    return tuple(torch.randn(50, 7, generator=draw, dtype=torch.float64).log_softmax(-1) for _ in range(2))


def test_value_is_the_expectation_of_its_estimators() -> None:
    """KL = E_pi[k1] = E_pi[k3] over the whole vocabulary (1e-12), never negative, zero at equality.

    Errors caught: KL of the reference to the policy; mean over the vocabulary.
    """
    new, ref = tables()
    kl = divergence(new, ref)
    for kind in ("k1", "k3"):
        torch.testing.assert_close((new.exp() * kl_estimate(kind, new - ref)).sum(-1), kl, rtol=0, atol=1e-12)
    assert float(kl.min()) > 0 and float(divergence(new, new).abs().max()) == 0.0
    torch.testing.assert_close(divergence(new, ref, mean=True) * 7, kl)


def test_ids_that_are_ruled_out_add_nothing() -> None:
    """-inf in both tables: the value of the remaining ids, and a finite gradient. Error caught: 0 * inf."""
    logits = tables()[0].clone().requires_grad_(True)
    banned = torch.zeros(7, dtype=torch.bool)
    banned[2] = True
    new, ref = (x.masked_fill(banned, -torch.inf).log_softmax(-1) for x in (logits, tables()[1]))
    kl = divergence(new, ref)
    torch.testing.assert_close(kl, divergence(new[:, ~banned], ref[:, ~banned]))
    (grad,) = torch.autograd.grad(kl.sum(), logits)
    assert bool(grad.isfinite().all()) and float(grad[:, 2].abs().max()) == 0.0


@pytest.mark.parametrize("scale", ["sequence", "token"])
def test_the_update_adds_its_gradient(scale: str) -> None:
    """Gradient with the KL minus gradient without = beta times the gradient of a hand-written mean KL of the scored
    states (1e-10), joint and replayed in chunks of 5; the journal's value is the hand-written one.

    Errors caught: reference scored on visible tokens; KL not divided by the size of a step; KL of the tail positions.
    """
    aggregation = "sum" if scale == "sequence" else "mean"
    plain = EGSPO(steps=3, epochs=2, ratio_scale=scale, aggregation=aggregation)
    held = plain.model_copy(update={"beta": 0.3, "kl": "exact"})
    batch, toy = rollouts(new_toy(), plain), new_toy()
    reference, now = moved(toy, 0.2), moved(toy)
    seen = held.views(batch, SAMPLER, 0, 0)
    row, view = active_views(seen)
    inputs = torch.where(seen.hidden[row, view], toy.special.mask, batch.tokens[row])

    def law(policy) -> torch.Tensor:
        logits = policy.all_logits(inputs, batch.attend[row]).masked_fill(policy.forbidden, -torch.inf)
        return (logits / SAMPLER.temperature).log_softmax(-1)[..., : toy.vocab]

    new, ref = law(now), law(reference).detach()
    kl = (new.exp() * (new - ref)).sum(-1) * seen.scored[row, view]
    counts = count(batch, seen)
    size = seen.scored[row, view].sum(-1)
    by_hand = kl.sum() / counts.scored_tokens if scale == "sequence" else (kl.sum(-1) / size).sum() / counts.units
    (wanted,) = torch.autograd.grad(0.3 * by_hand, now.theta)
    for micro in (10_000, 5):
        grads = []
        for algorithm in (held, plain):
            config, spy = run_config(algorithm, micro), Spy(now)
            ready = prepare(toy, reference, algorithm, config, batch)
            out = update(now, spy, algorithm, config, ready, 1, 0, reference)
            grads.append(spy.grad)
            if algorithm is held:
                assert not ready.reference  # nothing is scored that the exact KL does not read
                per_unit = kl.sum(-1) if scale == "sequence" else kl.sum(-1) / size
                assert out["kl"] == pytest.approx(float(per_unit.detach().mean()), abs=1e-10)
        torch.testing.assert_close(grads[0] - grads[1], wanted, rtol=0, atol=1e-10)


def test_refused_to_the_old_policy() -> None:
    with pytest.raises(ValueError, match="starting policy"):
        Objective(form="ratio", coef="row_mean", kl="exact", beta=0.1, kl_to="old")
