"""Cost of scoring masked views of a block-causal policy: one staircase pass in three layouts, and one pass per block.

    python benchmarks/staircase.py --draws 4

CPU seconds of the process, forward only, on a random network in SDAR's format; nothing is learned or read from disk.
Every way gives the same log-probs, which is asserted.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor

from maskgrad.models.families import SDAR
from maskgrad.models.load import new_policy
from maskgrad.models.policy import Policy
from maskgrad.models.staircase import pack


def network(width: int, layers: int, block: int) -> Policy:
    sizes = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // 64,
        "num_key_value_heads": width // 64,
        "head_dim": 64,
        "intermediate_size": 3 * width,
        "vocab_size": 512,
        "mask_token_id": 500,
        "eos_token_id": 481,
        "block_size": block,
    }
    return new_policy(SDAR, sizes, None, 0)


def per_block(policy: Policy, clean: Tensor, noisy: Tensor, row: Tensor, canvas: int) -> Tensor:
    """States [R,L,d]: for each block a pass over the clean text before it and the noisy block."""
    start, block = clean.shape[1] - canvas, policy.block
    assert block is not None and start % block == 0
    out = []
    for begin in range(start, clean.shape[1], block):
        end = min(begin + block, clean.shape[1])
        tokens = torch.cat([clean[row, :begin], noisy[:, begin:end]], 1)
        out.append(policy.hidden(tokens)[:, begin:])
    return torch.cat(out, 1)


def seconds(run: Callable[[], Tensor], repeats: int) -> tuple[float, Tensor]:
    found = run()
    times = []
    for _ in range(repeats):
        before = time.process_time()
        run()
        times.append(time.process_time() - before)
    return min(times), found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {
        "rows": 2,
        "draws": 4,
        "prompt": 128,
        "canvas": 256,
        "block": 4,
        "width": 256,
        "layers": 4,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--repeats", type=int, default=2)
    a = parser.parse_args()
    torch.set_num_threads(1)
    policy = network(a.width, a.layers, a.block)
    draws = torch.Generator().manual_seed(0)
    clean = torch.randint(0, 480, (a.rows, a.prompt + a.canvas), generator=draws)
    attend = torch.ones_like(clean, dtype=torch.bool)
    row = torch.arange(a.rows).repeat_interleave(a.draws)
    hide = torch.rand(len(row), a.canvas, generator=draws) < 0.5
    noisy = clean[row].clone()
    noisy[:, a.prompt :][hide] = policy.special.mask

    def staircase(layout: str, together: bool) -> Tensor:
        if together:
            return policy.staircase_at(clean, attend, noisy, row, hide, layout)  # type: ignore[arg-type]
        each = [
            policy.staircase_at(
                clean[r, None], attend[r, None], n[None], torch.zeros(1, dtype=torch.int64), h[None], layout
            )  # type: ignore[arg-type]
            for r, n, h in zip(row, noisy, hide, strict=True)
        ]
        return torch.cat(each)

    ways: dict[str, Callable[[], Tensor]] = {
        "views together, needed": lambda: staircase("needed", True),
        "one view a pass, needed": lambda: staircase("needed", False),
        "one view a pass, shared": lambda: staircase("shared", False),
        "one view a pass, doubled": lambda: staircase("doubled", False),
        "one pass per block": lambda: per_block(policy, clean, noisy, row, a.canvas)[hide],
    }
    numbers = policy.block_numbers(attend, a.prompt)
    slots = pack(attend, numbers, row, hide).block.shape[1]
    print(f"{a.rows} rows, {a.draws} views each, prompt {a.prompt}, canvas {a.canvas}, block {a.block}; {slots} slots")
    with torch.no_grad():
        first: Tensor | None = None
        for name, run in ways.items():
            took, states = seconds(run, a.repeats)
            first = states if first is None else first
            assert float((states - first).abs().max()) < 1e-3
            print(f"{name:26s} {took:8.3f} s")


if __name__ == "__main__":
    main()
