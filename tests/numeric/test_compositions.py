"""Every combination of the four sockets that can be constructed trains: two updates with a finite gradient.

What cannot mean what it says is refused at construction; those sentences are in `test_methods.py`.
"""

from __future__ import annotations

import itertools
from typing import Any, get_args

import pytest
from pydantic import ValidationError
from test_surrogate import gradient, new_toy, rollouts

from maskgrad.algorithms import Composed
from maskgrad.algorithms.objective import Coefficient
from maskgrad.algorithms.sockets import FITS

VIEWS = ("mean_field", "block_bound", "exact_count", "random_rate", "trace_slices", "selected_steps")
MASKS = Composed.model_fields["masks"].annotation
CREDITS = ("centred", "leave_one_out", "softmax_difference", "stepwise")
SURROGATES: dict[str, dict[str, Any]] = {
    "ppo": {"form": "ratio", "clip": "ppo", "clip_low": 0.01, "clip_high": 100.0},  # fresh masks leave a narrow clip
    "sequence ratio": {"form": "ratio", "ratio_scale": "sequence", "log_bound": 2.0},
    "score": {"form": "score"},
    "weight one": {"form": "score", "weights": "none"},
    "stable": {"form": "score", "clip": "always", "clip_high": 6.0, "self_normalise": "group", "recentre": True},
    "k3": {"form": "ratio", "kl": "k3", "beta": 0.1},
    "k2 summed to old": {"form": "score", "kl": "k2", "kl_scale": "summed", "kl_to": "old", "beta": 0.1},
    "exact": {"form": "ratio", "kl": "exact", "beta": 0.1},
}


def composed(view: str, bound: str, credit: str, surrogate: str, coef: str, masks: str) -> Composed | None:
    """The method, or None where it is refused."""
    weight = {"weight": 0.5} if credit == "stepwise" else {}
    upper = {"upper": "mix"} if bound == "sandwich" and SURROGATES[surrogate]["form"] == "score" else {}
    steps = {"steps": 3} if view == "selected_steps" else {}
    try:
        return Composed(
            view={"name": view, **steps},
            bound={"name": bound, **upper},
            credit={"name": credit, **weight},
            surrogate={"coef": coef, **SURROGATES[surrogate]},
            masks=masks,
            epochs=2,
        )
    except ValidationError:
        return None


def combinations() -> list:
    """Every view and bound with every credit, every surrogate, every coefficient and every way to draw masks."""
    found = {}
    plain = ("centred",), ("ppo",), ("row_mean",), ("shared",)
    sockets = (CREDITS, tuple(SURROGATES), get_args(Coefficient), get_args(MASKS))
    varied = [itertools.product(VIEWS, FITS, *plain[:i], sockets[i], *plain[i + 1 :]) for i in range(4)]
    for choice in itertools.chain(*varied):
        if (method := composed(*choice)) is not None:
            found["-".join(choice)] = method
    return [pytest.param(method, id=name) for name, method in found.items()]


@pytest.mark.parametrize("algorithm", combinations())
def test_every_combination_trains(algorithm: Composed) -> None:
    """The first and a later update of a batch. Error caught: a bound without its size; a credit of another shape."""
    batch = rollouts(new_toy(), algorithm, groups=2)
    for index in (0, 1):
        grad = gradient(algorithm, batch, index, micro=7 if index else 10_000)
        assert bool(grad.isfinite().all()) and float(grad.abs().max()) > 0
