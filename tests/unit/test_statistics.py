"""Evaluation statistics against enumeration, defining equations and published values."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskgrad.evaluation.statistics import bootstrap_mean, discordant, mcnemar_exact, pass_at_k, wilson_interval

Z95 = 1.959963984540054


@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_bounds_solve_the_score_equation(counts: tuple[int, int]) -> None:
    successes, n = counts
    p = successes / n
    low, high = wilson_interval(successes, n)
    assert 0 <= low <= p <= high <= 1
    for bound in (low, high):
        assert (p - bound) ** 2 == pytest.approx(Z95**2 * bound * (1 - bound) / n, rel=1e-6, abs=1e-12)


def test_wilson_published_values() -> None:
    # Newcombe 1998, Statist. Med. 17, 857-872, table I, method 3.
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson_interval(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson_interval(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson_interval(1, 29) == pytest.approx((0.0061, 0.1718), abs=5e-5)


def test_wilson_narrows_with_lower_confidence_and_mirrors() -> None:
    low, high = wilson_interval(30, 100, confidence=0.8)
    wide_low, wide_high = wilson_interval(30, 100)
    assert wide_low < low < high < wide_high
    assert wilson_interval(70, 100, confidence=0.8) == pytest.approx((1 - high, 1 - low))


def test_bootstrap_is_the_distribution_of_resampled_means() -> None:
    values = [0.0, 1.0, 5.0]
    means = [sum(draw) / 3 for draw in itertools.product(values, repeat=3)]
    exact = np.quantile(means, [0.1, 0.9], method="inverted_cdf")
    mean, low, high = bootstrap_mean(values, np.random.default_rng(0), resamples=4000, confidence=0.8)
    assert mean == 2.0
    assert (low, high) == pytest.approx(exact)


def test_bootstrap_depends_on_its_generator_alone() -> None:
    values = list(np.random.default_rng(1).normal(size=50))
    first, second = (bootstrap_mean(values, np.random.default_rng(7), resamples=200) for _ in range(2))
    assert first == second != bootstrap_mean(values, np.random.default_rng(8), resamples=200)
    assert bootstrap_mean([2.5], np.random.default_rng(0), resamples=10) == (2.5, 2.5, 2.5)


@pytest.mark.parametrize(("b", "c"), [(0, 0), (0, 5), (5, 0), (1, 5), (3, 3), (2, 7)])
def test_mcnemar_is_the_two_sided_sign_test_over_all_outcomes(b: int, c: int) -> None:
    n = b + c
    outcomes = [sum(flips) for flips in itertools.product((0, 1), repeat=n)]
    extreme = sum(abs(2 * heads - n) >= abs(b - c) for heads in outcomes)
    assert mcnemar_exact(b, c) == pytest.approx(extreme / 2**n)


def test_mcnemar_survives_large_counts() -> None:
    assert mcnemar_exact(2000, 2000) == 1.0
    assert 0 < mcnemar_exact(900, 1100) < 1e-4


def test_discordant_pairs_by_position() -> None:
    assert discordant([True, True, False, False, True], [True, False, True, False, False]) == (2, 1)
    with pytest.raises(ValueError, match="length"):
        discordant([True], [])


@pytest.mark.parametrize(("n", "c", "k"), [(5, 2, 1), (5, 2, 3), (6, 0, 2), (6, 6, 2), (6, 4, 3), (1, 1, 1)])
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_one(n: int, c: int, k: int) -> None:
    results = [True] * c + [False] * (n - c)
    subsets = list(itertools.combinations(results, k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(any(subset) for subset in subsets) / len(subsets))


def test_pass_at_k_is_unbiased() -> None:
    n, k, p = 8, 3, 0.3
    expected = sum(math.comb(n, c) * p**c * (1 - p) ** (n - c) * pass_at_k(n, c, k) for c in range(n + 1))
    assert expected == pytest.approx(1 - (1 - p) ** k)


def test_values_out_of_range_are_refused() -> None:
    generator = np.random.default_rng(0)
    for call in (
        lambda: wilson_interval(1, 0),
        lambda: wilson_interval(5, 4),
        lambda: wilson_interval(-1, 4),
        lambda: wilson_interval(1, 4, confidence=1.0),
        lambda: bootstrap_mean([], generator),
        lambda: bootstrap_mean([1.0, math.nan], generator),
        lambda: bootstrap_mean([1.0], generator, resamples=0),
        lambda: mcnemar_exact(-1, 2),
        lambda: pass_at_k(4, 2, 5),
        lambda: pass_at_k(4, 2, 0),
        lambda: pass_at_k(4, 5, 1),
    ):
        with pytest.raises(ValueError):
            call()
