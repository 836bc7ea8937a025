"""The one loss of all methods, the reductions of formulation.md section 7, and invariances of `training.update`."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from toy import Toy, reward

from maskgrad.algorithms import (
    ALGORITHMS,
    EGSPO,
    EGSPOSA,
    ESPO,
    SPG,
    WD1,
    Algorithm,
    Composed,
    DiffuGRPO,
    DiPO,
    GRPOElbo,
    StableDRL,
    TraceRL,
    UniGRPO,
    advantages,
    selection,
)
from maskgrad.algorithms.base import count
from maskgrad.algorithms.objective import Objective
from maskgrad.algorithms.surrogate import kl_estimate, policy_loss
from maskgrad.config import RunConfig
from maskgrad.diffusion import trajectory as records_of
from maskgrad.diffusion.sampler import KeyedNoise, Record, sample
from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.likelihood.score import active_views, score_rows
from maskgrad.records import Counts, PromptBatch, RolloutBatch, Units
from maskgrad.tasks.base import Grade
from maskgrad.training.collect import rows_of
from maskgrad.training.step_rewards import centred_at_passes, with_steps
from maskgrad.training.update import prepare, update

D = torch.float64
ONE = Counts(rows=1, groups=1, live_tokens=1, units=1, scored_tokens=1)
SAMPLER = SamplerConfig(gen_length=6, block_length=3, steps=4, temperature=0.9)

METHODS: dict[str, Algorithm] = {
    "diffu_grpo": DiffuGRPO(epochs=2, p_prompt=0.3),
    "diffu_grpo kl": DiffuGRPO(epochs=2, p_prompt=0.3, beta=0.04),
    "stabledrl": StableDRL(block=3, ratio_scale="sequence"),
    "stabledrl released": StableDRL(block=3, compat="released"),
    "stabledrl recentred": StableDRL(block=3, recentre=True, clip_low=0.2),
    "egspo": EGSPO(steps=3, epochs=2),
    "egspo ht": EGSPO(steps=2, epochs=2, select_rule="ht", entropy="joint_decided"),
    "egspo proposal kl": EGSPO(steps=2, epochs=2, score="proposal", beta=0.04),
    "egspo_sa": EGSPOSA(steps=3, epochs=2),
    "wd1": WD1(epochs=2),
    "wd1 positive": WD1(epochs=2, positive_only=True),
    "spg": SPG(epochs=2, block=3),
    "spg released": SPG(epochs=2, block=3, compat="released", score="eubo"),
    "espo": ESPO(epochs=2, beta=0.0),
    "espo kl": ESPO(epochs=2, beta=0.01, live_only=True),
    "espo plain": ESPO(epochs=2, beta=0.0, coupled=False, draws=3, scale_rewards=True),
    "grpo_elbo": GRPOElbo(block=3, ratio_scale="token"),
    "grpo_elbo sequence": GRPOElbo(proxy="exact_count", coupled=True),
    "grpo_elbo fresh": GRPOElbo(block=3, masks="fresh", clip_low=0, clip_high=1e6),
    "grpo_elbo positives": GRPOElbo(block=3, positives_only=True),
    "unigrpo": UniGRPO(epochs=2, rate_low=0.2, rate_high=0.9),
    "tracerl": TraceRL(epochs=2, shrink=2),
    "tracerl fixed": TraceRL(epochs=2, shrink=1, aggregation="fixed_length", kl_sum=False),
    "dipo": DiPO(epochs=2),
    "composed": Composed(
        epochs=2,
        view={"name": "selected_steps", "steps": 3},
        bound={"name": "step"},
        credit={"name": "stepwise", "weight": 0.5},
        surrogate={"form": "score", "coef": "group_sum", "clip": "always", "clip_high": 6, "self_normalise": "group"},
    ),
    "composed elbo": Composed(
        epochs=2,
        masks="epoch",
        view={"name": "exact_count"},
        bound={"name": "sequence"},
        credit={"name": "leave_one_out"},
        surrogate={"form": "score", "coef": "group_sum", "clip": "always", "clip_high": 6, "self_normalise": "group"},
    ),
    "egspo exact kl": EGSPO(steps=3, epochs=2, beta=0.3, kl="exact"),
    "egspo_sa time_loo": EGSPOSA(steps=3, epochs=2, centring="time_loo"),
    "egspo_sa mean": EGSPOSA(steps=3, epochs=2, aggregation="mean", ratio_scale="token", centring="rank_mean"),
}
every_method = pytest.mark.parametrize("name", METHODS)


def test_every_registered_method_is_covered() -> None:
    assert {m.name for m in METHODS.values()} == set(ALGORITHMS)


# --- a run without a model or a task --------------------------------------------------------------------------------


class Spy:
    """An optimiser that keeps the gradient and moves nothing (or takes one plain step)."""

    def __init__(self, toy: Toy, rate: float = 0.0):
        self.toy, self.rate, self.grad, self.param_groups = toy, rate, torch.zeros_like(toy.theta), [{"lr": 0.0}]

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.toy.theta.grad = None

    def step(self) -> None:
        if self.toy.theta.grad is not None:
            self.grad = self.toy.theta.grad.clone()
            with torch.no_grad():
                self.toy.theta -= self.rate * self.grad


def run_config(algorithm: Algorithm, micro_batch: int = 10_000) -> RunConfig:
    return RunConfig.model_validate(
        {
            "model": {"path": "toy"},
            "task": {},
            "rollout": {"sampler": SAMPLER.model_dump()},
            "algorithm": algorithm,
            "optim": {"lr": 1e-3, "max_grad_norm": 1e12},
            "train": {"max_updates": 10, "micro_batch": micro_batch},
        }
    )


def new_toy() -> Toy:
    return Toy(length=6, seed=31, stops=(2,))


def moved(toy: Toy, size: float = 0.05) -> Toy:
    other = copy.deepcopy(toy)
    noise = torch.randn(len(toy.theta), generator=torch.Generator().manual_seed(9), dtype=D)
    with torch.no_grad():
        other.theta += size * noise
    return other


def target(tokens: Tensor) -> Tensor:
    return (tokens == torch.tensor([0, 1, 0, 1, 0, 2])).to(D).mean(-1)


def rollouts(toy: Toy, algorithm: Algorithm, groups: int = 4, size: int = 4) -> RolloutBatch:
    """Graded rollouts of the production sampler behind left-padded prompts, with passes selected."""
    rows = groups * size
    ids = torch.arange(rows)
    prompt = (ids[:, None] // size + torch.arange(3)) % 3
    real = torch.arange(3) >= (ids[:, None] // size % 2)
    record = Record(one_shot=algorithm.wants_one_shot, proposals=algorithm.wants_proposals)
    path = sample(toy, PromptBatch(ids=prompt, real=real, sample=ids), SAMPLER, KeyedNoise(0, ids), record)
    live = records_of.live_mask(path.tokens, (2,))
    batch = RolloutBatch(
        tokens=torch.cat([prompt, path.tokens], 1),
        attend=torch.cat([real, torch.ones_like(live)], 1),
        live=live,
        group=ids // size + 3,
        sample=ids,
        reward=target(path.tokens),
        trajectory=path,
    )
    chosen = algorithm.select(path, live, ids, 0)
    if chosen is None:
        return batch if algorithm.wants_trajectory else replace(batch, trajectory=None)
    batch = replace(batch, selected=chosen[0], selected_weight=chosen[1])
    if algorithm.wants_one_shot:
        batch = replace(batch, step_reward=target(records_of.one_shot_at(path, chosen[0])))
    if algorithm.wants_step_baseline:
        every = torch.arange(path.revealed.shape[1]).expand(path.revealed.shape)
        table = target(records_of.one_shot_at(path, every))
        table = torch.where(path.revealed > 0, table, batch.reward[:, None])
        centred = centred_at_passes(table, batch, [Grade(reward=1.0, correct=None, status="ok")] * rows)
        batch = replace(batch, step_centred=centred.gather(1, chosen[0].clamp(min=0)))
    return batch


def gradient(algorithm: Algorithm, batch: RolloutBatch, index: int = 1, micro: int = 10_000) -> Tensor:
    """Gradient of update number `index`; from the second on the policy has moved since the rollouts."""
    toy, config = new_toy(), run_config(algorithm, micro)
    ready = prepare(toy, moved(toy, 0.2), algorithm, config, batch)
    now = toy if index == 0 else moved(toy)
    spy = Spy(now)
    out = update(now, spy, algorithm, config, ready, index, step=0, reference=moved(toy, 0.2))
    assert not out["skipped"], out
    return spy.grad


def units_now(toy: Toy, algorithm: Algorithm, batch: RolloutBatch, use: int = 0) -> Units:
    seen = algorithm.views(batch, SAMPLER, 0, use)
    row, view = active_views(seen)
    values = score_rows(toy, batch, seen, row, view)
    logp = torch.zeros(seen.scored.shape, dtype=values.dtype).index_put((row, view), values)
    return algorithm.units(logp, seen, batch)


# --- invariances of the update --------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [0, 1])
@every_method
def test_micro_batches_do_not_change_the_gradient(name: str, index: int) -> None:
    """R18: joint path, and the two-pass replay in chunks of 1, 5 and half of the views: the same gradient (1e-10).

    Errors caught: denominators from the micro-batch; replay without the tail positions; gradient of the wrong view.
    """
    algorithm = METHODS[name]
    batch = rollouts(new_toy(), algorithm)
    joint = gradient(algorithm, batch, index)
    assert float(joint.norm()) > 1e-6
    for micro in (1, 5, 20):
        torch.testing.assert_close(gradient(algorithm, batch, index, micro), joint, rtol=0, atol=1e-10)


@pytest.mark.parametrize("micro", [7, 10_000])
@every_method
def test_row_order_does_not_matter(name: str, micro: int) -> None:
    """R18: permuting the rows (groups interleaved) leaves the gradient unchanged.

    Error caught: groups by row position."""
    algorithm = METHODS[name]
    batch = rollouts(new_toy(), algorithm)
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(0))
    whole, other = (gradient(algorithm, b, 1, micro) for b in (batch, rows_of(batch, order)))
    torch.testing.assert_close(whole, other, rtol=0, atol=1e-10)


@every_method
def test_constant_reward_shift_changes_nothing(name: str) -> None:
    """R17: a constant per group added to all rewards (one-shot rewards too). Error caught: uncentred advantage."""
    algorithm = METHODS[name]
    batch = rollouts(new_toy(), algorithm)
    shift = batch.group.to(D) * 0.5
    step = None if batch.step_reward is None else batch.step_reward + shift[:, None]
    shifted = replace(batch, reward=batch.reward + shift, step_reward=step)
    torch.testing.assert_close(gradient(algorithm, shifted), gradient(algorithm, batch), rtol=0, atol=1e-10)


@every_method
def test_equal_rewards_give_no_gradient(name: str) -> None:
    """R19: equal rewards (and one-shot rewards): exactly zero without KL, and then nothing is scored either.

    Error caught: zero-signal groups scored.
    """
    algorithm = METHODS[name]
    batch = rollouts(new_toy(), algorithm)
    flat = replace(batch, reward=torch.full_like(batch.reward, 0.75))
    if batch.step_reward is not None:
        flat = replace(flat, step_reward=torch.full_like(batch.step_reward, 0.75))
    if batch.step_centred is not None:
        flat = replace(flat, step_centred=torch.zeros_like(batch.step_centred))
    if algorithm.objective().beta > 0:
        algorithm = type(algorithm).model_validate({**algorithm.model_dump(), "beta": 0.0})
    assert float(gradient(algorithm, flat).abs().max()) == 0.0
    toy, config = new_toy(), run_config(algorithm)
    ready = prepare(toy, None, algorithm, config, flat)
    update(toy, Spy(toy), algorithm, config, ready, 1, 0)
    assert toy.views_seen == 0


@pytest.mark.parametrize("micro", [3, 10_000])
@pytest.mark.parametrize("name", ["diffu_grpo", "stabledrl", "egspo"])
def test_views_scored(name: str, micro: int) -> None:
    """Rows sent through the network: one per view of groups with a signal for old, once (joint) or twice (replay,
    without the first pass where old is known) for new; the denominators still count every row.

    Errors caught: denominators counted after zero-signal groups are left out; first pass rescored on the first update.
    """
    algorithm, toy = METHODS[name], new_toy()
    batch = rollouts(toy, algorithm)
    distinct = torch.randn(16, generator=torch.Generator().manual_seed(6), dtype=D)
    batch = replace(batch, reward=torch.where(batch.group == 4, 0.25, distinct))
    draws = {"diffu_grpo": 1, "stabledrl": 2, "egspo": 3}[name]
    epochs = algorithm.epochs if algorithm.masks == "epoch" else 1
    live_views = 12 * draws if name != "egspo" else int((batch.selected[batch.group != 4] >= 0).sum())
    toy.views_seen = 0
    config = run_config(algorithm, micro)
    ready = prepare(toy, None, algorithm, config, batch)
    assert toy.views_seen == epochs * live_views
    toy.views_seen = 0
    out = update(toy, Spy(toy), algorithm, config, ready, 0, 0)
    assert toy.views_seen == live_views == out["views"]
    toy.views_seen = 0
    out = update(moved_in_place(toy), Spy(toy), algorithm, config, ready, 1, 0)
    if micro > 100:
        assert toy.views_seen == live_views
    else:  # views that the clip gates have no gradient and are not replayed
        assert live_views < toy.views_seen <= 2 * live_views
    assert out["scored_tokens"] == float(algorithm.views(batch, SAMPLER, 0, 1 % epochs).scored.sum())


def moved_in_place(toy: Toy) -> Toy:
    with torch.no_grad():
        toy.theta += moved(toy).theta - toy.theta
    return toy


def test_zero_signal_groups_only_enlarge_the_denominator() -> None:
    """Leaving a group out of scoring gives the gradient of scoring it: four groups of which one is flat = 3/4 of the
    mean over the other three (StableDRL). Error caught: denominator counted after the restriction."""
    algorithm = METHODS["stabledrl"]
    batch = rollouts(new_toy(), algorithm)
    flat = replace(batch, reward=torch.where(batch.group == 4, 0.25, batch.reward))
    kept = rows_of(batch, (batch.group != 4).nonzero()[:, 0])
    torch.testing.assert_close(gradient(algorithm, flat), 0.75 * gradient(algorithm, kept), rtol=0, atol=1e-12)


@pytest.mark.parametrize("split", ["states", "slots", "groups"])
def test_minibatches_cover_every_view_once(split: str) -> None:
    """Each (sequence, pass) pair is in exactly one minibatch of an epoch. Error caught: a rounding hole at the end."""
    algorithm = EGSPO(steps=3, minibatches=3, split=split)
    batch = rollouts(new_toy(), algorithm)
    seen = algorithm.views(batch, SAMPLER, 0, 0)
    parts = torch.stack(algorithm.partition(batch, seen, 0, 5))
    assert len(parts) == 3 and bool((parts.sum(0) == 1).all()) and bool(parts.flatten(1).any(1).all())


@every_method
def test_direction(name: str) -> None:
    """One small plain step makes the better completion likelier than the worse under the method's own proxy.

    Error caught: sign of the loss.
    """
    algorithm, toy = METHODS[name], new_toy()
    batch = rollouts(toy, algorithm, groups=1, size=8)
    pair = torch.stack([batch.reward.argmax(), batch.reward.argmin()])
    batch = replace(rows_of(batch, pair), reward=torch.tensor([1.0, 0.0], dtype=D))
    if batch.step_reward is not None:
        batch = replace(batch, step_reward=torch.full_like(batch.step_reward, 0.5))
    if batch.step_centred is not None:
        batch = replace(batch, step_centred=torch.zeros_like(batch.step_centred))

    def margin() -> float:
        with torch.no_grad():
            u = units_now(toy, algorithm, batch)
        value = torch.where(u.mask, u.lower, 0.0).sum(1)
        return float(value[0] - value[1])

    ready = prepare(toy, copy.deepcopy(toy), algorithm, run_config(algorithm), batch)
    before = margin()
    update(toy, Spy(toy, rate=1e-3), algorithm, run_config(algorithm), ready, 0, 0, copy.deepcopy(toy))
    assert margin() > before


#: Fresh masks have ratio 1 in expectation only; the exact KL has its own tests.
RATIO_ONE = [name for name, m in METHODS.items() if m.masks != "fresh" and not m.objective().exact_kl]


@pytest.mark.parametrize("name", RATIO_ONE)
def test_first_update_has_ratio_one_and_the_second_has_not(name: str) -> None:
    """R1: old scored on the shared masks equals new: ratio 1, nothing clipped, and the gradient equals that of the
    first update, which never reads old. Error caught: old scored on another draw of masks."""
    algorithm = METHODS[name]
    toy, batch = new_toy(), rollouts(new_toy(), algorithm)
    new = units_now(toy, algorithm, batch)
    counts = count(batch, algorithm.views(batch, SAMPLER, 0, 0))
    reference = units_now(moved(toy), algorithm, batch)
    args = algorithm.objective(), new, algorithm.advantage(batch), batch.group, batch.live, counts
    old = replace(new, lower=new.lower.detach(), upper=new.upper.detach())
    losses = [policy_loss(*args, o, reference) for o in (None, old)]
    assert losses[1].metrics["log_ratio_sq"][0] == 0.0
    assert losses[1].metrics["clip_fraction_positive"][0] == losses[1].metrics["clip_fraction_negative"][0] == 0.0
    grads = [torch.autograd.grad(x.total, toy.theta, retain_graph=True)[0] for x in losses]
    assert torch.equal(*grads)
    config = run_config(algorithm)
    ready, now = prepare(toy, moved(toy), algorithm, config, batch), moved(toy)
    still = update(copy.deepcopy(toy), Spy(toy), algorithm, config, ready, 1, 0)
    assert still["log_ratio_sq"] < 1e-25
    out = update(now, Spy(now), algorithm, config, ready, 1, 0)
    if not algorithm.objective().needs_old:  # weight 1 by design: old is neither scored nor read
        assert not ready.old and out["log_ratio_sq"] == 0
        return
    assert out["log_ratio_sq"] > 0 and out["on_policy"] is False


# --- policy_loss by hand --------------------------------------------------------------------------------------------


def one_token(lower: Tensor, size: float = 1.0, per_token: bool = True) -> Units:
    ones = torch.ones_like(lower)
    return Units(lower=lower, upper=lower, mask=ones.bool(), size=size * ones, per_token=per_token, views="")


def loss(objective: Objective, new: Units, advantage: Tensor, old: Units | None = None, reference: Units | None = None):
    rows = len(new.lower)
    live = torch.ones(rows, 1, dtype=torch.bool)
    return policy_loss(objective, new, advantage, torch.zeros(rows, dtype=torch.int64), live, ONE, old, reference)


PPO = Objective(form="ratio", coef="row_mean", clip="ppo", clip_low=0.8, clip_high=1.5)


@pytest.mark.parametrize(
    ("rho", "a", "k"),
    [
        (0.5, 2.0, 0.5),
        (1.0, 2.0, 1.0),
        (1.4, 2.0, 1.4),
        (1.6, 2.0, 0.0),
        (0.5, -2.0, 0.0),
        (1.4, -2.0, 1.4),
        (9.0, -2.0, 9.0),
    ],
)
def test_ppo_gate(rho: float, a: float, k: float) -> None:
    """Clip table by hand, clip 0.8 / 1.5: gradient -k A; value -min(rho A, clip A); only the two gated cases count as
    clipped. Errors caught: symmetric gate; max for min; clip fraction counted whenever rho leaves the interval."""
    new = torch.tensor([[math.log(rho)]], dtype=D, requires_grad=True)
    out = loss(PPO, one_token(new), torch.tensor([[a]], dtype=D), one_token(torch.zeros(1, 1, dtype=D)))
    (grad,) = torch.autograd.grad(out.total, new)
    assert abs(float(grad) + k * a) < 1e-12
    assert abs(float(out.total.detach()) + min(rho * a, min(max(rho, 0.8), 1.5) * a)) < 1e-12
    sign = "positive" if a > 0 else "negative"
    assert out.metrics[f"clip_fraction_{sign}"] == (float(k == 0), 1.0)


def test_extreme_ratios_stay_finite_and_are_counted() -> None:
    """The log-ratio is clamped before exp; missing units are zeroed first.

    Errors caught: no clamp; missing units not zeroed (NaN gradient)."""
    new = torch.tensor([[1e4, -1e4, 0.5, math.nan]], dtype=D, requires_grad=True)
    units = replace(one_token(new), mask=torch.tensor([[True, True, True, False]]))
    out = loss(PPO, units, torch.tensor([[-1.0]], dtype=D), one_token(torch.zeros(1, 4, dtype=D)))
    (grad,) = torch.autograd.grad(out.total, new)
    assert bool(out.total.isfinite()) and bool(grad.isfinite().all()) and float(grad[0, 3]) == 0.0
    assert all(math.isfinite(s) for s, _ in out.metrics.values())
    assert out.metrics["clamp_fraction"] == (2.0, 3.0)


def test_score_form_with_weight_one_is_the_ratio_form() -> None:
    """R1, R6: upper = lower, no clip: the score form has the gradient of the unclipped ratio objective, on and off
    policy. Error caught: weight not multiplied in."""
    draw = torch.Generator().manual_seed(0)
    lower, old, a = (torch.randn(8, 1, generator=draw, dtype=D) for _ in range(3))
    for base in (lower, old):
        grads = []
        for form in ("ratio", "score"):
            leaf = lower.clone().requires_grad_(True)
            out = loss(Objective(form=form, coef="row_mean"), one_token(leaf), a, one_token(base))
            grads.append(torch.autograd.grad(out.total, leaf)[0])
        torch.testing.assert_close(*grads, rtol=0, atol=1e-12)


def test_diffu_grpo_on_policy_is_token_reinforce() -> None:
    """R2: mu = 1, beta = 0: gradient of -sum A live lp / live tokens with log-probs of the fully hidden completion.

    Errors caught: mean over rows instead of tokens; tokens behind the stop scored; padding attended.
    """
    algorithm, toy = DiffuGRPO(epochs=1, p_prompt=0.0), new_toy()
    batch = rollouts(toy, algorithm)
    hidden = batch.tokens.clone()
    hidden[:, 3:] = 3
    logp = toy.all_logits(hidden, batch.attend).log_softmax(-1).gather(2, batch.completion[:, :, None])[..., 0]
    mean = batch.reward.view(4, 4).mean(1).repeat_interleave(4)
    total = -((batch.reward - mean)[:, None] * batch.live * logp).sum() / batch.live.sum()
    (truth,) = torch.autograd.grad(total, toy.theta)
    torch.testing.assert_close(gradient(algorithm, batch, 0), truth, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["elbo", "zero"])
def test_score_bounds_of_the_negative_samples(kind: str) -> None:
    """R4: upper = lower is the ELBO policy gradient over all samples; upper zero keeps the positive samples only.

    Error caught: lower used for all.
    """
    algorithm, toy = StableDRL(block=3, score=kind, clip=False, self_normalise=False), new_toy()
    batch = rollouts(toy, algorithm)
    new = units_now(toy, algorithm, batch)
    a = algorithm.advantage(batch)
    part = a if kind == "elbo" else a.clamp(min=0)
    (truth,) = torch.autograd.grad(-(part * new.lower).sum() / 16, toy.theta)
    torch.testing.assert_close(gradient(algorithm, batch, 0), truth, rtol=0, atol=1e-12)


def test_stabledrl_on_policy_is_the_mean_over_the_group() -> None:
    """R5: equal log-ratios: StableDRL = the unweighted score form averaged over rows. Error caught: groups summed."""
    plain = StableDRL(block=3, clip=False, self_normalise=False)
    batch = rollouts(new_toy(), plain)
    torch.testing.assert_close(gradient(METHODS["stabledrl"], batch, 0), gradient(plain, batch, 0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [2, 5])
def test_leave_one_out_is_a_multiple_of_the_centred_reward(size: int) -> None:
    """R9: leave-one-out = G/(G-1) times the inclusive-mean advantage. Error caught: own reward kept in the mean."""
    r = torch.randn(3 * size, generator=torch.Generator().manual_seed(1), dtype=D)
    group = torch.arange(3).repeat(size)
    loo, centre = advantages.leave_one_out(r, group), advantages.centred(r, group)
    torch.testing.assert_close(loo, size / (size - 1) * centre, rtol=0, atol=1e-12)


def test_advantage_arithmetic_of_the_spec() -> None:
    """EGSPO check 9 (rank_mean, lambda 0.5, normalised). Error caught: returns not divided by 1 + lambda."""
    r, hat = torch.tensor([1.0, 0.0], dtype=D), torch.tensor([[0.5, 0.0], [0.0, 0.25]], dtype=D)
    group, used = torch.zeros(2, dtype=torch.int64), torch.ones(2, 2, dtype=torch.bool)
    returns = advantages.stepwise_returns(r, hat, 0.5, True)
    torch.testing.assert_close(returns, torch.tensor([[2.5, 3.0], [0.0, -0.25]], dtype=D) / 3)
    a = advantages.stepwise(r, returns, used, group, "rank_mean")
    torch.testing.assert_close(a, torch.tensor([[1.25, 1.625], [-1.25, -1.625]], dtype=D) / 3)
    plain = advantages.stepwise(r, advantages.stepwise_returns(r, hat, 0.0, True), used, group, "rank_mean")
    torch.testing.assert_close(plain, torch.tensor([[0.5, 0.5], [-0.5, -0.5]], dtype=D))


def test_lambda_zero_is_egspo_and_grades_nothing() -> None:
    """R13: EGSPO-SA with lambda 0 has EGSPO's gradient bit for bit and makes no intermediate reward call.

    Error caught: one-shot completions graded whatever lambda is.
    """
    plain, stepwise = EGSPO(steps=3, epochs=2), EGSPOSA(steps=3, epochs=2, stepwise_weight=0.0)
    batch = rollouts(new_toy(), plain)
    assert torch.equal(gradient(plain, batch), gradient(stepwise, rollouts(new_toy(), stepwise)))
    assert not stepwise.wants_one_shot and EGSPOSA().wants_one_shot
    assert with_steps(new_toy(), None, stepwise, batch, [], [], 0).step_reward is None


def test_full_selections_coincide() -> None:
    """R14: `all`, `ht` and `topk` with K = S choose every pass with weight exactly 1; all and ht have one gradient bit
    for bit, topk up to the order of its slots. Error caught: no cap of q at 1."""
    batch = rollouts(new_toy(), EGSPO(steps=4))
    path, grads = batch.trajectory, {}
    for rule in ("all", "ht", "topk"):
        algorithm = EGSPO(steps=4, epochs=2, select_rule=rule)
        steps, weight = algorithm.select(path, batch.live, batch.sample, 0)
        assert torch.equal(steps.sort(1, descending=True).values >= 0, weight.sort(1, descending=True).values == 1.0)
        assert torch.equal((steps >= 0).sum(1), path.passes)
        grads[rule] = gradient(algorithm, replace(batch, selected=steps, selected_weight=weight))
    assert torch.equal(grads["all"], grads["ht"])
    torch.testing.assert_close(grads["all"], grads["topk"], rtol=0, atol=1e-12)


def test_ht_frequencies_and_budget() -> None:
    """Inclusion frequencies of systematic sampling equal q, always exactly K steps (spec 3.3); rows with fewer passes
    than K use them all. Errors caught: no cap of q at 1; first interval starts at 0."""
    h = torch.tensor([[3.0, 0.0, 1.0, 0.5, 0.2]]).expand(4000, 5)
    exists = torch.ones(4000, 5, dtype=torch.bool)
    q = selection.inclusion(h.to(D), exists, 2, 0.05)
    assert abs(float(q[0].sum()) - 2) < 1e-12 and float(q.min()) > 0 and float(q.max()) == 1.0
    steps, weight = selection.select_steps("ht", h, exists, 2, torch.arange(4000), 0)
    hits = torch.nn.functional.one_hot(steps, 5).sum(1)
    assert bool((hits <= 1).all()) and bool((steps >= 0).all())
    sigma = (q[0] * (1 - q[0]) / 4000).sqrt().clamp(min=1e-9)
    assert float(((hits.to(D).mean(0) - q[0]) / sigma).abs().max()) < 4
    torch.testing.assert_close(weight.to(D), 1 / q.gather(1, steps), rtol=1e-6, atol=0)
    exists[:, 1:] = False
    steps, weight = selection.select_steps("ht", h, exists, 2, torch.arange(4000), 0)
    assert bool((steps[:, 0] == 0).all()) and bool((steps[:, 1] == -1).all()) and bool((weight[:, 1] == 0).all())


def test_step_scales() -> None:
    """R15: `sum` divided by scored tokens and `mean` divided by passes have one on-policy gradient at constant n;
    off-policy rho_sum = rho_mean^n. Error caught: token scale not divided by the tokens."""
    n, lower, old = 3, torch.tensor([[-2.0], [-3.5]], dtype=D), torch.tensor([[-2.6], [-3.2]], dtype=D)
    a = torch.tensor([[1.0], [-1.0]], dtype=D)
    counts = Counts(rows=2, groups=1, live_tokens=1, units=2, scored_tokens=2 * n)
    group, live, grads = torch.zeros(2, dtype=torch.int64), torch.ones(2, 1, dtype=torch.bool), []
    for aggregation, scale in (("sum", "sequence"), ("mean", "token")):
        objective = EGSPO(aggregation=aggregation, ratio_scale=scale, clip_low=0, clip_high=99).objective()
        for base in (lower, old):
            leaf = lower.clone().requires_grad_(True)
            new, before = (one_token(x, size=n, per_token=False) for x in (leaf, base))
            total = policy_loss(objective, new, a, group, live, counts, before).total
            grads.append(torch.autograd.grad(total, leaf)[0] / -a * 2 * n)  # = rho
    torch.testing.assert_close(grads[0], grads[2], rtol=0, atol=1e-12)
    torch.testing.assert_close(grads[1], (lower - old).exp(), rtol=0, atol=1e-12)
    torch.testing.assert_close(grads[1], grads[3] ** n, rtol=0, atol=1e-12)


def test_kl_estimators() -> None:
    """R20: k1, k2, k3 agree to second order; E_pi[k1] = E_pi[k3] = KL(pi || ref) by enumeration, k3 >= 0 and zero only
    at equality; the autograd gradient of k3 is that of KL(ref || pi). Error caught: r with the other sign."""
    r = torch.tensor([1e-3, -1e-3], dtype=D)
    torch.testing.assert_close(kl_estimate("k3", r), kl_estimate("k2", r), rtol=0, atol=1e-9)
    theta = torch.randn(5, generator=torch.Generator().manual_seed(3), dtype=D).requires_grad_(True)
    ref = torch.randn(5, generator=torch.Generator().manual_seed(4), dtype=D).log_softmax(0)
    pi = theta.log_softmax(0)
    p, exact = pi.detach().exp(), float((pi.exp() * (pi - ref)).sum().detach())
    for kind in ("k1", "k3"):
        assert abs(float((p * kl_estimate(kind, pi - ref)).sum().detach()) - exact) < 1e-12
    assert bool((kl_estimate("k3", pi - ref) > 0).all()) and float(kl_estimate("k3", r * 0).max()) == 0.0
    estimate = torch.autograd.grad((p * kl_estimate("k3", pi - ref)).sum(), theta, retain_graph=True)[0]
    reverse = torch.autograd.grad((ref.exp() * (ref - pi)).sum(), theta)[0]
    torch.testing.assert_close(estimate, reverse, rtol=0, atol=1e-12)


def test_kl_term_of_the_loss() -> None:
    """Loss = policy term + beta * sum coef * k3(new - ref). Error caught: beta applied to the policy term too."""
    new, ref = torch.tensor([[-1.0]], dtype=D), torch.tensor([[-1.3]], dtype=D)
    objective = Objective(form="ratio", coef="row_mean", clip="ppo", clip_low=0.8, clip_high=1.5, kl="k3", beta=0.1)
    out = loss(objective, one_token(new), torch.tensor([[2.0]], dtype=D), None, one_token(ref))
    assert abs(float(out.total) - (-2.0 + 0.1 * (math.exp(-0.3) + 0.3 - 1))) < 1e-12
    assert reward(torch.tensor([[0, 1, 2, 0]]))[0] == 1.5  # the toy's reward, used by the trajectory oracles
