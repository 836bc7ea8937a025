"""Tiny block-causal policies and batches for the tests, and the reference that a staircase pass must equal."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.models.attention import positions
from maskgrad.models.families import SDAR
from maskgrad.models.load import new_policy
from maskgrad.models.policy import Policy
from maskgrad.records import RolloutBatch

SIZES: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 32,
    "max_position_embeddings": 128,
    "rope_theta": 10000.0,
    "vocab_size": 20,
    "mask_token_id": 19,
    "eos_token_id": 18,
    "pad_token_id": 17,
}


def block_policy(block: int = 4, dtype: str = "float64", seed: int = 0, grid: str = "absolute") -> Policy:
    policy = new_policy(SDAR, {**SIZES, "block_size": block}, None, seed, dtype=dtype)
    with torch.no_grad():  # an untied head is born small; the tests want predictions that differ
        policy.head.weight.mul_(20)
    policy.grid = grid
    return policy


def block_batch(policy: Policy, length: int = 10, prompts: tuple[int, ...] = (7, 5, 3), seed: int = 1) -> RolloutBatch:
    """Left-padded prompts of the given lengths and a random canvas; the second row stops early."""
    draws = torch.Generator().manual_seed(seed)
    rows, longest = len(prompts), max(prompts)
    tokens = torch.randint(0, 17, (rows, longest + length), generator=draws)
    attend = torch.ones_like(tokens, dtype=torch.bool)
    for row, real in enumerate(prompts):
        attend[row, : longest - real] = False
        tokens[row, : longest - real] = policy.special.pad
    live = torch.ones(rows, length, dtype=torch.bool)
    if rows > 1:
        tokens[1, longest + length - 4 :] = policy.special.eos
        live[1, length - 3 :] = False
    numbers = policy.block_numbers(attend, longest)[:, longest:]
    return RolloutBatch(
        tokens=tokens,
        attend=attend,
        live=live,
        group=torch.zeros(rows, dtype=torch.int64),
        sample=torch.arange(rows),
        reward=torch.arange(rows, dtype=torch.float32),
        block=numbers - numbers[:, :1],
    )


def per_block_states(policy: Policy, batch: RolloutBatch, row: int, noisy: Tensor, clean: str = "block") -> Tensor:
    """States [L,d] of one noisy copy int64 [T], one forward pass per block on [clean blocks before | noisy block].

    Written without any rule of the library: a Python loop decides who sees whom.
    """
    attend = batch.attend[row]
    start = batch.prompt_length
    number = policy.block_numbers(batch.attend, start)[row]
    place = positions(attend[None])[0]
    out: dict[int, Tensor] = {}
    for block in sorted(set(number[start:].tolist())):
        columns = [c for c in range(len(attend)) if 0 <= number[c] <= block]
        inside = [bool(number[c] == block) for c in columns]
        tokens = [noisy[c] if own else batch.tokens[row, c] for c, own in zip(columns, inside, strict=True)]
        sees = torch.zeros(len(columns), len(columns), dtype=torch.bool)
        for q, at_q in enumerate(columns):
            for k, at_k in enumerate(columns):
                if clean == "causal" and not inside[q]:
                    sees[q, k] = at_k <= at_q
                else:
                    sees[q, k] = number[at_k] <= number[at_q]
        where = place[torch.tensor(columns)][None]
        states = policy.states(torch.stack(tokens)[None], sees[None, None], where)[0]
        for i, column in enumerate(columns):
            if inside[i] and column >= start:
                out[column - start] = states[i]
    return torch.stack([out[k] for k in range(len(attend) - start)])
