"""How many positions each pass commits."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskgrad.diffusion.reveal import schedule
from maskgrad.diffusion.schedule import SamplerConfig, spread_passes
from maskgrad.errors import UserError
from maskgrad.settings import parse


@st.composite
def plans(draw: st.DrawFn) -> SamplerConfig:
    length = draw(st.integers(1, 60))
    block = draw(st.one_of(st.none(), st.integers(1, length)))
    blocks = -(-length // (block or length))
    return SamplerConfig(gen_length=length, block_length=block, steps=draw(st.integers(blocks, length)))


@settings(max_examples=200, deadline=None)
@given(plans())
def test_a_plan_fills_every_block_in_exactly_the_passes_asked_for(config: SamplerConfig) -> None:
    sizes, plan = config.block_sizes(), config.commits()
    assert sum(sizes) == config.gen_length and len(sizes) == config.blocks == len(plan)
    assert [sum(passes) for passes in plan] == sizes
    assert sum(len(passes) for passes in plan) == config.steps == config.max_passes
    for passes in plan:
        assert passes == sorted(passes, reverse=True) and passes[-1] >= 1, "remainder first, no empty pass"
        assert passes[0] - passes[-1] <= 1


@settings(max_examples=200, deadline=None)
@given(plans())
def test_passes_are_spread_by_need(config: SamplerConfig) -> None:
    """Between 1 and its size for each block, and no pass would do more good in another block."""
    sizes = config.block_sizes()
    given_ = spread_passes(sizes, config.passes)
    assert sum(given_) == config.passes
    assert all(1 <= n <= size for n, size in zip(given_, sizes, strict=True))
    for a, rich in enumerate(given_):
        for b, poor in enumerate(given_):
            if rich > 1 and poor < sizes[b]:
                assert sizes[a] / (rich - 1) >= sizes[b] / poor


@pytest.mark.parametrize(
    ("sizes", "passes", "expected"),
    [
        ([4, 4, 4, 4], 8, [2, 2, 2, 2]),
        ([4, 4, 4, 4], 6, [2, 2, 1, 1]),
        ([4, 4, 4, 2], 9, [3, 3, 2, 1]),
        ([4, 4, 4, 2], 14, [4, 4, 4, 2]),
        ([16], 5, [5]),
    ],
)
def test_spread_examples(sizes: list[int], passes: int, expected: list[int]) -> None:
    assert spread_passes(sizes, passes) == expected


def test_schedule_examples() -> None:
    assert schedule(8, 3) == [3, 3, 2]
    assert schedule(4, 4) == [1, 1, 1, 1]
    assert schedule(2, 4) == [1, 1, 0, 0]


def test_the_released_rule_gives_every_block_the_same_passes() -> None:
    config = SamplerConfig(gen_length=14, block_length=4, steps=9, uneven="released")
    assert config.commits() == [[2, 2], [2, 2], [2, 2], [1, 1]]
    assert config.max_passes == 8
    few = SamplerConfig(gen_length=16, block_length=4, steps=2, uneven="released")
    assert few.commits() == [[4], [4], [4], [4]]


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 40), st.integers(1, 50), st.integers(1, 60))
def test_what_cannot_fit_is_refused_by_name(length: int, block: int, steps: int) -> None:
    blocks = -(-length // block)
    fits = block <= length and blocks <= steps <= length
    values = {"gen_length": length, "block_length": block, "steps": steps}
    if fits:
        assert parse(SamplerConfig, values).max_passes == steps
        return
    with pytest.raises(UserError) as caught:
        parse(SamplerConfig, values)
    assert f"{block if block > length else steps}" in str(caught.value) and str(length) in str(caught.value)


def test_a_threshold_takes_as_many_passes_as_it_needs() -> None:
    config = SamplerConfig(gen_length=16, block_length=4, threshold=0.9)
    assert config.max_passes == 16
    with pytest.raises(UserError, match="needs remasking low_confidence, not 'entropy'"):
        parse(SamplerConfig, {"gen_length": 16, "threshold": 0.9, "remasking": "entropy"})
