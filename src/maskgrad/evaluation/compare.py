"""Two results on the same items: which is better, and could it be chance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from maskgrad.errors import UserError
from maskgrad.evaluation.result import RESAMPLES, resampler, share
from maskgrad.evaluation.statistics import bootstrap_mean, discordant, mcnemar_exact

_SAME = {"task": "task", "task_hash": "task hash (prompt, grader or data)", "split": "split"}


def load_result(path: str | Path) -> dict[str, Any]:
    """A result that `maskgrad eval --json` wrote for one model on one task."""
    try:
        value = json.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}): give a file written by maskgrad eval --json") from error
    if isinstance(value, dict) and "results" in value:
        raise UserError(f"{path} holds {len(value['results'])} results: compare files with one result each")
    if not isinstance(value, dict) or not isinstance(value.get("verdicts"), dict):
        raise UserError(f"{path} holds no verdicts on items: give a file written by maskgrad eval --json")
    return value


def compare(first: dict[str, Any], second: dict[str, Any], *, seed: int = 0, across: bool = False) -> dict[str, Any]:
    """Paired comparison `second - first` over the items both judged, matched by id.

    `p_value` is McNemar's exact test (two-sided; None with several repeats), `interval` the 95 % percentile bootstrap
    of the difference over items. Refused: another task, task hash or split, other items, and another sampler unless
    `across`.
    """
    _require_comparable(first, second, across)
    shares = [(share(first["verdicts"][item]), share(second["verdicts"][item])) for item in sorted(first["verdicts"])]
    judged = [(a, b) for a, b in shares if a is not None and b is not None]
    if not judged:
        raise UserError("no item was judged in both results: nothing can be compared")
    before, after = zip(*judged, strict=True)
    mean, low, high = bootstrap_mean([b - a for a, b in judged], resampler(seed), resamples=RESAMPLES)
    single = all(len(v) == 1 for result in (first, second) for v in result["verdicts"].values())
    only_first, only_second = discordant([a == 1 for a in before], [b == 1 for b in after])
    return {
        "first": _named(first, before),
        "second": _named(second, after),
        "n": len(judged),
        "undecided": len(shares) - len(judged),
        "difference": mean,
        "interval": [low, high],
        "only_first": only_first if single else None,
        "only_second": only_second if single else None,
        "p_value": mcnemar_exact(only_first, only_second) if single else None,
        "bootstrap": {"resamples": RESAMPLES, "seed": seed},
        "sampler_differs": sampler_differences(first, second),
    }


def _named(result: dict[str, Any], shares: tuple[float, ...]) -> dict[str, Any]:
    named = {key: result.get(key) for key in ("model", "adapter", "weights", "sampler")}
    return {**named, "accuracy": sum(shares) / len(shares)}


def sampler_differences(first: dict[str, Any], second: dict[str, Any]) -> dict[str, list[Any]]:
    a, b = first.get("sampler") or {}, second.get("sampler") or {}
    return {key: [a.get(key), b.get(key)] for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)}


def _require_comparable(first: dict[str, Any], second: dict[str, Any], across: bool) -> None:
    for key, name in _SAME.items():
        if first.get(key) != second.get(key):
            raise UserError(
                f"the two results differ in their {name}, {first.get(key)!r} and {second.get(key)!r}: "
                "compare results on the same task and split"
            )
    different = first["verdicts"].keys() ^ second["verdicts"].keys()
    if different:
        raise UserError(
            f"the two results are not on the same items ({len(different)} are in one only, among them "
            f"{min(different)!r}): evaluate both with the same --limit"
        )
    changed = sampler_differences(first, second)
    if changed and not across:
        key, (a, b) = next(iter(changed.items()))
        raise UserError(
            f"the two results were sampled differently ({key} {a!r} and {b!r}): "
            "add --across-samplers if that is what you compare"
        )


def sentence(found: dict[str, Any]) -> str:
    """The comparison in one line."""
    test = "" if found["p_value"] is None else f", McNemar p = {found['p_value']:.4g}"
    split = (
        "" if found["only_first"] is None else f", only first {found['only_first']}, only second {found['only_second']}"
    )
    low, high = (100 * value for value in found["interval"])
    a, b = (100 * found[name]["accuracy"] for name in ("first", "second"))
    return (
        f"first {a:.1f} %, second {b:.1f} %, difference {100 * found['difference']:+.1f} points "
        f"[{low:+.1f}, {high:+.1f}], n {found['n']}{split}{test}"
    )
