"""Semi-autoregressive masked-diffusion sampler (LLaDA 2502.09992, section 2.4; Dream 2508.15487; SDAR 2510.06303).

Every row walks through its own blocks at its own pace and draws from its own random stream, so a rollout is the
same whatever batch it is part of. The network decides what a pass sees: under full attention the whole canvas, later
blocks as MASK; under block-causal attention the prompt and the blocks up to the active one. The output head runs only
at the masked positions that are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from maskgrad.diffusion import reveal
from maskgrad.diffusion.grid import Rows, cache_of, settle
from maskgrad.diffusion.network import Pass, network_for
from maskgrad.diffusion.noise import KeyedNoise, Noise
from maskgrad.diffusion.proposals import Proposer
from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.models.policy import Policy
from maskgrad.records import PromptBatch, Trajectory

__all__ = ["KeyedNoise", "Noise", "Record", "sample"]


@dataclass(frozen=True)
class Record:
    """What to keep beyond the commit map."""

    statistics: bool = True  # entropies and rank floors per pass
    #: Greedy completion of every state: runs the head on the whole canvas. A block-causal network predicts each later
    #: block from the blocks before it, the active one as it is and those between as MASK.
    one_shot: bool = False
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
    """State of one sampling call. B rows, canvas L, W = block length."""

    def __init__(self, policy: Policy, prompts: PromptBatch, config: SamplerConfig, noise: Noise, record: Record):
        self.policy, self.config, self.record, self.noise = policy, config, record, noise
        device, rows, length = policy.device, len(prompts), config.gen_length
        grid = settle(policy, config)
        self.rows = Rows.of(prompts, config.block, length, grid)
        self.network = network_for(
            policy, prompts, length, config.block, grid, cache_of(policy, config), config.guidance > 0
        )
        self.proposer = Proposer(policy, config, noise, record.statistics)
        self.canvas = torch.full((rows, length), policy.special.mask, dtype=torch.int64, device=device)
        self.hidden = torch.ones(rows, length, dtype=torch.bool, device=device)
        self.commit_step = torch.full((rows, length), -1, dtype=torch.int64, device=device)
        self.commit_logp = torch.zeros(rows, length, device=device)
        self.block = torch.zeros(rows, dtype=torch.int64, device=device)  # active block of each row
        self.step = torch.zeros_like(self.block)  # passes taken
        self.step_in_block = torch.zeros_like(self.block)  # place in the block's plan
        self.fresh = torch.ones(rows, dtype=torch.bool, device=device)  # the next pass is the first of its block
        self.done = torch.zeros(rows, dtype=torch.bool, device=device)
        self.stops = torch.tensor(policy.special.stops, device=device)
        first, self.plan_of = torch.unique(self.rows.first, return_inverse=True)
        self.plan = plans(config, first.tolist()).to(device)
        steps = max(config.most_passes(f) for f in first.tolist())
        names = ("revealed", "masked", "floor", "h_revealed", "h_masked", "j_revealed", "j_masked")
        self.stats = {name: torch.zeros(rows, steps, device=device) for name in names}
        self.one_shot = torch.zeros(rows, steps, length, dtype=torch.int32, device=device) if record.one_shot else None
        self.proposed = (
            torch.full((rows, steps, length), -1, dtype=torch.int32, device=device) if record.proposals else None
        )

    def open_rows(self) -> Tensor:
        return (~self.done).nonzero().squeeze(1)

    def window(self, rows: Tensor) -> Tensor:
        """Masked positions of each row's active block, bool [R,L]."""
        return self.hidden[rows] & (self.rows.number(rows) == self.block[rows][:, None])

    def ask(self, rows: Tensor, read: Tensor) -> Pass:
        begin = self.rows.begin(rows, self.block[rows])
        length = self.config.gen_length
        end = (begin + self.config.block).clamp(max=length)
        return Pass(
            rows=rows,
            canvas=self.canvas[rows],
            read=read,
            begin=begin,
            end=torch.full_like(end, length) if self.record.one_shot else end,
            block=self.block[rows],
            fresh=self.fresh[rows],
        )

    def advance(self, rows: Tensor) -> None:
        """One pass over the open rows: propose at every masked position of the block, commit the best."""
        window = self.window(rows)
        if self.config.remasking == "origin":
            self.skip_empty_passes(rows, window)
        read = self.hidden[rows] if self.record.one_shot else window
        states = self.network.states(self.ask(rows, read))
        row, position = read.nonzero(as_tuple=True)
        clock = self.step_in_block if self.config.remasking == "origin" else self.step
        flat = self.proposer.read(states, rows[row], clock[rows[row]], position, window[read])

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

    def planned(self, rows: Tensor) -> Tensor:
        """The plan's entry for the next pass of each row: a count, or for order `origin` a probability."""
        return self.plan[self.plan_of[rows], self.block[rows], self.step_in_block[rows]]

    def skip_empty_passes(self, rows: Tensor, window: Tensor) -> None:
        """Order `origin` draws who is committed; go on to the next point of time at which somebody is."""
        row, position = window.nonzero(as_tuple=True)
        while True:
            draw = self.noise.order(rows[row], self.step_in_block[rows[row]], position)
            hit = torch.zeros_like(rows, dtype=torch.bool)
            hit[row[draw < self.planned(rows)[row]]] = True
            if bool(hit.all()):
                return
            self.step_in_block[rows[~hit]] += 1

    def count(self, rows: Tensor, window: Tensor, value: Tensor) -> Tensor:
        """How many positions each row commits in this pass, int64 [R]. A delayed stop token is never sure."""
        if self.config.remasking == "origin":  # ranked by -draw
            return (window & (-value < self.planned(rows)[:, None])).sum(1)
        if self.config.threshold is None:
            return self.planned(rows).to(torch.int64)
        sure = (window & (value >= self.config.threshold)).sum(1)
        if self.config.steps_per_block is None:
            return sure.clamp(min=1)
        return torch.maximum(sure, self.planned(rows).to(torch.int64))

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
        self.fresh[rows] = False
        self.block[full] += 1
        self.step_in_block[full] = 0
        self.fresh[full] = True
        finished = self.block[full] >= self.rows.count[full]
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
            forwards=self.network.forwards,
            first_block=self.rows.first,
        )


def plans(config: SamplerConfig, firsts: list[int]) -> Tensor:
    """Plan of each kind of row, fp32 [kinds, blocks, passes], 0 past the end of a block's own plan.

    `firsts`: canvas positions in the first block, one kind of row each.
    """
    made: list[Sequence[Sequence[float]]] = [  # counts are exact as floats
        config.rates(f) if config.remasking == "origin" else config.commits(f) for f in firsts
    ]
    blocks, width = max(map(len, made)), max(len(passes) for plan in made for passes in plan)
    out = torch.zeros(len(made), blocks, width)
    for kind, plan in enumerate(made):
        for block, passes in enumerate(plan):
            out[kind, block, : len(passes)] = torch.tensor(passes, dtype=torch.float32)
    return out
