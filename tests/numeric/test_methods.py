"""Oracles of wd1, SPG, ESPO, UniGRPO, TraceRL, DiPO and `composed`: enumeration, reductions, gates, refusals.

Invariances that hold for every method (micro-batches, row order, shifts, equal rewards, direction, ratio 1) run over
all of them in `test_surrogate.py`.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError
from test_surrogate import SAMPLER, D, gradient, moved, new_toy, one_token, rollouts, units_now
from torch import Tensor
from toy import Toy

from maskgrad.algorithms import EGSPO, EGSPOSA, ESPO, SPG, WD1, Composed, DiPO, GRPOElbo, StableDRL, TraceRL, UniGRPO
from maskgrad.algorithms import advantages as adv
from maskgrad.algorithms.base import count
from maskgrad.algorithms.objective import Objective
from maskgrad.algorithms.surrogate import policy_loss
from maskgrad.likelihood import bounds, elbo_views, views
from maskgrad.likelihood.score import active_views, score_rows
from maskgrad.records import Counts, MaskedViews, RolloutBatch, Trajectory
from maskgrad.training.collect import rows_of

L, V = 4, 3


def every_mask(length: int = L) -> Tensor:
    """All 2^L hidden sets, bool [2^L,L], the empty one first."""
    return torch.tensor(list(itertools.product([False, True], repeat=length)))


def flat(tokens: Tensor, live: Tensor | None = None, **extra) -> RolloutBatch:
    """Completions without a prompt."""
    rows = torch.arange(len(tokens))
    return RolloutBatch(
        tokens=tokens,
        attend=torch.ones_like(tokens, dtype=torch.bool),
        live=torch.ones_like(tokens, dtype=torch.bool) if live is None else live,
        group=rows // 2,
        sample=rows,
        reward=torch.zeros(len(tokens), dtype=D),
        **extra,
    )


def scored(toy: Toy, batch: RolloutBatch, seen: MaskedViews) -> Tensor:
    row, view = active_views(seen)
    values = score_rows(toy, batch, seen, row, view)
    return torch.zeros(seen.scored.shape, dtype=values.dtype).index_put((row, view), values)


def conditionals(toy: Toy, x: Tensor) -> Tensor:
    """lp_k(z_M) of every hidden set M of the completion x [L]: [2^L,L]."""
    masks = every_mask(len(x))
    logits = toy.all_logits(torch.where(masks, toy.vocab, x)).detach()
    return logits.log_softmax(-1).gather(2, x.expand(len(masks), -1)[:, :, None])[..., 0]


class Consistent(Toy):
    """Conditionals of one joint distribution over V^L, given the visible tokens."""

    def __init__(self, seed: int = 0):
        super().__init__(vocab=V, length=L, seed=seed, context=False)
        draw = torch.Generator().manual_seed(seed)
        self.joint = torch.randn([V] * L, generator=draw, dtype=D).flatten().softmax(0)
        self.support = torch.tensor(list(itertools.product(range(V), repeat=L)))

    def all_logits(self, tokens: Tensor, attend: Tensor | None = None, theta: Tensor | None = None) -> Tensor:
        canvas = tokens[:, -L:]
        agree = ((canvas[:, None] == self.support) | (canvas[:, None] == self.vocab)).all(-1)  # [B,V^L]
        one_hot = torch.nn.functional.one_hot(self.support, self.rows).to(D)  # [V^L,L,V+1]
        return torch.einsum("bs,slv->blv", agree * self.joint, one_hot).clamp(min=1e-300).log()


def exact_elbo(toy: Toy, x: Tensor) -> float:
    """sum_M Beta(|M|, L-|M|+1) sum_{k in M} lp_k(z_M)."""
    total, length = 0.0, len(x)
    for mask, lp in zip(every_mask(length), conditionals(toy, x), strict=True):
        m = int(mask.sum())
        if m:
            beta = math.gamma(m) * math.gamma(length - m + 1) / math.gamma(length + 1)
            total += beta * float(lp[mask].sum())
    return total


def all_count_draws(length: int = L) -> tuple[Tensor, Tensor]:
    """Every mask and its probability under l ~ U{0..L} and a uniform subset."""
    masks = every_mask(length)
    p = torch.tensor([1 / ((length + 1) * math.comb(length, int(m.sum()))) for m in masks], dtype=D)
    assert abs(float(p.sum()) - 1) < 1e-12
    return masks, p


# --- exact-count ELBO -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coupled", [False, True])
def test_count_elbo_is_unbiased(coupled: bool) -> None:
    """R8: expectation over every mask = exact ELBO (1e-12), coupled or not, and the log-likelihood of a consistent
    model. Errors caught: weight L/l for (L+1)/l; complement weighted by l; halving forgotten."""
    for toy in (Toy(seed=3), Consistent(seed=5)):
        x = torch.tensor([0, 2, 1, 1])
        masks, p = all_count_draws()
        batch = flat(x.expand(len(masks), -1))
        seen = elbo_views.counted(batch, masks[:, None], torch.ones_like(masks), coupled)
        lower = bounds.sequence_units(scored(toy, batch, seen), seen).lower[:, 0].detach()
        assert abs(float((p * lower).sum()) - exact_elbo(toy, x)) < 1e-12
    index = int((toy.support == x).all(1).nonzero())
    assert abs(exact_elbo(toy, x) - float(toy.joint[index].log())) < 1e-12


def test_live_only_elbo_is_that_of_the_live_tokens() -> None:
    """live_only: the canvas behind the stop stays hidden and is never scored; same expectation on n < L positions."""
    toy, x = Toy(seed=3), torch.tensor([0, 2, 1, 1])
    masks, p = all_count_draws(3)
    domain = torch.tensor([[True, True, True, False]]).expand(len(masks), -1)
    first = torch.cat([masks, torch.zeros(len(masks), 1, dtype=torch.bool)], 1)
    batch = flat(x.expand(len(masks), -1), live=domain)
    seen = elbo_views.counted(batch, first[:, None], domain, coupled=True)
    assert bool(seen.hidden[..., 3].all()) and not bool(seen.scored[..., 3].any())
    lower = bounds.sequence_units(scored(toy, batch, seen), seen).lower[:, 0].detach()
    rest, truth = conditionals(toy, x), 0.0
    for mask in masks[1:]:
        m = int(mask.sum())
        row = int((every_mask() == torch.cat([mask, torch.tensor([True])])).all(1).nonzero())
        beta = math.gamma(m) * math.gamma(4 - m) / math.gamma(4)
        truth += beta * float(rest[row][:3][mask].sum())
    assert abs(float((p * lower).sum()) - truth) < 1e-12


def test_fully_hidden_draw_is_mean_field() -> None:
    """R7: uncoupled, one draw, all hidden = (L+1)/L times mean field with p = 0. Error caught: weight L/l."""
    toy = Toy(seed=3)
    batch = flat(torch.tensor([[0, 2, 1, 1], [1, 1, 0, 2]]))
    whole = torch.ones(2, 1, L, dtype=torch.bool)
    seen = elbo_views.counted(batch, whole, whole[:, 0], coupled=False)
    elbo = bounds.sequence_units(scored(toy, batch, seen), seen).lower
    field = views.mean_field(batch, 0, p_prompt=0.0)
    torch.testing.assert_close(
        elbo, (L + 1) / L * bounds.sequence_units(scored(toy, batch, field), field).lower, rtol=0, atol=1e-12
    )


def test_drawn_counts_are_uniform_and_stratified() -> None:
    """Counts: each row uniform on {0..L} over runs (4 sigma); each window of rows holds every count about equally often
    (4 (L+1) rows: at most 2 off, mean square a tenth of independent draws); subsets equally likely; a row's masks
    ignore the other rows; with two coupled draws every row scores one count in each quarter of 0..L.

    Errors caught: counts 1..L; independent counts; strata by row position; draws of a row at a random fixed distance;
    full instead of half range for coupled levels.
    """
    batch = flat(torch.zeros(20, L, dtype=torch.int64))
    seen = [elbo_views.exact_count(batch, seed, draws=1, coupled=False).scored[:, 0] for seed in range(600)]
    counts = torch.stack([s.sum(-1) for s in seen])  # [600,20]
    for row in (0, 7):
        share = torch.bincount(counts[:, row], minlength=L + 1) / 600
        assert float((share - 1 / (L + 1)).abs().max()) < 4 * math.sqrt(0.16 / 600)
    tally = torch.stack([torch.bincount(c, minlength=L + 1) for c in counts])
    assert int((tally - 4).abs().max()) <= 2
    assert float(((tally - 4) ** 2).double().mean()) < 0.1 * 20 * 0.16 * 2
    hidden = torch.stack(seen).flatten(0, 1)
    rate = hidden[counts.flatten() == 2].double().mean(0)
    assert float((rate - 0.5).abs().max()) < 4 * math.sqrt(0.25 / int((counts == 2).sum()))
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))[:7]
    whole, part = (elbo_views.exact_count(b, 3, draws=2) for b in (batch, rows_of(batch, order)))
    assert torch.equal(whole.hidden[order], part.hidden) and torch.equal(whole.weight[order], part.weight)
    for seed in range(20):
        level = elbo_views.stratified(batch, seed, "views.stratum", 0, 2, coupled=True)
        quarters = (torch.cat([level, 1 - level], 1) * 4).floor().sort(1).values
        assert torch.equal(quarters, torch.arange(4.0, dtype=torch.float64).expand(20, 4))


def test_coupled_views_partition_the_canvas() -> None:
    batch = flat(torch.zeros(9, L, dtype=torch.int64))
    seen = elbo_views.exact_count(batch, 1, draws=3)
    pairs = seen.scored.view(9, 3, 2, L)
    assert seen.scored.shape[1] == 6 and bool((pairs.sum(2) == 1).all())
    assert torch.equal(seen.hidden, seen.scored)


def bound_draws(toy: Toy, x: Tensor) -> tuple[Tensor, Tensor]:
    """(logp, scored) [1,48,L] of draws whose empirical mean is exact: l ~ U{1..L}, uniform subset (multiplicity)."""
    lp = conditionals(toy, x)
    index = [i for i, m in enumerate(every_mask()) if bool(m.any()) for _ in range(12 // math.comb(L, int(m.sum())))]
    return lp[index][None], every_mask()[index][None]


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
def test_sandwich(beta: float) -> None:
    """Exact expectations: ELBO <= log p <= EUBO and ELBO = log p for a consistent model; ELBO <= log p of the
    random-order generator for an inconsistent one; EUBO grows with beta and tends to the ELBO for beta -> 0.

    Error caught: 1/tau missing in the EUBO (it then falls below)."""
    toy, live = Consistent(seed=2), torch.ones(1, L, dtype=torch.bool)
    for x, p in zip(toy.support[::7], toy.joint[::7], strict=True):
        lp, hidden = bound_draws(toy, x)
        elbo = float(bounds.elbo_per_token(lp, hidden)) * L
        eubo = float(bounds.eubo_per_token(lp, hidden, live, beta)) * L
        assert abs(elbo - float(p.log())) < 1e-12
        assert elbo <= float(p.log()) + 1e-12 and float(p.log()) <= eubo + 1e-12
        assert eubo <= float(bounds.eubo_per_token(lp, hidden, live, 2 * beta)) * L + 1e-12
        assert abs(float(bounds.eubo_per_token(lp, hidden, live, 1e-7)) * L - elbo) < 1e-5
    toy, x = Toy(seed=4), torch.tensor([0, 2, 1, 1])
    table = {tuple(m.tolist()): lp for m, lp in zip(every_mask(), conditionals(toy, x), strict=True)}
    orders = list(itertools.permutations(range(L)))
    likelihood = 0.0
    for order in orders:
        left = [tuple(k in order[i:] for k in range(L)) for i in range(L)]
        likelihood += math.exp(sum(float(table[m][k]) for m, k in zip(left, order, strict=True))) / len(orders)
    assert exact_elbo(toy, x) < math.log(likelihood)


# --- wd1 and SPG ----------------------------------------------------------------------------------------------------


def test_wd1_weights() -> None:
    """R3: G = 2 gives +-tanh of the centred advantage; small rewards give 2 A / G; a flat group gives exactly zero in
    both variants. Errors caught: softmax over the batch; w- = 1 - w+."""
    group = torch.tensor([4, 4, 9, 9])
    r = torch.tensor([1.3, 0.1, 0.25, 0.25], dtype=D)
    a = adv.softmax_difference(r, group)[:, 0]
    torch.testing.assert_close(a[:2], torch.tanh(adv.centred(r, group)[:2, 0]), rtol=0, atol=1e-12)
    assert float(a[2:].abs().max()) == 0.0 == float(adv.softmax_difference(r, group, True)[2:].abs().max())
    r, group = torch.randn(15, generator=torch.Generator().manual_seed(0), dtype=D), torch.arange(3).repeat(5)
    small = 1e-5
    torch.testing.assert_close(
        adv.softmax_difference(small * r, group) / small, 2 * adv.centred(r, group) / 5, rtol=0, atol=1e-8
    )
    plus = adv.softmax_difference(r, group, True)[:, 0]
    torch.testing.assert_close(adv.group_sum(plus, group), torch.ones(15, dtype=D), rtol=0, atol=1e-12)


def test_wd1_gradient_is_weighted_likelihood() -> None:
    """Second inner epoch, moved weights: still -sum A sum_k live lp / groups. Errors caught: weight exp(d); mean over
    tokens; padding scored."""
    algorithm, toy = WD1(epochs=2, p_prompt=0.0, masks="shared"), moved(new_toy())
    batch = rollouts(new_toy(), algorithm)
    hidden = batch.tokens.clone()
    hidden[:, 3:] = 3
    logp = toy.all_logits(hidden, batch.attend).log_softmax(-1).gather(2, batch.completion[:, :, None])[..., 0]
    total = -(algorithm.advantage(batch) * batch.live * logp).sum() / 4
    (truth,) = torch.autograd.grad(total, toy.theta)
    torch.testing.assert_close(gradient(algorithm, batch, 1), truth, rtol=0, atol=1e-12)


def test_weight_one_does_not_read_old() -> None:
    """weights none: an old policy given to the loss changes nothing. Error caught: weight exp(d)."""
    lower = torch.tensor([[1.0], [2.0]], dtype=D, requires_grad=True)
    group, live = torch.zeros(2, dtype=torch.int64), torch.ones(2, 1, dtype=torch.bool)
    a = torch.tensor([[1.0], [-1.0]], dtype=D)
    for old in (None, one_token(torch.zeros(2, 1, dtype=D))):
        total = policy_loss(WD1().objective(), one_token(lower), a, group, live, ONE, old).total
        assert torch.equal(torch.autograd.grad(total, lower)[0], -a)


def test_spg_kinds() -> None:
    """R4: elbo = mix with omega 0 = length-weighted ELBO policy gradient; zero keeps the positive samples."""
    batch = rollouts(new_toy(), SPG())
    elbo, mix = SPG(block=3, score="elbo"), SPG(block=3, score="mix", omega=0.0)
    assert torch.equal(gradient(elbo, batch), gradient(mix, batch))
    toy = moved(new_toy())
    new, a, length = units_now(toy, elbo, batch, use=1), elbo.advantage(batch), batch.live.sum(1, keepdim=True)
    for kind, part in (("elbo", a), ("zero", a.clamp(min=0))):
        total = -(part * new.lower * length).sum() / length.sum()
        (truth,) = torch.autograd.grad(total, toy.theta, retain_graph=True)
        torch.testing.assert_close(gradient(SPG(block=3, score=kind), batch), truth, rtol=0, atol=1e-12)


def test_equal_clips_make_stabledrl_spg() -> None:
    """R5: clip_low = clip_high gives weights 1/G; with equal lengths the gradient is SPG's. Error: weights of sum G."""
    batch = rollouts(new_toy(), SPG())
    batch = replace(batch, live=torch.ones_like(batch.live))
    setting = {"block": 3, "epochs": 2, "masks": "shared"}
    spg = gradient(SPG(**setting), batch)
    torch.testing.assert_close(
        gradient(StableDRL(clip_low=1.0, clip_high=1.0, **setting), batch), spg, rtol=0, atol=1e-12
    )


