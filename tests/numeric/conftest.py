"""Makes `toy` and `enumeration` importable for the tests of this folder (pytest imports by path)."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _global_generator_untouched():
    """No code under test may draw from or seed the global generator."""
    torch.manual_seed(1234)
    before = torch.get_rng_state()
    yield
    assert torch.equal(before, torch.get_rng_state()), "the global random state was touched"
