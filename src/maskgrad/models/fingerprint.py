"""A name for the exact weights of a model."""

from __future__ import annotations

import hashlib

import torch

from maskgrad.models.policy import Policy


def weights_hash(policy: Policy) -> str:
    """Hash of all parameters, names and bytes, in the dtype they are held in."""
    digest = hashlib.blake2b(digest_size=12)
    for name, tensor in policy.weights().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
