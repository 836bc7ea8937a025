"""The exact cache: the same rollout as without it, and nothing sent through the network twice.

The model is a random block-causal one in float64, where only the order of sums differs; one test runs float32.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from maskgrad.diffusion import trajectory as paths
from maskgrad.diffusion.sampler import KeyedNoise, Record, sample
from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.errors import UserError
from maskgrad.models.families import LLADA, SDAR
from maskgrad.models.load import new_policy
from maskgrad.models.policy import Policy
from maskgrad.models.tokenizer import left_pad
from maskgrad.records import PromptBatch, Trajectory

BLOCK = 4
SIZES: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 32,
    "max_position_embeddings": 128,
    "rope_theta": 10000.0,
    "vocab_size": 20,
    "mask_token_id": 19,
    "eos_token_id": 18,
    "pad_token_id": 17,
    "block_size": BLOCK,
}
EVERYTHING = Record(statistics=True, one_shot=True, proposals=True)
#: Lengths of the prompts: shorter than a block, whole blocks, and in between.
LENGTHS = [1, 2, 3, 4, 5, 7, 8, 9, 12, 14]
SETTINGS: dict[str, dict[str, Any]] = {
    "static": {"gen_length": 12, "steps_per_block": 4, "temperature": 1.0},
    "static, three passes": {"gen_length": 13, "steps_per_block": 3, "temperature": 1.0},
    "greedy": {"gen_length": 12, "steps_per_block": 2},
    "dynamic": {"gen_length": 12, "steps_per_block": 4, "threshold": 0.3, "temperature": 0.7},
    "threshold": {"gen_length": 11, "threshold": 0.4, "temperature": 1.0},
    "sequential": {"gen_length": 12, "steps_per_block": 2, "temperature": 1.0, "remasking": "sequential"},
    "origin": {"gen_length": 12, "steps_per_block": 3, "temperature": 1.0, "remasking": "origin"},
    "filters": {"gen_length": 12, "steps_per_block": 4, "temperature": 1.2, "top_k": 6, "top_p": 0.9},
    "response grid": {"gen_length": 11, "steps_per_block": 4, "temperature": 1.0, "grid": "response"},
    "guidance": {"gen_length": 12, "steps_per_block": 2, "temperature": 1.0, "guidance": 0.5},
    "passes for the whole canvas": {"gen_length": 13, "steps": 7, "temperature": 1.0},
}


def block_policy(dtype: str = "float64") -> Policy:
    policy = new_policy(SDAR, SIZES, None, 0, dtype=dtype).requires_grad_(False)
    policy.head.weight.mul_(20)  # an untied head is born small; the tests want predictions that differ
    policy.special = replace(policy.special, stops=(18, 3))  # so that rows end in different blocks
    return policy


@pytest.fixture(scope="module")
def exact() -> Policy:
    return block_policy()


def prompts(lengths: list[int], copies: int = 1, pad: int = 17) -> PromptBatch:
    draw = random.Random(0)
    rows = [[draw.randrange(17) for _ in range(n)] for n in lengths]
    ids, real = left_pad([row for row in rows for _ in range(copies)], pad)
    return PromptBatch(ids=ids, real=real, sample=torch.arange(len(ids)))


def rollout(policy: Policy, batch: PromptBatch, cache: str, **settings: Any) -> Trajectory:
    config = SamplerConfig.model_validate({"block_length": BLOCK, **settings, "cache": cache})
    return sample(policy, batch, config, KeyedNoise(3, batch.sample), EVERYTHING)


def assert_same(found: Trajectory, expected: Trajectory, rows: list[int] | None = None) -> None:
    taken = torch.arange(found.revealed.shape[1])[None] < found.passes[:, None]
    for field in fields(Trajectory):
        mine, theirs = getattr(found, field.name), getattr(expected, field.name)
        if not isinstance(theirs, Tensor):
            continue
        theirs = theirs if rows is None else theirs[rows]
        if field.name in ("one_shot", "proposals"):
            mine, theirs = mine[taken], theirs[:, : taken.shape[1]][taken]
        elif field.name not in ("tokens", "commit_step", "commit_logp", "passes", "first_block"):
            theirs = theirs[:, : taken.shape[1]]
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5, msg=lambda m, n=field.name: f"{n}: {m}")


@pytest.mark.parametrize("stop_early", [False, True])
@pytest.mark.parametrize("name", SETTINGS)
def test_cached_equals_uncached(name: str, stop_early: bool, exact: Policy) -> None:
    batch = prompts(LENGTHS)
    settings = {**SETTINGS[name], "stop_early": stop_early}
    found, expected = (rollout(exact, batch, cache, **settings) for cache in ("exact", "none"))
    assert_same(found, expected)
    paths.check_states(found, exact.special.mask)
    if stop_early:
        assert len(set(found.passes.tolist())) > 1, "no row ended before the others"


@pytest.mark.parametrize("name", ["static", "dynamic", "greedy"])
def test_cached_equals_uncached_in_float32(name: str) -> None:
    batch, policy = prompts(LENGTHS, copies=4), block_policy("float32")
    found, expected = (rollout(policy, batch, cache, **SETTINGS[name]) for cache in ("exact", "none"))
    assert torch.equal(found.tokens, expected.tokens)
    assert torch.equal(found.commit_step, expected.commit_step)


@pytest.mark.parametrize("name", ["static", "dynamic", "response grid", "guidance"])
def test_a_cached_rollout_is_the_same_in_every_batch(name: str, exact: Policy) -> None:
    batch = prompts(LENGTHS)
    together = rollout(exact, batch, "exact", **SETTINGS[name])
    for rows in ([3], [9, 0, 5], random.Random(1).sample(range(len(LENGTHS)), len(LENGTHS))):
        index = torch.tensor(rows)
        part = PromptBatch(ids=batch.ids[index], real=batch.real[index], sample=batch.sample[index])
        first = int(part.real.to(torch.int8).argmax(1).min())  # and without the padding nobody needs
        part = PromptBatch(ids=part.ids[:, first:], real=part.real[:, first:], sample=part.sample)
        assert_same(rollout(exact, part, "exact", **SETTINGS[name]), together, rows)


class Seen:
    """Columns that went through the network, per call: (rows, columns)."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.calls = policy, []  # type: ignore[var-annotated]
        self.states = policy.states

    def __enter__(self) -> list[tuple[int, int]]:
        def states(tokens: Tensor, *rest: Any) -> Tensor:
            self.calls.append(tuple(tokens.shape))
            return self.states(tokens, *rest)

        self.policy.states = states  # type: ignore[method-assign]
        return self.calls

    def __exit__(self, *_: Any) -> None:
        del self.policy.states


