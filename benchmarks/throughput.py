"""Speed of the three hot paths: sampling, scoring without gradient, scoring with gradient.

    python benchmarks/throughput.py [--model maskgrad:base_sudoku_tiny] [--threads 1] [--rows 128]

Prints tokens per second (every token of prompt and canvas counts once per network pass) as the median of `--repeats`
runs, and what the output head costs when it is applied to read positions only and to all of them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from maskgrad import load_policy
from maskgrad.diffusion.sampler import KeyedNoise, Record, sample
from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.likelihood import score
from maskgrad.likelihood.views import mean_field
from maskgrad.records import PromptBatch, RolloutBatch


def median_seconds(run: Callable[[], object], repeats: int) -> float:
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="maskgrad:base_sudoku_tiny")
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=17)
    parser.add_argument("--gen-length", type=int, default=16)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    known = parser.parse_args()
    torch.set_num_threads(known.threads)
    policy = load_policy(known.model)
    ids = torch.randint(5, policy.vocab_rows, (known.rows, known.prompt), generator=torch.Generator().manual_seed(0))
    prompts = PromptBatch(ids=ids, real=torch.ones_like(ids, dtype=torch.bool), sample=torch.arange(known.rows))
    config = SamplerConfig(gen_length=known.gen_length, steps=known.steps, temperature=1.0, stop_early=False)
    noise = KeyedNoise(0, prompts.sample)
    width = known.prompt + known.gen_length
    tokens = known.rows * width

    def rollout(record: Record) -> Callable[[], object]:
        return lambda: sample(policy, prompts, config, noise, record)

    path = sample(policy, prompts, config, noise)
    live = torch.ones_like(path.tokens, dtype=torch.bool)
    batch = RolloutBatch(
        tokens=torch.cat([ids, path.tokens], 1),
        attend=torch.ones(known.rows, width, dtype=torch.bool),
        live=live,
        group=torch.arange(known.rows) // 8,
        sample=prompts.sample,
        reward=torch.zeros(known.rows),
    )
    views = mean_field(batch, 0, p_prompt=0.15)
    row, view = score.active_views(views)

    def backward() -> None:
        score.score_rows(policy, batch, views, row, view).sum().backward()
        policy.zero_grad()

    cases: list[tuple[str, Callable[[], object], int]] = [
        ("sampling, no statistics", rollout(Record(statistics=False)), tokens * known.steps),
        ("sampling, commit map", rollout(Record()), tokens * known.steps),
        ("sampling, one-shot completions too", rollout(Record(one_shot=True)), tokens * known.steps),
        ("scoring without gradient", lambda: score.score(policy, batch, views, known.rows), tokens),
        ("scoring with gradient", backward, tokens),
    ]
    print(f"{known.model}, {known.rows} x {width} tokens, {known.steps} passes, {known.threads} thread(s)")
    for name, run, count in cases:
        print(f"{name:36} {count / median_seconds(run, known.repeats):>10,.0f} tokens/s")


if __name__ == "__main__":
    main()
