"""Evaluation: one sampler for training, evaluation and chat; every setting is part of the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from maskgrad.diffusion.batching import decode, prompt_batch, sample_in_chunks
from maskgrad.diffusion.sampler import Record
from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.evaluation.statistics import wilson_interval
from maskgrad.models.policy import Policy
from maskgrad.tasks.base import Example, Grade, Task


@dataclass(frozen=True)
class Evaluation:
    """`result` is JSON-ready; `items` holds one entry per example."""

    result: dict[str, Any]
    items: list[dict[str, Any]]


def examples_of(task: Task, split: str, count: int) -> list[Example]:
    size = task.size(split)
    return [task.example(split, i) for i in range(count if size is None else min(count, size))]


def evaluate(
    policy: Policy,
    task: Task,
    split: str,
    count: int,
    sampler: SamplerConfig,
    *,
    micro_batch: int = 256,
    max_prompt_length: int = 512,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Sample one completion per example of `split` and grade it. Every example counts exactly once."""
    started = time.perf_counter()
    examples = examples_of(task, split, count)
    texts: list[str] = []
    for start in range(0, len(examples), micro_batch):
        part = examples[start : start + micro_batch]
        ids = torch.arange(start, start + len(part))
        prompts = prompt_batch(policy, [e.prompt for e in part], ids, max_prompt_length, sampler.gen_length)
        path = sample_in_chunks(policy, prompts, sampler, seed, Record(statistics=False), micro_batch)
        texts += decode(policy, path.tokens)
        if progress is not None:
            progress(len(texts), len(examples))
    grades = task.grade_batch(examples, texts)
    result = summary(task, split, sampler, grades, seed)
    result["time"] = {"seconds": time.perf_counter() - started}
    items = [
        {"id": e.id, "prompt": e.prompt, "completion": t, "reward": g.reward, "correct": g.correct, "status": g.status}
        for e, t, g in zip(examples, texts, grades, strict=True)
    ]
    return Evaluation(result, items)


def summary(task: Task, split: str, sampler: SamplerConfig, grades: Sequence[Grade], seed: int) -> dict[str, Any]:
    """Accuracy with its 95 % Wilson interval, mean reward, and the task's own metrics."""
    known = [g.correct for g in grades if g.correct is not None]
    rewards = [g.reward for g in grades if g.reward is not None]
    correct = sum(bool(c) for c in known)
    return {
        "task": task.name,
        "task_hash": task.hash(),
        "split": split,
        "n": len(grades),
        "accuracy": correct / len(known) if known else None,
        "interval": list(wilson_interval(correct, len(known))) if known else None,
        "reward": sum(rewards) / len(rewards) if rewards else None,
        "metrics": {m: sum(g.parts.get(m, 0.0) for g in grades) / max(1, len(grades)) for m in task.metrics},
        "status": {s: sum(g.status == s for g in grades) for s in sorted({g.status for g in grades})},
        "sampler": sampler.model_dump(mode="json"),
        "seed": seed,
    }
