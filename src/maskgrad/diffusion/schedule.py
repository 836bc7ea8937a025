"""Sampler settings, and how many positions each pass commits."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from maskgrad.diffusion.reveal import ALIASES, BLIND_RULES, Remasking, schedule, schedule_on_time_grid, time_grid
from maskgrad.settings import Settings

#: File beside a model's weights that holds the sampler settings it was trained and evaluated with.
SAMPLER_FILE = "sampler.json"

GridName = Literal["absolute", "response"]


class SamplerConfig(Settings):
    """Semi-autoregressive sampling. The settings are part of every result record.

    `steps` is the number of network passes per completion, `steps_per_block` (SDAR) the number per block. With
    `threshold` the number of passes follows from the model's confidence instead, and `steps` must be left out;
    `threshold` with `steps_per_block` is SDAR's dynamic rule: at least as many as planned, more where it is sure.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    gen_length: int = Field(gt=0)  # canvas length L in tokens
    block_length: int | None = Field(default=None, gt=0)  # None = one block
    steps: int | None = Field(default=None, gt=0)  # None = one token per pass (or `threshold`)
    steps_per_block: int | None = Field(default=None, gt=0)  # a whole block's plan, cut where fewer are masked
    threshold: float | None = Field(default=None, gt=0, le=1)  # commit every position at least this confident
    temperature: float = Field(default=0.0, ge=0)  # of the token choice; of the commit order only if `confidence` says
    top_k: int = Field(default=0, ge=0)  # draw from the k most probable ids, 0 = from all
    top_p: float = Field(default=1.0, gt=0, le=1)  # draw from the most probable ids that hold this mass
    remasking: Remasking = "low_confidence"
    order_temperature: float = Field(default=0.0, ge=0)  # draw who is committed by softmax(rank value / this), 0 = best
    confidence: Literal["model", "sampling"] = "model"  # rank by untempered probabilities | by those drawn from
    guidance: float = Field(default=0.0, ge=0)  # classifier-free guidance scale, 0 = off
    suppress_stop: Literal["none", "never", "delay"] = "none"  # never emit stop tokens | commit them last
    stop_early: bool = True  # a row ends with the first finished block that holds a stop token
    # released: steps // blocks passes per block, at least one | dream: the same with Dream's counts per pass
    uneven: Literal["spread", "released", "dream"] = "spread"
    grid: GridName | None = None  # where blocks begin; None = absolute for block-causal models, else response
    cache: Literal["none", "exact", "prefix", "dual"] | None = None  # None = exact where there is one, else none

    @field_validator("remasking", mode="before")
    @classmethod
    def _our_name(cls, value: Any) -> Any:
        return ALIASES.get(value, value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _fits(self) -> SamplerConfig:
        length, blocks = self.gen_length, self.blocks
        if self.block > length:
            raise ValueError(f"block_length {self.block} does not fit gen_length {length}: use at most {length}")
        if self.steps is not None and (other := self.threshold or self.steps_per_block) is not None:
            name = "threshold" if self.threshold else "steps_per_block"
            raise ValueError(f"steps {self.steps} and {name} {other} contradict each other: set one of them")
        if self.threshold is not None and self.remasking != "low_confidence":
            raise ValueError(f"threshold needs remasking low_confidence, not {self.remasking!r}")
        if self.order_temperature > 0 and (self.threshold is not None or self.remasking in BLIND_RULES):
            reason = f"threshold {self.threshold}" if self.threshold is not None else f"remasking {self.remasking!r}"
            raise ValueError(
                f"order_temperature {self.order_temperature} draws positions by their confidence, which {reason} does "
                "not allow: set it to 0"
            )
        planned = self.threshold is None and self.steps_per_block is None and self.uneven == "spread"
        if planned and not blocks <= self.passes <= length:
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
        """Most passes a row whose first block is whole can take."""
        return self.most_passes(self.block)

    def most_passes(self, first: int) -> int:
        """Most passes of a row with `first` canvas positions in its first block."""
        if self.threshold is not None and self.steps_per_block is None:
            return self.gen_length
        return sum(map(len, self.rates(first) if self.remasking == "origin" else self.commits(first)))

    def block_sizes(self, first: int | None = None) -> list[int]:
        """Canvas positions of each block; the first holds `first` (default: a whole block), the last what is left."""
        head = self.block if first is None else first
        rest = self.gen_length - head
        sizes = [min(self.block, rest - at) for at in range(0, rest, self.block)]
        return [head, *sizes]

    def passes_per_block(self, sizes: list[int]) -> list[int]:
        if self.steps_per_block is not None:
            return [self.steps_per_block] * len(sizes)
        if self.uneven == "spread":  # a row whose prompt ends inside a block may have one block more than planned
            return spread_passes(sizes, max(self.passes, len(sizes)))
        return [max(1, self.passes // self.blocks)] * len(sizes)

    def commits(self, first: int | None = None) -> list[list[int]]:
        """Positions to commit, per block and pass. Passes that commit nothing are left out."""
        sizes = self.block_sizes(first)
        plans = []
        for size, passes in zip(sizes, self.passes_per_block(sizes), strict=True):
            if self.uneven == "dream":
                plan = schedule_on_time_grid(size, passes)
            elif self.steps_per_block is not None:
                plan = cut(schedule(self.block, passes), size)
            else:
                plan = schedule(size, passes)
            plans.append([n for n in plan if n > 0])
        return plans

    def rates(self, first: int | None = None) -> list[list[float]]:
        """Probability with which order `origin` commits each masked position, per block and pass."""
        return [time_grid(passes) for passes in self.passes_per_block(self.block_sizes(first))]


def cut(plan: list[int], size: int) -> list[int]:
    """The plan of a whole block for one in which `size` positions are masked: as planned until none is left."""
    out = []
    for count in plan:
        out.append(min(count, size))
        size -= out[-1]
    return out


def spread_passes(sizes: list[int], passes: int) -> list[int]:
    """Passes per block: one each, the rest one by one to the block with most tokens per pass, earliest first."""
    given = [1] * len(sizes)
    for _ in range(passes - len(sizes)):
        best = max(range(len(sizes)), key=lambda b: (given[b] < sizes[b], sizes[b] / given[b], -b))
        given[best] += 1
    return given
