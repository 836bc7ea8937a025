"""The 288 solved 4x4 Sudoku grids, their split, and puzzles with one solution drawn from them."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from maskgrad.tasks.draws import below, draw_front, keyed_random

CELLS = 16
MAX_BLANKS = 12  # four clues are the fewest that can fix a 4x4 grid
SPLIT_SIZES = {"train": 192, "validation": 48, "test": 48}

_TRIES_PER_GRID = 400


@functools.cache
def all_grids() -> npt.NDArray[np.uint8]:
    """All solved grids, uint8[288, 16] with digits 1 to 4, in lexicographic order. Read-only."""
    rows = np.array(list(itertools.permutations((1, 2, 3, 4))), dtype=np.uint8)
    bands = np.array([(a, b) for a in rows for b in rows if set(a[:2]) | set(b[:2]) == {1, 2, 3, 4}])
    top, bottom = (bands[index.ravel()] for index in np.indices((len(bands), len(bands))))
    grids = np.concatenate([top, bottom], axis=1)
    grids = grids[(np.sort(grids, axis=1) == np.array([1, 2, 3, 4])[:, None]).all(axis=(1, 2))].reshape(-1, CELLS)
    grids = grids[np.lexsort(grids.T[::-1])]
    grids.flags.writeable = False
    return grids


@functools.cache
def grid_texts() -> tuple[str, ...]:
    """The grids of `all_grids` as strings of 16 digits."""
    return tuple("".join(map(str, row)) for row in all_grids().tolist())


@functools.cache
def _agreement() -> npt.NDArray[np.uint16]:
    """uint16[288, 288]: bit c is set where two grids carry the same digit in cell c."""
    same = all_grids()[:, None, :] == all_grids()[None, :, :]
    return (same * (1 << np.arange(CELLS, dtype=np.uint32))).sum(axis=2).astype(np.uint16)


@functools.cache
def split_grids(split: str) -> tuple[int, ...]:
    """Indices into `all_grids` of one split; the three splits are disjoint and never change."""
    order = list(range(len(all_grids())))
    draw_front(keyed_random("sudoku 4x4 grids by split"), order, len(order))
    start = 0
    for name, size in SPLIT_SIZES.items():
        if name == split:
            return tuple(order[start : start + size])
        start += size
    raise KeyError(split)


def solution_count(puzzle: str) -> int:
    """Number of solved grids that keep every clue of a puzzle (16 digits, 0 for an empty cell)."""
    cells = np.array([int(digit) for digit in puzzle], dtype=np.uint8)
    return int(((all_grids() == cells) | (cells == 0)).all(axis=1).sum())


def draw_puzzle(rng: random.Random, grids: Sequence[int], blanks: tuple[int, int]) -> tuple[str, str]:
    """A puzzle with exactly one solution, and that solution.

    The number of empty cells is uniform in `blanks` (both ends included). Clue positions are redrawn until no
    other grid fits them; after a bounded number of failures another grid is drawn, the number of cells kept.
    """
    clue_count = CELLS - blanks[0] - below(rng, blanks[1] - blanks[0] + 1)
    places = list(range(CELLS))
    while True:
        grid = grids[below(rng, len(grids))]
        agreement = _agreement()[grid]
        for _ in range(_TRIES_PER_GRID):
            draw_front(rng, places, clue_count)
            mask = np.uint16(sum(1 << place for place in places[:clue_count]))
            if np.count_nonzero((agreement & mask) == mask) == 1:
                solution = grid_texts()[grid]
                clues = set(places[:clue_count])
                return "".join(d if c in clues else "0" for c, d in enumerate(solution)), solution
