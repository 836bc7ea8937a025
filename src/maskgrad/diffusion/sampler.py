"""Semi-autoregressive masked-diffusion sampler (LLaDA 2502.09992, section 2.4; d1 2504.12216).

Every row walks through its own blocks at its own pace and draws from its own random stream, so a rollout is the
same whatever batch it is part of. Each pass runs the network on the whole canvas (later blocks visible as MASK) and
the output head only at the masked positions that are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from maskgrad import randomness
from maskgrad.diffusion import reveal
from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.errors import BrokenModel
from maskgrad.models.policy import Policy
from maskgrad.records import PromptBatch, Trajectory

#: Largest number of logits held at once; positions are processed in chunks below it.
LOGIT_CHUNK = 2**25


class Noise(Protocol):
    """Source of the uniform draws of a run. `row`, `step`, `position` are int64 [n]."""

    def token(self, row: Tensor, step: Tensor, position: Tensor, vocab: int) -> Tensor: ...

    def order(self, row: Tensor, step: Tensor, position: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class KeyedNoise:
    """Draws named by (seed, sample id, pass, canvas position): independent of batch, padding and rank."""

    seed: int
    sample: Tensor

    def _keys(self, purpose: str, row: Tensor, step: Tensor, position: Tensor) -> Tensor:
        keys = randomness.row_keys(self.seed, purpose, self.sample)[row]
        return randomness.fold(randomness.fold(keys, step), position)

    def token(self, row: Tensor, step: Tensor, position: Tensor, vocab: int) -> Tensor:
        return randomness.uniform(self._keys("sampler.token", row, step, position), vocab)

    def order(self, row: Tensor, step: Tensor, position: Tensor) -> Tensor:
        return randomness.uniform(self._keys("sampler.order", row, step, position), 1).squeeze(1)


@dataclass(frozen=True)
class Record:
    """What to keep beyond the commit map."""

    statistics: bool = True  # entropies and rank floors per pass
    one_shot: bool = False  # greedy completion of every state (runs the head on the whole canvas)
    proposals: bool = False


@torch.no_grad()
def sample(
    policy: Policy,
    prompts: PromptBatch,
    config: SamplerConfig,
    noise: Noise,
    record: Record | None = None,
) -> Trajectory:
    """Fill an all-mask canvas behind each prompt. See `SamplerConfig` for the settings, `Trajectory` for the result."""
    run = _Run(policy, prompts, config, noise, record or Record())
    while (rows := run.open_rows()).numel():
        run.advance(rows)
    return run.finish()


class _Run:
    """State of one sampling call. B rows, canvas L, window W = block length."""

    def __init__(self, policy: Policy, prompts: PromptBatch, config: SamplerConfig, noise: Noise, record: Record):
        self.policy, self.config, self.noise, self.record = policy, config, noise, record
        device = policy.device
        self.prompts = prompts
        rows, length, steps = len(prompts), config.gen_length, config.max_passes
        self.canvas = torch.full((rows, length), policy.special.mask, dtype=torch.int64, device=device)
        self.hidden = torch.ones(rows, length, dtype=torch.bool, device=device)
        self.commit_step = torch.full((rows, length), -1, dtype=torch.int64, device=device)
        self.commit_logp = torch.zeros(rows, length, device=device)
        self.block = torch.zeros(rows, dtype=torch.int64, device=device)  # active block of each row
        self.step = torch.zeros_like(self.block)  # passes taken
        self.step_in_block = torch.zeros_like(self.block)
        self.done = torch.zeros(rows, dtype=torch.bool, device=device)
        self.stops = torch.tensor(policy.special.stops, device=device)
        commits = config.commits()
        width = max(len(c) for c in commits)
        self.quota = torch.tensor([c + [0] * (width - len(c)) for c in commits], device=device)
        names = ("revealed", "masked", "floor", "h_revealed", "h_masked", "j_revealed", "j_masked")
        self.stats = {name: torch.zeros(rows, steps, device=device) for name in names}
        self.one_shot = torch.zeros(rows, steps, length, dtype=torch.int32, device=device) if record.one_shot else None
        self.proposed = (
            torch.full((rows, steps, length), -1, dtype=torch.int32, device=device) if record.proposals else None
        )
        self.forwards = 0
        #: Ids that must not be proposed; the normaliser of the confidence stays the full one.
        never = config.suppress_stop == "never"
        self.banned = policy.forbidden | policy.stop_mask if never else policy.forbidden
        self.delayed = policy.stop_mask if config.suppress_stop == "delay" else None

    def open_rows(self) -> Tensor:
        return (~self.done).nonzero().squeeze(1)

    def window(self, rows: Tensor) -> Tensor:
        """Masked positions of each row's active block, bool [R,L]."""
        block = torch.arange(self.config.gen_length, device=rows.device) // self.config.block
        return self.hidden[rows] & (block == self.block[rows][:, None])

    def hidden_states(self, rows: Tensor, read: Tensor) -> Tensor:
        """Hidden states [n,d] (or [2n,d] with guidance) at the canvas positions `read` bool [R,L]."""
        prompt, real = self.prompts.ids[rows], self.prompts.real[rows]
        tokens = torch.cat([prompt, self.canvas[rows]], 1)
        attend = torch.cat([real, torch.ones_like(self.canvas[rows], dtype=torch.bool)], 1)
        if self.config.guidance > 0:
            blank = torch.where(real, self.policy.special.mask, prompt)
            tokens = torch.cat([tokens, torch.cat([blank, self.canvas[rows]], 1)])
            attend, read = torch.cat([attend, attend]), torch.cat([read, read])
        self.forwards += len(tokens)
        return self.policy.hidden_at(tokens, attend, read)

    def logits(self, states: Tensor) -> Tensor:
        if self.config.guidance == 0:
            return self.policy.logits(states)
        conditional, unconditional = self.policy.logits(states).chunk(2)
        return unconditional + (self.config.guidance + 1) * (conditional - unconditional)

    def advance(self, rows: Tensor) -> None:
        """One pass over the open rows: propose at every masked position of the block, commit the best."""
        window = self.window(rows)
        read = self.hidden[rows] if self.record.one_shot else window
        states = self.hidden_states(rows, read)
        row, position = read.nonzero(as_tuple=True)
        inside = window[read]
        size = max(1, LOGIT_CHUNK // self.policy.vocab_rows)
        pieces = []
        for start in range(0, len(row), size):
            part = slice(start, start + size)
            chunk = states[: len(row)][part]
            if self.config.guidance > 0:
                chunk = torch.cat([chunk, states[len(row) :][part]])
            pieces.append(self.read_positions(self.logits(chunk), rows[row[part]], position[part], inside[part]))
        flat = {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}

        def spread(name: str, fill: float) -> Tensor:
            out = torch.full(read.shape, fill, dtype=flat[name].dtype, device=read.device)
            out[read if name == "greedy" else window] = flat[name]
            return out

        if self.one_shot is not None:
            guess = torch.where(read, spread("greedy", 0), self.canvas[rows])
            self.one_shot[rows, self.step[rows]] = guess.to(torch.int32)
        value = spread("rank", -torch.inf)
        chosen = reveal.choose(value, window, self.count(rows, window, value))
        self.commit(rows, window, chosen, spread("token", 0), spread("logp", 0.0))
        if self.proposed is not None:
            self.proposed[rows, self.step[rows]] = torch.where(window, spread("token", 0), -1).to(torch.int32)
        self.note(rows, window, chosen, {k: spread(k, 0.0) for k in ("entropy", "joint") if k in flat}, value)
        self.step[rows] += 1
        self.close_blocks(rows)

    def read_positions(self, logits: Tensor, row: Tensor, position: Tensor, inside: Tensor) -> dict[str, Tensor]:
        """Greedy token of each position; proposal, rank value and statistics of those `inside` the active block."""
        config, vocab = self.config, logits.shape[-1]
        if not bool(logits.amax(-1).isfinite().all()):
            raise BrokenModel("the network's logits are not finite: its weights are broken")
        greedy_everywhere = logits.masked_fill(self.banned, -torch.inf).argmax(-1)
        if not bool(inside.all()):
            logits, row, position = logits[inside], row[inside], position[inside]
        logp = logits.log_softmax(-1)
        allowed = logits.masked_fill(self.banned, -torch.inf)
        greedy = greedy_everywhere[inside]
        step = self.step[row]
        tempered, token = logp, greedy
        if config.temperature > 0:
            noise = self.noise.token(row, step, position, vocab)
            token = (allowed.to(torch.float64) - config.temperature * torch.log(-torch.log(noise))).argmax(-1)
            tempered = (allowed / config.temperature).log_softmax(-1)
        order = self.noise.order(row, step, position) if config.remasking == "random" else logp[:, 0]
        out = {
            "token": token,
            "greedy": greedy_everywhere,
            "logp": tempered.gather(1, token[:, None]).squeeze(1),
            "rank": reveal.rank_value(config.remasking, logp, token, self.delayed, order),
        }
        if self.record.statistics:
            out["entropy"] = reveal.entropy(logp)
            out["joint"] = reveal.entropy(tempered) if config.temperature > 0 else out["entropy"]
        return out

    def count(self, rows: Tensor, window: Tensor, value: Tensor) -> Tensor:
        """How many positions each row commits in this pass, int64 [R]. A delayed stop token is never sure."""
        if self.config.threshold is None:
            return self.quota[self.block[rows], self.step_in_block[rows]]
        sure = (window & (value >= self.config.threshold)).sum(1)
        return sure.clamp(min=1)

    def commit(self, rows: Tensor, window: Tensor, chosen: Tensor, token: Tensor, logp: Tensor) -> None:
        if not bool((chosen.any(1) | ~window.any(1)).all()):
            raise RuntimeError("the sampler made no progress: a pass committed no position")
        self.canvas[rows] = torch.where(chosen, token, self.canvas[rows])
        self.hidden[rows] &= ~chosen
        self.commit_step[rows] = torch.where(chosen, self.step[rows][:, None], self.commit_step[rows])
        self.commit_logp[rows] = torch.where(chosen, logp.to(torch.float32), self.commit_logp[rows])

    def note(self, rows: Tensor, window: Tensor, chosen: Tensor, flat: dict[str, Tensor], value: Tensor) -> None:
        step = self.step[rows]
        self.stats["revealed"][rows, step] = chosen.sum(1).to(torch.float32)
        self.stats["masked"][rows, step] = window.sum(1).to(torch.float32)
        if not self.record.statistics:
            return
        self.stats["floor"][rows, step] = torch.where(chosen, value, torch.inf).amin(1).to(torch.float32)
        for prefix, name in (("h", "entropy"), ("j", "joint")):
            self.stats[f"{prefix}_revealed"][rows, step] = (flat[name] * chosen).sum(1).to(torch.float32)
            self.stats[f"{prefix}_masked"][rows, step] = (flat[name] * window).sum(1).to(torch.float32)

    def close_blocks(self, rows: Tensor) -> None:
        """Move rows whose block is full to the next block; finish rows at the end or behind a stop token."""
        full = rows[~self.window(rows).any(1)]
        self.step_in_block[rows] += 1
        self.block[full] += 1
        self.step_in_block[full] = 0
        finished = self.block[full] >= self.config.blocks
        if self.config.stop_early:
            finished |= torch.isin(self.canvas[full], self.stops).any(1)
        self.done[full] = finished

    def finish(self) -> Trajectory:
        left = self.hidden
        tokens = torch.where(left, self.policy.special.stops[0] if self.policy.special.stops else 0, self.canvas)
        steps = int(self.step.max())
        cut = {name: value[:, :steps] for name, value in self.stats.items()}
        return Trajectory(
            tokens=tokens,
            commit_step=self.commit_step.to(torch.int16),
            commit_logp=self.commit_logp,
            passes=self.step,
            revealed=cut["revealed"].to(torch.int16),
            masked=cut["masked"].to(torch.int16),
            rank_floor=cut["floor"],
            entropy_revealed=cut["h_revealed"],
            entropy_masked=cut["h_masked"],
            joint_revealed=cut["j_revealed"],
            joint_masked=cut["j_masked"],
            one_shot=None if self.one_shot is None else self.one_shot[:, :steps],
            proposals=None if self.proposed is None else self.proposed[:, :steps],
            forwards=self.forwards,
        )
