"""The KL to the starting policy, summed over the vocabulary instead of estimated from the tokens that were scored.

    KL_k = sum_v pi(v | z) (log pi(v | z) - log pi_ref(v | z))      at each scored position k of a masked view z

pi is the policy under training, so this is the reverse KL, and the gradient is that of the number itself. (The gradient
of the k3 estimate has the expectation of the forward KL's instead.) Never negative, zero only where the distributions
agree. Costs a forward pass of the reference per view and update.
"""

from __future__ import annotations

import torch
from torch import Tensor


def divergence(logp: Tensor, reference: Tensor, mean: bool = False) -> Tensor:
    """KL [...] of log-probs [...,V]; an id that `logp` rules out (-inf) adds nothing. No gradient to `reference`.

    `mean` divides by V (released EGSPO with aggregation mean).
    """
    difference = torch.where(logp > -torch.inf, logp - reference.detach(), 0.0)
    total = (logp.exp() * difference).sum(-1)
    return total / logp.shape[-1] if mean else total
