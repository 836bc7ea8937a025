from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from maskgrad.config import RunConfig, merge, run_config
from maskgrad.models.load import load_policy
from maskgrad.models.policy import Policy


@pytest.fixture
def policy() -> Policy:
    return load_policy("maskgrad:base_sudoku_tiny")


@pytest.fixture(scope="session")
def smoke() -> Callable[..., RunConfig]:
    """A light `smoke` whose reward gives every update a gradient: smoke(algorithm, settings)."""
    light = {"eval": {"count": 4}, "rollout": {"prompts_per_batch": 2}, "task": {"reward": "cells"}}

    def build(algorithm: str | None = None, settings: Mapping[str, Any] | None = None) -> RunConfig:
        return run_config("smoke", merge(light, settings or {}), algorithm)

    return build


@pytest.fixture(autouse=True)
def _global_generators_untouched() -> Iterator[None]:
    """Nothing here, whole training runs included, may draw from or seed the generators of the process."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(11)
    np.random.seed(12)
    random.seed(13)
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    yield
    torch.set_num_threads(threads)
    assert torch.equal(torch.get_rng_state(), before[0]), "torch's global generator was touched"
    assert all(np.array_equal(a, b) for a, b in zip(np.random.get_state(), before[1], strict=True))
    assert random.getstate() == before[2], "Python's global generator was touched"
