"""The scorer: the only code that runs the network for log-probs.

The backbone runs on views that score something; the output head only at scored and tail positions, in chunks that are
recomputed in the backward pass when they are large. Log-softmax in fp32 (or fp64 if the policy is).

On a block-causal policy every block of a view is read beside the clean text of the blocks before it, and the views of a
sequence share one clean stream (models/staircase.py).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from maskgrad.errors import BrokenModel, UserError
from maskgrad.likelihood import kernel
from maskgrad.models.policy import Policy
from maskgrad.records import MaskedViews, RolloutBatch

#: Logits above this count are processed in chunks and recomputed in backward.
LOGIT_CHUNK = 2**25


class NonFiniteScore(BrokenModel):
    """A scored log-prob is NaN or infinite: the network, not the method, is broken."""


def score_rows(policy: Policy, batch: RolloutBatch, views: MaskedViews, row: Tensor, view: Tensor) -> Tensor:
    """Log-probs [R,L] of the views (row[r], view[r]); zeros where nothing is scored. Gradient as the caller's mode."""
    tokens, hidden = batch.tokens[row], views.hidden[row, view]
    target = batch.completion[row] if views.target is None else views.target[row, view]
    scored = views.scored[row, view]
    tail = torch.zeros_like(scored) if views.tail is None else views.tail[row, view]
    read = scored | tail
    states = _states(policy, batch, row, hidden, read)
    if views.guidance > 0:
        real = batch.attend[row].clone()
        real[:, batch.prompt_length :] = False
        states = torch.cat([states, _states(policy, batch, row, hidden | real, read)], -1)
    at_row, position = read.nonzero(as_tuple=True)
    values = _read(policy, views, states, at_row, position, target[read], scored[read], len(row))
    if not bool(values.isfinite().all()):
        raise NonFiniteScore("a scored log-prob is not finite")
    out = torch.zeros(read.shape, dtype=values.dtype, device=values.device)
    return out.index_put((at_row, position), values)


def _states(policy: Policy, batch: RolloutBatch, row: Tensor, hidden: Tensor, read: Tensor) -> Tensor:
    """States [n,d] at `read` bool [R,L] of the rows `row` [R] with `hidden` bool [R,T] replaced by MASK."""
    tokens, attend = batch.tokens[row], batch.attend[row]
    noisy = torch.where(hidden, policy.special.mask, tokens)
    if policy.block is None:
        return policy.hidden_at(noisy, attend, read)
    _same_grid(policy, batch)
    # what a view hides of the prompt is hidden from every block; the completion is noisy in its own block only
    start = batch.prompt_length
    clean = torch.cat([noisy[:, :start], tokens[:, start:]], 1)
    # views of a row that hide the same of the prompt share its clean stream
    _, stream = torch.unique(torch.cat([row[:, None], noisy[:, :start]], 1), dim=0, return_inverse=True)
    first = torch.full((int(stream.max()) + 1,), len(row), dtype=torch.int64, device=row.device)
    first = first.scatter_reduce(0, stream, torch.arange(len(row), device=row.device), "amin")
    return policy.staircase_at(clean[first], attend[first], noisy, stream, read)


def _same_grid(policy: Policy, batch: RolloutBatch) -> None:
    """The rollouts and the policy must cut the canvas into the same blocks."""
    if batch.block is None:
        return
    numbers = policy.block_numbers(batch.attend, batch.prompt_length)[:, batch.prompt_length :]
    if not torch.equal(numbers - numbers[:, :1], batch.block):
        raise UserError(
            f"the rollouts were sampled on other blocks than the {policy.grid} grid of block length {policy.block} "
            "that scores them: set rollout.sampler.grid to the grid of the sampler"
        )


