"""Corners of block-causal policies: shifted predictions, recomputed layers, subsets of rows, half precision.

Errors caught: the shifted state of a block's first token read in its noisy copy, or unshifted; the clean stream without
the block before the one that is read; blocks of other rows after a choice of rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from block_models import SIZES, block_batch, block_policy
from torch import Tensor

from maskgrad.algorithms import StableDRL
from maskgrad.diffusion.gap import sampler_gap
from maskgrad.diffusion.sampler import KeyedNoise, sample
from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.likelihood.score import score, score_rows
from maskgrad.models.families import family_of
from maskgrad.models.load import new_policy
from maskgrad.models.policy import Policy
from maskgrad.records import PromptBatch
from maskgrad.training.collect import rows_of

SAMPLER = SamplerConfig(gen_length=10, block_length=4, steps_per_block=2, temperature=0.8, stop_early=False)


def shifted_policy(grid: str = "absolute", dtype: str = "float64") -> Policy:
    """A block-causal decoder whose states predict the next token."""
    config: dict[str, Any] = {**SIZES, "model_type": "qwen3", "block_size": 4, "logit_shift": 1}
    policy = new_policy(family_of(config), config, None, 0, dtype=dtype)
    with torch.no_grad():
        policy.head.weight.mul_(20)
    policy.grid = grid
    return policy


def one_pass_per_block(policy: Policy, tokens: Tensor, noisy: Tensor, attend: Tensor, start: int) -> Tensor:
    """States [B,L,d] that predict the canvas, each block on [clean text before it | the block of `noisy`]."""
    number, out = policy.block_numbers(attend, start), []
    for row in range(len(tokens)):
        states = []
        for k in range(start, tokens.shape[1]):
            own = number[row] == number[row, k]
            text = torch.where(own, noisy[row], tokens[row])[None]
            states.append(policy.aligned(policy.hidden(text, attend[row : row + 1], start))[0, k])
        out.append(torch.stack(states))
    return torch.stack(out)


@pytest.mark.parametrize("layout", ["needed", "doubled"])
@pytest.mark.parametrize("grid", ["absolute", "response"])
def test_shifted_predictions_of_a_staircase_pass(grid: str, layout: Any) -> None:
    policy = shifted_policy(grid).requires_grad_(False)
    batch = block_batch(policy, length=9, prompts=(7, 4, 2))
    start, row = batch.prompt_length, torch.arange(3)
    hide = torch.rand(3, 9, generator=torch.Generator().manual_seed(3)) < 0.5
    noisy = batch.tokens.clone()
    noisy[:, start:][hide] = policy.special.mask
    wanted = one_pass_per_block(policy, batch.tokens, noisy, batch.attend, start)
    for read in (torch.ones_like(hide), hide, torch.arange(9)[None].expand(3, -1) % 4 == 1):
        found = policy.staircase_at(batch.tokens, batch.attend, noisy, row, read, layout)
        torch.testing.assert_close(found, wanted[read], rtol=0, atol=1e-10)


@pytest.mark.parametrize("grid", ["absolute", "response"])
def test_a_shifted_block_model_is_sampled_with_its_cache_and_scored_as_it_was_sampled(grid: str) -> None:
    policy = shifted_policy(grid).requires_grad_(False)
    batch = block_batch(policy, length=10, prompts=(7, 4, 2, 8))
    start = batch.prompt_length
    prompts = PromptBatch(ids=batch.tokens[:, :start], real=batch.attend[:, :start], sample=batch.sample)
    config = SAMPLER.model_copy(update={"grid": grid})
    found = {}
    for cache in ("none", "exact"):
        kind = config.model_copy(update={"cache": cache})
        found[cache] = sample(policy, prompts, kind, KeyedNoise(1, prompts.sample))
    assert torch.equal(found["none"].tokens, found["exact"].tokens)
    assert torch.equal(found["none"].commit_step, found["exact"].commit_step)
    torch.testing.assert_close(found["none"].commit_logp, found["exact"].commit_logp, rtol=0, atol=1e-6)
    assert sampler_gap(policy, prompts, found["exact"], config, 0) < 1e-6


def test_recomputed_layers_give_the_same_gradient() -> None:
    method, gradients = StableDRL(draws=4), []
    for again in (False, True):
        policy = block_policy()
        policy.set_gradient_checkpointing(again)
        batch = block_batch(policy)
        views = method.views(batch, SAMPLER, 0, 0)
        row, view = views.scored.any(-1).nonzero(as_tuple=True)
        score_rows(policy, batch, views, row, view).sum().backward()
        gradients.append([p.grad.clone() for p in policy.parameters() if p.grad is not None])
    assert len(gradients[0]) == len(gradients[1]) > 10
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_a_choice_of_rows_keeps_its_blocks() -> None:
    policy, method = block_policy(), StableDRL(draws=2)
    batch = block_batch(policy, prompts=(7, 5, 3, 4, 8))
    whole = score(policy, batch, method.views(batch, SAMPLER, 0, 0), 100)
    rows = torch.tensor([1, 4])
    part = rows_of(batch, rows)
    assert torch.equal(part.block, batch.block[rows])  # type: ignore[index]
    found = score(policy, part, method.views(part, SAMPLER, 0, 0), 3)
    torch.testing.assert_close(found, whole[rows], rtol=0, atol=1e-10)


@pytest.mark.parametrize("prompt", [1, 3, 4, 8])
@pytest.mark.parametrize("length", [4, 6])
def test_one_row_and_short_canvases(prompt: int, length: int) -> None:
    """A batch of one, prompts of whole blocks and not, canvases of whole blocks and not; a stop may come at once."""
    policy = block_policy(dtype="float32").requires_grad_(False)
    policy.special = replace(policy.special, stops=tuple(range(0, 17, 2)))
    ids = torch.arange(prompt)[None]
    prompts = PromptBatch(ids=ids, real=torch.ones_like(ids, dtype=torch.bool), sample=torch.tensor([5]))
    found = {}
    for cache in ("none", "exact"):
        config = SamplerConfig(gen_length=length, block_length=4, temperature=1.0, cache=cache)  # type: ignore[arg-type]
        found[cache] = sample(policy, prompts, config, KeyedNoise(0, prompts.sample))
    assert torch.equal(found["none"].tokens, found["exact"].tokens)
    assert not bool((found["exact"].tokens == policy.special.mask).any())


def test_half_precision_is_finite_and_near() -> None:
    policy = block_policy(dtype="bfloat16").requires_grad_(False)
    batch = block_batch(policy, prompts=(7, 5, 3))
    start = batch.prompt_length
    prompts = PromptBatch(ids=batch.tokens[:, :start], real=batch.attend[:, :start], sample=batch.sample)
    path = sample(policy, prompts, SAMPLER, KeyedNoise(0, prompts.sample))
    assert bool(path.commit_logp.isfinite().all()) and bool((path.commit_step >= 0).all())
    assert sampler_gap(policy, prompts, path, SAMPLER, 0) < 0.2
    method = StableDRL(draws=2)
    views = method.views(batch, SAMPLER, 0, 0)
    exact = block_policy(dtype="float32").requires_grad_(False)
    near, wanted = (score(p, batch, views, 100) for p in (policy, exact))
    assert near.dtype == torch.float32
    assert float((near - wanted).abs().mean()) < 0.2
