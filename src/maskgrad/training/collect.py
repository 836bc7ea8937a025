"""Rollouts: prompts -> completions -> grades -> one RolloutBatch. Token ids end to end; text only inside rewards."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from maskgrad.algorithms.base import Algorithm
from maskgrad.config import RolloutConfig
from maskgrad.diffusion import trajectory as paths
from maskgrad.diffusion.batching import decode, prompt_batch, sample_in_chunks
from maskgrad.diffusion.gap import sampler_gap
from maskgrad.diffusion.sampler import Record
from maskgrad.models.policy import Policy
from maskgrad.records import RolloutBatch, Trajectory
from maskgrad.tasks.base import Example, Grade, Task
from maskgrad.training.step_rewards import with_steps


@dataclass(frozen=True)
class Collected:
    """A graded batch and what the journal says of it."""

    batch: RolloutBatch
    metrics: dict[str, Any]
    texts: list[dict[str, Any]]  # one entry per rollout: prompt, completion, reward, status
    seconds: dict[str, float]


def rows_of(record: Any, index: Tensor) -> Any:
    """The chosen rows of a record whose tensor fields share their first axis."""
    changes = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Tensor):
            changes[field.name] = value[index]
        elif isinstance(value, Trajectory):
            changes[field.name] = rows_of(value, index)
    return replace(record, **changes)


def collect(
    policy: Policy,
    task: Task,
    algorithm: Algorithm,
    config: RolloutConfig,
    examples: Sequence[Example],
    first_group: int,
    seed: int,
) -> Collected:
    """Sample `group_size` completions of each example, grade them, and prepare what the algorithm scores.

    Groups are numbered from `first_group`; sample id = group * group_size + member, so a rollout is named for life.
    """
    started = time.perf_counter()
    size = config.group_size
    group = torch.arange(first_group, first_group + len(examples)).repeat_interleave(size)
    ids = group * size + torch.arange(size).repeat(len(examples))
    repeated = [e for e in examples for _ in range(size)]
    prompts = prompt_batch(
        policy, [e.prompt for e in repeated], ids, config.max_prompt_length, config.sampler.gen_length
    )
    record = Record(one_shot=algorithm.wants_one_shot, proposals=algorithm.wants_proposals)
    path = sample_in_chunks(policy, prompts, config.sampler, seed, record, config.micro_batch)
    paths.check_states(path, policy.special.mask)
    gap = sampler_gap(policy, prompts, path, config.sampler, seed)
    sampled = time.perf_counter()
    texts = decode(policy, path.tokens)
    grades = task.grade_batch(repeated, texts)
    live = paths.live_mask(path.tokens, policy.special.stops)
    ones = torch.ones_like(live)
    batch = RolloutBatch(
        tokens=torch.cat([prompts.ids, path.tokens], 1),
        attend=torch.cat([prompts.real, ones], 1),
        live=live,
        group=group.to(policy.device),
        sample=prompts.sample,
        reward=torch.tensor([0.0 if g.reward is None else g.reward for g in grades], device=policy.device),
        trajectory=path,
        block=canvas_blocks(policy, prompts.real, live.shape[1]),
    )
    batch = with_steps(policy, task, algorithm, batch, repeated, grades, seed)
    kept, dropped = _usable(batch, grades)
    stops = torch.tensor(policy.special.stops, device=path.tokens.device)
    stopped = torch.isin(path.tokens, stops).any(1)
    metrics = _metrics(batch, grades, texts, path, dropped, stopped) | {"sampler_gap": gap}
    rows = [
        {"id": e.id, "prompt": e.prompt, "completion": t, "reward": g.reward, "correct": g.correct, "status": g.status}
        for e, t, g in zip(repeated, texts, grades, strict=True)
    ]
    ended = time.perf_counter()
    return Collected(rows_of(batch, kept), metrics, rows, {"sample": sampled - started, "grade": ended - sampled})


def canvas_blocks(policy: Policy, real: Tensor, length: int) -> Tensor | None:
    """Block int64 [B,L] of each canvas position behind prompts `real` bool [B,P]; None under full attention."""
    if policy.block is None:
        return None
    attend = torch.cat([real, real.new_ones(len(real), length)], 1)
    numbers = policy.block_numbers(attend, real.shape[1])[:, real.shape[1] :]
    return numbers - numbers[:, :1]


def _usable(batch: RolloutBatch, grades: Sequence[Grade]) -> tuple[Tensor, int]:
    """Rows with a reward, in groups that still have at least two of them; and how many rows were dropped."""
    graded = torch.tensor([g.reward is not None for g in grades], device=batch.group.device)
    _, index = torch.unique(batch.group, return_inverse=True)
    members = torch.zeros(int(index.max()) + 1, device=index.device).index_add_(0, index, graded.to(torch.float32))
    keep = graded & (members[index] >= 2)
    return keep.nonzero().squeeze(1), int((~keep).sum())


def _metrics(
    batch: RolloutBatch, grades: Sequence[Grade], texts: Sequence[str], path: Trajectory, dropped: int, stopped: Tensor
) -> dict[str, Any]:
    groups: dict[int, list[int]] = {}
    for row, name in enumerate(batch.group.tolist()):
        groups.setdefault(name, []).append(row)
    # an abstention is not a reward of 0: a group whose judged rewards agree has no signal
    equal = sum(len({grades[r].reward for r in rows} - {None}) <= 1 for rows in groups.values())
    same = sum(len({texts[r] for r in rows}) == 1 for rows in groups.values())
    distinct = sum(len({texts[r] for r in rows}) / len(rows) for rows in groups.values()) / len(groups)
    judged = [g for g in grades if g.reward is not None]
    known = [g.correct for g in judged if g.correct is not None]
    parts = {name for g in judged for name in g.parts}
    out: dict[str, Any] = {
        "reward": sum(g.reward or 0.0 for g in judged) / max(1, len(judged)),
        "correct": sum(known) / len(known) if known else None,
        "equal_reward_groups": equal,
        "identical_groups": same,
        "groups": len(groups),
        "distinct_share": distinct,
        "empty_completions": sum(t == "" for t in texts),
        "unstopped": int((~stopped).sum()),
        "stop_position": float(batch.live.sum(1)[stopped].to(torch.float64).mean()) if bool(stopped.any()) else None,
        "live_tokens": int(batch.live.sum()),
        "passes": float(path.passes.to(torch.float32).mean()),
        "forwards": path.forwards,
        "dropped_rows": dropped,
        "status": {s: sum(g.status == s for g in grades) for s in sorted({g.status for g in grades})},
    }
    if parts:
        out["parts"] = {n: sum(g.parts.get(n, 0.0) for g in judged) / len(judged) for n in sorted(parts)}
    return out
