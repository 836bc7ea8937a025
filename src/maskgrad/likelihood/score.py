"""The scorer: the only code that runs the network for log-probs.

The backbone runs on views that score something; the output head only at scored and tail positions, in chunks that are
recomputed in the backward pass when they are large. Log-softmax in fp32 (or fp64 if the policy is).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from maskgrad.errors import BrokenModel
from maskgrad.likelihood import exact, kernel
from maskgrad.likelihood.states import states_at
from maskgrad.models.adapters import as_reference
from maskgrad.models.policy import Policy
from maskgrad.records import MaskedViews, RolloutBatch

#: Logits above this count are processed in chunks and recomputed in backward.
LOGIT_CHUNK = 2**25


@dataclass(frozen=True)
class Anchor:
    """The policy that an exact KL is taken to. `mean` divides by the vocabulary (see likelihood/exact.py)."""

    policy: Policy
    mean: bool = False


class NonFiniteScore(BrokenModel):
    """A scored log-prob is NaN or infinite: the network, not the method, is broken."""


def score_rows(
    policy: Policy, batch: RolloutBatch, views: MaskedViews, row: Tensor, view: Tensor, anchor: Anchor | None = None
) -> Tensor:
    """Log-probs [R,L] of the views (row[r], view[r]); zeros where nothing is scored. Gradient as the caller's mode.

    With an `anchor` [R,L,2]: the log-probs, and the exact KL to its policy at the scored positions.
    """
    hidden = views.hidden[row, view]
    target = batch.completion[row] if views.target is None else views.target[row, view]
    scored = views.scored[row, view]
    tail = torch.zeros_like(scored) if views.tail is None else views.tail[row, view]
    read = scored | tail
    states = states_at(policy, batch, row, hidden, read, views.guidance > 0)
    at_row, position = read.nonzero(as_tuple=True)
    values = _read(policy, views, states, at_row, position, target[read], scored[read], len(row))
    if not bool(values.isfinite().all()):
        raise NonFiniteScore("a scored log-prob is not finite")
    out = torch.zeros(read.shape, dtype=values.dtype, device=values.device)
    out = out.index_put((at_row, position), values)
    if anchor is None:
        return out
    with torch.no_grad(), as_reference(anchor.policy, policy):
        other = states_at(anchor.policy, batch, row, hidden, scored, views.guidance > 0)

    def divergences(mine: Tensor, theirs: Tensor) -> tuple[Tensor]:
        (_, new), (_, fixed) = _log_probs(policy, views, mine), _log_probs(anchor.policy, views, theirs)
        return (exact.divergence(new, fixed, anchor.mean),)

    (kl,) = _chunked(policy, divergences, states[scored[read]], other)
    return torch.stack([out, torch.zeros_like(out).index_put(scored.nonzero(as_tuple=True), kl)], -1)


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


def score(
    policy: Policy, batch: RolloutBatch, views: MaskedViews, micro_batch: int, anchor: Anchor | None = None
) -> Tensor:
    """Log-probs [B,N,L] (with an `anchor` [B,N,L,2]) of all views without gradient, `micro_batch` views at a time."""
    row, view = active_views(views)
    shape = views.scored.shape if anchor is None else (*views.scored.shape, 2)
    out = torch.zeros(shape, device=batch.tokens.device)
    with torch.no_grad():
        for start in range(0, len(row), micro_batch):
            part = slice(start, start + micro_batch)
            values = score_rows(policy, batch, views, row[part], view[part], anchor)
            out = out.to(values.dtype) if out.dtype != values.dtype else out
            out[row[part], view[part]] = values
    return out


def replay(
    policy: Policy,
    batch: RolloutBatch,
    views: MaskedViews,
    grad: Tensor,
    micro_batch: int,
    anchor: Anchor | None = None,
) -> None:
    """Second pass of the two-pass gradient: back-propagate `grad` [B,N,L(,2)] = d loss / d score chunk by chunk.

    Exact for every loss that is a function of the log-probs; memory does not grow with the number of views.
    Views whose gradient is zero everywhere are skipped.
    """
    needed = views.scored if views.tail is None else views.scored | views.tail
    moves = grad != 0 if anchor is None else (grad != 0).any(-1)
    row, view = (moves & needed).any(-1).nonzero(as_tuple=True)
    for start in range(0, len(row), micro_batch):
        part = slice(start, start + micro_batch)
        values = score_rows(policy, batch, views, row[part], view[part], anchor)
        (values * grad[row[part], view[part]]).sum().backward()
