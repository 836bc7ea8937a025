"""A name for the exact weights of a model."""

from __future__ import annotations

import hashlib

import torch

from maskgrad.models.adapters import adapter_weights
from maskgrad.models.policy import Policy


def weights_hash(policy: Policy, *, adapter: bool = True) -> str:
    """Hash of all parameters, names and bytes, in the dtype they are held in; without an adapter's on request."""
    digest = hashlib.blake2b(digest_size=12)
    tensors = policy.weights() | (adapter_weights(policy) if adapter else {})
    for name, tensor in tensors.items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
