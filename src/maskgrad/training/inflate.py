"""Ratio inflation: the exploding-weight stress of StableDRL (2603.06743), whose exact recipe is not published.

Each ratio is multiplied by `factor` with probability `fraction`, anew at every update. A part of the run's settings, so
a stressed run is an ordinary run: journal, checkpoints, exact resume.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from maskgrad import randomness
from maskgrad.config import InflateConfig


def log_ratio_shift(
    config: InflateConfig | None, seed: int, sample: Tensor, advantage: Tensor, units: int, update: int
) -> Tensor | None:
    """log(factor) where a ratio is hit, else 0: fp64 [B,U]; None without stress. advantage [B,1] or [B,U].

    A draw is named by (seed, sample id, update of the batch, unit): the same for every method and any batch split.
    """
    if config is None:
        return None
    hit = randomness.uniform(randomness.row_keys(seed, "stress.inflate", sample, update), units) < config.fraction
    if config.only_negative:
        hit = hit & (advantage < 0)
    return hit.to(torch.float64) * math.log(config.factor)