def test_released_block_choice_is_biased() -> None:
    """`modulo`: 3 used blocks of 4 are hit .5/.25/.25; `distinct`: 1/3 each. Error caught: modulo of the noise."""
    noise = torch.rand(6000, 1, 4, generator=torch.Generator().manual_seed(0), dtype=D)
    used = torch.full((6000,), 3)
    for modulo, wanted in ((True, [0.5, 0.25, 0.25]), (False, [1 / 3] * 3)):
        share = torch.bincount(views.choose_blocks(noise, used, modulo)[:, 0], minlength=3) / 6000
        assert float((share - torch.tensor(wanted)).abs().max()) < 4 * math.sqrt(0.25 / 6000)


# --- ESPO and UniGRPO -----------------------------------------------------------------------------------------------

ONE = Counts(rows=1, groups=1, live_tokens=1, units=1, scored_tokens=1)


@pytest.mark.parametrize(
    ("d", "a", "k"), [(0.0, 1.0, 1), (0.3, 1.0, 0), (-0.3, 1.0, 1), (0.0, -1.0, 1), (-0.3, -1.0, 0), (0.3, -1.0, 1)]
)
def test_espo_with_no_clip_width(d: float, a: float, k: int) -> None:
    """eps = 0: full gradient at rho = 1, none on the favourable side, rho A / L on the other. d is per token, L = 5.

    Errors caught: half the gradient at the tie; ratio not divided by L."""
    objective = ESPO(clip_low=1, clip_high=1, beta=0.0).objective()
    new = torch.tensor([[-7.0 + 5 * d]], dtype=D, requires_grad=True)
    old = one_token(torch.tensor([[-7.0]], dtype=D), 5, per_token=False)
    live, group = torch.ones(1, 5, dtype=torch.bool), torch.zeros(1, dtype=torch.int64)
    advantage = torch.tensor([[a]], dtype=D)
    loss = policy_loss(objective, one_token(new, 5, per_token=False), advantage, group, live, ONE, old)
    (grad,) = torch.autograd.grad(loss.total, new)
    assert abs(float(grad) + k * math.exp(d) * a / 5) < 1e-12


