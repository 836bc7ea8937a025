"""Exact expectations of the EGSPO estimators over every trajectory of the toy (oracles O1 to O11, spec section 9).

An estimator's expectation is sum_paths p * estimate(path), with all paths as rows of one batch: production views,
scorer, units, advantages and policy_loss run once, with the path probability folded into the advantage. `Counts` of 1
leave the sum un-normalised. G is the exact gradient of J = E[r] from the enumerated kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from enumeration import paths, rollouts, trajectory
from torch import Tensor
from toy import Toy, reward

from maskgrad.algorithms import EGSPO, EGSPOSA, advantages, selection
from maskgrad.algorithms.surrogate import policy_loss
from maskgrad.diffusion import trajectory as records_of
from maskgrad.diffusion.sampler import KeyedNoise, sample
from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.likelihood.score import active_views, score_rows
from maskgrad.records import Counts, PromptBatch, RolloutBatch, Trajectory
from maskgrad.tasks.base import Grade
from maskgrad.training.collect import rows_of
from maskgrad.training.step_rewards import centred_at_passes

RULES = ("random", "max_prob", "low_confidence")
TAUS = (1.0, 0.9, 0.5)
CASES = [(rule, tau) for rule in RULES for tau in TAUS]
ONE = Counts(rows=1, groups=1, live_tokens=1, units=1, scored_tokens=1)
every_case = pytest.mark.parametrize(("rule", "tau"), CASES)


@dataclass(frozen=True)
class World:
    toy: Toy
    sampler: SamplerConfig
    prob: Tensor  # [R]
    reward: Tensor  # [R]
    path: Trajectory
    states: list  # states[row][s]
    gradient: Tensor  # exact G [D]

    def batch(self, steps: Tensor | None = None, weight: Tensor | None = None, rows: Tensor | None = None, group=None):
        """The paths (or `rows` of them) as a rollout batch with the selected passes; default all passes, weight 1."""
        rows = torch.arange(len(self.prob)) if rows is None else rows
        steps = torch.arange(2).expand(len(rows), 2) if steps is None else steps
        weight = torch.ones(steps.shape, dtype=torch.float64) if weight is None else weight
        picked = replace(self.path, **{k: v[rows] for k, v in vars(self.path).items() if isinstance(v, Tensor)})
        return rollouts(picked, self.reward[rows], group=group, selected=steps, selected_weight=weight)


@cache
def world(rule: str, tau: float, vocab: int = 3, merged: bool = True, seed: int = 11) -> World:
    toy = Toy(vocab=vocab, seed=seed, mask_logit=-math.inf)
    sampler = SamplerConfig(gen_length=4, steps=2, temperature=tau, remasking=rule, stop_early=False)
    found = paths(toy, sampler, merged=merged)
    prob = torch.tensor([p.prob for p in found], dtype=torch.float64)
    path = trajectory(toy, found, sampler)
    r = reward(path.tokens, vocab)
    score = torch.stack([p.scores[0] + p.scores[1] for p in found])
    exact = ((prob * r)[:, None] * score).sum(0)
    return World(toy, sampler, prob, r, path, [p.states for p in found], exact)


def expected(w: World, algorithm: EGSPO, batch: RolloutBatch, advantage: Tensor, prob: Tensor) -> Tensor:
    """sum_rows prob * (minus the gradient of the production loss) [D]."""
    seen = algorithm.views(batch, w.sampler, 0, 0)
    row, view = active_views(seen)
    values = score_rows(w.toy, batch, seen, row, view)
    logp = torch.zeros(seen.scored.shape, dtype=values.dtype).index_put((row, view), values)
    new = algorithm.units(logp, seen, batch)
    loss = policy_loss(algorithm.objective(), new, prob[:, None] * advantage, batch.group, batch.live, ONE)
    return -torch.autograd.grad(loss.total, w.toy.theta)[0]


def error(found: Tensor, truth: Tensor) -> float:
    return float((found - truth).norm() / truth.norm())


def outcome(w: World) -> Tensor:
    return w.reward[:, None].expand(-1, 2)


@every_case
def test_probabilities_sum_to_one(rule: str, tau: float) -> None:
    w = world(rule, tau)
    assert len(w.prob) == {"random": 486}.get(rule, len(w.prob))
    assert abs(float(w.prob.sum()) - 1) < 1e-12


@pytest.mark.parametrize("rule", RULES)
def test_o1_gradient_is_the_derivative_of_the_expected_reward(rule: str) -> None:
    """O1: G against central differences of exact J (checks the oracle itself)."""
    w = world(rule, 0.9)

    def value(toy: Toy) -> float:
        found = paths(toy, w.sampler, scores=False)
        r = reward(torch.tensor([p.states[-1] for p in found]))
        return float((torch.tensor([p.prob for p in found], dtype=torch.float64) * r).sum())

    for coordinate in (0, 5, int(w.gradient.abs().argmax())):
        sides = []
        for step in (1e-5, -1e-5):
            moved = Toy(seed=11, mask_logit=-math.inf)
            with torch.no_grad():
                moved.theta[coordinate] += step
            sides.append(value(moved))
        assert abs((sides[0] - sides[1]) / 2e-5 - float(w.gradient[coordinate])) < 1e-7


@every_case
def test_o2_proposal_score_is_exact(rule: str, tau: float) -> None:
    """O2: E[r sum_s grad log p(all proposals)] = G for every rule. Error caught: proposals read at the final tokens."""
    w = world(rule, tau, merged=False)
    found = expected(w, EGSPO(score="proposal"), w.batch(), outcome(w), w.prob)
    assert error(found, w.gradient) < 1e-11


@every_case
def test_kernel_score_is_exact(rule: str, tau: float) -> None:
    """Default score: E[r sum_s grad log pi] = G. Errors caught: state after the pass instead of before; no tail."""
    w = world(rule, tau)
    assert error(expected(w, EGSPO(), w.batch(), outcome(w), w.prob), w.gradient) < 1e-11


@every_case
def test_o4_o5_revealed_scores(rule: str, tau: float) -> None:
    """O4, O5: `revealed` is exact for token-free rules only, `revealed_untempered` also needs tau = 1.

    Error caught: temperature ignored in `revealed`.
    """
    w = world(rule, tau)
    plain, raw = (
        error(expected(w, EGSPO(score=s), w.batch(), outcome(w), w.prob), w.gradient)
        for s in ("revealed", "revealed_untempered")
    )
    free = rule != "low_confidence"
    assert plain < 1e-11 if free else plain > 1e-2
    assert raw < 1e-11 if free and tau == 1 else raw > 1e-2


def true_values(w: World) -> dict:
    """V(y) = E[r | y] of every state on the paths."""
    mass, total = {}, {}
    for p, r, states in zip(w.prob.tolist(), w.reward.tolist(), w.states, strict=True):
        for y in states:
            mass[y] = mass.get(y, 0.0) + p
            total[y] = total.get(y, 0.0) + p * r
    return {y: total[y] / mass[y] for y in mass}


@every_case
def test_o6_true_advantages(rule: str, tau: float) -> None:
    """O6: A_s = V(y_{s+1}) - V(y_s) gives G; per path they telescope to r - V(all masked).

    Error caught: slots of the advantage in reverse order.
    """
    w = world(rule, tau)
    value = true_values(w)
    a = torch.tensor([[value[y[1]] - value[y[0]], value[y[2]] - value[y[1]]] for y in w.states], dtype=torch.float64)
    assert float((a.sum(1) - (w.reward - value[w.states[0][0]])).abs().max()) < 1e-12
    assert error(expected(w, EGSPO(), w.batch(), a, w.prob), w.gradient) < 1e-11


def with_guesses(w: World, batch: RolloutBatch) -> RolloutBatch:
    guesses = records_of.one_shot_at(batch.trajectory, batch.selected)
    batch = replace(batch, step_reward=reward(guesses, w.toy.vocab))
    at = batch.selected.argsort(1)  # passes in order: the table by pass, all of them chosen
    table = batch.step_reward.gather(1, at)
    centred = centred_at_passes(table, batch, [Grade(reward=1.0, correct=None, status="ok")] * len(batch))
    return replace(batch, step_centred=centred.gather(1, batch.selected))


@pytest.mark.parametrize("schedule", ["constant", "linear"])
@pytest.mark.parametrize("lam", [0.1, 0.5, 5.0])
@every_case
def test_o7_stepwise_returns(rule: str, tau: float, lam: float, schedule: str) -> None:
    """O7: normalised returns give G for every lambda; unnormalised constant ones (1 + lambda) G.

    Errors caught: one-shot completion of the state after the pass (index + 1); no division by 1 + lambda.
    """
    w = world(rule, tau)
    sa = EGSPOSA(stepwise_weight=lam, schedule=schedule)
    batch = with_guesses(w, w.batch())
    assert error(expected(w, sa, batch, sa.returns(batch)[0], w.prob), w.gradient) < 1e-11
    if schedule == "constant":
        raw = sa.model_copy(update={"normalise": False})
        found = expected(w, raw, batch, raw.returns(batch)[0], w.prob)
        assert error(found, (1 + lam) * w.gradient) < 1e-7  # lambda is held in fp32


@pytest.mark.parametrize("size", [2, 8])
@every_case
def test_o8_group_baselines(rule: str, tau: float, size: int) -> None:
    """O8: inclusive mean gives (G-1)/G of the gradient, leave-one-out is exact; the others enter at their mean, which
    is exact because both are linear in the rewards. Error caught: own reward kept in the leave-one-out mean."""
    w = world(rule, tau)
    mean = float((w.prob * w.reward).sum())
    rewards = torch.full((len(w.prob), size), mean, dtype=torch.float64)
    rewards[:, 0] = w.reward
    group = torch.arange(len(w.prob)).repeat_interleave(size)
    for rule_of, factor in ((advantages.centred, (size - 1) / size), (advantages.leave_one_out, 1.0)):
        a = rule_of(rewards.flatten(), group).view(-1, size)[:, :1].expand(-1, 2)
        assert error(expected(w, EGSPO(), w.batch(), a, w.prob), factor * w.gradient) < 1e-11


@every_case
def test_o9_truncation_bounds(rule: str, tau: float) -> None:
    """O9: top-1 is biased and obeys the surprisal bound; a fixed pass obeys the entropy bound (spec 3.2).

    Error caught: top-k takes the steps of lowest entropy.
    """
    w = world(rule, tau, merged=False)
    algorithm = EGSPO(score="proposal", steps=1, entropy="joint_decided")
    steep = math.sqrt(2 * 4) / tau * float(w.reward.max())
    joint = selection.step_entropy(w.path, "joint_decided", "masked")
    for kept in (0, 1):
        steps = torch.full((len(w.prob), 1), kept)
        gap = expected(w, algorithm, w.batch(steps), outcome(w)[:, :1], w.prob) - w.gradient
        assert float(gap.norm()) <= steep * float((w.prob * joint[:, 1 - kept]).sum())
    steps, weight = algorithm.select(w.path, torch.ones_like(w.path.tokens, dtype=torch.bool), torch.arange(1), 0)
    gap = expected(w, algorithm, w.batch(steps, weight.double()), outcome(w)[:, :1], w.prob) - w.gradient
    assert float(gap.norm() / w.gradient.norm()) > 1e-2
    assert torch.equal(steps[:, 0], joint.argmax(1))
    left_out = proposal_surprisal(w).gather(1, 1 - steps)[:, 0]
    assert float(gap.norm()) <= steep * float((w.prob * left_out).sum())


def proposal_surprisal(w: World) -> Tensor:
    """-log probability of all proposals of each pass [R,2], by production scores."""
    algorithm, batch = EGSPO(score="proposal"), w.batch()
    seen = algorithm.views(batch, w.sampler, 0, 0)
    row, view = active_views(seen)
    with torch.no_grad():
        values = score_rows(w.toy, batch, seen, row, view)
    return -torch.zeros(seen.scored.shape, dtype=values.dtype).index_put((row, view), values).sum(-1)


def systematic_expectation(w: World, q: Tensor, advantage: Tensor, k: int) -> Tensor:
    """Expectation over paths and over the uniform start u, integrated exactly: the selected set is constant between the
    fractional parts of cumsum(q)."""
    cuts = (q.cumsum(1) % 1.0).clamp(0, 1)
    edges = torch.cat([torch.zeros(len(q), 1), cuts, torch.ones(len(q), 1)], 1).to(torch.float64).sort(1).values
    total = torch.zeros_like(w.gradient)
    for left, right in zip(edges.T[:-1], edges.T[1:], strict=True):
        steps, weight = selection.systematic(q, (left + right) / 2, k)
        chosen = advantage.gather(1, steps.clamp(min=0))
        total += expected(w, EGSPO(), w.batch(steps, weight), chosen, w.prob * (right - left))
    return total


@pytest.mark.parametrize("k", [1, 2])
@every_case
def test_o10_horvitz_thompson(rule: str, tau: float, k: int) -> None:
    """O10: q proportional to the entropy of the sampled path, systematic sampling, weight 1/q: expectation = G.

    Errors caught: weight 1; weight of the wrong pass; first interval of the systematic sample starting at 0.
    """
    w = world(rule, tau)
    q = selection.inclusion(selection.step_entropy(w.path, "joint_decided", "masked"), w.path.revealed > 0, k, 0.05)
    torch.testing.assert_close(q.sum(1), torch.full((len(q),), float(k), dtype=torch.float64))
    assert float((q[:, 0] - q[:, 1]).abs().max()) > 0.1 or k == 2
    assert error(systematic_expectation(w, q, outcome(w), k), w.gradient) < 1e-11


@pytest.mark.parametrize("tau", [1.0, 0.5])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("centring", ["pooled_loo", "outcome_loo", "time_loo", "rank_mean"])
def test_o11_centring(rule: str, tau: float, centring: str) -> None:
    """O11: over all pairs of paths (groups of 2, K = S, lambda 0.5), pooled_loo, outcome_loo and time_loo are exact;
    rank_mean is not (slots in order of entropy). Errors caught: own slots kept in the pooled mean; own reward kept in
    the mean at the pass; one-shot reward of the state after the pass."""
    w = world(rule, tau, vocab=2, seed=15)
    n = len(w.prob)
    rows = torch.cartesian_prod(torch.arange(n), torch.arange(n)).flatten()
    pair = torch.arange(n * n).repeat_interleave(2)
    sa = EGSPOSA(stepwise_weight=0.5, centring=centring, steps=2)
    batch = w.batch(rows=rows, group=pair)
    steps, weight = sa.select(batch.trajectory, batch.live, batch.sample, 0)
    batch = with_guesses(w, replace(batch, selected=steps, selected_weight=weight.double()))
    prob = (w.prob[rows[0::2]] * w.prob[rows[1::2]]).repeat_interleave(2)
    found = expected(w, sa, batch, sa.advantage(batch), prob / 2)
    if centring == "rank_mean":
        assert error(found, 0.5 * w.gradient) > 1e-4
    else:
        assert error(found, w.gradient) < 1e-11


@pytest.mark.parametrize(("rule", "tau"), [("low_confidence", 0.9), ("random", 0.5)])
def test_sampled_rollouts_estimate_the_gradient(rule: str, tau: float) -> None:
    """20k rollouts of the production sampler, HT selection of 1 of 2 passes, pooled leave-one-out baseline:
    every coordinate of the mean gradient within 4 standard errors of G (about 200 coordinates, fixed seed).

    Errors caught: noise scaled by 1/tau; HT weight dropped.
    """
    w, chunks, size = world(rule, tau), 100, 200
    algorithm = EGSPO(steps=1, select_rule="ht", entropy="joint_decided")
    ids = torch.arange(chunks * size)
    empty = torch.zeros(len(ids), 0, dtype=torch.int64)
    path = sample(w.toy, PromptBatch(ids=empty, real=empty.bool(), sample=ids), w.sampler, KeyedNoise(5, ids))
    estimates = []
    for c in range(chunks):
        part = rows_of(path, slice(c * size, (c + 1) * size))
        live = torch.ones_like(part.tokens, dtype=torch.bool)
        steps, weight = algorithm.select(part, live, ids[:size] + c * size, 5)
        group = torch.arange(size) // 4
        batch = rollouts(part, reward(part.tokens), group=group, selected=steps, selected_weight=weight.double())
        prob = torch.full((size,), 1 / size, dtype=torch.float64)
        estimates.append(expected(w, algorithm, batch, algorithm.advantage(batch), prob))
    table = torch.stack(estimates)
    spread = table.std(0) / math.sqrt(chunks)
    spread = spread.clamp(min=0.02 * float(spread.max()))  # context weights of states too rare to have a spread
    assert float(((table.mean(0) - w.gradient) / spread).abs().max()) < 4


@pytest.mark.parametrize("tau", TAUS)
def test_online_entropy_definitions(tau: float) -> None:
    """The four entropies are those of the spec (3.4), from statistics of a uniform and of a one-hot policy."""
    toy = Toy(seed=0, mask_logit=-math.inf)
    with torch.no_grad():
        toy.theta.zero_()
    sampler = SamplerConfig(gen_length=4, steps=2, temperature=tau, stop_early=False)
    path = trajectory(toy, paths(toy, sampler, scores=False)[:1], sampler)
    want = {"mean_revealed": [1, 1], "sum_revealed": [2, 2], "mean_masked": [1, 1], "joint_decided": [4, 2]}
    for kind, factors in want.items():
        value = selection.step_entropy(path, kind, "masked")
        torch.testing.assert_close(value, math.log(3) * torch.tensor([factors], dtype=torch.float64))
