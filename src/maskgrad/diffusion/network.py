"""How a pass gets its hidden states: from the whole canvas, or from a cache.

All give the states that predict the positions a pass reads, in row-major order, and count what they sent through.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from maskgrad.diffusion.cache import CachedNetwork
from maskgrad.models.policy import Policy
from maskgrad.records import PromptBatch


@dataclass(frozen=True)
class Pass:
    """What one pass wants to know. R rows, canvas L."""

    rows: Tensor  # int64 [R], ascending
    canvas: Tensor  # int64 [R,L]
    read: Tensor  # bool [R,L]; positions whose predictions are wanted
    begin: Tensor  # int64 [R]; canvas position where the active block begins, negative inside the prompt
    end: Tensor  # int64 [R]; canvas position behind the last one that must be run
    block: Tensor  # int64 [R]; number of the active block
    fresh: Tensor  # bool [R]; first pass of the block

    def only(self, keep: Tensor) -> Pass:
        return replace(self, **{name: getattr(self, name)[keep] for name in self.__dataclass_fields__})


class Network(Protocol):
    @property
    def forwards(self) -> int:
        """Rows sent through the network."""

    def states(self, ask: Pass) -> Tensor: ...


class WholeCanvas:
    """The network on prompt and canvas in every pass; a block-causal one without the blocks behind those read."""

    def __init__(self, policy: Policy, prompts: PromptBatch) -> None:
        self.policy, self.prompts, self.forwards = policy, prompts, 0

    def states(self, ask: Pass) -> Tensor:
        self.forwards += len(ask.rows)
        end = ask.canvas.shape[1] if self.policy.block is None else int(ask.end.max())
        canvas = ask.canvas[:, :end]
        real = self.prompts.real[ask.rows]
        tokens = torch.cat([self.prompts.ids[ask.rows], canvas], 1)
        attend = torch.cat([real, torch.ones_like(canvas, dtype=torch.bool)], 1)
        return self.policy.hidden_at(tokens, attend, ask.read[:, :end])


class ExactCache:
    """Block-causal: the prompt's full blocks once per distinct prompt, every finished block once.

    A finished block goes through the network in its final form together with the first pass of the next block.
    """

    def __init__(self, policy: Policy, prompts: PromptBatch, length: int, block: int, grid: str) -> None:
        self.net = CachedNetwork(policy, prompts.ids, prompts.real, length, grid)
        self.policy, self.block, self.forwards = policy, block, 0
        self._read_prompts(prompts, length, grid)

    def _read_prompts(self, prompts: PromptBatch, length: int, grid: str) -> None:
        shared = prompts.real.sum(1) % self.block if grid == "absolute" else torch.zeros_like(prompts.sample)
        width = int((prompts.ids.shape[1] - shared).max())
        keys = torch.cat([torch.where(prompts.real, prompts.ids, -1), prompts.real.to(torch.int64)], 1)
        _, group = torch.unique(keys, dim=0, return_inverse=True)
        order = torch.arange(len(group), device=group.device)
        first = torch.full_like(group, len(group)).scatter_reduce(0, group, order, "amin")[group]
        rows = torch.unique(first)
        if width == 0:
            return
        canvas = prompts.ids.new_full((len(rows), length), self.policy.special.mask)
        self.net.run(rows, canvas, torch.zeros_like(rows), width)
        self.net.slots.share(first, width)
        self.forwards += len(rows)

    def states(self, ask: Pass) -> Tensor:
        self.forwards += len(ask.rows)
        start = self.net.prompt_length + ask.begin
        start = torch.where(ask.fresh & (ask.block > 0), start - self.block, start - self.policy.family.logit_shift)
        start = start.clamp(min=0)
        width = int((self.net.prompt_length + ask.end - start).max())
        states = self.net.run(ask.rows, ask.canvas, start, width)
        return pick(self.policy, states, start, ask.read, self.net.prompt_length)


class ApproximateCache:
    """Full attention: all keys and values are refreshed by the first pass of a block and then reused (Fast-dLLM).

    prefix: later passes run the active block and everything behind it. dual: the active block alone.
    """

    def __init__(self, policy: Policy, prompts: PromptBatch, length: int, block: int, dual: bool) -> None:
        self.net = CachedNetwork(policy, prompts.ids, prompts.real, length, "response")
        self.policy, self.length, self.block, self.dual, self.forwards = policy, length, block, dual, 0

    def states(self, ask: Pass) -> Tensor:
        self.forwards += len(ask.rows)
        sizes = ask.read.sum(1)
        owner = torch.arange(len(sizes), device=sizes.device).repeat_interleave(sizes)
        out: Tensor | None = None
        for keep in (ask.fresh, ~ask.fresh):
            if not bool(keep.any()):
                continue
            found = self._run(ask.only(keep), bool(ask.fresh[keep][0]))
            out = found.new_zeros(len(owner), found.shape[1]) if out is None else out
            out[keep[owner]] = found
        assert out is not None
        return out

    def _run(self, ask: Pass, fresh: bool) -> Tensor:
        prompt = self.net.prompt_length
        start = torch.zeros_like(ask.begin) if fresh else prompt + ask.begin - self.policy.family.logit_shift
        start = start.clamp(min=0)
        end = ask.end if self.dual and not fresh else torch.full_like(ask.end, self.length)
        width = int((prompt + end - start).max())
        states = self.net.run(ask.rows, ask.canvas, start, width)
        return pick(self.policy, states, start, ask.read, prompt)


def pick(policy: Policy, states: Tensor, start: Tensor, read: Tensor, prompt_length: int) -> Tensor:
    """States [n,d] that predict the canvas positions `read` bool [R,L], from windows that begin at column `start`."""
    row, position = read.nonzero(as_tuple=True)
    column = policy.predict_positions(prompt_length + position)
    return states[row, column - start[row]]


class Guided:
    """Classifier-free guidance: the same pass with the prompt and with a hidden one, whose states follow behind."""

    def __init__(self, network: Network, rows: int) -> None:
        self.network, self.rows = network, rows

    @property
    def forwards(self) -> int:
        return self.network.forwards

    def states(self, ask: Pass) -> Tensor:
        names = ask.__dataclass_fields__
        twice = {name: torch.cat([getattr(ask, name)] * 2) for name in names}
        twice["rows"] = torch.cat([ask.rows, ask.rows + self.rows])
        return self.network.states(Pass(**twice))


def with_hidden_prompts(prompts: PromptBatch, mask: int) -> PromptBatch:
    """The prompts, and behind them the same rows with every real token hidden."""
    blank = torch.where(prompts.real, mask, prompts.ids)
    ids, real = torch.cat([prompts.ids, blank]), torch.cat([prompts.real] * 2)
    return PromptBatch(ids=ids, real=real, sample=torch.cat([prompts.sample] * 2))


def network_for(
    policy: Policy, prompts: PromptBatch, length: int, block: int, grid: str, cache: str, guided: bool
) -> Network:
    """The network of a sampling call. `cache`: none, exact, prefix or dual, as `grid.check_cache` allows."""
    rows = len(prompts)
    if guided:
        prompts = with_hidden_prompts(prompts, policy.special.mask)
    network: Network
    if cache == "exact":
        network = ExactCache(policy, prompts, length, block, grid)
    elif cache in ("prefix", "dual"):
        network = ApproximateCache(policy, prompts, length, block, cache == "dual")
    else:
        network = WholeCanvas(policy, prompts)
    return Guided(network, rows) if guided else network
