"""Lets the tests of this folder import its shared module, and the two policies of the recorded updates."""

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parent))

from chains import BASE, FOLDER

from maskgrad.models.load import load_policy
from maskgrad.models.policy import Policy


@pytest.fixture(scope="module")
def sampled() -> Policy:
    """The policy that sampled."""
    return load_policy(BASE)


@pytest.fixture
def current() -> Policy:
    """The policy at loss time."""
    policy = load_policy(BASE)
    weights = policy.weights()
    moved = load_file(FOLDER / "chain" / "perturbed_model.safetensors")
    assert set(moved) == set(weights)
    with torch.no_grad():
        for name, value in moved.items():
            weights[name].copy_(value)
    return policy