def _read(
    policy: Policy,
    views: MaskedViews,
    states: Tensor,
    row: Tensor,
    position: Tensor,
    target: Tensor,
    scored: Tensor,
    rows: int,
) -> Tensor:
    """Values [n] of the read positions: target log-prob where scored, log tail mass elsewhere."""

    delayed = policy.stop_mask if views.suppress_stop == "delay" else None

    def tokens_of(h: Tensor, t: Tensor) -> tuple[Tensor, ...]:
        logp, tempered = _log_probs(policy, views, h)
        return tempered.gather(1, t[:, None]).squeeze(1), kernel.target_confidence(logp, t, delayed)

    def tails_of(h: Tensor, floor: Tensor, last: Tensor, at: Tensor) -> tuple[Tensor]:
        logp, tempered = _log_probs(policy, views, h)
        mass = kernel.log_tail_mass(logp, tempered, floor, last, at, delayed, views.threshold)
        return (mass.clamp(min=kernel.LOG_TAIL_FLOOR),)

    token_logp, confidence = _chunked(policy, tokens_of, states[scored], target[scored])
    values = torch.zeros(len(row), dtype=token_logp.dtype, device=states.device)
    values = values.index_put((scored.nonzero().squeeze(1),), token_logp)
    rest = ~scored
    if bool(rest.any()):
        floor, last = kernel.rank_floor(confidence, row[scored], position[scored], rows)
        (tail,) = _chunked(policy, tails_of, states[rest], floor[row[rest]], last[row[rest]], position[rest])
        values = values.index_put((rest.nonzero().squeeze(1),), tail)
    return values


def _log_probs(policy: Policy, views: MaskedViews, states: Tensor) -> tuple[Tensor, Tensor]:
    """Untempered log-probs over all ids, and log-probs at the views' temperature over the ids that count."""
    if views.guidance > 0:
        known, blind = (policy.logits(s) for s in states.chunk(2, -1))
        logits = blind + (1 + views.guidance) * (known - blind)
    else:
        logits = policy.logits(states)
    logp = logits.log_softmax(-1)
    if views.temperature == 1.0 and not views.exclude_forbidden:
        return logp, logp
    if views.exclude_forbidden:
        banned = policy.forbidden | policy.stop_mask if views.suppress_stop == "never" else policy.forbidden
        logits = logits.masked_fill(banned, -torch.inf)
    return logp, (logits / views.temperature).log_softmax(-1)


def _chunked(policy: Policy, function: Callable[..., tuple[Tensor, ...]], *inputs: Tensor) -> tuple[Tensor, ...]:
    """Apply `function` to slices of the inputs along their first axis and concatenate the results."""
    count = len(inputs[0])
    size = max(1, LOGIT_CHUNK // policy.vocab_rows)
    if count <= size:
        return function(*inputs)
    pieces = []
    for start in range(0, count, size):
        part = [x[start : start + size] for x in inputs]
        pieces.append(checkpoint(function, *part, use_reentrant=False) if torch.is_grad_enabled() else function(*part))
    return tuple(torch.cat(column) for column in zip(*pieces, strict=True))


def active_views(views: MaskedViews) -> tuple[Tensor, Tensor]:
    """(row, view) index pairs of the views that score something."""
    row, view = views.scored.any(-1).nonzero(as_tuple=True)
    return row, view


def score(policy: Policy, batch: RolloutBatch, views: MaskedViews, micro_batch: int) -> Tensor:
    """Log-probs [B,N,L] of all views without gradient, `micro_batch` views at a time; zeros where nothing is scored."""
    row, view = active_views(views)
    out = torch.zeros(views.scored.shape, device=batch.tokens.device)
    with torch.no_grad():
        for start in range(0, len(row), micro_batch):
            part = slice(start, start + micro_batch)
            values = score_rows(policy, batch, views, row[part], view[part])
            out = out.to(values.dtype) if out.dtype != values.dtype else out
            out[row[part], view[part]] = values
    return out


def replay(policy: Policy, batch: RolloutBatch, views: MaskedViews, grad: Tensor, micro_batch: int) -> None:
    """Second pass of the two-pass gradient: back-propagate `grad` [B,N,L] = d loss / d log-prob chunk by chunk.

    Exact for every loss that is a function of the log-probs; memory does not grow with the number of views.
    Views whose gradient is zero everywhere are skipped.
    """
    needed = views.scored if views.tail is None else views.scored | views.tail
    row, view = ((grad != 0) & needed).any(-1).nonzero(as_tuple=True)
    for start in range(0, len(row), micro_batch):
        part = slice(start, start + micro_batch)
        values = score_rows(policy, batch, views, row[part], view[part])
        (values * grad[row[part], view[part]]).sum().backward()
