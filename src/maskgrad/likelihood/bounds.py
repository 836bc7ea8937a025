"""Bounds socket: how scored log-probs become likelihoods of units. Pure functions on logp [B,N,L]."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from maskgrad.records import MaskedViews, Units


def token_units(logp: Tensor, views: MaskedViews) -> Units:
    """Mean-field token likelihoods (d1 2504.12216 eq. 3): lower[b,k] = sum_n weight_nk lp_nk; U = L."""
    lower = torch.where(views.scored, views.weight.to(logp.dtype) * logp, 0.0).sum(1)
    mask = views.scored.any(1)
    return Units(
        lower=lower, upper=lower, mask=mask, size=torch.ones_like(lower), per_token=True, views=views.fingerprint()
    )


def sequence_units(logp: Tensor, views: MaskedViews, size: Tensor | None = None) -> Units:
    """Summed sequence estimate: lower[b] = sum_n sum_k weight_nk lp_nk; U = 1.

    With the weights of `elbo_views.exact_count` an unbiased ELBO (ESPO 2512.03759), with weight 1 on mean-field
    views wd1's sum of token log-probs. `size` [B] = tokens the estimate covers, default: distinct scored positions.
    """
    lower = torch.where(views.scored, views.weight.to(logp.dtype) * logp, 0.0).sum((1, 2))
    size = views.scored.any(1).sum(-1) if size is None else size
    return Units(
        lower=lower[:, None],
        upper=lower[:, None],
        mask=views.scored.any(-1).any(-1)[:, None],
        size=size.clamp(min=1).to(lower.dtype)[:, None],
        per_token=False,
        views=views.fingerprint(),
    )


def slice_units(logp: Tensor, views: MaskedViews) -> Units:
    """Token likelihoods of trajectory slices; size = scored tokens of the slice of the token; U = L.

    TraceRL (2509.06949): rho_k = exp(lp_k - lp_old_k) at the state in which the token was committed.
    """
    units = token_units(logp, views)
    per_slice = views.scored.sum(-1, keepdim=True).to(units.lower.dtype)
    return replace(units, size=torch.where(views.scored, per_slice, 0.0).sum(1).clamp(min=1))


def step_units(logp: Tensor, views: MaskedViews, weight: Tensor | None = None) -> Units:
    """Log-likelihood of each selected denoising pass: lower[b,k] = sum of its token log-probs and tail masses; U = N.

    `size` counts the tokens of the pass (revealed ones, or all proposals), the divisor of the token ratio scale.
    """
    read = views.scored if views.tail is None else views.scored | views.tail
    lower = torch.where(read, views.weight * logp, 0.0).sum(-1)
    size = views.scored.sum(-1).clamp(min=1).to(lower.dtype)
    mask = views.scored.any(-1)
    return Units(
        lower=lower, upper=lower, mask=mask, size=size, per_token=False, views=views.fingerprint(), weight=weight
    )


def elbo_per_token(logp: Tensor, scored: Tensor) -> Tensor:
    """SPG (2510.09541) ELBO estimate [B]: mean over draws of the mean log-prob of the scored tokens.

    ELBO_hat = (1/N) sum_j (1/|S_j|) sum_{k in S_j} lp_k(z_j). Not an unbiased ELBO: no 1/t weight.
    """
    per_draw = torch.where(scored, logp, 0.0).sum(-1) / scored.sum(-1).clamp(min=1)
    drawn = scored.any(-1)
    return per_draw.sum(-1) / drawn.sum(-1).clamp(min=1)


def eubo_per_token(logp: Tensor, scored: Tensor, live: Tensor, beta: float) -> Tensor:
    """SPG (2510.09541) EUBO estimate [B], in log space.

    EUBO_hat = (1/(beta |U|)) sum_{k in U} log( (1/N) sum_j 1[k in S_j] exp(beta lp_k(z_j)) / tau_j ),
    tau_j = |S_j| / |live|, U = union of the scored sets. Membership comes from the mask, never from the value.
    """
    tau = scored.sum(-1).clamp(min=1) / live.sum(-1).clamp(min=1).to(logp.dtype)[:, None]
    scaled = torch.where(scored, beta * logp - tau.log()[:, :, None], -torch.inf)
    union = scored.any(1)
    # Positions that no draw scored would give log 0 and a NaN gradient; they are replaced before the reduction.
    safe = torch.where(union[:, None], scaled, 0.0)
    inner = safe.logsumexp(1) - torch.log(torch.tensor(float(logp.shape[1]), dtype=logp.dtype, device=logp.device))
    return torch.where(union, inner, 0.0).sum(-1) / (beta * union.sum(-1).clamp(min=1))


def block_sandwich_units(
    logp: Tensor, views: MaskedViews, live: Tensor, *, kind: str, beta: float, omega: float
) -> Units:
    """Bounds of SPG and StableDRL on the views of `block_views.block_elbo`, per live token; U = 1.

    lower = (1/|live|) sum_n sum_k w_nk lp_nk, the block-diffusion ELBO per token; the weights hold 1/N and 1/tau.
    EUBO_hat = (1/(beta |U|)) sum_{k in U} log sum_n w_nk exp(beta lp_nk), U = positions that a view scores (SPG
    2510.09541 eq. 8, with tau per block). upper = ELBO | EUBO | mix | zero as in `sandwich_units`.
    """
    weight = views.weight.to(logp.dtype)
    size = live.sum(-1).clamp(min=1).to(logp.dtype)
    elbo = torch.where(views.scored, weight * logp, 0.0).sum((1, 2)) / size
    union = views.scored.any(1)
    scaled = torch.where(views.scored, beta * logp + weight.clamp(min=1e-30).log(), -torch.inf)
    inner = torch.where(union[:, None], scaled, 0.0).logsumexp(1)
    eubo = torch.where(union, inner, 0.0).sum(-1) / (beta * union.sum(-1).clamp(min=1))
    upper = {"elbo": elbo, "zero": torch.zeros_like(elbo), "eubo": eubo, "mix": omega * eubo + (1 - omega) * elbo}
    return Units(
        lower=elbo[:, None],
        upper=upper[kind][:, None],
        mask=union.any(-1)[:, None],
        size=size[:, None],
        per_token=True,
        views=views.fingerprint(),
    )


def sandwich_units(logp: Tensor, views: MaskedViews, live: Tensor, *, kind: str, beta: float, omega: float) -> Units:
    """Per-token sequence bounds of SPG and StableDRL; U = 1. lower = ELBO, upper = ELBO | EUBO | mix | zero.

    mix = omega EUBO + (1 - omega) ELBO (SPG eq. 9).
    """
    elbo = elbo_per_token(logp, views.scored)
    upper = elbo
    if kind == "zero":
        upper = torch.zeros_like(elbo)
    elif kind != "elbo":
        eubo = eubo_per_token(logp, views.scored, live, beta)
        upper = eubo if kind == "eubo" else omega * eubo + (1 - omega) * elbo
    return Units(
        lower=elbo[:, None],
        upper=upper[:, None],
        mask=views.scored.any(-1).any(-1)[:, None],
        size=live.sum(-1).clamp(min=1).to(logp.dtype)[:, None],
        per_token=True,
        views=views.fingerprint(),
    )