def test_espo_kl_is_k2_of_the_sum_over_the_length() -> None:
    """beta (ELBO - ELBO_ref)^2 / (2 L), also far outside the bound of exp. Error caught: k2 of the mean difference."""
    objective = ESPO(beta=0.01).objective()
    new = torch.tensor([[-60.0]], dtype=D, requires_grad=True)
    ref = one_token(torch.tensor([[-20.0]], dtype=D), 5, per_token=False)
    zero, group = torch.zeros(1, 1, dtype=D), torch.zeros(1, dtype=torch.int64)
    live = torch.ones(1, 5, dtype=torch.bool)
    loss = policy_loss(objective, one_token(new, 5, per_token=False), zero, group, live, ONE, None, ref)
    assert abs(float(loss.total.detach()) - 0.01 * 40**2 / 10) < 1e-12
    assert abs(float(torch.autograd.grad(loss.total, new)[0]) - 0.01 * -40 / 5) < 1e-12


def test_scaled_rewards_use_the_sample_deviation() -> None:
    r, group = torch.randn(8, generator=torch.Generator().manual_seed(1), dtype=D), torch.tensor([0, 1] * 4)
    found = adv.sample_deviation(r, group)[:, 0]
    torch.testing.assert_close(found, torch.stack([r[0::2].std(), r[1::2].std()]).repeat(4), rtol=0, atol=1e-12)


