"""Published training signals by task and name. A compat reward replaces the reward; the strict verdict stays beside
it.

d1, wd1 and EGSPO share one set of functions, SPG differs in one marker. `d1_eval` and `spg_eval` pay what the
released evaluation scripts count as correct. docs/grading-differences.md tells where they part from the strict
verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from maskgrad.errors import UserError, nearest
from maskgrad.tasks import compat_d1, compat_eval, compat_verify
from maskgrad.tasks.base import Grade

Parts = dict[str, float]
CompatReward = Callable[[str, Mapping[str, Any]], Parts]


def _with_anti_short_box(base: Callable[[str, Mapping[str, Any]], float]) -> CompatReward:
    """StableDRL adds this part to the reward of every task."""
    return lambda text, columns: {"base": base(text, columns), "anti_short_box": compat_verify.anti_short_box(text)}


def _boxed_gold(columns: Mapping[str, Any]) -> str:
    r"""The gold as the released data have it: a solution with a box; a bare answer is put into one."""
    gold = str(columns["answer"])
    return gold if "\\boxed" in gold else f"\\boxed{{{gold}}}"


def _gsm8k_eval(text: str, columns: Mapping[str, Any], *, last_number: bool) -> Parts:
    value = compat_eval.gsm8k_number(text, last_number=last_number)
    gold = compat_eval.gold_number(_gold_text(columns))
    return {"accuracy": float(value is not None and value == gold)}


def _gold_text(columns: Mapping[str, Any]) -> str:
    return str(columns["answer"]).rsplit("####", 1)[-1].strip()


def _countdown(text: str, columns: Mapping[str, Any], *, subset: bool = False) -> float:
    return compat_d1.countdown_score(text, columns["numbers"], columns["target"], subset=subset)


def _sudoku(text: str, columns: Mapping[str, Any]) -> float:
    return compat_d1.sudoku_score(text, columns["puzzle"], columns["solution"])


def _sudoku_eval(text: str, columns: Mapping[str, Any]) -> Parts:
    digits = compat_eval.sudoku_digits(text)
    share = compat_d1.cell_share(columns["puzzle"], columns["solution"], digits) if digits else 0.0
    return {"cells": share}


def _same(names: tuple[str, ...], reward: CompatReward) -> dict[str, CompatReward]:
    return dict.fromkeys(names, reward)


_D1_FAMILY = ("compat_d1", "compat_wd1", "compat_egspo")

COMPAT: dict[str, dict[str, CompatReward]] = {
    "gsm8k": {
        **_same(_D1_FAMILY, lambda text, columns: compat_d1.gsm8k_parts(text, _gold_text(columns))),
        "compat_spg": lambda text, columns: compat_d1.spg_gsm8k_parts(text, _gold_text(columns)),
        "compat_espo": lambda text, columns: {"base": compat_verify.espo_gsm8k(text, _gold_text(columns))},
        "compat_stabledrl": _with_anti_short_box(
            lambda text, columns: compat_verify.verify_sign(text, _gold_text(columns))
        ),
        "compat_tracerl": lambda text, columns: {"base": compat_verify.tracerl_math(text, _gold_text(columns))},
        "compat_d1_eval": lambda text, columns: _gsm8k_eval(text, columns, last_number=False),
        "compat_spg_eval": lambda text, columns: _gsm8k_eval(text, columns, last_number=True),
    },
    "math": {
        **_same((*_D1_FAMILY, "compat_spg"), lambda text, columns: compat_d1.math_parts(text, str(columns["answer"]))),
        "compat_espo": lambda text, columns: {"base": compat_verify.espo_math(text, _boxed_gold(columns))},
        "compat_stabledrl": _with_anti_short_box(
            lambda text, columns: compat_verify.verify_sign(text, _boxed_gold(columns))
        ),
        "compat_tracerl": lambda text, columns: {"base": compat_verify.tracerl_math(text, _boxed_gold(columns))},
        "compat_d1_eval": lambda text, columns: {
            "accuracy": float(compat_eval.math_correct(text, compat_d1.boxed_or_whole(str(columns["answer"]))))
        },
    },
    "countdown": {
        **_same((*_D1_FAMILY, "compat_spg", "compat_espo"), lambda text, columns: {"base": _countdown(text, columns)}),
        "compat_stabledrl": _with_anti_short_box(lambda text, columns: _countdown(text, columns, subset=True)),
        "compat_tinyzero": lambda text, columns: {
            "base": compat_d1.tinyzero_score(text, columns["numbers"], columns["target"])
        },
        "compat_d1_eval": lambda text, columns: {
            "accuracy": float(compat_eval.countdown_correct(text, columns["numbers"], columns["target"]))
        },
    },
    "sudoku": {
        **_same((*_D1_FAMILY, "compat_spg", "compat_espo"), lambda text, columns: {"base": _sudoku(text, columns)}),
        "compat_stabledrl": _with_anti_short_box(_sudoku),
        "compat_d1_eval": _sudoku_eval,
    },
}


def compat_grade(task: str, name: str, completion: str, columns: Mapping[str, Any], strict: Grade) -> Grade:
    """The strict grade with its reward replaced by the sum of the published parts, which are added to `parts`."""
    if name not in COMPAT[task]:
        raise UserError(f"task {task}: there is no reward {name!r}; {nearest(name, COMPAT[task])}")
    parts = COMPAT[task][name](completion, columns)
    return replace(
        strict,
        reward=sum(parts.values()),
        parts={**strict.parts, **{f"{name}.{part}": value for part, value in parts.items()}},
    )
