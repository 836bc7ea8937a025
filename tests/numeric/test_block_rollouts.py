"""What the sampler saw on a block-causal policy is what the scorer scores.

Errors caught: selected passes read in a state with later blocks shown; slices of shrink 2 where 1 is asked; the active
block taken from whole blocks of the canvas on the absolute grid; scoring on the other grid.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from block_models import block_batch, block_policy

from maskgrad.algorithms import ALGORITHMS
from maskgrad.algorithms.egspo import EGSPO
from maskgrad.algorithms.tracerl import TraceRL
from maskgrad.diffusion.sampler import KeyedNoise, Record, sample
from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.diffusion.trajectory import live_mask, revealed_at
from maskgrad.likelihood.score import active_views, score, score_rows
from maskgrad.models.policy import Policy
from maskgrad.records import PromptBatch, RolloutBatch

GRIDS = ("absolute", "response")


def rollouts(policy: Policy, sampler: SamplerConfig, rows: int = 9) -> RolloutBatch:
    """Rollouts behind left-padded prompts of lengths 7, 5 and 3."""
    prompts = block_batch(policy, length=sampler.gen_length, prompts=(7, 5, 3) * (rows // 3))
    start = prompts.prompt_length
    real = prompts.attend[:, :start]
    ids = PromptBatch(ids=prompts.tokens[:, :start], real=real, sample=prompts.sample)
    path = sample(policy, ids, sampler, KeyedNoise(3, ids.sample), Record(proposals=True))
    return replace(
        prompts,
        tokens=torch.cat([ids.ids, path.tokens], 1),
        live=live_mask(path.tokens, policy.special.stops),
        trajectory=path,
        group=torch.arange(rows) // 3,
    )


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("steps_per_block", [4, 2])
def test_selected_passes_give_the_log_probs_the_sampler_recorded(grid: str, steps_per_block: int) -> None:
    policy = block_policy(dtype="float32", grid=grid)
    sampler = SamplerConfig(
        gen_length=10, block_length=4, steps_per_block=steps_per_block, temperature=0.8, stop_early=False, grid=grid
    )
    batch = rollouts(policy, sampler)
    assert batch.trajectory is not None
    egspo = EGSPO(select_rule="all", score="revealed")
    chosen = egspo.select(batch.trajectory, batch.live, batch.sample, 0)
    batch = replace(batch, selected=chosen[0], selected_weight=chosen[1])
    logp = score(policy, batch, egspo.views(batch, sampler, 0, 0), 1000).sum(1)
    committed = batch.trajectory.commit_step >= 0
    assert bool(committed.all())
    torch.testing.assert_close(logp, batch.trajectory.commit_logp, rtol=0, atol=1e-5)


@pytest.mark.parametrize("grid", GRIDS)
def test_the_kernel_of_a_pass_reads_the_positions_of_its_block(grid: str) -> None:
    """Revealed positions and tails together are the masked positions that the sampler counted in the block."""
    policy = block_policy(dtype="float32", grid=grid)
    sampler = SamplerConfig(gen_length=10, block_length=4, temperature=1.0, grid=grid, steps_per_block=3)
    batch = rollouts(policy, sampler)
    assert batch.trajectory is not None
    egspo = EGSPO(select_rule="all", score="kernel")
    chosen = egspo.select(batch.trajectory, batch.live, batch.sample, 0)
    batch = replace(batch, selected=chosen[0], selected_weight=chosen[1])
    views = egspo.views(batch, sampler, 0, 0)
    assert views.tail is not None
    exists = chosen[0] >= 0
    masked = batch.trajectory.masked.long().gather(1, chosen[0].clamp(min=0))
    assert torch.equal((views.scored | views.tail).sum(-1)[exists], masked[exists])
    assert torch.equal(views.scored, revealed_at(batch.trajectory, chosen[0]))
    logp = score(policy, batch, views, 1000)
    assert float(logp[views.tail].max()) < 1e-5 and float(logp[views.tail].min()) > -20


@pytest.mark.parametrize("grid", GRIDS)
def test_slices_are_the_conditionals_the_sampler_drew_from(grid: str) -> None:
    policy = block_policy(dtype="float32", grid=grid)
    sampler = SamplerConfig(gen_length=10, block_length=4, steps_per_block=2, temperature=1.0, grid=grid)
    batch = rollouts(policy, sampler)
    assert batch.trajectory is not None
    views = replace(TraceRL().views(batch, sampler, 0, 0), exclude_forbidden=True)
    logp = score(policy, batch, views, 1000).sum(1)
    scored = batch.live & (batch.trajectory.commit_step >= 0)
    assert torch.equal(views.scored.sum(1), scored.long())
    torch.testing.assert_close(logp[scored], batch.trajectory.commit_logp[scored], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - {"composed"}))
def test_the_ratio_on_policy_is_exactly_1(name: str) -> None:
    policy = block_policy(dtype="float32")
    sampler = SamplerConfig(gen_length=10, block_length=4, steps_per_block=2, temperature=1.0)
    algorithm, batch = ALGORITHMS[name](), rollouts(policy, sampler)
    assert batch.trajectory is not None
    chosen = algorithm.select(batch.trajectory, batch.live, batch.sample, 0)
    if chosen is not None:
        batch = replace(batch, selected=chosen[0], selected_weight=chosen[1])
    views = algorithm.views(batch, sampler, 0, 0)
    old = algorithm.units(score(policy, batch, views, 10**6), views, batch)
    index = active_views(views)
    logp = torch.zeros(views.scored.shape, dtype=torch.float32).index_put(
        index, score_rows(policy, batch, views, *index)
    )
    new = algorithm.units(logp, views, batch)
    assert torch.equal(new.lower, old.lower) and bool(new.mask.any())
    new.lower.sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in policy.parameters())
