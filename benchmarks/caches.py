"""Rollouts with and without key-value caches, in one run.

    python benchmarks/caches.py [--gen-length 256] [--threads 1] [--repeats 3]

The setting of the table in docs/caches.md: a random block-causal model of width 256 (SDAR's architecture, block 4), one
prompt of 128 tokens, 8 rollouts of it, 256 tokens in 4 passes per block. Prints seconds, columns sent through the
network, and whether the tokens agree. `uncached` runs prompt and canvas up to the active block in every pass; it runs
once, the others `--repeats` times (median). The second table is the approximation for full attention (LLaDA's
architecture of the same size, blocks of 32), with the sampler's distance from the scorer.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from torch import Tensor

from maskgrad.diffusion.gap import sampler_gap
from maskgrad.diffusion.sampler import KeyedNoise, Record, sample
from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.models.families import LLADA, SDAR
from maskgrad.models.load import new_policy
from maskgrad.models.policy import Policy
from maskgrad.records import PromptBatch, Trajectory

IDS = {"mask_token_id": 1023, "eos_token_id": 1022, "pad_token_id": 1021, "vocab_size": 1024}


def block_causal_model(width: int, layers: int, block: int) -> Policy:
    sizes = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // 64,
        "num_key_value_heads": max(1, width // 128),
        "head_dim": 64,
        "intermediate_size": 3 * width,
        "max_position_embeddings": 4096,
        "rope_theta": 1000000.0,
        "block_size": block,
    }
    return new_policy(SDAR, {**sizes, **IDS}, None, 0).requires_grad_(False)


def full_model(width: int, layers: int) -> Policy:
    sizes = {"d_model": width, "n_heads": width // 64, "n_layers": layers, "mlp_hidden_size": 3 * width}
    return new_policy(LLADA, {**sizes, **IDS}, None, 0).requires_grad_(False)


class Columns:
    """Counts the columns that go through the network."""

    def __init__(self, policy: Policy) -> None:
        self.count, self.run = 0, policy.states
        policy.states = self.states  # type: ignore[method-assign]

    def states(self, tokens: Tensor, *rest: Any) -> Tensor:
        self.count += tokens.numel()
        return self.run(tokens, *rest)


def measure(policy: Policy, prompts: PromptBatch, config: SamplerConfig, repeats: int) -> tuple[Trajectory, float, int]:
    """A rollout, the median of its seconds, and the columns it sent through the network."""
    noise, counter, times = KeyedNoise(0, prompts.sample), Columns(policy), []
    for _ in range(repeats):
        start = time.perf_counter()
        path = sample(policy, prompts, config, noise, Record())
        times.append(time.perf_counter() - start)
    policy.states = counter.run  # type: ignore[method-assign]
    return path, statistics.median(times), counter.count // repeats


def compare(policy: Policy, prompts: PromptBatch, caches: list[str], repeats: int, **settings: Any) -> float:
    """Print one line per cache; returns how many times faster the last is than the first."""
    first: tuple[Trajectory, float, int] | None = None
    for cache in caches:
        config = SamplerConfig(cache=cache, stop_early=False, temperature=1.0, **settings)
        path, seconds, columns = measure(policy, prompts, config, 1 if cache == "none" else repeats)
        first = first or (path, seconds, columns)
        same = float((path.tokens == first[0].tokens).to(torch.float32).mean())
        gap = sampler_gap(policy, prompts, path, config, 0)
        print(
            f"{'uncached' if cache == 'none' else cache:10} {seconds:8.2f} s  {first[1] / seconds:6.1f}x  "
            f"{columns:>9,} columns  same tokens {same:6.1%}  sampler gap {gap:.1e}",
            flush=True,
        )
    assert first is not None
    return first[1] / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("width", 256), ("layers", 2), ("rows", 8), ("prompt", 128), ("gen-length", 256)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    known = parser.parse_args()
    torch.set_num_threads(known.threads)
    ids = torch.randint(0, 1000, (1, known.prompt), generator=torch.Generator().manual_seed(0)).repeat(known.rows, 1)
    prompts = PromptBatch(ids=ids, real=torch.ones_like(ids, dtype=torch.bool), sample=torch.arange(known.rows))
    print(
        f"width {known.width}, {known.layers} layers, {known.rows} rollouts of one prompt of {known.prompt} tokens, "
        f"{known.gen_length} tokens, {known.threads} thread(s)"
    )
    print("\nblock-causal, blocks of 4, 4 passes per block")
    model = block_causal_model(known.width, known.layers, 4)
    settings: dict[str, Any] = {"gen_length": known.gen_length, "block_length": 4, "steps_per_block": 4}
    faster = compare(model, prompts, ["none", "exact"], known.repeats, **settings)
    print("\nfull attention, blocks of 32, two tokens per pass")
    settings = {"gen_length": known.gen_length, "block_length": min(32, known.gen_length)}
    settings["steps"] = known.gen_length // 2
    compare(full_model(known.width, known.layers), prompts, ["none", "prefix", "dual"], known.repeats, **settings)
    print(f"\nexact cache: {faster:.1f} times faster than uncached")


if __name__ == "__main__":
    main()
