"""Keys and values of earlier passes: exact for block-causal networks, approximate for full attention (Fast-dLLM).

Every row owns one slot per column of [prompt | canvas]. A call sends a window of columns through the network, writes
their keys and values into the slots in place and lets the window look at the slots. Under block-causal attention a
finished block never changes again, so its slots are what recomputing it would give: that cache is exact. Under full
attention every commit changes every key; using old ones is an approximation (Fast-dLLM 2505.22618).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.models.attention import block_ids, positions
from maskgrad.models.policy import Policy


class Slots:
    """Keys and values [B,h,T+1,.] of every layer. The last column takes what falls off the end of the canvas."""

    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def window(self, rows: Tensor, columns: Tensor, seen: int) -> Window:
        return Window(self, rows, columns, seen)

    def layer(self, number: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if number not in self.layers:
            # zeros, because a slot that is hidden by the mask still enters the product and must be finite
            self.layers[number] = tuple(  # type: ignore[assignment]
                new.new_zeros(self.rows, new.shape[1], self.columns + 1, new.shape[3]) for new in (keys, values)
            )
        return self.layers[number]

    def share(self, source: Tensor, columns: int) -> None:
        """Copy the first `columns` slots of row `source[b]` to every row b."""
        for held in self.layers.values():
            for tensor in held:
                tensor[:, :, :columns] = tensor[source, :, :columns]


class Window:
    """One call's view of the slots, with the `update` that the layers of transformers ask of a cache."""

    def __init__(self, slots: Slots, rows: Tensor, columns: Tensor, seen: int) -> None:
        self.slots, self.rows, self.columns, self.seen = slots, rows, columns, seen
        self.whole = len(rows) == slots.rows  # rows are in order, so this is every row: no copy is needed

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        held = self.slots.layer(layer, keys, values)
        out = []
        for slot, new in zip(held, (keys, values), strict=True):
            slot[self.rows[:, None], :, self.columns] = new.transpose(1, 2)
            seen = slot[:, :, : self.seen]
            out.append(seen if self.whole else seen[self.rows])
        return out[0], out[1]


class CachedNetwork:
    """Sends windows of columns through the network. Subclass-free: `block` is None under full attention."""

    def __init__(self, policy: Policy, prompt: Tensor, real: Tensor, length: int, grid: str) -> None:
        self.policy, self.prompt = policy, prompt
        self.attend = torch.cat([real, real.new_ones(len(real), length)], 1)
        self.columns, self.prompt_length = self.attend.shape[1], prompt.shape[1]
        self.place = positions(self.attend)
        block = policy.block
        self.number = None if block is None else block_ids(self.attend, self.prompt_length, block, grid)
        self.slots = Slots(len(prompt), self.columns)

    def run(self, rows: Tensor, canvas: Tensor, start: Tensor, width: int) -> Tensor:
        """States [R,width,d] of the columns start[r] .. start[r] + width - 1 of each row. Past the end: no meaning."""
        columns = (start[:, None] + torch.arange(width, device=start.device)).clamp(max=self.columns)
        inside = columns.clamp(max=self.columns - 1)
        tokens = torch.cat([self.prompt[rows], canvas], 1).gather(1, inside)
        seen = self.columns if self.number is None else int(columns.max()) + 1
        seen = min(seen, self.columns)
        mask = self.mask(rows, inside, columns < self.columns, seen)
        window = self.slots.window(rows, columns, seen)
        return self.policy.states(tokens, mask, self.place[rows].gather(1, inside), window)

    def mask(self, rows: Tensor, inside: Tensor, exists: Tensor, seen: int) -> Tensor | None:
        """Who sees which slots, bool [R,1,Q,seen]. A query that means nothing sees everything: no empty softmax."""
        real = self.attend[rows]
        meaningless = ~(exists & real.gather(1, inside))
        if self.number is None:
            if bool(real.all()):
                return None
            return (real[:, None, :seen] | meaningless[:, :, None])[:, None]
        key, query = self.number[rows][:, None, :seen], self.number[rows].gather(1, inside)[:, :, None]
        return ((key >= 0) & (key <= query) | meaningless[:, :, None])[:, None]