def test_random_rates_cover_the_range() -> None:
    """Structured rates of mu inner epochs are one per mu-th of the range, the first uniform; tokens are hidden at that
    rate; only hidden live tokens are scored. Error caught: one rate for all epochs."""
    rows, length, epochs = 400, 50, 4
    batch = flat(torch.zeros(rows, length, dtype=torch.int64), live=torch.arange(length).expand(rows, length) < 30)
    rates = []
    for use in range(epochs):
        seen = elbo_views.random_rate(batch, 0, use, epochs=epochs, low=0.2, high=1.0)
        assert torch.equal(seen.scored, seen.hidden & batch.live[:, None])
        rates.append(seen.hidden[:, 0].double().mean(1))
    rate = torch.stack(rates, 1)  # [rows, epochs], sampled share of 50 tokens
    assert float((rate.mean(0) - 0.6).abs().max()) < 4 * 0.8 / math.sqrt(12 * rows)
    gaps = rate.sort(1).values.diff(dim=1).mean()
    assert abs(float(gaps) - 0.2) < 0.02  # independent rates: 0.16
    with pytest.raises(ValidationError, match="rate_low"):
        UniGRPO(rate_low=0.9, rate_high=0.1)


# --- trajectory slices ----------------------------------------------------------------------------------------------


