"""log pi(y'|y) of a denoising pass against brute-force enumeration of every proposal (EGSPO 2603.12554 section 2)."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from enumeration import Branch, Path, branches, local, merge, rollouts, trajectory
from toy import Toy

from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.likelihood import bounds, views
from maskgrad.likelihood.score import active_views, score_rows

M = 3
#: name -> (state before the pass, block length, position counts revealed per pass)
STATES = {
    "all masked": ((M, M, M, M), 4, 2),
    "partially revealed": ((M, 2, M, M), 4, 2),
    "last pass of the block": ((M, 0, 1, M), 4, 2),
    "first block": ((M, M, M, M), 2, 1),
    "second block": ((1, 0, M, M), 2, 1),
}
RULES = ("random", "max_prob", "entropy", "margin", "low_confidence")
PROMPT = (1,)


def setting(rule: str, tau: float, block: int, count: int, **extra) -> SamplerConfig:
    return SamplerConfig(
        gen_length=4, block_length=block, steps=4 // count, temperature=tau, remasking=rule, stop_early=False, **extra
    )


def window_of(state: tuple[int, ...], block: int) -> range:
    start = next(i for i, y in enumerate(state) if y == M) // block * block
    return range(start, start + block)


def produced(toy: Toy, state, found, sampler: SamplerConfig, score: str):
    """Production log-probs [n] and their gradients [n,D] of the pass that makes each branch of `found`."""
    rows = []
    for b in found:
        rest = tuple(i for i, y in enumerate(b.after) if y == M)
        final = tuple(0 if y == M else y for y in b.after)
        before = tuple(i for i, y in enumerate(state) if y != M)
        empty = {i: 0 for i in before}
        rows.append(Path(1.0, [(M,) * 4, state, b.after, final], [before, b.revealed, rest], [empty, b.proposal, {}]))
    path = trajectory(toy, rows, sampler, PROMPT)
    ones = torch.ones(len(rows), 1)
    batch = rollouts(path, ones[:, 0], PROMPT, selected=ones.to(torch.int64), selected_weight=ones)
    seen = views.selected_steps(batch, sampler, score)
    row, view = active_views(seen)
    values = score_rows(toy, batch, seen, row, view)
    logp = torch.zeros(seen.scored.shape, dtype=values.dtype).index_put((row, view), values)
    lower = bounds.step_units(logp, seen).lower[:, 0]
    (grads,) = torch.autograd.grad(lower, toy.theta, torch.eye(len(rows), dtype=lower.dtype), is_grads_batched=True)
    return lower.detach(), grads


def check_kernel(toy: Toy, state, sampler: SamplerConfig, count: int, score: str = "kernel") -> None:
    found = merge(branches(toy, state, PROMPT, window_of(state, sampler.block), count, sampler))
    value, grad = produced(toy, state, found.values(), sampler, score)
    k = torch.tensor([b.prob for b in found.values()], dtype=torch.float64)
    masked = sum(state[i] == M for i in window_of(state, sampler.block))
    # The choice of positions under `random` has no parameters; its constant probability is left out of log pi.
    constant = math.log(math.comb(masked, count)) if sampler.remasking == "random" else 0.0
    torch.testing.assert_close(value - constant, k.log(), rtol=0, atol=1e-10)
    torch.testing.assert_close(grad, torch.stack([b.full for b in found.values()]), rtol=0, atol=1e-10)
    assert abs(float((value - constant).exp().sum()) - 1) < 1e-10
    assert float((value.exp()[:, None] * grad).sum(0).abs().max()) < 1e-10


@pytest.mark.parametrize("tau", [1.0, 0.9, 0.5])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", STATES)
def test_kernel_is_the_merged_probability(name: str, rule: str, tau: float) -> None:
    """Value = log of the merged probability, gradient = merged score, sum over next states 1, E[score] = 0 (O3, O12).

    Deliberate errors caught: tail mass untempered; MASK left in the normaliser of p^tau; tail dropped; tail over later
    blocks; state after the pass.
    """
    state, block, count = STATES[name]
    check_kernel(Toy(seed=1), state, setting(rule, tau, block, count), count)


@pytest.mark.parametrize("tau", [1.0, 0.5])
@pytest.mark.parametrize("theta", [0.3, 0.45, 0.9])
@pytest.mark.parametrize("state", [(M, M, M, M), (M, 2, M, M), (1, M, M, 0)])
def test_kernel_of_the_threshold_rule(state, theta: float, tau: float) -> None:
    """Commit everything at least theta sure, or the best one. Error caught: event `below c*` when c* >= theta."""
    sampler = SamplerConfig(gen_length=4, threshold=theta, temperature=tau, stop_early=False)
    check_kernel(Toy(seed=2), state, sampler, 0)


@pytest.mark.parametrize("tau", [1.0, 0.7])
def test_kernel_with_ties(tau: float) -> None:
    """Equal logits at all positions and tokens: every rank ties, leftmost first. Errors caught: `<` without the
    position rule; ties rightmost first."""
    for keep in (0.0, 1.0):  # all tied | tied across positions only
        toy = Toy(seed=3)
        with torch.no_grad():
            per_token = toy.theta[: toy.rows].clone() * keep
            toy.theta.zero_()
            toy.theta[: toy.length * toy.rows] = per_token.repeat(toy.length)
        for state, block, count in STATES.values():
            check_kernel(toy, state, setting("low_confidence", tau, block, count), count)


@pytest.mark.parametrize(
    ("mode", "plan"), [("never", {"steps": 2}), ("delay", {"steps": 2}), ("delay", {"threshold": 0.3})]
)
def test_kernel_where_stop_tokens_wait_or_are_banned(mode: str, plan: dict) -> None:
    """suppress_stop never (stop tokens leave p^tau) and delay (they rank last, never sure) match the enumeration.

    Errors caught: stop tokens kept in the tempered normaliser; delayed tokens ranked by their probability.
    """
    toy = Toy(seed=4, stops=(2,))
    sampler = SamplerConfig(gen_length=4, temperature=0.9, suppress_stop=mode, stop_early=False, **plan)
    for state in ((M, M, M, M), (M, 1, M, M)):
        found = merge(suppressed(toy, state, sampler))
        value, grad = produced(toy, state, found.values(), sampler, "kernel")
        k = torch.tensor([b.prob for b in found.values()], dtype=torch.float64)
        assert abs(float(k.sum()) - 1) < 1e-12
        torch.testing.assert_close(value, k.log(), rtol=0, atol=1e-10)
        torch.testing.assert_close(grad, torch.stack([b.full for b in found.values()]), rtol=0, atol=1e-10)


def suppressed(toy: Toy, state, sampler: SamplerConfig) -> list[Branch]:
    """Branches with the stop token 2 banned, or ranked behind all others and never sure."""
    banned = sampler.suppress_stop == "never"
    if banned:
        toy.forbidden = toy.forbidden | toy.stop_mask
    here = local(toy, state, PROMPT, sampler.temperature)
    toy.forbidden = torch.arange(toy.rows) == toy.vocab
    masked = [i for i, y in enumerate(state) if y == M]
    out = []
    for tokens in itertools.product(range(2 if banned else 3), repeat=len(masked)):
        chosen = dict(zip(masked, tokens, strict=True))
        value = {i: -1 if v == 2 else round(float(here.plain[i, v].exp()) * 2**16) for i, v in chosen.items()}
        sure = sum(x >= (sampler.threshold or 0) * 2**16 for x in value.values())
        count = 2 if sampler.threshold is None else max(1, sure)
        best = tuple(sorted(sorted(masked, key=lambda i: (-value[i], i))[:count]))
        prob = math.exp(sum(float(here.tempered[i, v]) for i, v in chosen.items()))
        after = tuple(chosen[i] if i in best else y for i, y in enumerate(state))
        out.append(Branch(prob, chosen, best, after, sum(here.d_tempered[i, v] for i, v in chosen.items())))
    return out


@pytest.mark.parametrize("tau", [1.0, 0.5])
@pytest.mark.parametrize("rule", RULES)
def test_proposal_score_averages_to_the_kernel_score(rule: str, tau: float) -> None:
    """`proposal`: value = log-prob of all proposals; its mean given y' is the kernel score (Rao-Blackwell).

    Error caught: scoring the revealed tokens only.
    """
    toy, state = Toy(seed=5), (M, 2, M, M)
    sampler = setting(rule, tau, 4, 2)
    found = branches(toy, state, PROMPT, range(4), 2, sampler)
    value, grad = produced(toy, state, found, sampler, "proposal")
    sets = math.comb(3, 2) if rule == "random" else 1
    p = torch.tensor([b.prob for b in found], dtype=torch.float64)
    torch.testing.assert_close(value.exp() / sets, p, rtol=0, atol=1e-12)
    for after, kernel in merge(found).items():
        at = torch.tensor([b.after == after for b in found])
        mean = (p[at, None] * grad[at]).sum(0) / p[at].sum()
        torch.testing.assert_close(mean, kernel.full, rtol=0, atol=1e-10)


@pytest.mark.parametrize("tau", [1.0, 0.5])
def test_revealed_is_exact_only_where_the_rule_ignores_tokens(tau: float) -> None:
    """`revealed` equals the kernel for token-free rules and not for low_confidence (spec 2.1).

    Error caught: a tail given to `revealed`."""
    toy, state = Toy(seed=6), (M, M, M, M)
    for rule in RULES[:-1]:
        check_kernel(toy, state, setting(rule, tau, 4, 2), 2, "revealed")
    with pytest.raises(AssertionError):
        check_kernel(toy, state, setting("low_confidence", tau, 4, 2), 2, "revealed")
