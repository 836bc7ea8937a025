"""Views socket: which partially masked copies of a rollout are scored.

Every builder is a pure function of the batch and of named random draws; the same view object then scores the old,
the reference and the new policy. `use` counts how often a batch drew masks (inner epochs with fresh masks).
"""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad import randomness
from maskgrad.diffusion import masking, trajectory
from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.records import MaskedViews, RolloutBatch


def prompt_mask(batch: RolloutBatch) -> Tensor:
    """Real prompt tokens, bool [B,T] with False on the canvas and on padding."""
    real = batch.attend.clone()
    real[:, batch.prompt_length :] = False
    return real


def _draws(batch: RolloutBatch, seed: int, purpose: str, use: int, *shape: int) -> Tensor:
    return randomness.uniform(randomness.row_keys(seed, purpose, batch.sample, use), *shape)


def _prompt_noise(batch: RolloutBatch, seed: int, use: int, draws: int) -> Tensor:
    """Uniform [B,N,P], indexed from the prompt's end so that padding does not shift a token's draw."""
    return _draws(batch, seed, "views.prompt", use, batch.prompt_length, draws).flip(1).transpose(1, 2)


def mean_field(batch: RolloutBatch, seed: int, use: int = 0, *, p_prompt: float, draws: int = 1) -> MaskedViews:
    """d1 (2504.12216) section 3: the whole completion hidden, each real prompt token hidden with `p_prompt`."""
    rows, length = batch.live.shape
    hidden = torch.zeros(rows, draws, batch.tokens.shape[1], dtype=torch.bool, device=batch.tokens.device)
    hidden[:, :, batch.prompt_length :] = True
    noise = _prompt_noise(batch, seed, use, draws)
    real = prompt_mask(batch)[:, None, : batch.prompt_length]
    hidden[:, :, : batch.prompt_length] = masking.hide_rate(noise, real, p_prompt)
    scored = batch.live[:, None].expand(-1, draws, -1)
    unit = torch.arange(length, device=batch.tokens.device).expand(rows, draws, length)
    weight = torch.full(scored.shape, 1.0 / draws, device=batch.tokens.device)
    return MaskedViews(hidden=hidden, scored=scored, weight=weight, unit=unit, units=length)


