"""Reading a commit map: live tokens, intermediate states, and what was decided in a pass."""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.records import Trajectory


def live_mask(tokens: Tensor, stops: tuple[int, ...]) -> Tensor:
    """True up to and including the first stop token of each row. tokens int64 [B,L] -> bool [B,L]."""
    stop = torch.isin(tokens, torch.tensor(stops, device=tokens.device, dtype=tokens.dtype))
    return (stop.cumsum(1) - stop.to(torch.int64)) == 0


def hidden_before(trajectory: Trajectory, steps: Tensor) -> Tensor:
    """Positions hidden in the state before each pass of `steps` int64 [B,K]. bool [B,K,L]."""
    commit = trajectory.commit_step[:, None, :].to(torch.int64)
    return (commit >= steps[:, :, None]) | (commit < 0)


def revealed_at(trajectory: Trajectory, steps: Tensor) -> Tensor:
    """Positions committed by each pass of `steps` int64 [B,K] (negative = no pass). bool [B,K,L]."""
    return (trajectory.commit_step[:, None, :].to(torch.int64) == steps[:, :, None]) & (steps[:, :, None] >= 0)


def block_numbers(trajectory: Trajectory, block_length: int) -> Tensor:
    """Block of each canvas position on the row's own grid, int64 [B,L]."""
    rows, length = trajectory.tokens.shape
    position = torch.arange(length, device=trajectory.tokens.device).expand(rows, length)
    if trajectory.first_block is None:
        return position // block_length
    return (position + block_length - trajectory.first_block[:, None]) // block_length


def active_block(trajectory: Trajectory, steps: Tensor, block_length: int) -> Tensor:
    """Positions of the block that each pass worked in. bool [B,K,L]."""
    block = block_numbers(trajectory, block_length)[:, None]
    worked = torch.where(revealed_at(trajectory, steps), block, -1).amax(-1)
    return block == worked[..., None]


def one_shot_at(trajectory: Trajectory, steps: Tensor) -> Tensor:
    """Greedy completions of the states before `steps` int64 [B,K]. int64 [B,K,L]; needs `one_shot` recorded."""
    assert trajectory.one_shot is not None, "the sampler was not asked to record one-shot completions"
    index = steps.clamp(min=0)[:, :, None].expand(-1, -1, trajectory.tokens.shape[1])
    return trajectory.one_shot.to(torch.int64).gather(1, index)


def check_states(trajectory: Trajectory, mask: int) -> None:
    """Invariants of a finished trajectory; a violation is a bug of the sampler, never of the user."""
    assert not bool((trajectory.tokens == mask).any()), "MASK left in a finished canvas"
    committed = trajectory.commit_step >= 0
    assert bool((trajectory.commit_step < trajectory.passes[:, None]).all()), "commit step past the last pass"
    assert bool((trajectory.revealed.sum(1) == committed.sum(1)).all()), "a position was committed twice"
