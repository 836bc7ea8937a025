"""Hidden states of masked views: one bidirectional pass per view, or staircase passes on a block-causal policy.

On a block-causal policy every block of a view is read beside the clean text of the blocks before it, and the views of a
rollout share one clean stream (models/staircase.py). Shapes: `R` views, `T` positions, `L` canvas, `n` read positions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.errors import UserError
from maskgrad.models.policy import Policy
from maskgrad.records import RolloutBatch


def states_at(
    policy: Policy, batch: RolloutBatch, row: Tensor, hidden: Tensor, read: Tensor, guided: bool = False
) -> Tensor:
    """States [n,d] at `read` bool [R,L] of the rows int64 [R] with `hidden` bool [R,T] replaced by MASK.

    `guided`: those of the same views with the whole prompt hidden stand behind them, [n,2d].
    """
    states = _states(policy, batch, row, hidden, read)
    if not guided:
        return states
    real = batch.attend[row].clone()
    real[:, batch.prompt_length :] = False
    return torch.cat([states, _states(policy, batch, row, hidden | real, read)], -1)


def _states(policy: Policy, batch: RolloutBatch, row: Tensor, hidden: Tensor, read: Tensor) -> Tensor:
    tokens, attend = batch.tokens[row], batch.attend[row]
    noisy = torch.where(hidden, policy.special.mask, tokens)
    if policy.block is None:
        return policy.hidden_at(noisy, attend, read)
    _same_blocks(policy, batch)
    # what a view hides of the prompt is hidden from every block; the completion is noisy in its own block only
    start = batch.prompt_length
    clean = torch.cat([noisy[:, :start], tokens[:, start:]], 1)
    # views of a row that hide the same of the prompt share its clean stream
    _, stream = torch.unique(torch.cat([row[:, None], noisy[:, :start]], 1), dim=0, return_inverse=True)
    first = torch.full((int(stream.max()) + 1,), len(row), dtype=torch.int64, device=row.device)
    first = first.scatter_reduce(0, stream, torch.arange(len(row), device=row.device), "amin")
    return policy.staircase_at(clean[first], attend[first], noisy, stream, read)


def _same_blocks(policy: Policy, batch: RolloutBatch) -> None:
    """The sampler and the scorer must cut the canvas into the same blocks."""
    if batch.block is None:
        return
    numbers = policy.block_numbers(batch.attend, batch.prompt_length)[:, batch.prompt_length :]
    if not torch.equal(numbers - numbers[:, :1], batch.block):
        raise UserError(
            f"the rollouts were sampled on other blocks than the {policy.grid} grid of block length {policy.block} "
            "that scores them: set rollout.sampler.grid to the grid of the sampler"
        )
