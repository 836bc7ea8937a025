"""The true kernel of a denoising pass under low-confidence remasking (EGSPO 2603.12554 section 2; derived).

    log pi(y'|y) = sum_{i in U} log p_i^tau(x_i) + sum_{j in M\\U} log F_j,   F_j = P_{v ~ p_j^tau}( v ranks behind c* )

U are the revealed positions, M the masked ones of the active block, c* the lowest rank value in U. A proposal at j
ranks behind if its rank value is below c*, or equal to it and j lies right of the last revealed position that has
this value (the sampler commits ties leftmost first). With a commit threshold theta and c* >= theta, the event is
"below theta" instead. c* and the event are constants of the parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.diffusion.reveal import quantise, token_confidence

#: Lower clamp of log F_j. On-policy F_j is at least the probability of the rejected proposal; off-policy it may vanish.
LOG_TAIL_FLOOR = -20.0


def target_confidence(logp: Tensor, target: Tensor, delayed: Tensor | None = None) -> Tensor:
    """Rank value [n] of the target tokens int64 [n] under `low_confidence`, from untempered logp [n,V]."""
    value = quantise(logp.detach().gather(1, target[:, None]).squeeze(1).exp())
    return value if delayed is None else torch.where(delayed[target], -1.0, value)


def rank_floor(confidence: Tensor, row: Tensor, position: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """c* and the rightmost revealed position holding it, per row. All inputs [n]; returns ([rows], int64 [rows])."""
    floor = torch.full((rows,), torch.inf, dtype=confidence.dtype, device=confidence.device)
    floor = floor.scatter_reduce(0, row, confidence, "amin")
    at_floor = torch.where(confidence == floor[row], position, -1)
    last = torch.full((rows,), -1, dtype=torch.int64, device=row.device).scatter_reduce(0, row, at_floor, "amax")
    return floor, last


def log_tail_mass(
    logp: Tensor,
    tempered: Tensor,
    floor: Tensor,
    last: Tensor,
    position: Tensor,
    delayed: Tensor | None = None,
    threshold: float | None = None,
) -> Tensor:
    """log F_j [n]: log-probability under `tempered` [n,V] that a proposal at `position` [n] ranks behind.

    `logp` [n,V] untempered log-probs; `floor` [n], `last` [n] as of the position's row. -inf if no token ranks behind
    (impossible for the policy that sampled the pass). No gradient flows through the event.
    """
    confidence = token_confidence(logp.detach(), delayed)
    behind = (confidence < floor[:, None]) | ((confidence == floor[:, None]) & (position > last)[:, None])
    if threshold is not None:
        behind = torch.where((floor >= threshold)[:, None], confidence < threshold, behind)
    return torch.where(behind, tempered, -torch.inf).logsumexp(-1)
