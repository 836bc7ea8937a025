"""The sampler's law against the enumerated kernel, and what must not change it: batch, order, padding, early stop."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from enumeration import entropies, greedy, paths
from torch import Tensor
from toy import Toy

from maskgrad.diffusion import trajectory as records_of
from maskgrad.diffusion.sampler import KeyedNoise, Record, sample
from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.records import PromptBatch, Trajectory

EVERYTHING = Record(one_shot=True, proposals=True)


def prompts(rows: int, width: int = 0, first: int = 0) -> PromptBatch:
    ids = torch.arange(rows * width).view(rows, width) % 3
    return PromptBatch(ids=ids, real=torch.ones_like(ids, dtype=torch.bool), sample=first + torch.arange(rows))


def run(toy: Toy, batch: PromptBatch, config: SamplerConfig, seed: int = 0, record: Record = EVERYTHING) -> Trajectory:
    return sample(toy, batch, config, KeyedNoise(seed, batch.sample), record)


def chi_square_p(observed: Tensor, expected: Tensor) -> float:
    """p-value of observed counts, cells with few expected counts pooled (Wilson-Hilferty normal approximation)."""
    small = expected < 10
    if bool(small.any()):
        observed = torch.cat([observed[~small], observed[small].sum()[None]])
        expected = torch.cat([expected[~small], expected[small].sum()[None]])
    keep = expected > 0
    assert int(observed[~keep].sum()) == 0
    x, k = float(((observed - expected)[keep] ** 2 / expected[keep]).sum()), int(keep.sum()) - 1
    z = ((x / k) ** (1 / 3) - 1 + 2 / (9 * k)) / math.sqrt(2 / (9 * k))
    return 0.5 * math.erfc(z / math.sqrt(2))


def code(tokens: Tensor, commit: Tensor) -> Tensor:
    """One integer per trajectory: tokens and passes in base 8."""
    weights = 8 ** torch.arange(tokens.shape[1] * 2)
    return (torch.cat([tokens, commit.to(torch.int64)], 1) * weights).sum(1)


@pytest.mark.parametrize(
    ("rule", "tau", "extra"),
    [
        ("low_confidence", 1.0, {"steps": 2}),
        ("low_confidence", 0.9, {"steps": 2}),
        ("low_confidence", 0.5, {"steps": 2}),
        ("low_confidence", 0.9, {"threshold": 0.4}),
        ("low_confidence", 0.9, {"steps": 3, "block_length": 2}),
        ("random", 0.9, {"steps": 2}),
        ("max_prob", 0.5, {"steps": 2}),
        ("entropy", 0.9, {"steps": 2}),
    ],
)
def test_trajectories_follow_the_enumerated_kernel(rule: str, tau: float, extra: dict) -> None:
    """2e5 trajectories against all enumerated ones (tokens and commit order), chi-square p > 1e-3.

    Errors caught: Gumbel noise scaled by 1/tau; confidence from tempered probabilities; MASK proposable; least
    confident positions revealed.
    """
    toy, rows = Toy(seed=21), 200_000
    config = SamplerConfig(gen_length=4, temperature=tau, remasking=rule, stop_early=False, **extra)
    path = run(toy, prompts(rows, 0), config, seed=3, record=Record(statistics=False))
    found = paths(toy, config, scores=False)
    commit = torch.full((len(found), 4), -1)
    for row, p in enumerate(found):
        for step, chosen in enumerate(p.revealed):
            commit[row, list(chosen)] = step
    names = code(torch.tensor([p.states[-1] for p in found]), commit)
    seen, counts = code(path.tokens, path.commit_step).unique(return_counts=True)
    assert bool(torch.isin(seen, names).all()), "a trajectory of probability zero was sampled"
    observed = torch.zeros(len(names), dtype=torch.float64)
    observed[(names[:, None] == seen).nonzero()[:, 0]] = counts[(names[:, None] == seen).nonzero()[:, 1]].double()
    expected = rows * torch.tensor([p.prob for p in found], dtype=torch.float64)
    assert chi_square_p(observed, expected) > 1e-3


def test_delayed_stop_tokens_are_never_sure() -> None:
    """threshold with suppress_stop delay: a proposed stop token ranks last and does not count as sure, so that the pass
    commits no other position in its place. Error caught: count by probability alone (kernel no longer exact)."""
    toy, rows = Toy(seed=2, stops=(2,)), 4000
    config = SamplerConfig(gen_length=4, threshold=0.3, temperature=0.9, stop_early=False, suppress_stop="delay")
    path = run(toy, prompts(rows), config)
    logp = toy.all_logits(torch.full((1, 4), 3))[0].detach().log_softmax(-1)
    proposal = path.proposals[:, 0].to(torch.int64)
    confidence = logp.expand(rows, -1, -1).gather(2, proposal[..., None])[..., 0].exp()
    sure = (confidence >= 0.3) & (proposal != 2)
    first = path.commit_step == 0
    some = sure.any(1)
    assert torch.equal(first[some], sure[some]) and bool((first[~some].sum(1) == 1).all())
    stop_among_others = (first & (proposal == 2)).any(1) & (proposal != 2).any(1)
    assert not bool(stop_among_others.any())


def test_large_vocabulary() -> None:
    """5k draws from V = 2000 match softmax(logits / tau). Error caught: temperature squared."""
    toy, tau, rows = Toy(vocab=2000, length=1, context=False, seed=7), 0.6, 5_000
    path = run(toy, prompts(rows), SamplerConfig(gen_length=1, temperature=tau), record=Record(statistics=False))
    p = (toy.all_logits(torch.zeros(1, 1, dtype=torch.int64))[0, 0].detach() / tau)[:2000].softmax(0)
    assert chi_square_p(torch.bincount(path.tokens[:, 0], minlength=2000).double(), rows * p) > 1e-3


def test_records_equal_recomputation() -> None:
    """Entropies, one-shot completions, proposals and log-probs recorded online equal the oracle's at each state.

    Errors caught: one-shot of the state after the pass; MASK allowed in the argmax; entropy at the wrong temperature.
    """
    toy, config = Toy(seed=8), SamplerConfig(gen_length=4, block_length=2, steps=3, temperature=0.7, stop_early=False)
    batch = prompts(12, 2)
    path = run(toy, batch, config)
    for row in range(12):
        prompt = tuple(batch.ids[row].tolist())
        for step in range(int(path.passes[row])):
            hidden = records_of.hidden_before(path, torch.tensor([[step]]).expand(12, 1))[row, 0]
            state = tuple(torch.where(hidden, 3, path.tokens[row]).tolist())
            new = tuple((path.commit_step[row] == step).nonzero()[:, 0].tolist())
            window = tuple(i for i in range(4) if hidden[i] and i // 2 == new[0] // 2)
            assert tuple(path.one_shot[row, step].tolist()) == greedy(toy, state, prompt)
            assert all((path.proposals[row, step, i] >= 0) == (i in window) for i in range(4))
            assert all(path.proposals[row, step, i] == path.tokens[row, i] for i in new)
            want = [entropies(toy, state, prompt, w, t) for t in (None, 0.7) for w in (new, window)]
            have = [path.entropy_revealed, path.entropy_masked, path.joint_revealed, path.joint_masked]
            assert all(abs(float(h[row, step]) - x) < 1e-5 for h, x in zip(have, want, strict=True))


def same(a: Trajectory, b: Trajectory, rows_a, rows_b) -> None:
    for name in ("tokens", "commit_step", "commit_logp", "passes"):
        assert torch.equal(getattr(a, name)[rows_a], getattr(b, name)[rows_b]), name


@pytest.mark.parametrize("rule", ["low_confidence", "random"])
def test_rollouts_do_not_depend_on_the_batch(rule: str) -> None:
    """Alone, reordered, or left-padded beside others: the same rollout. Error caught: noise keyed by the row index."""
    toy = Toy(seed=9, stops=(2,))
    config = SamplerConfig(gen_length=4, block_length=2, steps=3, temperature=0.9, remasking=rule)
    batch = prompts(16, 2, first=100)
    whole = run(toy, batch, config)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(0))
    shuffled = PromptBatch(ids=batch.ids[order], real=batch.real[order], sample=batch.sample[order])
    same(whole, run(toy, shuffled, config), order, slice(None))
    for row in (0, 7):
        part = slice(row, row + 1)
        alone = PromptBatch(ids=batch.ids[part], real=batch.real[part], sample=batch.sample[part])
        same(whole, run(toy, alone, config), part, slice(None))
    for junk in (0, 2):
        pad = torch.full((16, 3), junk)
        padded = PromptBatch(
            ids=torch.cat([pad, batch.ids], 1), real=torch.cat([pad < 0, batch.real], 1), sample=batch.sample
        )
        same(whole, run(toy, padded, config), slice(None), slice(None))


@pytest.mark.parametrize("rule", ["low_confidence", "random"])
def test_early_stop_changes_nothing_up_to_the_stop(rule: str) -> None:
    """stop_early ends a row at the first finished block with a stop token; tokens up to it are those of the full run.

    Error caught: whole batch stopped with its first row.
    """
    toy = Toy(seed=10, stops=(2,))
    config = SamplerConfig(gen_length=4, block_length=2, steps=4, temperature=1.0, remasking=rule)
    full = run(toy, prompts(64, 1), config.model_copy(update={"stop_early": False}))
    early = run(toy, prompts(64, 1), config)
    live = records_of.live_mask(full.tokens, (2,))
    assert torch.equal(live, records_of.live_mask(early.tokens, (2,)))
    assert torch.equal(full.tokens[live], early.tokens[live])
    assert torch.equal(full.commit_step[live], early.commit_step[live])
    stopped = (full.tokens[:, :2] == 2).any(1)
    assert 0 < int(stopped.sum()) < 64
    assert torch.equal(early.passes, torch.where(stopped, 2, 4))
    assert bool((early.commit_step[stopped][:, 2:] == -1).all())
    assert bool((early.tokens[stopped][:, 2:] == 2).all())
    assert early.forwards == int(early.passes.sum())


def test_fixed_seed_repeats_and_seeds_differ() -> None:
    """Draws are a function of the run seed and the sample id. Error caught: seed left out of the key."""
    toy, config = Toy(seed=12), SamplerConfig(gen_length=4, temperature=1.0, stop_early=False)
    batch = prompts(32, 1)
    a, b = run(toy, batch, config, seed=1), run(toy, batch, config, seed=2)
    same(a, run(toy, batch, config, seed=1), slice(None), slice(None))
    assert not torch.equal(a.tokens, b.tokens)
    other = replace(batch, sample=batch.sample + 1)
    assert not torch.equal(a.tokens, run(toy, other, config, seed=1).tokens)
