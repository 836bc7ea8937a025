"""Rewards of one-shot completions at the chosen denoising passes (EGSPO-SA, 2603.12554 section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from maskgrad.algorithms.advantages import from_lowest, group_sum
from maskgrad.algorithms.base import Algorithm
from maskgrad.diffusion.batching import decode
from maskgrad.models.policy import Policy
from maskgrad.records import RolloutBatch
from maskgrad.tasks.base import Example, Grade, Task


def with_steps(
    policy: Policy,
    task: Task,
    algorithm: Algorithm,
    batch: RolloutBatch,
    examples: Sequence[Example],
    grades: Sequence[Grade],
    seed: int,
) -> RolloutBatch:
    """Choose denoising passes and, if the algorithm asks, grade the one-shot completions of their states."""
    path = batch.trajectory
    assert path is not None
    chosen = algorithm.select(path, batch.live, batch.sample, seed)
    if chosen is None:
        return batch if algorithm.wants_trajectory else replace(batch, trajectory=None)
    steps, weight = chosen
    batch = replace(batch, selected=steps, selected_weight=weight)
    if not algorithm.wants_one_shot:
        return batch
    own = torch.zeros_like(path.revealed, dtype=torch.bool)
    own = own.scatter_add(1, steps.clamp(min=0), steps >= 0)
    needed = own
    if algorithm.wants_step_baseline:  # every member at every pass that one of its group chose
        needed = (group_sum(own.to(torch.float32), batch.group) > 0) & (path.revealed > 0)
    table = graded_states(policy, task, algorithm, batch, examples, grades, needed)
    at = steps.clamp(min=0)
    centred = centred_at_passes(table, batch, grades) if algorithm.wants_step_baseline else None
    return replace(
        batch,
        step_reward=table.gather(1, at),
        step_centred=None if centred is None else centred.gather(1, at),
        trajectory=replace(path, one_shot=None),
    )


def graded_states(
    policy: Policy,
    task: Task,
    algorithm: Algorithm,
    batch: RolloutBatch,
    examples: Sequence[Example],
    grades: Sequence[Grade],
    needed: Tensor,
) -> Tensor:
    """Reward of the one-shot completion of each state, fp32 [B,S]; the final reward where `needed` is False.

    A pass that a row did not take has its final canvas as completion, and a completion that no reward function judges
    makes no difference, so the final reward stands there too.
    """
    path = batch.trajectory
    assert path is not None
    row, step = needed.nonzero(as_tuple=True)
    assert path.one_shot is not None, "the sampler was not asked to record one-shot completions"
    texts = decode(policy, path.one_shot[row, step].to(torch.int64))
    # Members of a group share many guesses; each distinct one is graded once.
    rows = row.tolist()
    keys = [(examples[r].id, text) for r, text in zip(rows, texts, strict=True)]
    first = {key: i for i, key in reversed(list(enumerate(keys)))}
    order = sorted(first.values())
    verdicts = task.grade_batch([examples[rows[i]] for i in order], [texts[i] for i in order])
    verdict = {keys[i]: grade for i, grade in zip(order, verdicts, strict=True)}
    values = [step_value(algorithm.guess_reward, grades[r], verdict[key]) for r, key in zip(row, keys, strict=True)]
    final = batch.reward[:, None].expand(needed.shape)
    return final.index_put((row, step), torch.tensor(values, dtype=final.dtype, device=final.device))


def step_value(parts: str, final: Grade, guess: Grade) -> float:
    """rhat of one state. all: the guess's reward. correctness: r - (c - chat), so that r - rhat compares verdicts.

    correctness_released: chat beside the whole final reward, which leaves the reward's other parts in the difference.
    """
    reward = 0.0 if final.reward is None else final.reward
    if guess.reward is None:
        return reward
    if parts == "all":
        return guess.reward
    if guess.correct is None or final.correct is None:
        return reward
    return float(guess.correct) if parts == "correctness_released" else reward - final.correct + guess.correct


def centred_at_passes(table: Tensor, batch: RolloutBatch, grades: Sequence[Grade]) -> Tensor:
    """rhat_s minus the mean of the other judged members' rhat at the same pass. table [B,S] -> [B,S]."""
    judged = torch.tensor([g.reward is not None for g in grades], device=table.device)
    weight = judged.to(table.dtype)
    value = from_lowest(torch.where(judged[:, None], table, table.amax()), batch.group) * weight[:, None]
    others = group_sum(weight, batch.group) - weight
    mean = (group_sum(value, batch.group) - value) / others.clamp(min=1)[:, None]
    return torch.where((judged & (others > 0))[:, None], value - mean, 0.0)