def commit_maps(rows: int = 60, length: int = 7) -> tuple[Tensor, Tensor]:
    """Random commit steps with gaps and never-committed positions, and live masks."""
    draw = torch.Generator().manual_seed(2)
    step = torch.randint(-1, 9, (rows, length), generator=draw).to(torch.int16)
    live = torch.arange(length) < torch.randint(1, length + 1, (rows, 1), generator=draw)
    return step, live


def path_of(step: Tensor) -> Trajectory:
    rows, length = step.shape
    zeros = torch.zeros(rows, 1)
    return Trajectory(
        tokens=torch.zeros(rows, length, dtype=torch.int64),
        commit_step=step,
        commit_logp=torch.zeros(rows, length),
        passes=torch.ones(rows, dtype=torch.int64),
        revealed=zeros,
        masked=zeros,
        rank_floor=zeros,
        entropy_revealed=zeros,
        entropy_masked=zeros,
        joint_revealed=zeros,
        joint_masked=zeros,
    )


@pytest.mark.parametrize("shrink", [1, 2, 3, 100])
def test_slices_equal_a_loop(shrink: int) -> None:
    """R11: against brute force; every committed live token in exactly one slice, never-committed ones hidden in all and
    scored in none. Errors caught: hidden = step > s; slices by step number instead of by distinct steps."""
    step, live = commit_maps()
    batch = flat(torch.zeros(step.shape, dtype=torch.int64), live=live, trajectory=path_of(step))
    seen = elbo_views.trace_slices(batch, shrink=shrink)
    assert torch.equal(seen.scored.sum(1).bool(), live & (step >= 0)) and int(seen.scored.sum(1).max()) == 1
    sizes = bounds.slice_units(torch.zeros(seen.scored.shape, dtype=D), seen).size
    for row in range(len(step)):
        steps = sorted(set(step[row].tolist()) - {-1})
        for n in range(seen.scored.shape[1]):
            now = steps[n * shrink : (n + 1) * shrink]
            todo = [s == -1 or s in now or s > max(now, default=99) for s in step[row].tolist()]
            hit = [s in now and bool(alive) for s, alive in zip(step[row].tolist(), live[row], strict=True)]
            assert seen.scored[row, n].tolist() == hit
            if any(hit):
                assert seen.hidden[row, n].tolist() == todo
                assert float(sizes[row][seen.scored[row, n]].unique()) == sum(hit)


