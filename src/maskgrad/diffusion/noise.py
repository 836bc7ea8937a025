"""Where the sampler's uniform draws come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from maskgrad import randomness


class Noise(Protocol):
    """Source of the uniform draws of a run. `row`, `step`, `position` are int64 [n].

    `step` counts the row's passes; for order `origin` it counts the points of the active block's time grid.
    """

    def token(self, row: Tensor, step: Tensor, position: Tensor, vocab: int) -> Tensor: ...

    def order(self, row: Tensor, step: Tensor, position: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class KeyedNoise:
    """Draws named by (seed, sample id, pass, canvas position): independent of batch, padding and rank."""

    seed: int
    sample: Tensor

    def _keys(self, purpose: str, row: Tensor, step: Tensor, position: Tensor) -> Tensor:
        keys = randomness.row_keys(self.seed, purpose, self.sample)[row]
        return randomness.fold(randomness.fold(keys, step), position)

    def token(self, row: Tensor, step: Tensor, position: Tensor, vocab: int) -> Tensor:
        return randomness.uniform(self._keys("sampler.token", row, step, position), vocab)

    def order(self, row: Tensor, step: Tensor, position: Tensor) -> Tensor:
        return randomness.uniform(self._keys("sampler.order", row, step, position), 1).squeeze(1)
