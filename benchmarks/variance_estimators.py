"""Statistics of the variance study: unbiased variance components, and nothing that knows a model.

A gradient estimate is g[j, m] = mean + rollout noise of batch j + mask noise of draw m on batch j. With J independent
batches and M draws on each (one-way random effects, `tr` = trace of a covariance):

    within  = mean_j sum_m |g_jm - g_j.|^2 / (M - 1)            E = tr masks
    between = sum_j |g_j. - g_..|^2 / (J - 1)                    E = tr rollouts + tr masks / M
    signal  = mean over j != k of <g_j., g_k.>                   E = |mean|^2
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


def root(variances: Tensor) -> tuple[float, float]:
    """Root of the mean of per-sequence variances [B], and its standard error over the sequences."""
    mean = float(variances.mean())
    if mean == 0:
        return 0.0, 0.0
    return math.sqrt(mean), float(variances.std()) / math.sqrt(len(variances)) / (2 * math.sqrt(mean))


def ratio_noise(new: Tensor, old: Tensor) -> dict[str, tuple[float, float]]:
    """Standard deviation of new - old over repeats, root mean square over sequences, with its standard error.

    Entry r of `new` and `old` [R,B] was scored on the same masks. With independent masks the two variances add; adding
    them is exact, where pairing repeat r with r + 1 would not be.
    """
    new, old = new.to(torch.float64), old.to(torch.float64)
    return {"shared": root((new - old).var(0)), "independent": root(new.var(0) + old.var(0))}


@dataclass(frozen=True, kw_only=True)
class Components:
    signal: float  # |mean gradient|^2, may come out negative when it drowns in noise
    rollouts: float  # trace of the covariance over batches, masks averaged out
    masks: float  # trace of the covariance over mask draws, rollouts fixed

    @property
    def snr(self) -> float:
        return self.signal / (self.rollouts + self.masks)

    @property
    def mask_share(self) -> float:
        return self.masks / (self.rollouts + self.masks)


def gram_matrix(left: Tensor, right: Tensor) -> Tensor:
    """Inner products [J,M,K,N] of estimates left [J,M,D] and right [K,N,D], fp64."""
    product = left.flatten(0, 1).to(torch.float64) @ right.flatten(0, 1).to(torch.float64).T
    return product.view(*left.shape[:2], *right.shape[:2])


def off_diagonal_mean(table: Tensor) -> float:
    """Mean over j != k of a table [J,J]: products of independent batches only."""
    count = len(table)
    return float(table.sum() - table.diagonal().sum()) / (count * (count - 1))


def components(gram: Tensor) -> Components:
    """Unbiased variance components from the gram matrix [J,M,J,M] of the estimates. M = 1: no mask noise."""
    batches, draws = gram.shape[:2]
    means = gram.mean((1, 3))
    squares = torch.einsum("jmjm->j", gram)
    within = float((squares - draws * means.diagonal()).mean()) / (draws - 1) if draws > 1 else 0.0
    signal = off_diagonal_mean(means)
    between = float(means.diagonal().sum() - batches * means.mean()) / (batches - 1)
    return Components(signal=signal, rollouts=between - within / draws, masks=within)


def pair_cosines(gram: Tensor) -> tuple[float, float | None]:
    """Mean cosine of two single estimates: (of different batches, of one batch under different masks)."""
    norms = torch.einsum("jmjm->jm", gram).sqrt()
    cosine = gram / (norms[:, :, None, None] * norms).clamp(min=1e-300)
    draws = cosine.shape[1]
    same = torch.einsum("jmjn->mn", cosine) / len(cosine)
    return off_diagonal_mean(cosine.mean((1, 3))), off_diagonal_mean(same) if draws > 1 else None


def alignment(gram: Tensor, cross: Tensor, target: Tensor) -> float:
    """Cosine of two mean gradients, from products of different batches only; noise can push it above 1.

    gram [J,M,J,M] of the method, target [J,N,J,N] of the reference, cross [J,M,J,N] of both.
    """
    own, other = off_diagonal_mean(gram.mean((1, 3))), off_diagonal_mean(target.mean((1, 3)))
    if own <= 0 or other <= 0:
        return math.nan
    return off_diagonal_mean(cross.mean((1, 3))) / math.sqrt(own * other)


def jackknife(batches: int, statistic: Callable[[Tensor], float]) -> float:
    """Standard error of a statistic of batch indices, from leaving out one batch at a time."""
    every = torch.arange(batches)
    values = torch.tensor([statistic(every[every != j]) for j in range(batches)], dtype=torch.float64)
    return math.sqrt((batches - 1) / batches * float(((values - values.mean()) ** 2).sum()))


def restrict(gram: Tensor, index: Tensor) -> Tensor:
    """The gram matrix of the chosen batches."""
    return gram[index][:, :, index]
