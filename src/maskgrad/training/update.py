"""One rollout batch -> optimiser steps. Knows sockets, not methods.

The gradient is taken in two passes when the views do not fit one micro-batch: score everything without gradient, take
the loss's gradient with respect to the log-probs, and replay chunk by chunk (exact, memory independent of the number of
views). Denominators are counted before the first pass, so neither path nor split changes the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from maskgrad.algorithms.advantages import group_sum
from maskgrad.algorithms.base import Algorithm, count
from maskgrad.algorithms.surrogate import policy_loss
from maskgrad.config import RunConfig
from maskgrad.likelihood import score as scorer
from maskgrad.models.adapters import as_reference
from maskgrad.models.policy import Policy
from maskgrad.records import Counts, LossSum, MaskedViews, RolloutBatch, Units
from maskgrad.training import optim
from maskgrad.training.inflate import log_ratio_shift


@dataclass
class Prepared:
    """A rollout batch with everything that must be taken before its first update. Saved with every checkpoint."""

    batch: RolloutBatch
    advantage: Tensor  # [B,1] or [B,K]
    old: list[Tensor]  # log-probs [B,N,L] of the sampling policy, per distinct draw of masks; empty if never read
    reference: list[Tensor]  # the same under the reference policy; empty without KL


def view_use(algorithm: Algorithm, epoch: int, numerator: bool = True) -> int:
    """Which draw of masks an epoch uses. Fresh masks: draw 0 for the old policy, 1 + epoch for the new one."""
    if algorithm.masks == "shared":
        return 0
    if algorithm.masks == "epoch":
        return epoch
    return 1 + epoch if numerator else 0


def prepare(
    policy: Policy, reference: Policy | None, algorithm: Algorithm, config: RunConfig, batch: RolloutBatch
) -> Prepared:
    """Advantages, and old and reference log-probs on every draw of masks that will be used."""
    advantage = algorithm.advantage(batch)
    objective = algorithm.objective()
    uses = sorted({view_use(algorithm, e, numerator=False) for e in range(algorithm.epochs)})
    reused = objective.needs_old and (algorithm.updates_per_batch > 1 or algorithm.masks == "fresh")
    old: list[Tensor] = []
    ref: list[Tensor] = []
    for use in uses:
        views = algorithm.views(batch, config.rollout.sampler, config.seed, use)
        if reused:
            views_old = views if objective.beta > 0 else _with_signal(views, batch, advantage)
            old.append(scorer.score(policy, batch, views_old, config.train.micro_batch))
        if objective.needs_reference and not objective.exact_kl:
            assert reference is not None, "a KL term needs a reference policy"
            with as_reference(reference, policy):
                ref.append(scorer.score(reference, batch, views, config.train.micro_batch))
    return Prepared(batch=batch, advantage=advantage, old=old, reference=ref)


def _with_signal(views: MaskedViews, batch: RolloutBatch, advantage: Tensor) -> MaskedViews:
    """Leave out groups in which every advantage is zero: they have no gradient."""
    signal = group_sum((advantage != 0).any(1).to(torch.float32), batch.group) > 0
    return views.restrict(signal[:, None].expand(views.scored.shape[:2]))


def update(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    algorithm: Algorithm,
    config: RunConfig,
    prepared: Prepared,
    index: int,
    step: int,
    reference: Policy | None = None,
) -> dict[str, Any]:
    """Optimiser step number `index` of this rollout batch (`step` of the run). Returns what the journal records.

    `reference` is read by an exact KL alone; the estimates use what `prepare` scored.
    """
    epoch, part = divmod(index, algorithm.minibatches)
    batch, objective = prepared.batch, algorithm.objective()
    views = algorithm.views(batch, config.rollout.sampler, config.seed, view_use(algorithm, epoch))
    split_use = int(batch.sample.min()) * algorithm.epochs + epoch
    active = algorithm.partition(batch, views, config.seed, split_use)[part]
    views = views.restrict(active)
    counts = count(batch, views)
    if objective.beta == 0:
        views = _with_signal(views, batch, prepared.advantage)
    slot = epoch if algorithm.masks == "epoch" else 0
    first = index == 0 and algorithm.masks != "fresh"
    optimizer.zero_grad(set_to_none=True)
    policy.eval()  # dropout off: scoring must see the network that sampled
    skipped = None
    try:
        loss = _backward(policy, algorithm, config, prepared, views, counts, slot, first, index, reference)
        total = float(loss.total.detach())
    except (scorer.NonFiniteScore, FloatingPointError) as error:
        skipped, total, loss = str(error), float("nan"), LossSum(total=torch.tensor(float("nan")))
    norm = optim.clip_gradients(policy, config.optim.max_grad_norm) if skipped is None else float("nan")
    rate = optim.learning_rate(config.optim, step, config.train.max_updates)
    optim.set_rate(optimizer, rate)
    healthy = optim.guarded_step(optimizer, total, norm)
    out: dict[str, Any] = {"loss": total, "grad_norm": norm, "lr": rate, "on_policy": first, "skipped": not healthy}
    if skipped is not None:
        out["skip_reason"] = skipped
    out |= {name: s / c if c else None for name, (s, c) in loss.metrics.items()}
    out |= _ratio_statistics(loss)
    out |= {"scored_tokens": counts.scored_tokens, "views": int(views.scored.any(-1).sum())}
    return out


def _ratio_statistics(loss: LossSum) -> dict[str, float]:
    """Quantiles of the log-ratios that the loss read, and the largest weight; nothing if no unit was scored."""
    if loss.log_ratio is None or loss.weight is None or loss.log_ratio.numel() == 0:
        return {}
    d = loss.log_ratio.to(torch.float64)
    low, middle, high = (float(d.quantile(q)) for q in (0.05, 0.5, 0.95))
    out = {"log_ratio_q05": low, "log_ratio_q50": middle, "log_ratio_q95": high, "log_ratio_max": float(d.max())}
    return {**out, "weight_max": float(loss.weight.max())}


def _backward(
    policy: Policy,
    algorithm: Algorithm,
    config: RunConfig,
    prepared: Prepared,
    views: MaskedViews,
    counts: Counts,
    slot: int,
    first: bool,
    index: int,
    reference: Policy | None,
) -> LossSum:
    """Loss and accumulated gradients of one minibatch. On the first update the old policy is the current one."""
    batch, micro = prepared.batch, config.train.micro_batch
    row, view = scorer.active_views(views)
    if len(row) == 0:
        return LossSum(total=torch.zeros(()), metrics={})
    shift = log_ratio_shift(config.train.inflate, config.seed, batch.sample, prepared.advantage, views.units, index)

    objective = algorithm.objective()
    anchor = None
    if objective.exact_kl:
        assert reference is not None, "an exact KL needs the reference policy"
        anchor = scorer.Anchor(reference, mean=objective.kl == "exact_mean")

    def loss_of(scores: Tensor) -> LossSum:
        logp, kl = (scores, None) if anchor is None else scores.unbind(-1)
        new = algorithm.units(logp, views, batch)
        old = None if first or not prepared.old else _old_units(algorithm, config, prepared, views, slot)
        fixed = algorithm.units(prepared.reference[slot], views, batch) if prepared.reference else None
        apart = None if kl is None else algorithm.units(kl, replace(views, tail=None), batch)
        return policy_loss(
            objective, new, prepared.advantage, batch.group, batch.live, counts, old, fixed, shift, apart
        )

    if len(row) <= micro:
        values = scorer.score_rows(policy, batch, views, row, view, anchor)
        shape = (*views.scored.shape, *values.shape[2:])
        loss = loss_of(values.new_zeros(shape).index_put((row, view), values))
        loss.total.backward()
        return loss
    known = first and len(prepared.old) > 0 and anchor is None
    leaf = prepared.old[slot] if known else scorer.score(policy, batch, views, micro, anchor)
    leaf = leaf.clone().requires_grad_(True)
    loss = loss_of(leaf)
    (grad,) = torch.autograd.grad(loss.total, leaf)
    scorer.replay(policy, batch, views, grad, micro, anchor)
    return loss


def _old_units(algorithm: Algorithm, config: RunConfig, prepared: Prepared, views: MaskedViews, slot: int) -> Units:
    """Units of the old policy: on the same views, or with fresh masks on the views it was scored with."""
    if algorithm.masks != "fresh":
        return algorithm.units(prepared.old[slot], views, prepared.batch)
    own = algorithm.views(prepared.batch, config.rollout.sampler, config.seed, view_use(algorithm, 0, numerator=False))
    rows = views.scored.any(-1).any(-1)  # fresh masks split by whole groups, so a row is in or out
    return algorithm.units(prepared.old[0], own.restrict(rows[:, None].expand(views.scored.shape[:2])), prepared.batch)