def choose_blocks(noise: Tensor, used: Tensor, modulo: bool = False) -> Tensor:
    """One block per draw: distinct while draws <= used, otherwise balanced repeats. noise [B,N,nb] -> int64 [B,N].

    Each cycle of `used` draws is a fresh uniform permutation of the used blocks. `modulo` (released, biased): one
    permutation of all blocks, modulo the number of used ones; further draws start another permutation.
    """
    rows, draws, blocks = noise.shape
    if modulo:
        permutations = noise[:, : -(-draws // blocks)].argsort(-1).flatten(1)
        return permutations[:, :draws] % used[:, None]
    allowed = torch.arange(blocks, device=noise.device) < used[:, None]
    order = torch.where(allowed[:, None], noise, torch.inf).argsort(-1)  # [B,N,nb], row n = permutation of cycle n
    index = torch.arange(draws, device=noise.device).expand(rows, draws)
    cycle, slot = index // used[:, None], index % used[:, None]
    return order[torch.arange(rows, device=noise.device)[:, None], cycle, slot]


def block_bound(
    batch: RolloutBatch,
    seed: int,
    use: int = 0,
    *,
    draws: int,
    block: int,
    p_context: float,
    mode: str = "block_random",
    score_later_blocks: bool = True,
    score_context: bool = True,
    perturb_completion: bool = True,
    modulo: bool = False,
) -> MaskedViews:
    """SPG (2510.09541) block-wise masks. Modes: block_random, block_all, random, all.

    block_random: a random used block keeps a uniform number of its live tokens, later blocks are fully hidden, earlier
    ones and the prompt are perturbed with `p_context`; nothing after the stop token is visible or scored.
    """
    live, device = batch.live, batch.tokens.device
    rows, length = live.shape
    position = torch.arange(length, device=device)
    block_of = position // block
    used = torch.div(live.sum(1) + block - 1, block, rounding_mode="floor").clamp(min=1)
    token_noise = _draws(batch, seed, "views.token", use, draws, length)
    count_noise = _draws(batch, seed, "views.count", use, draws)
    later = torch.zeros(rows, draws, length, dtype=torch.bool, device=device)
    inside = live[:, None].expand(rows, draws, length)
    if mode.startswith("block"):
        noise = _draws(batch, seed, "views.block", use, draws, int(block_of[-1]) + 1)
        chosen = choose_blocks(noise, used, modulo)[:, :, None]
        later, inside = block_of > chosen, inside & (block_of == chosen)
    if mode in ("all", "block_all"):
        partial = inside
    else:
        partial = masking.hide_count(token_noise, inside, masking.uniform_count(count_noise, 1, inside.sum(-1)))
    context = ~(inside | later) & live[:, None]
    if mode.startswith("block") and perturb_completion:
        perturbed = masking.hide_rate(_draws(batch, seed, "views.context", use, draws, length), context, p_context)
    else:
        perturbed = torch.zeros_like(context)
    completion = partial | later | perturbed | ~live[:, None]
    prompt = masking.hide_rate(
        _prompt_noise(batch, seed, use, draws), prompt_mask(batch)[:, None, : batch.prompt_length], p_context
    )
    scored = partial | (later if score_later_blocks else False) | (perturbed if score_context else False)
    return sequence_views(torch.cat([prompt, completion], -1), scored & live[:, None])


def sequence_views(hidden: Tensor, scored: Tensor) -> MaskedViews:
    """Views whose unit is the whole sequence, every scored token with weight 1."""
    return MaskedViews(
        hidden=hidden,
        scored=scored,
        weight=torch.ones(scored.shape, device=scored.device),
        unit=torch.zeros(scored.shape, dtype=torch.int64, device=scored.device),
        units=1,
    )


def selected_steps(batch: RolloutBatch, sampler: SamplerConfig, score: str) -> MaskedViews:
    """The sampler's own states before the passes in `batch.selected` (EGSPO 2603.12554). One unit per slot.

    score: kernel (revealed tokens and, where the reveal rule reads the sampled tokens, the tail mass of the rejected
    ones), proposal (every proposal of the active block), revealed (revealed tokens), revealed_untempered (as released).
    """
    assert batch.trajectory is not None and batch.selected is not None
    steps, device = batch.selected, batch.tokens.device
    rows, slots = steps.shape
    used = (steps >= 0)[:, :, None]
    hidden_canvas = trajectory.hidden_before(batch.trajectory, steps) & used
    revealed = trajectory.revealed_at(batch.trajectory, steps)
    active = trajectory.active_block(batch.trajectory, steps, sampler.block) & hidden_canvas
    prompt = torch.zeros(rows, slots, batch.prompt_length, dtype=torch.bool, device=device)
    target = None
    if score == "proposal":
        assert batch.trajectory.proposals is not None, "score='proposal' needs the sampler to record proposals"
        index = steps.clamp(min=0)[:, :, None].expand(-1, -1, hidden_canvas.shape[-1])
        target = batch.trajectory.proposals.to(torch.int64).gather(1, index).clamp(min=0)
    scored = active if score == "proposal" else revealed
    unit = torch.arange(slots, device=device)[None, :, None].expand(rows, slots, hidden_canvas.shape[-1])
    return MaskedViews(
        hidden=torch.cat([prompt, hidden_canvas], -1),
        scored=scored,
        weight=torch.ones(scored.shape, device=device),
        unit=unit,
        units=slots,
        tail=(active & ~revealed) if score == "kernel" and sampler.remasking == "low_confidence" else None,
        target=target,
        temperature=1.0 if score == "revealed_untempered" or sampler.temperature == 0 else sampler.temperature,
        exclude_forbidden=score != "revealed_untempered",
        suppress_stop=sampler.suppress_stop,
        threshold=sampler.threshold,
    )
