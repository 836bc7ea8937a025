"""Step selection of EGSPO (arXiv 2603.12554 section 3): which denoising passes are scored.

`topk` is the paper's rule and biased; `ht` has the same budget and, with Horvitz-Thompson weights 1/q, exactly the
expectation of using all passes, even though q depends on the whole trajectory.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from maskgrad import randomness
from maskgrad.records import Trajectory

Rule = Literal["topk", "ht", "uniform", "random", "all", "uniform_released", "random_released"]
Centring = Literal["pooled_loo", "outcome_loo", "time_loo", "rank_mean", "outcome_mean_plus_delta"]
EntropyKind = Literal["mean_revealed", "sum_revealed", "joint_decided", "mean_masked"]


def step_entropy(trajectory: Trajectory, kind: EntropyKind, decided: Literal["masked", "revealed"]) -> Tensor:
    """Entropy of each pass, fp32 [B,S], nats; -inf for passes the row did not take.

    joint_decided is the quantity of the truncation bound: tempered, summed over all decided positions (`decided` is
    the masked block for kernel and proposal scores, the revealed positions for revealed scores).
    """
    exists = trajectory.revealed > 0
    if kind == "mean_revealed":
        value = trajectory.entropy_revealed / trajectory.revealed.clamp(min=1)
    elif kind == "sum_revealed":
        value = trajectory.entropy_revealed
    elif kind == "mean_masked":
        value = trajectory.entropy_masked / trajectory.masked.clamp(min=1)
    else:
        value = trajectory.joint_masked if decided == "masked" else trajectory.joint_revealed
    return torch.where(exists, value, -torch.inf)


def last_live_pass(trajectory: Trajectory, live: Tensor) -> Tensor:
    """Index of the last pass that reveals a live token, int64 [B]."""
    return torch.where(live, trajectory.commit_step.to(torch.int64), -1).amax(1)


def inclusion(entropy: Tensor, exists: Tensor, k: int, floor: float) -> Tensor:
    """Inclusion probabilities q [B,S], proportional to entropy, capped at 1, at least `floor`, sum = min(K, passes).

    Shares above one are capped and the rest of the budget is redistributed until none exceeds one.
    """
    available = exists.sum(1, keepdim=True)
    budget = torch.minimum(torch.full_like(available, k), available).to(entropy.dtype)
    share = torch.where(exists, entropy.clamp(min=0), 0.0)
    # A share of the mean entropy keeps zero-entropy passes selectable, which exactness needs.
    mean = share.sum(1, keepdim=True) / available.clamp(min=1)
    share = torch.where(exists, share + floor * mean + 1e-9, 0.0)
    capped = torch.zeros_like(exists)
    q = torch.zeros_like(share)
    for _ in range(entropy.shape[1]):
        left = budget - capped.sum(1, keepdim=True)
        free = torch.where(capped, 0.0, share)
        q = torch.where(capped, 1.0, free / free.sum(1, keepdim=True).clamp(min=1e-12) * left)
        over = (q > 1) & ~capped
        if not bool(over.any()):
            break
        capped |= over
    return torch.where(exists, q.clamp(max=1.0), 0.0)


def systematic(q: Tensor, u: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Systematic sampling: step s is taken iff an integer lies in (c_{s-1} - u, c_s - u], c = cumsum q. Exactly
    sum q steps. q [B,S] fp64, u [B] -> (steps int64 [B,k], -1 = unused; weight 1/q [B,k])."""
    edge = torch.cumsum(q, 1)
    edge = torch.where(edge >= edge[:, -1:] - 1e-9, edge[:, -1:].round(), edge)  # rounding must not lose the last step
    upper = torch.floor(edge - u[:, None])
    lower = torch.cat([torch.floor(-u)[:, None], upper[:, :-1]], 1)
    return _pack(upper > lower, torch.where(q > 0, 1 / q.clamp(min=1e-12), 0.0), k)


def _pack(taken: Tensor, weight: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Chosen steps of each row in ascending order, padded with -1, and their weights."""
    position = torch.arange(taken.shape[1], device=taken.device).expand_as(taken)
    order = torch.where(taken, position, taken.shape[1]).sort(1).values[:, :k]
    if order.shape[1] < k:
        order = torch.nn.functional.pad(order, (0, k - order.shape[1]), value=taken.shape[1])
    used = order < taken.shape[1]
    steps = torch.where(used, order, -1)
    return steps, torch.where(used, weight.gather(1, order.clamp(max=taken.shape[1] - 1)), 0.0)


def released_steps(rule: Rule, total: int, k: int, sample: Tensor, seed: int) -> Tensor:
    """The passes of the released rules, int64 [K]; a pass can occur twice under random_released."""
    if rule == "uniform_released":
        early = torch.linspace(0, max(total - 2, 0), k - 1, dtype=torch.float64).to(torch.int64)
    else:
        noise = randomness.uniform(randomness.row_keys(seed, "select.released", sample.min()[None]), k - 1)[0]
        early = (noise * max(total - 1, 1)).to(torch.int64).sort().values.cpu()
    return torch.cat([early, torch.tensor([total - 1])])


def select_steps(
    rule: Rule, entropy: Tensor, exists: Tensor, k: int, sample: Tensor, seed: int, floor: float = 0.05
) -> tuple[Tensor, Tensor]:
    """Choose at most k passes per row. entropy [B,S], exists bool [B,S] -> (steps int64 [B,K], weight fp32 [B,K]).

    topk returns the steps by falling entropy (slot = rank, as the released centring needs), ties by earlier pass;
    the other rules return ascending steps. Unused slots are -1 with weight 0. The released rules give all rows the
    same passes, weight 1: K-1 of 0..S-2, evenly spaced or drawn with replacement, and the last.
    """
    total = entropy.shape[1]
    if rule in ("uniform_released", "random_released"):
        chosen = released_steps(rule, total, k, sample, seed).to(entropy.device)
        used = exists[:, chosen]
        return torch.where(used, chosen, -1), used.to(torch.float32)
    ones = exists.to(torch.float32)
    if rule == "all":
        steps, weight = _pack(exists, ones, total)
    elif rule == "topk":
        order = torch.where(exists, entropy, -torch.inf).argsort(dim=1, descending=True, stable=True)[:, :k]
        used = exists.gather(1, order)
        steps, weight = torch.where(used, order, -1), used.to(torch.float32)
    elif rule == "ht":
        q = inclusion(entropy.to(torch.float64), exists, k, floor)
        u = randomness.uniform(randomness.row_keys(seed, "select.ht", sample), 1).squeeze(1)
        steps, weight = systematic(q, u.to(q.device), min(k, total))
    elif rule == "random":
        noise = randomness.uniform(randomness.row_keys(seed, "select.random", sample), total)
        taken = (torch.where(exists, noise, torch.inf).argsort(1).argsort(1) < k) & exists
        count = exists.sum(1, keepdim=True)
        steps, weight = _pack(taken, ones * (count / count.clamp(max=k)), min(k, total))
    else:
        count = exists.sum(1, keepdim=True)
        slot = torch.arange(1, k + 1, device=entropy.device)
        # Evenly spaced, last pass included: ceil(i * passes / k) - 1 for i = 1..k.
        chosen = torch.div(slot * count + k - 1, k, rounding_mode="floor") - 1
        taken = torch.zeros_like(exists).scatter_(1, chosen.clamp(0, total - 1), True) & exists
        steps, weight = _pack(taken, ones, min(k, total))
    return steps, weight.to(torch.float32)
