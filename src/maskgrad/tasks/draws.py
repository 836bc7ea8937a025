"""Random draws that depend on a key alone: the same key gives the same numbers on every machine and version."""

from __future__ import annotations

import hashlib
import random
from collections.abc import MutableSequence
from typing import TypeVar

T = TypeVar("T")


def keyed_random(*key: object) -> random.Random:
    """A generator seeded by the key. Only its `random()` is used, whose sequence Python guarantees."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return random.Random(int.from_bytes(digest, "little"))


def below(rng: random.Random, count: int) -> int:
    """A whole number in [0, count), all equally likely (up to 2**-53)."""
    return int(rng.random() * count)


def draw_front(rng: random.Random, items: MutableSequence[T], count: int) -> None:
    """Shuffle in place so that the first `count` items are a uniform ordered draw without replacement."""
    for place in range(count):
        other = place + below(rng, len(items) - place)
        items[place], items[other] = items[other], items[place]
