"""Blocks that begin in the prompt, and what a commit map says of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maskgrad.algorithms import EGSPO
from maskgrad.diffusion import trajectory as paths
from maskgrad.diffusion.gap import sampler_gap
from maskgrad.diffusion.grid import Rows
from maskgrad.diffusion.reveal import schedule_on_time_grid
from maskgrad.diffusion.sampler import KeyedNoise, Record, sample
from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.errors import UserError
from maskgrad.models.attention import block_ids
from maskgrad.models.policy import Policy
from maskgrad.models.tokenizer import left_pad
from maskgrad.records import PromptBatch
from maskgrad.settings import parse


def batch(lengths: list[int]) -> PromptBatch:
    ids, real = left_pad([[5 + i % 10 for i in range(n)] for n in lengths], 0)
    return PromptBatch(ids=ids, real=real, sample=torch.arange(len(lengths)))


@pytest.mark.parametrize("grid", ["absolute", "response"])
@pytest.mark.parametrize(("block", "length"), [(4, 10), (3, 9), (5, 5), (8, 3)])
def test_rows_number_their_blocks_like_the_attention(grid: str, block: int, length: int) -> None:
    prompts = batch([1, 3, 4, 7, 8])
    rows, every = Rows.of(prompts, block, length, grid), torch.arange(5)  # type: ignore[arg-type]
    attend = torch.cat([prompts.real, torch.ones(5, length, dtype=torch.bool)], 1)
    theirs = block_ids(attend, prompts.ids.shape[1], block, grid)[:, -length:]
    mine = rows.number(every)
    assert torch.equal(mine, theirs - theirs[:, :1])
    assert torch.equal(rows.count, mine[:, -1] + 1)
    assert torch.equal(rows.first, (mine == 0).sum(1))
    for b in range(int(rows.count.max())):
        begin = rows.begin(every, torch.full_like(every, b))
        there = (mine == b).to(torch.int64).argmax(1)
        inside = (mine == b).any(1)
        assert torch.equal(begin.clamp(min=0)[inside], there[inside])


def test_full_attention_on_the_absolute_grid_keeps_to_its_blocks(policy: Policy) -> None:
    prompts, config = batch([2, 5, 8, 9]), SamplerConfig(gen_length=14, block_length=4, steps=9, grid="absolute")
    path = sample(policy, prompts, replace_early(config), KeyedNoise(0, prompts.sample), Record())
    assert path.first_block is not None and path.first_block.tolist() == [2, 3, 4, 3]
    number = paths.block_numbers(path, 4)
    assert number[0].tolist() == [0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]
    for row in range(4):
        commit = path.commit_step[row].to(torch.int64)
        for b in range(int(number[row].max())):
            assert commit[number[row] == b].max() < commit[number[row] == b + 1].min()
    steps = torch.arange(int(path.passes.max())).expand(4, -1)
    active, revealed = paths.active_block(path, steps, 4), paths.revealed_at(path, steps)
    assert bool((active | ~revealed).all()) and bool((active.sum(-1) <= 4).all())
    assert torch.equal((active & paths.hidden_before(path, steps)).sum(-1), path.masked.to(torch.int64))


def replace_early(config: SamplerConfig) -> SamplerConfig:
    return config.model_copy(update={"stop_early": False})


def test_a_map_without_first_blocks_has_whole_ones(policy: Policy) -> None:
    prompts = batch([3])
    path = sample(policy, prompts, SamplerConfig(gen_length=8, block_length=4, steps=4), KeyedNoise(0, prompts.sample))
    steps = torch.arange(int(path.passes.max()))[None]
    bare = replace(path, first_block=None)
    assert torch.equal(paths.active_block(path, steps, 4), paths.active_block(bare, steps, 4))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 9), st.integers(1, 40), st.data())
def test_plans_fill_rows_whose_first_block_is_short(block: int, length: int, data: st.DataObject) -> None:
    block = min(block, length)
    first = data.draw(st.integers(1, block))
    per_block = data.draw(st.integers(1, block + 2))
    config = SamplerConfig(gen_length=length, block_length=block, steps_per_block=per_block)
    sizes, plan = config.block_sizes(first), config.commits(first)
    assert sizes[0] == first and sum(sizes) == length and max(sizes) <= block
    assert [sum(passes) for passes in plan] == sizes
    assert all(len(passes) <= per_block and min(passes) >= 1 for passes in plan)
    spread = SamplerConfig(gen_length=length, block_length=block)
    assert [sum(passes) for passes in spread.commits(first)] == sizes


def test_a_short_first_block_follows_the_plan_of_a_whole_one() -> None:
    """As released: 3 passes for 4 tokens are 2, 1, 1, and a block with two masked tokens is full after the first."""
    config = SamplerConfig(gen_length=10, block_length=4, steps_per_block=3)
    assert config.commits(2) == [[2], [2, 1, 1], [2, 1, 1]]
    assert config.most_passes(2) == 7 and config.max_passes == 7


def test_time_grid_counts() -> None:
    assert schedule_on_time_grid(12, 5) == [2, 2, 2, 2, 4]
    assert schedule_on_time_grid(12, 12) == [0, *[1] * 10, 2]
    assert SamplerConfig(gen_length=12, steps=12, uneven="dream").commits() == [[*[1] * 10, 2]]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"steps": 4, "steps_per_block": 2}, "steps 4 and steps_per_block 2 contradict"),
        ({"steps": 4, "threshold": 0.5}, "steps 4 and threshold 0.5 contradict"),
        ({"threshold": 0.5, "remasking": "sequential"}, "threshold needs remasking low_confidence"),
        ({"top_p": 0.0}, "top_p"),
        ({"order_temperature": 0.5, "threshold": 0.5}, "order_temperature 0.5 draws positions .*threshold 0.5"),
        ({"order_temperature": 0.5, "remasking": "random"}, "order_temperature 0.5 .*remasking 'random'"),
        ({"cache": "fast"}, "cache"),
    ],
)
def test_settings_that_contradict_each_other(values: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse(SamplerConfig, {"gen_length": 8, "block_length": 4, **values})


@pytest.mark.parametrize("name", ["maskgit_plus", "topk_margin"])
def test_released_names_of_orders(name: str) -> None:
    assert SamplerConfig(gen_length=8, remasking=name).remasking in ("max_prob", "margin")  # type: ignore[arg-type]


@pytest.mark.parametrize("guidance", [0.0, 0.7])
def test_without_a_cache_the_sampler_and_the_scorer_agree(policy: Policy, guidance: float) -> None:
    prompts = batch([3, 9, 5])
    config = SamplerConfig(gen_length=12, block_length=6, steps=6, temperature=0.8, guidance=guidance, top_k=8)
    path = sample(policy, prompts, config, KeyedNoise(0, prompts.sample))
    assert sampler_gap(policy, prompts, path, config, 0) < 1e-5
    shifted = replace(path, commit_logp=path.commit_logp - 0.5)
    assert sampler_gap(policy, prompts, shifted, config, 0) == pytest.approx(0.5, abs=1e-5)


def test_order_origin_commits_every_position_and_no_pass_is_empty(policy: Policy) -> None:
    prompts = batch([3] * 40)
    config = SamplerConfig(gen_length=12, block_length=6, steps=8, remasking="origin", stop_early=False)
    path = sample(policy, prompts, config, KeyedNoise(0, prompts.sample))
    assert bool((path.commit_step >= 0).all())
    taken = torch.arange(path.revealed.shape[1])[None] < path.passes[:, None]
    assert bool((path.revealed[taken] >= 1).all())
    assert len(set(path.passes.tolist())) > 1, "how many go in a pass is drawn"


def test_a_drawn_order_follows_the_softmax_of_the_confidences(policy: Policy) -> None:
    """Dream's `alg_temp`: which position goes first, against the softmax of the margins over 800 rows."""
    rows, heat = 800, 0.3
    one = batch([3] * 1)
    many = PromptBatch(ids=one.ids.expand(rows, -1), real=one.real.expand(rows, -1), sample=torch.arange(rows))
    config = SamplerConfig(gen_length=4, remasking="margin", order_temperature=heat, stop_early=False)
    path = sample(policy, many, config, KeyedNoise(0, many.sample))
    tokens = torch.cat([one.ids, torch.full((1, 4), policy.special.mask)], 1)
    top = policy.logits(policy.hidden(tokens)[0, -4:]).softmax(-1).topk(2).values
    law = ((top[:, 0] - top[:, 1]) / heat).softmax(0).detach()
    found = torch.stack([(path.commit_step[:, k] == 0).sum() for k in range(4)]).float()
    z = (found - rows * law) / (rows * law * (1 - law)).sqrt()
    assert float(z.abs().max()) < 4, (found / rows, law)
    assert float(((found - rows / 4) ** 2 / (rows / 4)).sum()) > 20, "the law is too flat to be told from a uniform one"
    cold = sample(policy, one, config.model_copy(update={"order_temperature": 1e-6}), KeyedNoise(0, one.sample))
    best = sample(policy, one, config.model_copy(update={"order_temperature": 0.0}), KeyedNoise(0, one.sample))
    assert torch.equal(cold.commit_step, best.commit_step)
    with pytest.raises(UserError, match=r"order_temperature 0.3 .* which no step kernel here counts"):
        EGSPO(steps=2).check(config.model_copy(update={"temperature": 1.0}), 4)
