"""A policy small enough to enumerate (EGSPO spec section 9.1), with the surface of `maskgrad.models.policy.Policy`.

`V` tokens and MASK = V; canvas of L positions; logits linear in one flat parameter `theta`, with pairwise context:

    logits[i] = a_i + sum_{j != i} W[i, j, y_j] + sum_{real prompt tokens} C[i, token]

The head has V+1 rows. With `mask_logit=None` the MASK row is learned like any other, so that forbidding it matters;
otherwise it is the constant given. Production code (sampler, scorer, losses) runs on it unmodified, in fp64.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from maskgrad.models.layout import SpecialIds


class Toy(nn.Module):
    tokenizer = None
    block = None  # sees everything

    def __init__(
        self,
        vocab: int = 3,
        length: int = 4,
        seed: int = 0,
        mask_logit: float | None = None,
        stops: tuple[int, ...] = (),
        context: bool = True,
    ) -> None:
        super().__init__()
        self.vocab, self.length, self.rows, self.mask_logit = vocab, length, vocab + 1, mask_logit
        shapes = [(length, self.rows)]
        if context:
            shapes += [(length, length, self.rows, self.rows), (length, self.rows, self.rows)]
        draw = torch.Generator().manual_seed(seed)
        parts = [
            torch.randn(s, generator=draw, dtype=torch.float64) * c
            for s, c in zip(shapes, (1.0, 0.6, 0.6), strict=False)
        ]
        self.shapes = shapes
        self.theta = nn.Parameter(torch.cat([p.flatten() for p in parts]))
        self.special = SpecialIds(mask=vocab, pad=0, eos=stops[0] if stops else -1, stops=stops or (-1,))
        self.forbidden = torch.arange(self.rows) == vocab
        self.stop_mask = torch.isin(torch.arange(self.rows), torch.tensor(stops, dtype=torch.int64))
        self.views_seen = 0  # sequences sent through the network

    device, vocab_rows = torch.device("cpu"), property(lambda self: self.rows)

    def hidden_at(self, tokens: Tensor, attend: Tensor, read: Tensor) -> Tensor:
        self.views_seen += len(tokens)
        return self.all_logits(tokens, attend)[read]

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden

    def all_logits(self, tokens: Tensor, attend: Tensor | None = None, theta: Tensor | None = None) -> Tensor:
        """[B,T] -> [B,L,V+1]; the last L positions are the canvas."""
        pieces = (self.theta if theta is None else theta).split([torch.Size(s).numel() for s in self.shapes])
        out = pieces[0].view(self.shapes[0]).expand(len(tokens), -1, -1)
        if len(pieces) > 1:
            one_hot = nn.functional.one_hot(tokens, self.rows).to(torch.float64)
            prompt, canvas = one_hot[:, : -self.length], one_hot[:, -self.length :]
            if attend is not None:
                prompt = prompt * attend[:, : -self.length, None]
            away = (1 - torch.eye(self.length, dtype=torch.float64))[:, :, None, None]
            out = out + torch.einsum("bjv,ijvr->bir", canvas, pieces[1].view(self.shapes[1]) * away)
            out = out + torch.einsum("bpv,ivr->bir", prompt, pieces[2].view(self.shapes[2]))
        if self.mask_logit is not None:
            out = torch.where(self.forbidden, self.mask_logit, out)
        return out


def reward(tokens: Tensor, vocab: int = 3) -> Tensor:
    """Share of positions equal to (0,1,2,0) mod vocab, plus 0.5 if the first and last tokens agree. fp64 [...]."""
    share = (tokens == torch.tensor([0, 1, 2, 0]) % vocab).to(torch.float64).mean(-1)
    return share + 0.5 * (tokens[..., 0] == tokens[..., -1]).to(torch.float64)
