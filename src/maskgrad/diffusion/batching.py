"""From prompts to trajectories: templating, left padding, sampling in chunks, decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from maskgrad.diffusion.sampler import KeyedNoise, Record, sample
from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.errors import UserError
from maskgrad.models.policy import Policy
from maskgrad.models.tokenizer import check_prompt_length, decode_completion, encode_prompt, left_pad
from maskgrad.records import PromptBatch, Trajectory


def check_window(policy: Policy, prompt_length: int, gen_length: int) -> None:
    """Refuse a prompt and canvas that together exceed the positions the checkpoint was made for."""
    if policy.max_length is not None and prompt_length + gen_length > policy.max_length:
        raise UserError(
            f"a prompt of {prompt_length} tokens and gen_length {gen_length} exceed the model's max_sequence_length "
            f"{policy.max_length}: shorten one of them"
        )


def prompt_batch(
    policy: Policy, prompts: Sequence[Any], sample_ids: Tensor, limit: int, gen_length: int
) -> PromptBatch:
    """Left-padded prompts (text or chat messages) with their stream ids int64 [B].

    A prompt above `limit` tokens is a UserError, never cut.
    """
    tokenizer = policy.need_tokenizer()
    known: dict[str, list[int]] = {}  # a group of rollouts shares its prompt
    rows = [known.get(str(p)) or known.setdefault(str(p), encode_prompt(tokenizer, p)) for p in prompts]
    return id_batch(policy, rows, sample_ids, limit, gen_length)


def id_batch(policy: Policy, rows: Sequence[list[int]], sample_ids: Tensor, limit: int, gen_length: int) -> PromptBatch:
    """Left-padded prompts given as token ids, with their stream ids int64 [B]. For checkpoints without a tokenizer."""
    for row in {id(row): row for row in rows}.values():
        if unknown := [token for token in row if not 0 <= token < policy.vocab_rows]:
            raise UserError(f"token id {unknown[0]} is none of the {policy.vocab_rows} in the vocabulary: leave it out")
        check_prompt_length(row, limit)
        check_window(policy, len(row), gen_length)
    ids, real = left_pad(rows, policy.special.pad)
    return PromptBatch(ids=ids.to(policy.device), real=real.to(policy.device), sample=sample_ids.to(policy.device))


def take(prompts: PromptBatch, rows: slice) -> PromptBatch:
    return PromptBatch(ids=prompts.ids[rows], real=prompts.real[rows], sample=prompts.sample[rows])


def sample_in_chunks(
    policy: Policy, prompts: PromptBatch, config: SamplerConfig, seed: int, record: Record, micro_batch: int
) -> Trajectory:
    """Sample `micro_batch` rows at a time; the result does not depend on the split."""
    policy.eval()
    pieces = []
    for start in range(0, len(prompts), micro_batch):
        part = take(prompts, slice(start, start + micro_batch))
        pieces.append(sample(policy, part, config, KeyedNoise(seed, part.sample), record))
    return concatenate(pieces)


def concatenate(pieces: Sequence[Trajectory]) -> Trajectory:
    """Join trajectories along the rows; per-pass fields are padded to the longest."""
    if len(pieces) == 1:
        return pieces[0]
    steps = max(p.revealed.shape[1] for p in pieces)
    out: dict[str, Any] = {"forwards": sum(p.forwards for p in pieces)}
    for field in fields(Trajectory):
        values = [getattr(p, field.name) for p in pieces]
        if field.name == "forwards" or values[0] is None:
            out.setdefault(field.name, None)
            continue
        if field.name in ("revealed", "masked", "rank_floor") or field.name.startswith(("entropy", "joint")):
            values = [torch.nn.functional.pad(v, (0, steps - v.shape[1])) for v in values]
        elif field.name in ("one_shot", "proposals"):
            values = [torch.nn.functional.pad(v, (0, 0, 0, steps - v.shape[1])) for v in values]
        out[field.name] = torch.cat(values)
    return Trajectory(**out)


def decode(policy: Policy, tokens: Tensor) -> list[str]:
    return [decode_completion(policy.need_tokenizer(), row, policy.special.stops) for row in tokens.tolist()]
