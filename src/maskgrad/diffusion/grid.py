"""Where the blocks of a row begin.

`absolute`: blocks count from the first real token of the prompt, so the prompt's last tokens may share a block with the
first of the canvas (SDAR, DiRL). `response`: blocks count from the canvas (LLaDA's sampler, the trainer of dLLM-RL).
A row is described by `first`, the canvas positions in its first block; shapes: `B` rows, `L` canvas.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from maskgrad.diffusion.schedule import GridName, SamplerConfig
from maskgrad.errors import UserError
from maskgrad.models.policy import Policy
from maskgrad.records import PromptBatch
from maskgrad.settings import parse


def grid_of(policy: Policy, config: SamplerConfig) -> GridName:
    """The grid asked for, else the one the model was made with."""
    if config.grid is not None:
        return config.grid
    return "response" if policy.block is None else "absolute"


def settle(policy: Policy, config: SamplerConfig) -> GridName:
    """Refuse blocks or a cache the network does not have, and let the policy score on the sampler's grid."""
    block = policy.block
    if block is not None and config.block != block:
        raise UserError(
            f"block_length {config.block} disagrees with the checkpoint, whose attention has blocks of {block} tokens: "
            f"set block_length {block}"
        )
    if block is not None and policy.clean_stream != "block":
        raise UserError(
            f"clean_stream {policy.clean_stream!r} is for likelihoods alone: the sampler shows finished blocks as "
            "whole, so scores would be of another model than the one that wrote; set it to 'block'"
        )
    check_cache(policy, config)
    grid = grid_of(policy, config)
    if block is not None:
        policy.grid = grid
    return grid


def cache_of(policy: Policy, config: SamplerConfig) -> str:
    """The cache asked for, else the exact one where there is one."""
    if config.cache is not None:
        return config.cache
    # windows of columns need a dense mask, which FlexAttention does not take
    return "none" if policy.block is None or policy.attn == "flex_attention" else "exact"


def check_cache(policy: Policy, config: SamplerConfig) -> None:
    if (kind := cache_of(policy, config)) == "none":
        return
    full = policy.block is None
    if kind == "exact" and full:
        raise UserError(
            "cache 'exact' needs a block-causal model, and every token of this one sees later tokens: "
            "use 'none', or 'prefix' or 'dual' as an approximation"
        )
    if policy.attn == "flex_attention":
        raise UserError(f"cache {kind!r} does not work with attn 'flex': use attn 'sdpa', or cache 'none'")
    if kind in ("prefix", "dual") and not full:
        raise UserError(
            f"cache {kind!r} is an approximation for full attention, and this model is block-causal: use 'exact'"
        )


def fitted(policy: Policy, config: SamplerConfig) -> SamplerConfig:
    """The settings with the block length of the checkpoint where the user named none."""
    block = policy.block
    if block is None or config.block_length is not None:
        return config
    return parse(SamplerConfig, {**config.model_dump(), "block_length": block}, "sampler options")


@dataclass(frozen=True)
class Rows:
    """Block geometry of the rows of one sampling call."""

    shift: Tensor  # int64 [B]; tokens of the prompt that lie in the row's first canvas block
    block: int
    length: int

    @classmethod
    def of(cls, prompts: PromptBatch, block: int, length: int, grid: GridName) -> Rows:
        shared = torch.zeros_like(prompts.sample) if grid == "response" else prompts.real.sum(1) % block
        return cls(shared, block, length)

    @property
    def first(self) -> Tensor:
        """Canvas positions in the first block, int64 [B]."""
        return (self.block - self.shift).clamp(max=self.length)

    @property
    def count(self) -> Tensor:
        """Blocks of each row, int64 [B]."""
        return torch.div(self.length + self.shift + self.block - 1, self.block, rounding_mode="floor")

    def number(self, rows: Tensor) -> Tensor:
        """Block of each canvas position, int64 [R,L]."""
        position = torch.arange(self.length, device=rows.device)
        return torch.div(position + self.shift[rows][:, None], self.block, rounding_mode="floor")

    def begin(self, rows: Tensor, block: Tensor) -> Tensor:
        """Canvas position at which block `block` int64 [R] begins; negative inside the prompt."""
        return block * self.block - self.shift[rows]
