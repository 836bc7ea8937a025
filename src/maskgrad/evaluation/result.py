"""The result record of an evaluation: enough to make it again, to compare it, and to see how sure it is."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from maskgrad import randomness
from maskgrad.evaluation.evaluate import Evaluation
from maskgrad.evaluation.outcomes import failures
from maskgrad.evaluation.statistics import bootstrap_mean, pass_at_k
from maskgrad.tasks.base import short_hash

RESAMPLES = 10_000


def settings_hash(**settings: Any) -> str:
    """Name of everything that decides what is sampled; completions are reused only under the same name."""
    return short_hash(sorted(settings.items()))


def verdicts(found: Evaluation) -> dict[str, list[bool | None]]:
    """Per example id, the verdict on each repeat; None where the task could not tell."""
    out: dict[str, list[bool | None]] = {}
    for example, grade in zip(found.examples, found.grades, strict=True):
        out.setdefault(example.id, []).append(grade.correct)
    return out


def share(judged: Sequence[bool | None]) -> float | None:
    """Share of an example's judged repeats that are right."""
    known = [verdict for verdict in judged if verdict is not None]
    return sum(known) / len(known) if known else None


def record(found: Evaluation, *, seed: int, repeats: int, about: Mapping[str, Any]) -> dict[str, Any]:
    """The summary with interval, counts, versions, `about` (model, files, settings) and the verdict on every item.

    `bootstrap` resamples examples, with all their repeats. With several repeats `interval` is that one, because
    Wilson's counts completions of one example as independent; `pass_at_k` is the unbiased estimate over the repeats.
    """
    by_item = verdicts(found)
    shares = [value for value in map(share, by_item.values()) if value is not None]
    result = {**about, **found.result, "n": len(by_item)}
    result["repeats"], result["seeds"] = repeats, [seed + r for r in range(repeats)]
    result["bootstrap"] = bootstrap(shares, seed) if shares else None
    result["interval_kind"] = "wilson" if repeats == 1 else "bootstrap"
    if repeats > 1:
        result["interval"] = result["bootstrap"] and result["bootstrap"]["interval"]
        result["pass_at_k"] = _pass_at_k(by_item, repeats)
    result["undecided"] = sum(grade.correct is None for grade in found.grades)
    result["failures"] = failures(found.grades)
    result["prompt_hash"] = short_hash(*[example.prompt for example in found.examples])
    result["versions"] = versions()
    result["verdicts"] = by_item
    return result


def bootstrap(shares: Sequence[float], seed: int) -> dict[str, Any]:
    """95 % percentile interval of the mean over examples."""
    _, low, high = bootstrap_mean(shares, resampler(seed), resamples=RESAMPLES)
    return {"interval": [low, high], "resamples": RESAMPLES, "seed": seed}


def resampler(seed: int) -> np.random.Generator:
    return np.random.default_rng(randomness.purpose_key(seed, "evaluation.bootstrap") & (2**63 - 1))


def _pass_at_k(by_item: Mapping[str, Sequence[bool | None]], repeats: int) -> dict[str, float]:
    """Over the examples whose repeats were all judged, for k = 1, 2, 4, ... and the number of repeats."""
    whole = [[bool(v) for v in judged] for judged in by_item.values() if None not in judged]
    chosen = sorted({k for k in (2**p for p in range(repeats.bit_length())) if k <= repeats} | {repeats})
    return {str(k): sum(pass_at_k(repeats, sum(v), k) for v in whole) / len(whole) for k in chosen} if whole else {}


def versions() -> dict[str, str]:
    packages = ("maskgrad", "torch", "transformers", "tokenizers", "numpy")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}
