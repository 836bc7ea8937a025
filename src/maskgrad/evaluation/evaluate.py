"""Evaluation: one sampler for training, evaluation and chat; every setting is part of the result."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from maskgrad.diffusion.batching import check_window, decode, prompt_batch, sample_in_chunks
from maskgrad.diffusion.gap import journal_gap
from maskgrad.diffusion.sampler import Record
from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.errors import UserError
from maskgrad.evaluation.outcomes import statuses
from maskgrad.evaluation.outputs import Finished, Outputs
from maskgrad.evaluation.statistics import wilson_interval
from maskgrad.models.policy import Policy
from maskgrad.models.tokenizer import check_prompt_length, encode_prompt
from maskgrad.tasks.base import Example, Grade, Task


@dataclass(frozen=True)
class Evaluation:
    """`result` is JSON-ready; `items` holds one entry per example and repeat, `grades` their verdicts in that order."""

    result: dict[str, Any]
    items: list[dict[str, Any]]
    examples: list[Example]
    grades: list[Grade]


def examples_of(task: Task, split: str, count: int) -> list[Example]:
    size = task.size(split)
    return [task.example(split, i) for i in range(count if size is None else min(count, size))]


def check_ids(task: Task, split: str, examples: Sequence[Example]) -> None:
    """Refuse two examples of one id: completions and verdicts are kept by it."""
    name, times = collections.Counter(example.id for example in examples).most_common(1)[0]
    if times > 1:
        raise UserError(
            f"{times} examples of split {split!r} of task {task.name!r} have the id {name!r}: give each its own"
        )


def check_prompts(policy: Policy, examples: Sequence[Example], max_prompt_length: int, gen_length: int) -> None:
    """Refuse a prompt that cannot be sampled: before the work, not in the middle of it."""
    for prompt in {str(example.prompt): example.prompt for example in examples}.values():
        row = encode_prompt(policy.need_tokenizer(), prompt)
        check_prompt_length(row, max_prompt_length)
        check_window(policy, len(row), gen_length)


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
    repeats: int = 1,
    outputs: Outputs | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Sample `repeats` completions per example of `split` and grade them; repeat r uses `seed + r`.

    Every example counts exactly once per repeat. Completions already in `outputs` are graded anew, not sampled again.
    """
    started = time.perf_counter()
    if task.size(split) == 0:
        raise UserError(f"split {split!r} of task {task.name!r} is empty: give it rows, or name another split or task")
    if repeats > 1 and sampler.temperature == 0:
        raise UserError(f"{repeats} repeats at temperature 0 are the same completion: give a temperature above 0")
    examples = examples_of(task, split, count)
    check_ids(task, split, examples)
    check_prompts(policy, examples, max_prompt_length, sampler.gen_length)
    outputs = outputs or Outputs()
    keys = [(seed + r, i) for r in range(repeats) for i in range(len(examples))]
    missing = [key for key in keys if outputs.get(key[0], examples[key[1]]) is None]
    done = len(keys) - len(missing)
    gaps: list[float] = []  # of an approximate cache, one per batch
    for r in range(repeats):
        places = [i for stream, i in missing if stream == seed + r]
        for start in range(0, len(places), micro_batch):
            part = places[start : start + micro_batch]
            outputs.add(_sample(policy, examples, part, sampler, seed + r, max_prompt_length, gaps))
            done += len(part)
            if progress is not None:
                progress(done, len(keys))
    finished = [outputs.finished(stream, examples[i]) for stream, i in keys]
    repeated = [examples[i] for _, i in keys]
    grades = task.grade_batch(repeated, [found.completion for found in finished])
    result = summary(task, split, sampler, grades, seed)
    if gaps:
        result["sampler_gap"] = sum(gaps) / len(gaps)
    result["time"] = {"seconds": time.perf_counter() - started}
    items = [graded_row(f, g) for f, g in zip(finished, grades, strict=True)]
    return Evaluation(result, items, repeated, grades)


def _sample(
    policy: Policy,
    examples: Sequence[Example],
    places: Sequence[int],
    sampler: SamplerConfig,
    seed: int,
    max_prompt_length: int,
    gaps: list[float],
) -> list[Finished]:
    """One completion for each of the examples at `places`. The place names the random stream, whatever the batch."""
    part = [examples[i] for i in places]
    prompts = prompt_batch(
        policy, [e.prompt for e in part], torch.tensor(places), max_prompt_length, sampler.gen_length
    )
    path = sample_in_chunks(policy, prompts, sampler, seed, Record(statistics=False), len(part))
    gaps.extend(journal_gap(policy, prompts, path, sampler, seed).values())
    texts = decode(policy, path.tokens)
    return [
        Finished(e.id, seed, e.prompt, dict(e.columns), text, tokens)
        for e, text, tokens in zip(part, texts, path.tokens.tolist(), strict=True)
    ]


def graded_row(found: Finished, grade: Grade) -> dict[str, Any]:
    """A line of the outputs file: what was sampled and how it was judged."""
    return {
        "id": found.id,
        "seed": found.seed,
        "prompt": found.prompt,
        "completion": found.completion,
        "reward": grade.reward,
        "correct": grade.correct,
        "extracted": grade.extracted,
        "status": grade.status,
        "prompt_fields": found.columns,
        "tokens": found.tokens,
    }


def summary(task: Task, split: str, sampler: SamplerConfig, grades: Sequence[Grade], seed: int) -> dict[str, Any]:
    """Accuracy with its 95 % Wilson interval, mean reward, and the task's own metrics."""
    known = [g.correct for g in grades if g.correct is not None]
    rewards = [g.reward for g in grades if g.reward is not None]
    correct = sum(bool(c) for c in known)
    return {
        "task": task.name,
        "task_hash": task.hash(),
        **({"sandbox": task.sandbox} if task.sandbox else {}),
        "split": split,
        "n": len(grades),
        "accuracy": correct / len(known) if known else None,
        "interval": list(wilson_interval(correct, len(known))) if known else None,
        "reward": sum(rewards) / len(rewards) if rewards else None,
        "metrics": {m: sum(g.parts.get(m, 0.0) for g in grades) / max(1, len(grades)) for m in task.metrics},
        "status": statuses(grades),
        "sampler": sampler.model_dump(mode="json"),
        "seed": seed,
    }
