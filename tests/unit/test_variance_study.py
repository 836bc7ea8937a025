"""The estimators of benchmarks/variance.py on cases whose variances are known."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from maskgrad.records import RolloutBatch

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def stats() -> Iterator[ModuleType]:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield importlib.import_module("variance_estimators")
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def ratios(stats: ModuleType) -> ModuleType:
    return importlib.import_module("variance_ratios")


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_shared_masks_cancel_what_both_sides_have_in_common(stats: ModuleType) -> None:
    common, own = 3.0 * normal(4000, 8), 0.5 * normal(4000, 8, seed=1)
    noise = stats.ratio_noise(common + own + torch.arange(8), common)
    assert noise["shared"][0] == pytest.approx(0.5, rel=0.01)
    assert noise["independent"][0] == pytest.approx(math.sqrt(9 + 9 + 0.25), rel=0.01)
    assert noise["shared"][1] < 0.01
    assert stats.ratio_noise(common, common)["shared"] == (0.0, 0.0)


def test_the_spread_is_the_root_of_the_mean_variance(stats: ModuleType) -> None:
    estimates = torch.tensor([[0.0, 0.0], [2.0, 4.0]])  # variances 2 and 8
    assert stats.ratio_noise(estimates, torch.zeros(2, 2))["shared"][0] == pytest.approx(math.sqrt(5.0))


@pytest.mark.parametrize("draws", [1, 2, 3])
def test_components_are_unbiased(stats: ModuleType, draws: int) -> None:
    """|mean|^2 = 2, rollout covariance diag(1, 4, 0), mask covariance 0.25 I: traces 5 and 0.75."""
    mean = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    repeats, batches = 1500, 5
    between = normal(repeats, batches, 1, 3) * torch.tensor([1.0, 2.0, 0.0])
    within = 0.5 * normal(repeats, batches, draws, 3, seed=1) if draws > 1 else 0.0
    found = [stats.components(stats.gram_matrix(g, g)) for g in mean + between + within]
    expected = {"signal": 2.0, "rollouts": 5.0, "masks": 0.75 if draws > 1 else 0.0}
    for name, value in expected.items():
        sample = torch.tensor([getattr(c, name) for c in found], dtype=torch.float64)
        assert abs(float(sample.mean()) - value) <= 4 * float(sample.std()) / math.sqrt(repeats), name
    assert found[0].snr == pytest.approx(found[0].signal / (found[0].rollouts + found[0].masks))


def test_components_follow_their_definition(stats: ModuleType) -> None:
    g = normal(4, 3, 6)
    centre = g.mean(1)
    within = sum(float((g[j] - centre[j]).square().sum()) / 2 for j in range(4)) / 4
    between = float((centre - centre.mean(0)).square().sum()) / 3
    signal = sum(float(centre[j] @ centre[k]) for j in range(4) for k in range(4) if j != k) / 12
    found = stats.components(stats.gram_matrix(g, g))
    assert found.masks == pytest.approx(within)
    assert found.rollouts == pytest.approx(between - within / 3)
    assert found.signal == pytest.approx(signal)


def test_cosines(stats: ModuleType) -> None:
    one, other = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0])
    g = torch.stack([torch.stack([one, one]), torch.stack([other, other])])
    assert stats.pair_cosines(stats.gram_matrix(g, g)) == pytest.approx((0.0, 1.0))
    assert stats.pair_cosines(stats.gram_matrix(g[:, :1], g[:, :1]))[1] is None


def test_alignment_ignores_noise_that_both_gradients_share(stats: ModuleType) -> None:
    """Orthogonal means and the same rollout noise: products of one batch would make them look aligned."""
    noise = normal(400, 1, 2)
    left = noise + torch.tensor([3.0, 0.0])
    right = noise + torch.tensor([0.0, 3.0])
    grams = [stats.gram_matrix(a, b) for a, b in ((left, left), (left, right), (right, right))]
    assert abs(stats.alignment(*grams)) < 0.1
    doubled = stats.gram_matrix(left, 2 * left)
    assert stats.alignment(grams[0], doubled, stats.gram_matrix(2 * left, 2 * left)) == pytest.approx(1.0)


def test_jackknife_of_a_mean_is_its_standard_error(stats: ModuleType) -> None:
    values = normal(12)
    error = stats.jackknife(12, lambda index: float(values[index].mean()))
    assert error == pytest.approx(float(values.std()) / math.sqrt(12))


@pytest.mark.parametrize(("paired", "k"), [(False, 2), (False, 4), (True, 4), (True, 8)])
def test_stratified_counts_stay_uniform_and_fill_their_strata(ratios: ModuleType, paired: bool, k: int) -> None:
    rows, length = 6000, 5
    batch = RolloutBatch(
        tokens=torch.zeros(rows, length + 1, dtype=torch.int64),
        attend=torch.ones(rows, length + 1, dtype=torch.bool),
        live=torch.ones(rows, length, dtype=torch.bool),
        group=torch.arange(rows),
        sample=torch.arange(rows),
        reward=torch.zeros(rows),
    )
    views = ratios.drawn_counts(batch, 0, 0, k, paired, True)
    count = views.scored.sum(-1)
    assert count.shape == (rows, k)
    share = torch.bincount(count.flatten(), minlength=length + 1) / (rows * k)
    sigma = math.sqrt(1 / 6 * 5 / 6 / (rows * k))
    assert float((share - 1 / 6).abs().max()) < 5 * math.sqrt(2) * sigma  # pairs: half as many independent draws
    mean = float((views.weight * views.scored).sum((1, 2)).mean())
    assert mean == pytest.approx(length, rel=0.02)  # the weights of an unbiased sum over `length` positions
    if paired:
        assert bool((count[:, ::2] + count[:, 1::2] == length).all())
        count = count[:, ::2]
    edges = torch.arange(count.shape[1]) * (length + 1) / k
    assert bool((count >= edges.floor()).all() and (count <= (edges + (length + 1) / k).floor()).all())
