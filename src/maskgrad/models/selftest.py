"""Does the network do what its checkpoint's family says? A few short forwards, right after loading.

What cannot be seen from names and shapes: padding that is looked at, and predictions that belong to the next position.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from maskgrad.errors import UserError
from maskgrad.models.policy import Policy

_REAL, _PADDING = 9, 4  # positions of the padding probe
_EVERY = 4  # the shift probe hides one position in this many
_LEAST = 12  # hidden positions below which the shift is not judged
TEXT = (
    "Water boils when it is hot enough, and ice melts when it is warm. In the morning the sun rises in the east, and "
    "in the evening it sets in the west. There are seven days in a week and twelve months in a year. Two and two are "
    "four."
)


def check_reading(policy: Policy) -> None:
    """Raise a `UserError` in one sentence if padding is looked at or the other logit shift fits clearly better.

    The second needs a tokenizer that can write English; without one it is left out.
    """
    if policy.device.type == "meta":
        return
    if unfilled := [name for name, p in policy.named_parameters() if p.is_meta]:
        raise UserError(f"{len(unfilled)} tensors were not filled, among them {unfilled[0]}; use a complete checkpoint")
    with torch.no_grad():
        # a network that is not finite has no reading to check; sampling and scoring stop at it by themselves
        if bool(policy.hidden(_probe(policy)).isfinite().all()):
            _check_padding(policy)
            _check_shift(policy)


def _probe(policy: Policy) -> Tensor:
    """Some ids of the vocabulary, int64 [1,9]."""
    usable = (~policy.forbidden).nonzero().flatten()
    return usable[torch.arange(_REAL, device=usable.device) * 7 % len(usable)][None]


def _check_padding(policy: Policy) -> None:
    ids = _probe(policy)
    alone = policy.hidden(ids)
    # half the precision of the dtype: far above rounding, far below what one visible padding token does
    tolerance = math.sqrt(torch.finfo(policy.dtype).eps)
    for content in (policy.special.pad, policy.special.mask):
        padding = torch.full((1, _PADDING), content, device=ids.device)
        attend = torch.arange(_PADDING + _REAL, device=ids.device)[None] >= _PADDING
        padded = policy.hidden(torch.cat((padding, ids), 1), attend)[:, _PADDING:]
        moved = float((padded - alone).norm() / alone.norm())
        if not moved <= tolerance:
            raise UserError(
                f"padding moves the hidden states of {policy.family.name} by {moved:.2g} of their size, so prompts of "
                f"different length cannot share a batch; try attn 'eager', or report this version of transformers"
            )


def _check_shift(policy: Policy) -> None:
    ids = _text(policy)
    if ids is None:
        return
    declared, other = policy.family.logit_shift, 1 - policy.family.logit_shift
    better = shift_preference(policy, ids, other, declared)
    if len(better) < _LEAST:
        return
    mean, error = float(better.mean()), float(better.std() / math.sqrt(len(better)))
    # one nat on average, and four standard errors: what a random network shows once in tens of thousands of loads
    if mean > 1.0 and mean > 4 * error:
        raise UserError(
            f"the network tells hidden tokens apart {mean:.1f} nats better with logit_shift {other} than with "
            f"{declared}, as {policy.family.name} has it; use the config.json of these weights, or correct logit_shift"
        )


def shift_preference(policy: Policy, ids: Tensor, other: int, declared: int) -> Tensor:
    """How much better each hidden token is told from the others under shift `other` than `declared`, nats, fp32 [n].

    Of each prediction counts the log-probability of its token minus the mean over all hidden tokens: a network that
    predicts the same everywhere, as an untrained one does at hidden positions, has 0 on average under either shift,
    whatever it predicts. `ids` int64 [T]; every fourth position is hidden, none of the first three.
    """
    place = torch.arange(_EVERY - 1, len(ids), _EVERY, device=ids.device)
    tokens = ids.clone()
    tokens[place] = policy.special.mask
    hidden = policy.hidden(tokens[None])[0]
    found = []
    for shift in (other, declared):
        logp = policy.logits(hidden[place - shift]).log_softmax(-1)
        pairs = logp[:, ids[place]]  # [n,n]: prediction at a hidden position, token of a hidden position
        found.append(pairs.diagonal() - pairs.mean(1))
    return (found[0] - found[1]).detach().float()


def _text(policy: Policy) -> Tensor | None:
    """A few dozen tokens of plain English, None if the tokenizer cannot write it."""
    if policy.tokenizer is None:
        return None
    ids = policy.tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    if policy.tokenizer.unk_token_id in ids or max(ids) >= policy.vocab_rows:
        return None
    limit = policy.max_length
    return torch.tensor(ids[:limit], dtype=torch.int64, device=policy.device)