def test_prompts_are_read_once_per_group_and_blocks_once(exact: Policy) -> None:
    batch = prompts([8, 8], copies=5)
    with Seen(exact) as calls:
        path = rollout_plain(exact, batch, gen_length=12, steps_per_block=2, temperature=1.0, stop_early=False)
    # two prompts of two blocks; then two passes per block, the first of which also stores the block before
    assert calls == [(2, 8), (10, 4), (10, 4), (10, 8), (10, 4), (10, 8), (10, 4)]
    assert path.forwards == 2 + 6 * 10


def rollout_plain(policy: Policy, batch: PromptBatch, **settings: Any) -> Trajectory:
    config = SamplerConfig.model_validate({"block_length": BLOCK, **settings})
    return sample(policy, batch, config, KeyedNoise(3, batch.sample), Record())


def test_the_cache_is_used_without_asking_where_it_is_exact(exact: Policy) -> None:
    with Seen(exact) as calls:
        rollout_plain(exact, prompts([8]), gen_length=8, steps_per_block=1)
    assert max(width for _, width in calls) == 2 * BLOCK


def test_where_no_cache_is_exact_asking_for_one_is_a_sentence() -> None:
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "mlp_hidden_size": 16, "vocab_size": 20}
    ids = {"mask_token_id": 19, "eos_token_id": 18, "pad_token_id": 17}
    full = new_policy(LLADA, {**sizes, **ids}, None, 0)
    batch = prompts([3])
    with pytest.raises(UserError, match="cache 'exact' needs a block-causal model"):
        sample(full, batch, SamplerConfig(gen_length=4, cache="exact"), KeyedNoise(0, batch.sample))


@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_an_approximation_is_refused_where_there_is_an_exact_cache(cache: str, exact: Policy) -> None:
    with pytest.raises(UserError, match="use 'exact'"):
        rollout(exact, prompts([3]), cache, gen_length=8, steps_per_block=4)


@pytest.mark.parametrize("block", [None, 2, 8])
def test_a_block_length_that_disagrees_with_the_checkpoint_is_a_sentence(block: int | None, exact: Policy) -> None:
    with pytest.raises(UserError, match=f"block_length {block or 12} disagrees .* set block_length 4"):
        rollout(exact, prompts([3]), "exact", gen_length=12, block_length=block)


def test_the_policy_scores_on_the_grid_it_was_sampled_on(exact: Policy) -> None:
    rollout_plain(exact, prompts([3]), gen_length=8, steps_per_block=4, grid="response")
    assert exact.grid == "response"
    rollout_plain(exact, prompts([3]), gen_length=8, steps_per_block=4)
    assert exact.grid == "absolute"


@pytest.fixture(autouse=True)
def _grid(exact: Policy) -> Iterator[None]:
    yield
    exact.grid = "absolute"
