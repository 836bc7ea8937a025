"""Advantages socket: how rewards become credit. Groups by id, never by row position; fp32; no device loops."""

from __future__ import annotations

import torch
from torch import Tensor


def _index(group: Tensor) -> tuple[Tensor, int]:
    unique, index = torch.unique(group, return_inverse=True)
    return index, len(unique)


def group_sum(value: Tensor, group: Tensor) -> Tensor:
    """Sum over the members of each row's group, broadcast back to the rows. value [B] or [B,K]."""
    index, count = _index(group)
    total = torch.zeros(count, *value.shape[1:], dtype=value.dtype, device=value.device).index_add_(0, index, value)
    return total[index]


def group_size(group: Tensor) -> Tensor:
    return group_sum(torch.ones(group.shape, device=group.device), group)


def segment_logsumexp(value: Tensor, group: Tensor) -> Tensor:
    """log sum exp over each row's group, broadcast to the rows. value [B] or [B,K]; -inf entries count nothing."""
    index, count = _index(group)
    flat = value if value.dim() == 2 else value[:, None]
    expanded = index[:, None].expand_as(flat)
    top = torch.full((count, flat.shape[1]), -torch.inf, dtype=value.dtype, device=value.device)
    top = top.scatter_reduce(0, expanded, flat, "amax").clamp(min=torch.finfo(value.dtype).min)[index]
    out = top + group_sum((flat - top).exp(), group).log()
    return out if value.dim() == 2 else out[:, 0]


def from_lowest(value: Tensor, group: Tensor) -> Tensor:
    """value [B] or [B,K] minus the lowest value of the row's group: equal values become exactly zero, not rounding."""
    index, count = _index(group)
    lowest = value if value.dim() == 1 else value.amin(1)
    low = torch.zeros(count, dtype=value.dtype, device=value.device)
    low = low.scatter_reduce(0, index, lowest, "amin", include_self=False)[index]
    return value - (low if value.dim() == 1 else low[:, None])


def centred(reward: Tensor, group: Tensor, std: str | None = None, floor: float = 1e-4) -> Tensor:
    """A_i = R_i - mean_group R (GRPO without the division, d1 2504.12216 eq. 2). [B] -> [B,1].

    std "population" divides by the group's standard deviation; a group whose deviation is below `floor` keeps zero.
    """
    size, reward = group_size(group), from_lowest(reward, group)
    centre = reward - group_sum(reward, group) / size
    if std is not None:
        deviation = (group_sum(centre**2, group) / size).sqrt()
        centre = torch.where(deviation > floor, centre / deviation.clamp(min=floor), torch.zeros_like(centre))
    return centre[:, None]


def softmax_difference(reward: Tensor, group: Tensor, positive_only: bool = False) -> Tensor:
    """wd1 (2507.08838): A_i = w+_i - w-_i, w+ = softmax(a), w- = softmax(-a) over the group, a = R - mean.

    [B] -> [B,1]. `positive_only` keeps w+. A group whose rewards are all equal carries no signal and gets exactly zero.
    """
    centre = centred(reward, group)[:, 0]
    plus = (centre - segment_logsumexp(centre, group)).exp()
    minus = (-centre - segment_logsumexp(-centre, group)).exp()
    value = plus if positive_only else plus - minus
    index, count = _index(group)
    edges = [torch.zeros(count, dtype=reward.dtype, device=reward.device) for _ in range(2)]
    top, low = (
        e.scatter_reduce(0, index, reward, kind, include_self=False)[index]
        for e, kind in zip(edges, ("amax", "amin"), strict=True)
    )
    return torch.where(top > low, value, torch.zeros_like(value))[:, None]


def leave_one_out(reward: Tensor, group: Tensor) -> Tensor:
    """A_i = R_i - mean of the other members (RLOO). [B] -> [B,1]; a group of one gets zero."""
    size, reward = group_size(group), from_lowest(reward, group)
    others = (group_sum(reward, group) - reward) / (size - 1).clamp(min=1)
    return torch.where(size > 1, reward - others, torch.zeros_like(reward))[:, None]


def sample_deviation(reward: Tensor, group: Tensor) -> Tensor:
    """Standard deviation of each row's group with divisor G - 1. [B] -> [B,1]; 0 in a group of one."""
    size = group_size(group)
    centre = reward - group_sum(reward, group) / size
    return (group_sum(centre**2, group) / (size - 1).clamp(min=1)).sqrt()[:, None]


def stepwise_returns(reward: Tensor, step_reward: Tensor, lam: float | Tensor, normalise: bool) -> Tensor:
    """EGSPO-SA (2603.12554) eq. of A_t: R_s = r + lambda (r - rhat_s), divided by 1 + lambda if `normalise`.

    reward [B], step_reward [B,K], lam scalar or [B,K] -> [B,K]. rhat_s depends on the state only, so normalised
    returns have the same expected gradient for every lambda.
    """
    lam = torch.as_tensor(lam, dtype=reward.dtype, device=reward.device)
    returns = reward[:, None] + lam * (reward[:, None] - step_reward)
    return returns / (1 + lam) if normalise else returns


def stepwise(
    reward: Tensor, returns: Tensor, used: Tensor, group: Tensor, centring: str, delta: Tensor | None = None
) -> Tensor:
    """Centre stepwise returns [B,K]; `used` bool [B,K] marks filled slots (others give 0).

    pooled_loo: minus the mean over the other members' slots. outcome_loo: minus the other members' mean final reward.
    rank_mean (released): minus the group mean of the same slot, self included. outcome_mean_plus_delta (released):
    group-centred final reward plus `delta` [B,K], which is not centred. time_loo is `time_centred`.
    """
    if centring in ("pooled_loo", "rank_mean"):  # both take out any constant of the group
        returns = from_lowest(torch.where(used, returns, returns.amax()), group)
    filled = torch.where(used, returns, 0.0)
    if centring == "pooled_loo":
        own, count = filled.sum(1), used.sum(1).to(returns.dtype)
        others = (group_sum(own, group) - own) / (group_sum(count, group) - count).clamp(min=1)
        out = returns - others[:, None]
    elif centring == "outcome_loo":
        out = returns - reward[:, None] + leave_one_out(reward, group)  # equal rewards leave no rounding
    elif centring == "rank_mean":
        out = returns - group_sum(filled, group) / group_sum(used.to(returns.dtype), group).clamp(min=1)
    else:
        assert centring == "outcome_mean_plus_delta" and delta is not None, centring
        out = centred(reward, group) + delta
    return torch.where(used, out, 0.0)


def time_centred(reward: Tensor, step_centred: Tensor, used: Tensor, group: Tensor, lam: Tensor, norm: bool) -> Tensor:
    """time_loo [B,K]: R_s minus the mean of the other members' R at the same pass, R as in `stepwise_returns`.

    A_s = (1 + lambda) (r - mean r) - lambda (rhat_s - mean rhat_s), both means over the others; / (1 + lambda) if norm.
    """
    out = (1 + lam) * leave_one_out(reward, group) - lam * step_centred
    return torch.where(used, out / (1 + lam) if norm else out, 0.0)
