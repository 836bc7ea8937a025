from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from maskgrad.models.load import load_policy
from maskgrad.models.policy import Policy


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy("maskgrad:base_sudoku_tiny").requires_grad_(False)


@pytest.fixture(autouse=True)
def _global_generators_untouched() -> Iterator[None]:
    """Nothing here may draw from or seed the generators of the process."""
    torch.manual_seed(11)
    np.random.seed(12)
    random.seed(13)
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    yield
    assert torch.equal(torch.get_rng_state(), before[0]), "torch's global generator was touched"
    assert all(np.array_equal(a, b) for a, b in zip(np.random.get_state(), before[1], strict=True))
    assert random.getstate() == before[2], "Python's global generator was touched"
