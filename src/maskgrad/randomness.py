"""Named random streams: the only place of the library that seeds anything.

Every draw is a pure function of (run seed, purpose, sample id, use counter, position in the drawn tensor).
Nothing is stateful, so a draw does not depend on rank, batch size, row order or on what was drawn before,
the global generators are never touched, and a resumed run needs no generator state to continue to the bit.
"""

from __future__ import annotations

import functools
import hashlib
import math

import torch
from torch import Tensor

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_MIX_A = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_B = -7723592293110705685  # 0x94D049BB133111EB


def purpose_key(seed: int, purpose: str) -> int:
    """Signed 64-bit key of a named stream of a run. Purposes are short fixed strings such as "sampler.token"."""
    digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical (zero-filling) right shift of int64."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """SplitMix64 finaliser on int64 (wrapping arithmetic)."""
    x = (x ^ _shift_right(x, 30)) * _MIX_A
    x = (x ^ _shift_right(x, 27)) * _MIX_B
    return x ^ _shift_right(x, 31)


def row_keys(seed: int, purpose: str, sample_ids: Tensor, use: Tensor | int = 0) -> Tensor:
    """Keys int64 [B] of one stream per sample. `use` (int or int64 [B]) counts how often a sample used the stream."""
    keys = _mix(sample_ids.to(torch.int64) * _GOLDEN + purpose_key(seed, purpose))
    return _mix(keys + _GOLDEN * (torch.as_tensor(use, device=keys.device).to(torch.int64) + 1))


def fold(keys: Tensor, index: Tensor) -> Tensor:
    """Keys of sub-streams, for example one per position: int64, the shape of `keys` and `index` broadcast."""
    return _mix(_mix(keys ^ _GOLDEN) + _GOLDEN * (index.to(torch.int64) + 1))


def uniform(keys: Tensor, *shape: int) -> Tensor:
    """Uniform draws in the open interval (0, 1), float64 [B, *shape], 53 bits each; row b depends on `keys[b]` only.

    The counter of an element is its flat position inside `shape`, so callers that want a draw to be independent
    of padding must index `shape` by quantities that do not include padding.
    """
    count = math.prod(shape)
    counter = torch.arange(1, count + 1, dtype=torch.int64, device=keys.device) * _GOLDEN
    bits = _shift_right(_mix(_mix(keys[:, None] + counter) + _GOLDEN), 11)
    return ((bits.to(torch.float64) + 0.5) * 2.0**-53).view(keys.shape[0], *shape)


def generator(seed: int, purpose: str, index: int = 0) -> torch.Generator:
    """A fresh CPU generator for code that needs a `torch.Generator` (weight initialisation, permutations)."""
    return torch.Generator().manual_seed(purpose_key(seed, f"{purpose}/{index}") & (2**63 - 1))


@functools.lru_cache(maxsize=8)  # an epoch's order is asked for example by example
def permutation(seed: int, purpose: str, index: int, n: int) -> tuple[int, ...]:
    """A random order of 0..n-1 named by (seed, purpose, index)."""
    return tuple(torch.randperm(n, generator=generator(seed, purpose, index)).tolist())
