"""Views socket, continued: exact-count ELBO draws, random mask rates, and the slices of a recorded trajectory.

Like `views.py`: pure functions of the batch and of named draws. Nothing here depends on which other rows are in the
batch, so a row has the same masks whatever the micro-batch, the rank or the order of the rows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from maskgrad import randomness
from maskgrad.diffusion import masking
from maskgrad.likelihood.views import _draws
from maskgrad.records import MaskedViews, RolloutBatch

#: Steps of the golden-ratio sequence: every window of consecutive sample ids is spread evenly over (0, 1).
GOLDEN_STEP = (math.sqrt(5) - 1) / 2


def stratified(batch: RolloutBatch, seed: int, purpose: str, use: int, draws: int, coupled: bool = False) -> Tensor:
    """Uniform draws, fp64 [B,N], spread evenly over a row's draws and over the rows: frac(u + id * golden + n / N).

    u is one keyed draw per run and use, so each entry is uniform on [0,1); consecutive sample ids, that is every global
    batch whatever its size, fill the interval evenly (three-gap theorem). No row reads another row or the batch size.
    `coupled`: half of that, in [0, 1/2), for levels whose mirror image 1 - v is scored as well.
    """
    shared = randomness.uniform(randomness.row_keys(seed, purpose, torch.zeros(1, dtype=torch.int64), use), 1)
    place = batch.sample.to(torch.float64)[:, None] * GOLDEN_STEP
    spread = torch.arange(draws, dtype=torch.float64, device=place.device) / draws
    level = (shared.to(place.device) + place + spread) % 1.0
    return level / 2 if coupled else level


def exact_count(
    batch: RolloutBatch, seed: int, use: int = 0, *, draws: int, coupled: bool = True, live_only: bool = False
) -> MaskedViews:
    """ESPO (2512.03759): l ~ U{0..n} of the n canvas positions hidden, uniformly; the prompt is never hidden.

    lower = 1/N sum_views weight sum_hidden lp: weight (n+1)/l on the hidden l, and with `coupled` a second view with
    the other n-l positions hidden, weight (n+1)/(n-l). N = number of views. E[lower] = ELBO (enumerated in the tests).
    n = L (released: padding behind the stop counts), or with `live_only` the live positions, the rest staying hidden.
    """
    rows, length = batch.live.shape
    domain = batch.live if live_only else torch.ones_like(batch.live)
    n = domain.sum(1)
    count = masking.uniform_count(stratified(batch, seed, "views.stratum", use, draws, coupled), 0, n[:, None])
    noise = _draws(batch, seed, "views.token", use, draws, length)
    first = masking.hide_count(noise, domain[:, None].expand(rows, draws, length), count)
    return counted(batch, first, domain, coupled)


def counted(batch: RolloutBatch, first: Tensor, domain: Tensor, coupled: bool) -> MaskedViews:
    """Views and weights of `exact_count` for given masks `first` bool [B,N,L] inside `domain` bool [B,L]."""
    n = domain.sum(1)
    chosen = [first, domain[:, None] & ~first] if coupled else [first]
    scored = torch.stack(chosen, 2).flatten(1, 2)  # pairs stay neighbours: [B, draws * (2 if coupled), L]
    number = scored.shape[1]
    share = (n[:, None] + 1) / scored.sum(-1).clamp(min=1).to(torch.float64) / number
    weight = torch.where(scored, share[:, :, None], 0.0)
    return canvas_views(
        batch, scored | ~domain[:, None], scored, weight, torch.zeros_like(scored, dtype=torch.int64), 1
    )


def canvas_views(
    batch: RolloutBatch, hidden: Tensor, scored: Tensor, weight: Tensor, unit: Tensor, units: int
) -> MaskedViews:
    """Views that show the whole prompt. hidden, scored, weight, unit: [B,N,L]."""
    prompt = torch.zeros(*hidden.shape[:2], batch.prompt_length, dtype=torch.bool, device=hidden.device)
    return MaskedViews(
        hidden=torch.cat([prompt, hidden], -1), scored=scored, weight=weight.to(torch.float64), unit=unit, units=units
    )


def _token_views(batch: RolloutBatch, hidden: Tensor, scored: Tensor) -> MaskedViews:
    """Token units: position k of every view belongs to unit k, with the mean over the views that score it."""
    unit = torch.arange(scored.shape[-1], device=scored.device).expand(scored.shape)
    times = scored.sum(1, keepdim=True).clamp(min=1)
    return canvas_views(batch, hidden, scored, torch.where(scored, 1.0 / times, 0.0), unit, scored.shape[-1])


def random_rate(
    batch: RolloutBatch, seed: int, use: int, *, epochs: int, low: float, high: float, structured: bool = True
) -> MaskedViews:
    """UniGRPO (MMaDA 2505.15809): completion hidden at a random rate, prompt visible, scored = hidden and live.

    rate_e = low + (high - low) frac(u + e / epochs), u one draw per sample: the first inner epoch is random, the others
    are spread over the remaining range. `structured` False: an independent rate per inner epoch e = `use`.
    """
    u = _draws(batch, seed, "views.rate", 0 if structured else use, 1)
    rate = low + (high - low) * ((u + (use / epochs if structured else 0.0)) % 1.0)
    noise = _draws(batch, seed, "views.token", use, 1, batch.live.shape[1])
    hidden = masking.hide_rate(noise, torch.ones_like(batch.live)[:, None], rate[:, :, None])
    return _token_views(batch, hidden, hidden & batch.live[:, None])


def slice_of(commit_step: Tensor, shrink: int) -> Tensor:
    """Slice number int64 [B,L] of each position: every `shrink` consecutive distinct steps of a row form one slice.

    Never-committed positions (-1) get the number of slices of the batch, that is behind every slice.
    """
    step = commit_step.to(torch.int64)
    present = torch.zeros(len(step), max(int(step.max()), 0) + 2, dtype=torch.int64, device=step.device)
    present.scatter_(1, step + 1, 1)
    order = present[:, 1:].cumsum(1) - 1  # rank of each step among the distinct steps of its row
    number = torch.div(order.gather(1, step.clamp(min=0)), shrink, rounding_mode="floor")
    last = int(torch.where(step >= 0, number, -1).max()) + 1
    return torch.where(step >= 0, number, last)


def trace_slices(batch: RolloutBatch, *, shrink: int) -> MaskedViews:
    """TraceRL (2509.06949) on full attention: the recorded states. View n shows what was committed before slice n.

    scored = live tokens of the slice, hidden = tokens of this and later slices and never-committed ones, which are
    never scored. Every committed live token is scored exactly once.
    """
    assert batch.trajectory is not None, "trace slices need the commit map of the rollouts"
    number = slice_of(batch.trajectory.commit_step, shrink)
    committed = batch.trajectory.commit_step >= 0
    slices = int(number[committed].max()) + 1 if bool(committed.any()) else 1
    index = torch.arange(slices, device=number.device)[None, :, None]
    scored = (number[:, None] == index) & (batch.live & committed)[:, None]
    return _token_views(batch, number[:, None] >= index, scored)
