"""Named random streams: determinism, independence of batch and order, uniformity, and distinct names."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from maskgrad.randomness import fold, generator, permutation, purpose_key, row_keys, uniform

IDS = torch.arange(50)


def draws(seed: int = 0, purpose: str = "sampler.token", ids: Tensor = IDS, use: int = 0, shape: int = 8) -> Tensor:
    return uniform(row_keys(seed, purpose, ids, use), shape)


def correlation(a: Tensor, b: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1])


def test_the_numbers_are_fixed_for_good() -> None:
    """A changed number would change every run and every saved result."""
    assert purpose_key(0, "sampler.token") == -701607138924108112
    found = draws(0, "sampler.token", torch.tensor([0, 1]), shape=2)
    expected = [[0.060915403681364444, 0.3268812571826913], [0.8544705152847172, 0.33588254662743106]]
    assert found.tolist() == expected


def test_a_row_depends_on_its_own_id_alone() -> None:
    whole = draws()
    order = torch.randperm(50, generator=torch.Generator().manual_seed(1))
    assert torch.equal(draws(ids=order), whole[order])
    for size in (1, 2, 7):
        pieces = [draws(ids=part) for part in IDS.split(size)]
        assert torch.equal(torch.cat(pieces), whole)
    assert torch.equal(draws(ids=torch.tensor([49, 3, 3])), whole[[49, 3, 3]])


def test_the_number_of_draws_does_not_change_the_first_ones() -> None:
    assert torch.equal(draws(shape=20)[:, :8], draws())
    keys = row_keys(0, "x", IDS)
    assert torch.equal(uniform(keys, 4, 5), uniform(keys, 20).view(50, 4, 5))


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1},
        {"seed": -1},
        {"purpose": "sampler.order"},
        {"purpose": "sampler.token "},
        {"ids": IDS + 50},
        {"use": 1},
        {"use": 2},
    ],
)
def test_different_names_give_independent_streams(other: dict[str, object]) -> None:
    a, b = draws(shape=200), draws(shape=200, **other)  # type: ignore[arg-type]
    assert not bool((a == b).any())
    assert abs(correlation(a, b)) < 5 / math.sqrt(a.numel())


def test_neighbouring_rows_and_positions_are_independent() -> None:
    x = draws(ids=torch.arange(200), shape=200)
    bound = 5 / math.sqrt(x.numel())
    assert abs(correlation(x[:-1], x[1:])) < bound
    assert abs(correlation(x[:, :-1], x[:, 1:])) < bound
    assert abs(correlation(x[:-1, 1:], x[1:, :-1])) < bound, "a shift of the counter must not be a shift of the id"


def test_no_two_names_share_a_key() -> None:
    ids = torch.arange(2000)
    keys = torch.cat([row_keys(s, p, ids, u) for s in (0, 1) for p in ("a", "b") for u in (0, 1)])
    assert len(keys.unique()) == len(keys)
    folded = fold(fold(row_keys(0, "a", torch.arange(20))[:, None, None], torch.arange(30)[:, None]), torch.arange(40))
    assert folded.shape == (20, 30, 40) and len(folded.unique()) == folded.numel()


def test_fold_is_not_symmetric() -> None:
    keys = row_keys(0, "a", torch.arange(10))
    one_two = fold(fold(keys, torch.tensor(1)), torch.tensor(2))
    two_one = fold(fold(keys, torch.tensor(2)), torch.tensor(1))
    assert not bool((one_two == two_one).any())


def test_use_may_differ_per_row() -> None:
    uses = torch.arange(50) % 3
    mixed = uniform(row_keys(0, "a", IDS, uses), 4)
    for row in range(50):
        assert torch.equal(mixed[row], uniform(row_keys(0, "a", IDS[row : row + 1], int(uses[row])), 4)[0])


def test_uniform_in_the_open_interval() -> None:
    """Chi-square on 64 cells, the top and the bottom bits, and the serial pairs; the seed is fixed."""
    x = uniform(row_keys(3, "test", torch.arange(400)), 500)
    assert x.dtype == torch.float64 and float(x.min()) > 0 and float(x.max()) < 1
    for value in (x, (x * 2**20) % 1, (x * 2**40) % 1):
        assert chi_square(torch.histc(value.float(), 64, 0, 1)) < 63 + 4 * math.sqrt(2 * 63)
    pairs = (x[:, 0::2] * 8).long() * 8 + (x[:, 1::2] * 8).long()
    assert chi_square(torch.bincount(pairs.flatten(), minlength=64).float()) < 63 + 4 * math.sqrt(2 * 63)
    first_of_rows = uniform(row_keys(3, "test", torch.arange(200_000)), 1)
    assert chi_square(torch.histc(first_of_rows.float(), 64, 0, 1)) < 63 + 4 * math.sqrt(2 * 63)


def chi_square(counts: Tensor) -> float:
    mean = float(counts.sum()) / len(counts)
    return float(((counts - mean) ** 2 / mean).sum())


def test_permutations_are_named_and_fair() -> None:
    assert permutation(0, "loop.epoch", 3, 10) == permutation(0, "loop.epoch", 3, 10)
    assert sorted(permutation(0, "loop.epoch", 3, 10)) == list(range(10))
    seen = {tuple(permutation(s, p, i, 10)) for s in (0, 1) for p in ("a", "b") for i in range(5)}
    assert len(seen) == 20
    orders = list(itertools.permutations(range(3)))
    drawn = torch.tensor([orders.index(tuple(permutation(0, "fair", index, 3))) for index in range(1200)])
    counts = torch.bincount(drawn, minlength=6)
    assert chi_square(counts) < 5 + 4 * math.sqrt(10)


def test_generators_are_fresh_each_time() -> None:
    a, b = generator(0, "init"), generator(0, "init")
    assert torch.equal(torch.rand(5, generator=a), torch.rand(5, generator=b))
    assert not torch.equal(
        torch.rand(5, generator=generator(0, "init", 1)), torch.rand(5, generator=generator(0, "init"))
    )


def test_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    draws()
    permutation(0, "x", 0, 100)
    torch.rand(3, generator=generator(0, "x"))
    assert torch.equal(torch.get_rng_state(), before)