def test_one_token_per_pass_is_autoregressive() -> None:
    """R11: with one token per pass the sum over slices is log p in commit order; R12: it is also EGSPO over all passes
    with `revealed_untempered`, pass by pass. Errors caught: state after the commit; slice off by one."""
    toy = Toy(seed=6, mask_logit=-math.inf)
    order = torch.tensor([[2, 0, 3, 1], [1, 3, 0, 2]])  # commit step of each position
    batch = flat(torch.tensor([[0, 2, 1, 1], [1, 0, 0, 2]]), trajectory=path_of(order.to(torch.int16)))
    seen = elbo_views.trace_slices(batch, shrink=1)
    logp = scored(toy, batch, seen)
    tokens = bounds.token_units(logp, seen).lower.detach()
    for row in range(2):
        truth = 0.0
        for s in range(L):
            k = int((order[row] == s).nonzero())
            state = torch.where(order[row] >= s, V, batch.tokens[row])
            truth += float(toy.all_logits(state[None])[0, k].log_softmax(-1)[batch.tokens[row, k]].detach())
        assert abs(float(tokens[row].sum().detach()) - truth) < 1e-12
    steps = torch.arange(L).expand(2, -1)
    chosen = replace(batch, selected=steps, selected_weight=torch.ones(2, L, dtype=D))
    passes = views.selected_steps(chosen, SAMPLER.model_copy(update={"block_length": L}), "revealed_untempered")
    per_pass = bounds.step_units(scored(toy, chosen, passes), passes).lower
    torch.testing.assert_close(per_pass, torch.where(seen.scored, logp, 0.0).sum(-1), rtol=0, atol=1e-12)


def test_trace_slices_of_the_sampler() -> None:
    """Slices of shrink 2 on real rollouts: unit log-probs are those of the production scorer at the rebuilt states."""
    algorithm, toy = TraceRL(shrink=2), new_toy()
    batch = rollouts(toy, algorithm)
    units = units_now(toy, algorithm, batch)
    lower = units.lower.detach()
    assert torch.equal(units.mask, batch.live & (batch.trajectory.commit_step >= 0))
    row, step = 3, batch.trajectory.commit_step[3].to(torch.int64)
    for k in units.mask[row].nonzero()[:, 0].tolist():
        first = int(step[k]) // 2 * 2
        hidden = (step >= first) | (step < 0)
        tokens = torch.where(torch.cat([torch.zeros(3, dtype=torch.bool), hidden]), 3, batch.tokens[row])
        logits = toy.all_logits(tokens[None], batch.attend[row : row + 1])[0, k].detach()
        assert abs(float(logits.log_softmax(-1)[batch.completion[row, k]] - lower[row, k])) < 1e-12


def test_dipo_with_tracerl_settings_is_tracerl() -> None:
    """R10: bit for bit. Error caught: a hard-coded asymmetry."""
    trace = TraceRL(epochs=2, shrink=1)
    same = DiPO(epochs=2, clip_high=1.2, aggregation="slice_mean", beta=0.01, kl_to="old", kl_sum=True)
    batch = rollouts(new_toy(), trace)
    assert torch.equal(gradient(trace, batch), gradient(same, batch))
    assert not torch.equal(gradient(DiPO(epochs=2), batch), gradient(trace, batch))


