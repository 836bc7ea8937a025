"""Sampler settings, and how many positions each pass commits."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import ConfigDict, Field, model_validator

from maskgrad.diffusion.reveal import Remasking, schedule
from maskgrad.settings import Settings

#: File beside a model's weights that holds the sampler settings it was trained and evaluated with.
SAMPLER_FILE = "sampler.json"


class SamplerConfig(Settings):
    """Semi-autoregressive sampling. The settings are part of every result record.

    `steps` is the number of network passes per completion. With `threshold` the number of passes follows from the
    model's confidence instead, and `steps` must be left out.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    gen_length: int = Field(gt=0)  # canvas length L in tokens
    block_length: int | None = Field(default=None, gt=0)  # None = one block
    steps: int | None = Field(default=None, gt=0)  # None = one token per pass (or `threshold`)
    threshold: float | None = Field(default=None, gt=0, le=1)  # commit every position at least this confident
    temperature: float = Field(default=0.0, ge=0)  # of the token choice; never of the commit order
    remasking: Remasking = "low_confidence"
    guidance: float = Field(default=0.0, ge=0)  # classifier-free guidance scale, 0 = off
    suppress_stop: Literal["none", "never", "delay"] = "none"  # never emit stop tokens | commit them last
    stop_early: bool = True  # a row ends with the first finished block that holds a stop token
    uneven: Literal["spread", "released"] = "spread"  # released: steps // blocks passes per block, at least one

    @model_validator(mode="after")
    def _fits(self) -> SamplerConfig:
        length, blocks = self.gen_length, self.blocks
        if self.block > length:
            raise ValueError(f"block_length {self.block} does not fit gen_length {length}: use at most {length}")
        if self.threshold is not None:
            if self.steps is not None:
                raise ValueError(
                    f"steps {self.steps} and threshold {self.threshold} contradict each other: set one of them"
                )
            if self.remasking != "low_confidence":
                raise ValueError(f"threshold needs remasking low_confidence, not {self.remasking!r}")
        elif self.uneven == "spread" and not blocks <= self.passes <= length:
            raise ValueError(
                f"steps {self.passes} cannot fit gen_length {length} in {blocks} block(s) of {self.block}: "
                f"use {blocks} to {length}"
            )
        return self

    @property
    def block(self) -> int:
        return self.gen_length if self.block_length is None else self.block_length

    @property
    def blocks(self) -> int:
        return math.ceil(self.gen_length / self.block)

    @property
    def passes(self) -> int:
        """Passes asked for; with a threshold, the most a row can take."""
        if self.threshold is not None or self.steps is None:
            return self.gen_length
        return self.steps

    @property
    def max_passes(self) -> int:
        """Most passes a row can take under the plan of `commits`."""
        return self.gen_length if self.threshold is not None else sum(map(len, self.commits()))

    def block_sizes(self) -> list[int]:
        """Length of each block; the last one may be shorter."""
        return [min(self.block, self.gen_length - b * self.block) for b in range(self.blocks)]

    def commits(self) -> list[list[int]]:
        """Positions to commit, per block and pass. Empty passes of the released rule are left out."""
        sizes = self.block_sizes()
        if self.uneven == "released":
            passes = [max(1, self.passes // self.blocks)] * self.blocks
        else:
            passes = spread_passes(sizes, self.passes)
        return [[n for n in schedule(size, p) if n > 0] for size, p in zip(sizes, passes, strict=True)]


def spread_passes(sizes: list[int], passes: int) -> list[int]:
    """Passes per block: one each, the rest one by one to the block with most tokens per pass, earliest first."""
    given = [1] * len(sizes)
    for _ in range(passes - len(sizes)):
        best = max(range(len(sizes)), key=lambda b: (given[b] < sizes[b], sizes[b] / given[b], -b))
        given[best] += 1
    return given
