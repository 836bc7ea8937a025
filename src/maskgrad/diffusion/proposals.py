"""From logits at masked positions to a proposed token, its log-prob, its rank, and entropies."""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.diffusion import reveal
from maskgrad.diffusion.filters import sampling_logits
from maskgrad.diffusion.noise import Noise
from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.errors import BrokenModel
from maskgrad.models.policy import Policy

#: Largest number of logits held at once; positions are processed in chunks below it.
LOGIT_CHUNK = 2**25


class Proposer:
    """Reads the output head at masked positions. Everything is a function of one position: chunks change nothing."""

    def __init__(self, policy: Policy, config: SamplerConfig, noise: Noise, statistics: bool) -> None:
        self.policy, self.config, self.noise, self.statistics = policy, config, noise, statistics
        #: Ids that must not be proposed; the normaliser of the confidence stays the full one.
        never = config.suppress_stop == "never"
        self.banned = policy.forbidden | policy.stop_mask if never else policy.forbidden
        self.delayed = policy.stop_mask if config.suppress_stop == "delay" else None

    def logits(self, states: Tensor) -> Tensor:
        """Logits [n,V] of states [n,d], or of the conditional and unconditional states [2n,d] under guidance."""
        if self.config.guidance == 0:
            return self.policy.logits(states)
        conditional, unconditional = self.policy.logits(states).chunk(2)
        return unconditional + (self.config.guidance + 1) * (conditional - unconditional)

    def chunks(self, states: Tensor, count: int) -> list[tuple[slice, Tensor]]:
        """Slices of the `count` positions, each with its states (both kinds of them under guidance)."""
        size = max(1, LOGIT_CHUNK // self.policy.vocab_rows)
        parts = [slice(start, start + size) for start in range(0, count, size)]
        if self.config.guidance == 0:
            return [(part, states[part]) for part in parts]
        return [(part, torch.cat([states[:count][part], states[count:][part]])) for part in parts]

    def read(self, states: Tensor, row: Tensor, step: Tensor, position: Tensor, inside: Tensor) -> dict[str, Tensor]:
        """Greedy token of each of the n positions; proposal, rank and statistics of those `inside` the active block."""
        pieces = []
        for part, chunk in self.chunks(states, len(row)):
            pieces.append(self._read(self.logits(chunk), row[part], step[part], position[part], inside[part]))
        return {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}

    def _read(self, logits: Tensor, row: Tensor, step: Tensor, position: Tensor, inside: Tensor) -> dict[str, Tensor]:
        if not bool(logits.amax(-1).isfinite().all()):
            raise BrokenModel("the network's logits are not finite: its weights are broken")
        greedy = logits.masked_fill(self.banned, -torch.inf).argmax(-1)
        if not bool(inside.all()):
            logits, row, step, position = logits[inside], row[inside], step[inside], position[inside]
        out = {"greedy": greedy, **self.propose(logits, greedy[inside], row, step, position)}
        return out

    def propose(self, logits: Tensor, greedy: Tensor, row: Tensor, step: Tensor, position: Tensor) -> dict[str, Tensor]:
        config, token = self.config, greedy
        logp, drawn = logits.log_softmax(-1), self.sampling_logits(logits)
        if config.temperature > 0:
            noise = self.noise.token(row, step, position, logits.shape[-1])
            kept = logits.masked_fill(drawn.isneginf(), -torch.inf).to(torch.float64)
            token = (kept - config.temperature * torch.log(-torch.log(noise))).argmax(-1)
        tempered = self.tempered(logp, drawn)
        order = logp[:, 0]
        if config.remasking in ("random", "origin"):
            order = self.noise.order(row, step, position)
        ranked = logp if config.confidence == "model" else drawn.log_softmax(-1)
        value = reveal.rank_value(config.remasking, ranked, token, self.delayed, order, position)
        if config.order_temperature > 0:
            draws = self.noise.order(row, step, position)
            value = reveal.drawn_order(value.to(torch.float64), config.order_temperature, draws).to(value.dtype)
        out = {"token": token, "logp": tempered.gather(1, token[:, None]).squeeze(1), "rank": value}
        if self.statistics:
            out["entropy"] = reveal.entropy(logp)
            out["joint"] = reveal.entropy(tempered) if config.temperature > 0 else out["entropy"]
        return out

    def sampling_logits(self, logits: Tensor) -> Tensor:
        """Logits of the distribution tokens are drawn from, [n,V]; at temperature 0 of the untempered one."""
        config = self.config
        allowed = logits.masked_fill(self.banned, -torch.inf)
        return sampling_logits(allowed, config.temperature, config.top_k, config.top_p)

    def tempered(self, logp: Tensor, drawn: Tensor) -> Tensor:
        """Log-probs [n,V] that are recorded: those drawn from; at temperature 0 the model's own."""
        return drawn.log_softmax(-1) if self.config.temperature > 0 else logp