@pytest.mark.parametrize("kl_sum", [False, True])
def test_tracerl_loss_by_hand(kl_sum: bool) -> None:
    """(1/slices) sum_slices [ mean of the gated terms + beta * (sum | mean) of k3(lp - lp_old) ].

    Errors caught: KL to the reference; 1/rows for 1/slices; size of the row instead of the slice."""
    algorithm, toy = TraceRL(epochs=2, shrink=2, beta=0.3, kl_sum=kl_sum), moved(new_toy(), 0.3)
    batch = rollouts(new_toy(), algorithm)
    seen = algorithm.views(batch, SAMPLER, 0, 0)
    new, old = units_now(toy, algorithm, batch), units_now(new_toy(), algorithm, batch)
    old = replace(old, lower=old.lower.detach(), upper=old.upper.detach())
    a = algorithm.advantage(batch)
    loss = policy_loss(algorithm.objective(), new, a, batch.group, batch.live, count(batch, seen), old)
    total, slices = 0.0, 0
    for row in range(len(batch)):
        for n in range(seen.scored.shape[1]):
            at = seen.scored[row, n]
            if not bool(at.any()):
                continue
            slices += 1
            d = (new.lower - old.lower)[row][at].detach()
            rho = d.exp()
            gated = torch.minimum(rho * a[row], rho.clamp(0.8, 1.2) * a[row])
            k3 = (-d).exp() + d - 1
            total += float(-gated.mean() + 0.3 * (k3.sum() if kl_sum else k3.mean()))
    assert abs(float(loss.total.detach()) - total / slices) < 1e-12


def test_grpo_positives_only() -> None:
    """The control drops the negative samples and nothing else. Error caught: advantage centred again."""
    plain, control = GRPOElbo(block=3), GRPOElbo(block=3, positives_only=True)
    batch = rollouts(new_toy(), plain)
    a = plain.advantage(batch)
    assert torch.equal(control.advantage(batch), torch.where(a > 0, a, 0.0))


def test_one_negative_sample_escapes_the_ppo_clip() -> None:
    """Ratio e^10 with A < 0: GRPO's gradient grows by e^10, positives-only has none, StableDRL's is capped."""
    lower = torch.tensor([[10.0], [0.0]], dtype=D, requires_grad=True)
    old, group = one_token(torch.zeros(2, 1, dtype=D)), torch.zeros(2, dtype=torch.int64)
    a, live = torch.tensor([[-1.0], [1.0]], dtype=D), torch.ones(2, 1, dtype=torch.bool)
    norms = []
    for objective, credit in (
        (GRPOElbo().objective(), a),
        (GRPOElbo().objective(), a.clamp(min=0)),
        (StableDRL(ratio_scale="sequence").objective(), a),
    ):
        total = policy_loss(objective, one_token(lower), credit, group, live, ONE, old).total
        norms.append(float(torch.autograd.grad(total, lower)[0].norm()))
    assert norms[0] > 1e4 and norms[1] == 1.0 and norms[2] <= 1.0


# --- composition ----------------------------------------------------------------------------------------------------

