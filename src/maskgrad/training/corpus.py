"""Supervised masked-diffusion training (LLaDA 2502.09992 eq. 3 and 5): the prompt is never masked.

count: l ~ U{1..n}, exactly l of the n answer positions hidden,  loss_i = (1/n) (n/l) sum_hidden -log p(x_k | z)
time:  t ~ U(0,1), each answer position hidden with probability t, loss_i = (1/n) (1/t) sum_hidden -log p(x_k | z)

The answer is padded with end-of-text to the canvas width. `padding: score` treats the padding as ordinary answer
tokens, so the model learns to fill a canvas that is wider than the answer; `padding: first_eos` trains the first
end-of-text only, keeps everything behind it hidden and never scores it.

A block-causal model is trained on the noise of block diffusion (2503.09573 eq. 8): the same objectives with a count or
a rate of their own in every block, all blocks in one staircase pass (models/staircase.py).
"""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad import randomness
from maskgrad.diffusion import masking
from maskgrad.diffusion.trajectory import live_mask
from maskgrad.errors import UserError
from maskgrad.likelihood import block_views
from maskgrad.models.policy import Policy
from maskgrad.models.tokenizer import encode_text
from maskgrad.records import RolloutBatch


def answer_rows(policy: Policy, texts: list[str], length: int) -> Tensor:
    """Token ids of the answers padded with end-of-text to int64 [B,length]. A longer answer is a UserError."""
    rows = []
    for text in texts:
        ids = encode_text(policy.need_tokenizer(), text)
        if len(ids) > length:
            raise UserError(f"answer {text!r} has {len(ids)} tokens but sampler.gen_length is {length}: raise it")
        rows.append(ids + [policy.special.eos] * (length - len(ids)))
    return torch.tensor(rows)


def maskable(answer: Tensor, stops: tuple[int, ...], padding: str) -> Tensor:
    """Answer positions that are trained, bool [B,L]."""
    return torch.ones_like(answer, dtype=torch.bool) if padding == "score" else live_mask(answer, stops)


def draw_masks(objective: str, allowed: Tensor, sample: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """(hidden bool [B,L], weight fp32 [B,1]) of one draw per row; weight n/l or 1/t times 1/n."""
    noise = randomness.uniform(randomness.row_keys(seed, "sft.token", sample), allowed.shape[1])
    level = randomness.uniform(randomness.row_keys(seed, "sft.level", sample), 1)[:, 0]
    n = allowed.sum(1)
    if objective == "count":
        hidden_count = masking.uniform_count(level, 1, n)
        return masking.hide_count(noise, allowed, hidden_count), (1.0 / hidden_count).to(torch.float32)[:, None]
    return masking.hide_rate(noise, allowed, level[:, None]), (1.0 / (level * n)).to(torch.float32)[:, None]


def draw_block_masks(
    objective: str, allowed: Tensor, block: Tensor, sample: Tensor, seed: int
) -> tuple[Tensor, Tensor]:
    """(hidden bool [B,L], weight fp32 [B,L]) of one draw per row with independent noise in every block.

    `block` int64 [B,L] numbers the blocks of the answer. Weight n_b/l_b or 1/t_b times 1/n: an unbiased bound on the
    log-likelihood per token; every block with trained tokens has a hidden one.
    """
    batch = RolloutBatch(
        tokens=torch.zeros_like(block),
        attend=torch.ones_like(allowed),
        live=allowed,
        group=sample,
        sample=sample,
        reward=torch.zeros(len(sample)),
        block=block,
    )
    views = block_views.block_elbo(batch, seed, draws=1, weights="count" if objective == "count" else "rate")
    weight = views.weight[:, 0] / allowed.sum(1, keepdim=True)
    return views.scored[:, 0], weight.to(torch.float32)


def masked_loss(
    policy: Policy, prompt: Tensor, real: Tensor, answer: Tensor, hidden: Tensor, scored: Tensor, weight: Tensor
) -> Tensor:
    """Mean over rows of the weighted cross-entropy at the scored positions. Shapes: [B,P], [B,L], weight [B,1|L]."""
    tokens = torch.cat([prompt, torch.where(hidden, policy.special.mask, answer)], 1)
    attend = torch.cat([real, torch.ones_like(hidden)], 1)
    if policy.block is None:
        states = policy.hidden_at(tokens, attend, scored)
    else:
        row = torch.arange(len(answer), device=answer.device)
        states = policy.staircase_at(torch.cat([prompt, answer], 1), attend, tokens, row, scored)
    logits = policy.logits(states)
    loss = torch.nn.functional.cross_entropy(logits, answer[scored], reduction="none")
    return (loss * weight.expand_as(scored)[scored]).sum() / len(answer)
