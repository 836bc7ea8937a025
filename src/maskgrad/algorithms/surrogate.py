"""Surrogate socket: what is differentiated. One ratio function and one loss for every method.

ratio form:  loss = - sum coef * min( rho A, clip(rho, lo, hi) A )              gradient through rho
score form:  loss = - sum coef * w * A * (lower if A > 0 else upper)            w detached, gradient through the bound
KL:          + beta * sum coef * k(r),  r = lower_new - lower_ref,  k1 = r, k2 = r^2/2, k3 = exp(-r) + r - 1;
             exact = sum_v pi(v) (log pi(v) - log pi_ref(v)) per scored position, see likelihood/exact.py
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from maskgrad.algorithms.advantages import group_sum, segment_logsumexp
from maskgrad.algorithms.objective import Coefficient, Objective
from maskgrad.records import Counts, LossSum, Units


def log_ratio(new: Units, old: Units, scale: str, allow_fresh_masks: bool = False) -> Tensor:
    """d [B,U], zero where the unit does not exist, on the asked scale. Masked first, then scaled; never exponentiated.

    A unit of the old policy that does not exist (fresh masks that scored nothing) also gives 0, ratio 1.
    """
    if new.views != old.views and not allow_fresh_masks:
        raise ValueError(
            "old and new likelihoods were scored on different masks: share the views, or allow_fresh_masks"
        )
    d = torch.where(new.mask & old.mask, new.lower - old.lower, 0.0)
    if scale == "token" and not new.per_token:
        return d / new.size
    if scale == "sequence" and new.per_token:
        return d * new.size
    return d


def clip_log(d: Tensor, objective: Objective) -> Tensor:
    """Log-ratio clipped to [log clip_low, log clip_high], whatever the sign of the advantage."""
    low = math.log(objective.clip_low) if objective.clip_low > 0 else None
    high = math.log(objective.clip_high) if objective.clip_high < math.inf else None
    return d if low is None and high is None else d.clamp(min=low, max=high)


def group_weights(d: Tensor, mask: Tensor, group: Tensor, objective: Objective) -> Tensor:
    """Detached weights of log-ratios d [B,U]: unconditional clip, then self-normalisation per group and unit column.

    StableDRL (2603.06743): w_j = C_j / sum_i C_i, C = clip(rho, lo, hi); the softmax of the clipped log-ratio.
    """
    d = d.detach()
    if not bool(d.isfinite().all()):
        raise FloatingPointError("a log-ratio is not finite")
    if objective.clip == "always":
        d = clip_log(d, objective)
    if objective.self_normalise == "none":
        return torch.where(mask, d.clamp(-objective.log_bound, objective.log_bound).exp(), 0.0)
    d = torch.where(mask, d, -torch.inf)
    return torch.where(mask, (d - segment_logsumexp(d, group)).exp(), 0.0)


def coefficients(kind: Coefficient, units: Units, live: Tensor, counts: Counts) -> Tensor:
    """Aggregation coefficients [B,U]; denominators are global counts, so splitting a batch changes nothing."""
    ones = torch.ones_like(units.lower.detach())
    if kind == "token_mean":
        value = ones / max(counts.live_tokens, 1.0)
    elif kind == "group_sum":
        value = ones / max(counts.groups, 1.0)
    elif kind == "step_mean":
        value = ones / max(counts.units, 1.0)
    elif kind == "step_token_mean":
        value = ones / max(counts.scored_tokens, 1.0)
    elif kind == "slice_mean":
        value = ones / (max(counts.views, 1.0) * units.size)
    elif kind == "fixed_length":
        value = ones / (max(counts.views, 1.0) * live.shape[1])
    elif kind == "view_mean":
        value = ones / max(counts.views, 1.0)
    elif kind == "length_mean":
        value = live.sum(1, keepdim=True).to(ones.dtype) / max(counts.live_tokens, 1.0) * ones
    else:
        value = ones / max(counts.rows, 1.0)
    value = value if units.weight is None else value * units.weight
    return torch.where(units.mask, value, 0.0)


def kl_estimate(kind: str, r: Tensor) -> Tensor:
    """k1 = r, k2 = r^2/2, k3 = e^{-r} + r - 1 with r = log pi - log pi_ref (Schulman's estimators)."""
    if kind == "k1":
        return r
    if kind == "k2":
        return r**2 / 2
    return torch.expm1(-r) + r


def kl_term(objective: Objective, new: Units, anchor: Units) -> Tensor:
    """k(r) [B,U], zero where the unit does not exist. `summed`: k of the summed log-ratio, divided by the unit's size
    (ESPO 2512.03759: k2(ELBO - ELBO_ref) / L). Bounded before exp; k1 and k2 have no exp and no bound."""
    summed = objective.kl_scale == "summed"
    fresh = objective.allow_fresh_masks and objective.kl_to == "old"
    r = log_ratio(new, anchor, "sequence" if summed else objective.ratio_scale, fresh)
    if objective.kl == "k3":
        r = r.clamp(-objective.log_bound, objective.log_bound)
    value = kl_estimate(objective.kl, r)
    return torch.where(new.mask, value / new.size if summed else value, 0.0)


def _kl(objective: Objective, new: Units, anchor: Units | None, divergence: Units | None) -> Tensor:
    if objective.exact_kl:
        if divergence is None:
            raise ValueError(f"kl {objective.kl!r} needs the divergences of the scored positions")
        per_token = objective.ratio_scale == "token" and not divergence.per_token
        value = divergence.lower / divergence.size if per_token else divergence.lower
        return torch.where(new.mask, value, 0.0)
    if anchor is None:
        raise ValueError(f"kl {objective.kl!r} needs a reference policy")
    return kl_term(objective, new, anchor)


def policy_loss(
    objective: Objective,
    new: Units,
    advantage: Tensor,
    group: Tensor,
    live: Tensor,
    counts: Counts,
    old: Units | None = None,
    reference: Units | None = None,
    log_ratio_shift: Tensor | None = None,
    divergence: Units | None = None,
) -> LossSum:
    """Loss of one update. advantage [B,1] or [B,U]. `old` None means on-policy: ratio 1 by construction.

    `log_ratio_shift` [B,U] is added to the log-ratio on its own scale (stress tests). It reaches the ratio alone:
    never a bound or a KL, and nothing in a method that reads no ratio. `divergence`: units of the exact KL.
    """
    coef = coefficients(objective.coef, new, live, counts)
    advantage = advantage.to(new.lower.dtype).expand_as(new.lower)
    base = old if old is not None else _detached(new)
    read = base if objective.weights == "ratio" else _detached(new)
    d = log_ratio(new, read, objective.ratio_scale, objective.allow_fresh_masks)
    shifted = log_ratio_shift is not None and objective.weights == "ratio"
    if log_ratio_shift is not None and shifted:
        d = d + torch.where(new.mask, log_ratio_shift, 0.0).to(d.dtype)
    bounded = d.clamp(-objective.log_bound, objective.log_bound)
    if objective.form == "ratio":
        term, clipped, weight = _ratio_term(objective, bounded, advantage)
    else:
        term, clipped, weight = _score_term(objective, d, advantage, new, group)
    total = -torch.where(new.mask, term * coef, 0.0).sum()
    metrics = _ratio_metrics(d, new.mask, advantage, clipped, weight, objective, group)
    if log_ratio_shift is not None and shifted:
        metrics["inflated_fraction"] = (float(((log_ratio_shift != 0) & new.mask).sum()), float(new.mask.sum()))
    if objective.kl != "none":
        kl = _kl(objective, new, reference if objective.kl_to == "reference" else base, divergence)
        kl_coef = coef if objective.kl_coef is None else coefficients(objective.kl_coef, new, live, counts)
        total = total + objective.beta * (kl * kl_coef).sum()
        metrics["kl"] = (float(kl.detach().sum()), float(new.mask.sum()))
    return LossSum(total=total, metrics=metrics, log_ratio=d.detach()[new.mask], weight=weight[new.mask])


def _detached(units: Units) -> Units:
    return Units(
        lower=units.lower.detach(),
        upper=units.upper.detach(),
        mask=units.mask,
        size=units.size,
        per_token=units.per_token,
        views=units.views,
        weight=units.weight,
    )


def _ratio_term(objective: Objective, d: Tensor, advantage: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rho = d.exp()
    term = rho * advantage
    clipped = torch.zeros_like(term, dtype=torch.bool)
    if objective.clip == "ppo":
        gated = rho.clamp(objective.clip_low, objective.clip_high) * advantage
        clipped = gated < term
        term = torch.minimum(term, gated)
    return term, clipped.detach(), rho.detach()


def _score_term(
    objective: Objective, d: Tensor, advantage: Tensor, new: Units, group: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    weight = group_weights(d, new.mask, group, objective)
    if objective.recentre:
        advantage = advantage - group_sum(weight * advantage, group)
    bound = torch.where(advantage > 0, new.lower, new.upper)
    clipped = torch.zeros_like(new.mask) if objective.clip != "always" else clip_log(d, objective) != d
    return weight * advantage * bound, clipped.detach(), weight


def _ratio_metrics(
    d: Tensor,
    mask: Tensor,
    advantage: Tensor,
    clipped: Tensor,
    weight: Tensor,
    objective: Objective,
    group: Tensor,
) -> dict[str, tuple[float, float]]:
    d, count = d.detach(), float(mask.sum())
    positive, negative = mask & (advantage > 0), mask & (advantage < 0)
    values = {
        "log_ratio_mean": (float((d * mask).sum()), count),
        "log_ratio_sq": (float((d**2 * mask).sum()), count),
        "clip_fraction_positive": (float((clipped & positive).sum()), float(positive.sum())),
        "clip_fraction_negative": (float((clipped & negative).sum()), float(negative.sum())),
        "clamp_fraction": (float(((d.abs() > objective.log_bound) & mask).sum()), count),
        "weight_sq": (float((weight**2 * mask).sum()), count),
        "ess_share": _effective_share(weight, mask, group),
    }
    return values


def _effective_share(weight: Tensor, mask: Tensor, group: Tensor) -> tuple[float, float]:
    """Effective sample size over group size, (sum w)^2 / (G sum w^2), as (sum over groups, groups)."""
    w = torch.where(mask, weight, 0.0).to(torch.float64)  # squares of ratios leave fp32
    members = group_sum(mask.to(w.dtype), group)
    top, squares = group_sum(w, group), group_sum(w**2, group)
    exists = mask & (squares > 0)
    share = torch.where(exists, top**2 / (squares * members).clamp(min=torch.finfo(w.dtype).tiny), 0.0)
    each = torch.where(exists, 1 / members.clamp(min=1), 0.0)
    return float((share * each).sum()), float(each.sum())
