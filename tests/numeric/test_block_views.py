"""Views of block-causal policies: the block-diffusion ELBO against enumeration, slices against a loop.

Errors caught: one level for all blocks; weight n/l with l from the whole canvas; rate masks conditioned on being
non-empty without the factor in the weight; (n+1)/l where l starts at 1; draws summed instead of averaged; padding
behind the stop counted or shown; draws that depend on other rows or on padding; steps ranked over the canvas.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from block_models import block_batch, block_policy
from torch import Tensor

from maskgrad.likelihood import block_views, bounds
from maskgrad.likelihood.score import score
from maskgrad.models.policy import Policy
from maskgrad.records import MaskedViews, RolloutBatch, Trajectory

DRAWS: list[dict[str, Any]] = [
    {"weights": "count", "pairing": "independent"},
    {"weights": "count", "pairing": "antithetic"},
    {"weights": "count", "pairing": "complementary"},
    {"weights": "rate", "pairing": "independent"},
    {"weights": "rate", "pairing": "antithetic"},
]
each_draw = pytest.mark.parametrize("options", DRAWS, ids=lambda o: f"{o['weights']}-{o['pairing']}")


def repeated(batch: RolloutBatch, row: int, times: int) -> RolloutBatch:
    """`times` copies of one row under different sample ids."""
    assert batch.block is not None
    many = {name: getattr(batch, name)[row].expand(times, -1) for name in ("tokens", "attend", "live", "block")}
    zero = torch.zeros(times)
    return RolloutBatch(**many, group=zero.long(), sample=torch.arange(times), reward=zero)


def log_probs(policy: Policy, batch: RolloutBatch, row: int, hidden: Tensor) -> Tensor:
    """[M,L] log-probs of the canvas under the masks `hidden` bool [M,L] of one row."""
    prompt = torch.zeros(len(hidden), batch.prompt_length, dtype=torch.bool)
    views = MaskedViews(
        hidden=torch.cat([prompt, hidden], 1)[None],
        scored=hidden[None],
        weight=torch.ones(1, *hidden.shape),
        unit=torch.zeros(1, *hidden.shape, dtype=torch.int64),
        units=1,
    )
    one = slice(row, row + 1)
    assert batch.block is not None
    alone = replace(
        batch, tokens=batch.tokens[one], attend=batch.attend[one], live=batch.live[one], block=batch.block[one]
    )
    return score(policy, alone, views, 64)[0]


def exact_elbo(policy: Policy, batch: RolloutBatch, row: int) -> float:
    """sum_b sum_l (1/l) E[sum of hidden log-probs | l of block b hidden], every mask of every block enumerated."""
    assert batch.block is not None
    total = 0.0
    for block in batch.block[row].unique().tolist():
        inside = ((batch.block[row] == block) & batch.live[row]).nonzero()[:, 0].tolist()
        for count in range(1, len(inside) + 1):
            masks = torch.zeros(0, batch.live.shape[1], dtype=torch.bool)
            for chosen in itertools.combinations(inside, count):
                hidden = ~batch.live[row] & (batch.block[row] == block)
                hidden[list(chosen)] = True
                masks = torch.cat([masks, hidden[None]])
            logp = log_probs(policy, batch, row, masks)
            total += float(torch.where(masks & batch.live[row], logp, 0.0).sum(1).mean()) / count
    return total


@each_draw
@pytest.mark.parametrize("grid", ["absolute", "response"])
def test_estimate_is_unbiased(grid: str, options: dict[str, Any]) -> None:
    """The masks of 6000 rollouts. A mask of a block is scored once; its frequency and weight come from the views."""
    policy = block_policy(3, grid=grid)
    batch = block_batch(policy, length=7)
    for row in (0, 1):
        many = repeated(batch, row, 6000)
        views = block_views.block_elbo(many, 5, draws=2, **options)
        assert batch.block is not None
        parts = torch.zeros(6000, 2)
        for block in batch.block[row].unique().tolist():
            inside = batch.block[row] == block
            flat = views.hidden[:, :, batch.prompt_length :].flatten(0, 1) & inside
            masks, index = flat.unique(dim=0, return_inverse=True)
            logp = log_probs(policy, batch, row, masks)
            read = views.scored.flatten(0, 1) & inside
            parts += torch.where(read, views.weight.flatten(0, 1) * logp[index], 0.0).sum(1).view(6000, 2).float()
        found = parts.sum(1)
        wanted = exact_elbo(policy, batch, row)
        error = float(found.std()) / 6000**0.5
        assert abs(float(found.mean()) - wanted) < 4 * error
        assert error < 0.02 * abs(wanted)


@each_draw
@pytest.mark.parametrize("grid", ["absolute", "response"])
def test_masks_of_a_view(grid: str, options: dict[str, Any]) -> None:
    policy = block_policy(grid=grid)  # on the response grid the second row stops inside a block
    batch = block_batch(policy)
    assert batch.block is not None
    views = block_views.block_elbo(batch, 1, draws=4, **options)
    hidden = views.hidden[:, :, batch.prompt_length :]
    assert not bool(views.hidden[:, :, : batch.prompt_length].any())
    assert torch.equal(views.scored, hidden & batch.live[:, None])
    assert bool(hidden[~batch.live[:, None].expand(hidden.shape)].all())
    for row in range(3):
        for block in batch.block[row].unique().tolist():
            inside = (batch.block[row] == block) & batch.live[row]
            n, hit = int(inside.sum()), views.scored[row][:, inside]
            if n == 0:
                continue
            if options["pairing"] == "complementary":
                assert torch.equal(hit[0::2], ~hit[1::2])
                counted = (n + 1) / hit.sum(1).clamp(min=1) / 4
            else:
                assert bool(hit.any(1).all()), "a block without a hidden token"
                counted = n / hit.sum(1) / 4
            if options["weights"] == "count":
                weights = views.weight[row][:, inside]
                assert torch.allclose(weights, torch.where(hit, counted[:, None].double(), 0.0))


def test_levels_of_blocks_are_independent() -> None:
    """Counts of two blocks of a view: uniform, and uncorrelated over rollouts."""
    policy = block_policy()
    batch = repeated(block_batch(policy, prompts=(4,)), 0, 4000)
    views = block_views.block_elbo(batch, 2, draws=1)
    counts = torch.stack([views.scored[:, 0, 4 * b : 4 * b + 4].sum(1).float() for b in (0, 1)])
    assert abs(float(torch.corrcoef(counts)[0, 1])) < 4 / 4000**0.5
    share = torch.bincount(counts[0].long(), minlength=5)[1:] / 4000
    assert (share - 0.25).abs().max() < 0.03


@each_draw
def test_masks_depend_on_nothing_but_the_row(options: dict[str, Any]) -> None:
    policy = block_policy()
    batch = block_batch(policy)
    views = block_views.block_elbo(batch, 1, draws=3, **options)
    assert batch.block is not None
    part = {n: getattr(batch, n)[2:] for n in ("tokens", "attend", "live", "block", "group", "sample", "reward")}
    part["tokens"], part["attend"] = part["tokens"][:, 4:], part["attend"][:, 4:]  # less padding, fewer rows
    alone = block_views.block_elbo(RolloutBatch(**part), 1, draws=3, **options)
    assert torch.equal(alone.scored[0], views.scored[2]) and torch.equal(alone.weight[0], views.weight[2])


def test_bounds_equal_a_loop() -> None:
    policy = block_policy()
    batch = block_batch(policy)
    views = block_views.block_elbo(batch, 1, draws=3)
    logp = score(policy, batch, views, 16)
    units = bounds.block_sandwich_units(logp, views, batch.live, kind="mix", beta=1.5, omega=0.3)
    for row in range(3):
        live = int(batch.live[row].sum())
        elbo = sum(float(views.weight[row, n, k] * logp[row, n, k]) for n in range(3) for k in range(10)) / live
        eubo, places = 0.0, 0
        for k in range(10):
            seen = [n for n in range(3) if bool(views.scored[row, n, k])]
            if seen:
                places += 1
                inner = sum(float(views.weight[row, n, k]) * float((1.5 * logp[row, n, k]).exp()) for n in seen)
                eubo += float(torch.tensor(inner, dtype=torch.float64).log())
        assert abs(float(units.lower[row]) - elbo) < 1e-10
        assert abs(float(units.upper[row]) - (0.3 * eubo / (1.5 * places) + 0.7 * elbo)) < 1e-10


def path_of(batch: RolloutBatch, commit: Tensor) -> Trajectory:
    steps = torch.zeros(len(commit), 1)
    whole = dict.fromkeys(("rank_floor", "entropy_revealed", "entropy_masked", "joint_revealed", "joint_masked"), steps)
    return Trajectory(
        tokens=batch.completion,
        commit_step=commit.to(torch.int16),
        commit_logp=torch.zeros(commit.shape),
        passes=commit.amax(1) + 1,
        revealed=steps.to(torch.int16),
        masked=steps.to(torch.int16),
        **whole,
    )


@pytest.mark.parametrize("grid", ["absolute", "response"])
@pytest.mark.parametrize("shrink", [1, 2, 3])
def test_slices_equal_a_loop(grid: str, shrink: int) -> None:
    """Random commit maps with gaps and never-committed positions."""
    policy = block_policy(grid=grid)
    batch = block_batch(policy)
    commit = torch.randint(-1, 6, (3, 10), generator=torch.Generator().manual_seed(4))
    batch = replace(batch, trajectory=path_of(batch, commit))
    assert batch.block is not None
    views = block_views.block_slices(batch, shrink=shrink)
    hidden = views.hidden[:, :, batch.prompt_length :]
    for row in range(3):
        for block in batch.block[row].unique().tolist():
            inside = (batch.block[row] == block).nonzero()[:, 0].tolist()
            steps = sorted({int(commit[row, k]) for k in inside} - {-1})
            for n in range(hidden.shape[1]):
                now = steps[n * shrink : (n + 1) * shrink]
                shown = set(steps[: n * shrink])
                for k in inside:
                    assert bool(hidden[row, n, k]) == (int(commit[row, k]) not in shown)
                    assert bool(views.scored[row, n, k]) == (int(commit[row, k]) in now and bool(batch.live[row, k]))
    committed = batch.live & (commit >= 0)
    assert torch.equal(views.scored.sum(1), committed.long())
