"""One forward pass in which every block of every noisy copy sees exactly what the sampler would have shown it.

Shapes: `B` sequences of `T` positions, `R` noisy copies of them (copy r belongs to sequence row[r]), `L` positions of
the canvas, which is the end of a sequence; `N` slots of the packed pass.

The pass holds the clean stream of a sequence once, and behind it those blocks of its noisy copies in which something
is read. Blocks that nobody reads, and clean tokens that no read block looks at, are left out; no result changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from maskgrad.models.attention import Rule, positions, staircase

#: needed: what reads require. shared: all of the clean stream, and the noisy canvas with the prompt tokens in its
#: first block. doubled: both copies whole. The three give the same states.
Layout = Literal["needed", "shared", "doubled"]


@dataclass(frozen=True, kw_only=True)
class Slots:
    """Where the packed pass holds what. Unused slots have block -1 and see themselves alone."""

    block: Tensor  # int64 [B,N]; block number
    copy: Tensor  # int64 [B,N]; 0 clean, r + 1 noisy copy r
    column: Tensor  # int64 [B,N]; position in the sequence, 0 where unused
    place: Tensor  # int64 [B,N]; rotary position, the same in all copies
    noisy: Tensor  # int64 [R,T]; slot of a position of a noisy copy, -1 where it was left out
    clean: Tensor  # int64 [B,T]; slot of a position of the clean stream, -1 where it was left out

    def rule(self, clean: str = "block") -> Rule:
        return staircase(self.block, self.copy, self.place, clean)

    def tokens(self, clean: Tensor, noisy: Tensor) -> Tensor:
        """Tokens int64 [B,N] of the pass, from the clean [B,T] and the noisy ones [R,T]."""
        row = torch.arange(len(clean), device=clean.device)[:, None]
        both = torch.where(self.copy == 0, clean[row, self.column], noisy[(self.copy - 1).clamp(min=0), self.column])
        return torch.where(self.block < 0, 0, both)


def pack(attend: Tensor, block: Tensor, row: Tensor, read: Tensor, layout: Layout = "needed") -> Slots:
    """Slots for noisy copies of sequences. attend bool, block int64 [B,T]; row int64 [R]; read bool [R,L]."""
    own = block[row]
    seen = torch.nn.functional.pad(read, (own.shape[1] - read.shape[1], 0))
    clean, noisy = _wanted(block, own, row, seen, read.shape[1], layout)
    b_clean, at_clean = clean.nonzero(as_tuple=True)
    r, at_noisy = noisy.nonzero(as_tuple=True)
    offset = int(clean.sum(1).max())
    slot_clean, slot_noisy = _rank(b_clean, len(block)), offset + _rank(row[r], len(block))
    width = max(offset, int(slot_noisy.max()) + 1 if len(r) else 0, 1)  # one idle slot where nothing is read
    where = torch.cat([b_clean, row[r]]), torch.cat([slot_clean, slot_noisy])
    column = torch.cat([at_clean, at_noisy])

    def filled(empty: int, values: Tensor) -> Tensor:
        out = torch.full((len(block), width), empty, dtype=torch.int64, device=block.device)
        return out.index_put(where, values)

    empty_noisy, empty_clean = (torch.full_like(held, -1, dtype=torch.int64) for held in (noisy, clean))
    return Slots(
        block=filled(-1, block[where[0], column]),
        copy=filled(0, torch.cat([torch.zeros_like(at_clean), r + 1])),
        column=filled(0, column),
        place=filled(0, positions(attend)[where[0], column]),
        noisy=empty_noisy.index_put((r, at_noisy), slot_noisy),
        clean=empty_clean.index_put((b_clean, at_clean), slot_clean),
    )


def _wanted(
    block: Tensor, own: Tensor, row: Tensor, seen: Tensor, canvas: int, layout: Layout
) -> tuple[Tensor, Tensor]:
    """Positions held clean bool [B,T], and noisy bool [R,T]."""
    real = own >= 0
    if layout == "doubled":
        return block >= 0, real
    if layout == "shared":
        return block >= 0, real & (own >= own[:, -canvas, None])
    hit = torch.zeros(len(own), int(own.max()) + 2, dtype=torch.int64, device=own.device)
    hit.scatter_add_(1, own + 1, seen.to(torch.int64))
    last = torch.where(seen, own, -1).amax(1)
    furthest = torch.full((len(block),), -1, dtype=torch.int64, device=own.device)
    furthest = furthest.scatter_reduce(0, row, last, "amax")
    return (block >= 0) & (block < furthest[:, None]), (hit.gather(1, own + 1) > 0) & real


def _rank(sequence: Tensor, count: int) -> Tensor:
    """Number int64 [n] of equal entries before each entry of `sequence` int64 [n] (values below `count`)."""
    order = sequence.argsort(stable=True)
    first = torch.bincount(sequence, minlength=count).cumsum(0) - torch.bincount(sequence, minlength=count)
    rank = torch.empty_like(sequence)
    rank[order] = torch.arange(len(sequence), device=sequence.device) - first[sequence[order]]
    return rank
