"""A rollout is the same, token for token and pass for pass, whatever the batch, its order, the padding or the split.

Prompts are ragged rows of token ids, so every batch here has padding that depends on its other rows. The network runs
in float64: the matrix products of float32 differ in their last bits between batch shapes, and where two positions then
straddle a step of the resolution of the commit order, it flips (about once in some thousand rollouts). What the library
decides is tested exactly; one test below tests float32 on the prompts that the model was trained on.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor

from maskgrad.diffusion.batching import sample_in_chunks
from maskgrad.diffusion.sampler import KeyedNoise, Record, sample
from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.models.load import load_policy
from maskgrad.models.policy import Policy
from maskgrad.models.tokenizer import encode_prompt, left_pad
from maskgrad.records import PromptBatch, Trajectory
from maskgrad.tasks.registry import make_task

SEED, ROWS = 5, 21
EVERYTHING = Record(statistics=True, one_shot=True, proposals=True)


def ragged(count: int) -> list[list[int]]:
    """Prompts of 1 to 20 token ids, none of them special but the separator at the end."""
    draw = random.Random(0)
    return [[draw.randrange(5, 25) for _ in range(draw.randrange(20))] + [3] for _ in range(count)]


PROMPTS = ragged(ROWS)
SETTINGS: dict[str, dict[str, Any]] = {
    "temperature 1": {"gen_length": 16, "steps": 8, "temperature": 1.0},
    "greedy": {"gen_length": 16, "steps": 8},
    "max_prob": {"gen_length": 16, "steps": 8, "temperature": 1.0, "remasking": "max_prob"},
    "entropy": {"gen_length": 16, "steps": 8, "temperature": 1.0, "remasking": "entropy"},
    "margin": {"gen_length": 16, "steps": 8, "temperature": 1.0, "remasking": "margin"},
    "random": {"gen_length": 16, "steps": 8, "temperature": 1.0, "remasking": "random"},
    "random, greedy": {"gen_length": 16, "steps": 8, "remasking": "random"},
    "blocks": {"gen_length": 16, "block_length": 4, "steps": 8, "temperature": 1.0},
    "uneven blocks": {"gen_length": 14, "block_length": 4, "steps": 9, "temperature": 1.0},
    "uneven blocks as released": {
        "gen_length": 14,
        "block_length": 4,
        "steps": 9,
        "temperature": 1.0,
        "uneven": "released",
    },
    "threshold": {"gen_length": 16, "threshold": 0.6, "temperature": 1.0},
    "threshold in blocks": {"gen_length": 14, "block_length": 4, "threshold": 0.8},
    "guidance": {"gen_length": 16, "steps": 4, "temperature": 1.0, "guidance": 0.7},
    "never stop": {"gen_length": 20, "block_length": 10, "steps": 8, "temperature": 1.0, "suppress_stop": "never"},
    "stop last": {"gen_length": 20, "block_length": 10, "steps": 8, "temperature": 1.0, "suppress_stop": "delay"},
}


def batch(index: Sequence[int], pad: int, extra: int = 0, content: int | None = None) -> PromptBatch:
    """The prompts `index`, padded by `extra` more positions; padding holds `content`, or anything."""
    ids, real = left_pad([PROMPTS[i] for i in index], pad)
    ids = torch.cat([torch.full((len(index), extra), pad), ids], 1)
    real = torch.cat([torch.zeros(len(index), extra, dtype=torch.bool), real], 1)
    if content is None:
        filler = torch.arange(ids.numel()).view(ids.shape) % 25
        ids = torch.where(real, ids, filler)
    else:
        ids = torch.where(real, ids, content)
    return PromptBatch(ids=ids, real=real, sample=torch.tensor(list(index)) + 1000)


def rollout(policy: Policy, prompts: PromptBatch, config: SamplerConfig) -> Trajectory:
    return sample(policy, prompts, config, KeyedNoise(SEED, prompts.sample), EVERYTHING)


def assert_same(found: Trajectory, expected: Trajectory, rows: Sequence[int], where: str) -> None:
    """Every field of `found` against the rows of `expected`: integers exactly, floats up to rounding."""
    for field in fields(Trajectory):
        mine, theirs = getattr(found, field.name), getattr(expected, field.name)
        if not isinstance(theirs, Tensor):
            continue
        theirs = theirs[list(rows)]
        one = ("tokens", "commit_step", "commit_logp", "passes", "first_block")
        if field.name not in one:  # per pass: cut to the shorter
            cut = min(mine.shape[1], theirs.shape[1])
            assert not bool((found.passes > cut).any()), where
            mine, theirs = mine[:, :cut], theirs[:, :cut]
        if field.name in ("one_shot", "proposals"):  # passes that a row did not take hold nothing
            taken = torch.arange(mine.shape[1])[None] < found.passes[:, None]
            mine, theirs = mine[taken], theirs[taken]
        if theirs.is_floating_point():
            torch.testing.assert_close(
                mine, theirs, rtol=1e-4, atol=1e-4, msg=lambda m, f=field: f"{where}: {f.name} {m}"
            )
        else:
            wrong = (mine != theirs).nonzero()
            assert len(wrong) == 0, f"{where}: {field.name} differs at {wrong[:3].tolist()}"


@pytest.fixture(scope="module")
def exact() -> Policy:
    return load_policy("maskgrad:base_sudoku_tiny").requires_grad_(False).double()


@pytest.fixture(scope="module")
def together(exact: Policy) -> dict[str, Trajectory]:
    """All rows in one batch, per setting."""
    prompts = batch(range(ROWS), exact.special.pad, content=exact.special.pad)
    return {name: rollout(exact, prompts, SamplerConfig(**s)) for name, s in SETTINGS.items()}


@pytest.mark.parametrize("name", SETTINGS)
def test_same_rollout_in_every_batch(name: str, exact: Policy, together: dict[str, Trajectory]) -> None:
    config, expected, pad = SamplerConfig(**SETTINGS[name]), together[name], exact.special.pad
    order = random.Random(1).sample(range(ROWS), ROWS)
    layouts: dict[str, tuple[list[list[int]], int]] = {
        "alone": ([[0]], 0),
        "alone behind padding": ([[17]], 7),
        "in twos": ([[4, 20]], 1),
        "in sevens": ([order[:7]], 0),
        "all, in another order, behind padding": ([order], 3),
    }
    for where, (batches, extra) in layouts.items():
        for index in batches:
            assert_same(rollout(exact, batch(index, pad, extra), config), expected, index, f"{name}, {where}")


@pytest.mark.parametrize("micro_batch", [1, 7, 1000])
def test_same_rollout_for_every_micro_batch(micro_batch: int, exact: Policy, together: dict[str, Trajectory]) -> None:
    """With a threshold rows take different numbers of passes, so the pieces have to be padded to be joined."""
    config = SamplerConfig(**SETTINGS["threshold"])
    count = ROWS if micro_batch > 2 else 10
    prompts = batch(range(count), exact.special.pad)
    found = sample_in_chunks(exact, prompts, config, SEED, EVERYTHING, micro_batch)
    assert len(set(found.passes.tolist())) > 1
    assert_same(found, together["threshold"], range(count), f"micro_batch {micro_batch}")
    assert found.forwards == int(found.passes.sum())


def test_repeated_prompts_get_their_own_draws(exact: Policy) -> None:
    config = SamplerConfig(gen_length=16, steps=4, temperature=1.0)
    prompts = batch([9] * 8, exact.special.pad)
    several = PromptBatch(ids=prompts.ids, real=prompts.real, sample=torch.arange(8))
    assert len({tuple(row) for row in rollout(exact, several, config).tokens.tolist()}) > 1
    again = rollout(exact, prompts, config).tokens
    assert bool((again == again[0]).all()), "the same sample id gave different rollouts"


def test_seeds_differ(exact: Policy) -> None:
    config, prompts = SamplerConfig(gen_length=16, steps=4, temperature=1.0), batch(range(8), exact.special.pad)
    one, two = (sample(exact, prompts, config, KeyedNoise(s, prompts.sample)).tokens for s in (0, 1))
    assert not torch.equal(one, two)


@pytest.mark.parametrize("name", ["temperature 1", "greedy", "threshold"])
def test_same_rollout_in_float32(name: str, policy: Policy) -> None:
    task = make_task({"name": "sudoku"})
    puzzles = [encode_prompt(policy.need_tokenizer(), task.example("train", i).prompt) for i in range(ROWS)]
    rows = [ids[i % 3 :] for i, ids in enumerate(puzzles)]
    config = SamplerConfig(**SETTINGS[name])

    def run(index: Sequence[int]) -> Trajectory:
        ids, real = left_pad([rows[i] for i in index], policy.special.pad)
        return rollout(policy, PromptBatch(ids=ids, real=real, sample=torch.tensor(list(index))), config)

    expected = run(range(ROWS))
    for index in ([0], [1], list(range(9, 16)), list(reversed(range(ROWS)))):
        assert_same(run(index), expected, index, f"{name}, rows {index[:3]}")