PPO = {"form": "ratio", "clip": "ppo", "clip_low": 0.8, "clip_high": 1.2}
SNIS = {"form": "score", "clip": "always", "clip_high": 6.0, "self_normalise": "group"}
PAIRS = {
    "wd1": (
        WD1(epochs=2),
        {
            "masks": "epoch",
            "view": {"name": "mean_field"},
            "bound": {"name": "sequence"},
            "credit": {"name": "softmax_difference"},
            "surrogate": {"form": "score", "coef": "group_sum", "weights": "none"},
        },
    ),
    "espo": (
        ESPO(epochs=2, beta=0.01),
        {
            "masks": "epoch",
            "view": {"name": "exact_count"},
            "bound": {"name": "sequence"},
            "credit": {"name": "leave_one_out"},
            "surrogate": {**PPO, "coef": "row_mean", "kl": "k2", "kl_scale": "summed", "beta": 0.01},
        },
    ),
    "stabledrl": (
        StableDRL(block=3),
        {
            "view": {"name": "block_bound", "block": 3},
            "bound": {"name": "sandwich", "upper": "mix"},
            "surrogate": {**SNIS, "coef": "group_sum"},
        },
    ),
    "unigrpo": (
        UniGRPO(epochs=2),
        {
            "masks": "epoch",
            "view": {"name": "random_rate"},
            "bound": {"name": "token"},
            "credit": {"name": "centred", "std": "population"},
            "surrogate": {**PPO, "coef": "step_token_mean", "kl": "k3", "beta": 0.01},
        },
    ),
    "dipo": (
        DiPO(epochs=2),
        {
            "view": {"name": "trace_slices"},
            "bound": {"name": "slice"},
            "credit": {"name": "centred", "std": "population"},
            "surrogate": {**PPO, "clip_high": 1.28, "coef": "step_token_mean", "log_bound": 10},
        },
    ),
    "egspo_sa": (
        EGSPOSA(steps=3, epochs=2),
        {
            "view": {"name": "selected_steps", "steps": 3},
            "bound": {"name": "step"},
            "credit": {"name": "stepwise", "weight": 0.5},
            "surrogate": {**PPO, "clip_high": 1.5, "coef": "step_token_mean", "ratio_scale": "sequence"},
        },
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_composed_is_the_named_method(name: str) -> None:
    """Composing a method's sockets gives its gradient bit for bit on the first and second update."""
    method, parts = PAIRS[name]
    same = Composed(epochs=2, **parts)
    batch = rollouts(new_toy(), method)
    for index in (0, 1):
        assert torch.equal(gradient(method, batch, index), gradient(same, batch, index))


def test_exact_kernel_steps_with_stabledrl_weights() -> None:
    """EGSPO-SA's advantages on exact kernels under clipped, self-normalised weights: by hand, slot by slot.

    Error caught: weights normalised over all slots together."""
    algorithm = Composed(
        epochs=2,
        view={"name": "selected_steps", "steps": 3},
        bound={"name": "step"},
        credit={"name": "stepwise", "weight": 0.5},
        surrogate={**SNIS, "coef": "group_sum", "ratio_scale": "sequence"},
    )
    batch = rollouts(new_toy(), algorithm)
    toy = moved(new_toy())
    new, old = units_now(toy, algorithm, batch), units_now(new_toy(), algorithm, batch)
    c = (new.lower - old.lower).detach().exp().clamp(max=6) * new.mask
    w = c / c.view(4, 4, -1).sum(1).repeat_interleave(4, 0)
    total = -(w * algorithm.advantage(batch) * new.lower).sum() / 4
    (truth,) = torch.autograd.grad(total, toy.theta)
    torch.testing.assert_close(gradient(algorithm, batch), truth, rtol=0, atol=1e-12)


FAULTS = {
    "does not fit view": {"bound": {"name": "step"}},
    "stepwise advantages need step views": {"credit": {"name": "stepwise"}},
    "counts denoising steps": {"surrogate": {**PPO, "coef": "step_mean"}},
    "divides by slice sizes": {"surrogate": {**PPO, "coef": "slice_mean"}},
    "draws no masks": {"view": {"name": "trace_slices"}, "masks": "epoch"},
    "reads the lower bound only": {"view": {"name": "block_bound"}, "bound": {"name": "sandwich", "upper": "mix"}},
    "same unit in all members": {"bound": {"name": "token"}, "surrogate": {**SNIS, "coef": "row_mean"}},
    "contradict each other": {"surrogate": {**PPO, "coef": "row_mean", "kl": "k3"}},
    "gates a ratio": {"surrogate": {**PPO, "form": "score", "coef": "row_mean"}},
    "must enclose ratio 1": {"surrogate": {**PPO, "clip_low": 1.1, "coef": "row_mean"}},
    "lies above clip_high": {"surrogate": {**SNIS, "clip_low": 9.0, "coef": "row_mean"}},
    "need the score form": {"surrogate": {"form": "ratio", "clip": "always", "coef": "row_mean"}},
    "means weight 1": {"surrogate": {**SNIS, "weights": "none", "coef": "row_mean"}},
    "needs the masks of the current policy": {
        "masks": "fresh",
        "surrogate": {**PPO, "coef": "row_mean", "kl": "k3", "beta": 0.1},
    },
    "score other tokens": {"view": {"name": "random_rate"}, "bound": {"name": "token"}, "masks": "fresh"},
    "lies above high": {"view": {"name": "random_rate", "low": 0.9, "high": 0.1}, "bound": {"name": "token"}},
    "greater than or equal to 1": {"view": {"name": "exact_count", "draws": 0}},
    "greater than 0": {"surrogate": {**SNIS, "clip_high": 0.0, "coef": "row_mean"}},
}


@pytest.mark.parametrize("sentence", FAULTS)
def test_invalid_combinations_cannot_be_built(sentence: str) -> None:
    good = {
        "view": {"name": "exact_count"},
        "bound": {"name": "sequence"},
        "surrogate": {**PPO, "coef": "row_mean"},
    }
    Composed(**good)
    with pytest.raises(ValidationError, match=sentence):
        Composed(**{**good, **FAULTS[sentence]})


def test_refusals_of_the_methods() -> None:
    with pytest.raises(ValidationError, match="needs the masks of the current policy"):
        GRPOElbo(masks="fresh", beta=0.1)
    with pytest.raises(ValidationError, match="extra_forbidden"):
        SPG(beta=0.1)
    with pytest.raises(ValidationError, match="kl_scale"):
        Objective(form="ratio", coef="row_mean", ratio_scale="sequence", kl="k2", beta=0.1, kl_scale="summed")
    assert EGSPO().objective().needs_old and not WD1().objective().needs_old
    assert TraceRL().objective().needs_reference is False and ESPO().objective().needs_reference is True
