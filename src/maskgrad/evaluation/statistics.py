"""Intervals, paired tests and pass@k for evaluation results. Pure functions on numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np


def wilson_interval(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Score interval of a proportion; stays inside [0, 1] and is honest at 0 and n successes.

    `(p + z^2/2n +- z sqrt(p (1-p)/n + z^2/4n^2)) / (1 + z^2/n)` with `p = successes / n` and `z` the normal
    quantile at `(1 + confidence) / 2`. Wilson 1927, J. Am. Stat. Assoc. 22(158), 209-212.
    """
    _check_count("successes", successes, n)
    _check_confidence(confidence)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    p = successes / n
    centre = p + z * z / (2 * n)
    spread = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    low = 0.0 if successes == 0 else (centre - spread) / scale
    high = 1.0 if successes == n else (centre + spread) / scale
    return low, high


def bootstrap_mean(
    values: Sequence[float], generator: np.random.Generator, *, resamples: int = 10_000, confidence: float = 0.95
) -> tuple[float, float, float]:
    """Mean and its percentile bootstrap interval `(mean, low, high)`.

    `low, high = quantiles (1 -+ confidence) / 2 of mean(x*_1..x*_n)`, each `x*` drawn with replacement from
    `values`. Efron 1979, Ann. Statist. 7(1), 1-26; percentile form: Efron and Tibshirani 1993, chapter 13.
    """
    _check_confidence(confidence)
    data = np.asarray(values, dtype=np.float64)
    if data.ndim != 1 or data.size == 0 or not np.isfinite(data).all():
        raise ValueError(f"values must be a non-empty list of finite numbers, got {values!r}")
    if resamples < 1:
        raise ValueError(f"resamples={resamples} must be at least 1")
    means = [data[generator.integers(data.size, size=data.size)].mean() for _ in range(resamples)]
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(data.mean()), float(low), float(high)


def discordant(first: Sequence[bool], second: Sequence[bool]) -> tuple[int, int]:
    """Examples only the first got right and only the second got right, paired by position."""
    if len(first) != len(second):
        raise ValueError(f"paired results differ in length: {len(first)} and {len(second)}")
    only_first = sum(bool(a) and not b for a, b in zip(first, second, strict=True))
    only_second = sum(bool(b) and not a for a, b in zip(first, second, strict=True))
    return only_first, only_second


def mcnemar_exact(only_first: int, only_second: int) -> float:
    """Two-sided exact p-value that two systems are equally accurate on the same examples.

    `p = min(1, 2 sum_{k=0}^{min(b,c)} C(b+c, k) / 2^(b+c))` with `b, c` the discordant counts; 1 without any.
    McNemar 1947, Psychometrika 12(2), 153-157, with the binomial distribution in place of chi-square.
    """
    if only_first < 0 or only_second < 0:
        raise ValueError(f"discordant counts must not be negative, got {only_first} and {only_second}")
    n = only_first + only_second
    tail = sum(math.comb(n, k) for k in range(min(only_first, only_second) + 1))
    return min(1.0, 2 * tail / 2**n)


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Unbiased estimate that at least one of `k` completions is right, from `correct` of `n` sampled ones.

    `1 - C(n - c, k) / C(n, k)`. Chen et al. 2021, arXiv 2107.03374, equation 1.
    """
    _check_count("correct", correct, n)
    if not 1 <= k <= n:
        raise ValueError(f"k={k} must lie between 1 and the {n} completions sampled")
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def _check_count(name: str, count: int, n: int) -> None:
    if n < 1 or not 0 <= count <= n:
        raise ValueError(f"{name}={count} of n={n}: need n >= 1 and 0 <= {name} <= n")


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence} must lie strictly between 0 and 1")
