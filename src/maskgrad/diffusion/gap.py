"""How far the log-probs the sampler recorded are from those of the scorer.

An approximate cache lets a pass see old keys and values, so the tokens were not drawn from the distribution that a
score of the same state gives. The distance says how much that matters; without a cache and with the exact one it is
rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad import randomness
from maskgrad.diffusion.network import Guided, Network, Pass, WholeCanvas, with_hidden_prompts
from maskgrad.diffusion.noise import KeyedNoise
from maskgrad.diffusion.proposals import Proposer
from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.models.policy import Policy
from maskgrad.records import PromptBatch, Trajectory

#: Rows and passes of each that are looked at, chosen by named draws; fewer where the distance is rounding.
ROWS, PASSES = 32, 2
ROWS_EXACT, PASSES_EXACT = 8, 1
APPROXIMATE = ("prefix", "dual")


@torch.no_grad()
def sampler_gap(policy: Policy, prompts: PromptBatch, path: Trajectory, config: SamplerConfig, seed: int) -> float:
    """Mean |commit log-prob - log-prob of the same token at the rebuilt state| in nats, over some passes.

    Some rows and passes of each are rebuilt and sent through the network whole. 0.0 if there is nothing.
    """
    most, passes = (ROWS, PASSES) if config.cache in APPROXIMATE else (ROWS_EXACT, PASSES_EXACT)
    rows = randomness.uniform(randomness.row_keys(seed, "gap.row", prompts.sample), 1).squeeze(1).argsort()
    rows = rows[:most].sort().values
    differences = []
    for use in range(passes):
        draw = randomness.uniform(randomness.row_keys(seed, "gap.pass", prompts.sample, use), 1).squeeze(1)[rows]
        step = (draw * path.passes[rows]).floor().to(torch.int64)
        found, recorded = rescored(policy, prompts, path, config, rows, step)
        differences.append((found - recorded).abs())
    joined = torch.cat(differences)
    return float(joined.mean()) if len(joined) else 0.0


def rescored(
    policy: Policy, prompts: PromptBatch, path: Trajectory, config: SamplerConfig, rows: Tensor, step: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-probs [n] of what pass `step` int64 [R] of `rows` revealed: of the network run whole, and as recorded."""
    commit = path.commit_step[rows].to(torch.int64)
    revealed = commit == step[:, None]
    hidden = (commit >= step[:, None]) | (commit < 0)
    canvas = torch.where(hidden, policy.special.mask, path.tokens[rows])
    zero, length = torch.zeros_like(rows), canvas.shape[1]
    ask = Pass(
        rows=rows,
        canvas=canvas,
        read=revealed,
        begin=zero,
        end=torch.full_like(rows, length),
        block=zero,
        fresh=torch.ones_like(rows, dtype=torch.bool),
    )
    network: Network = WholeCanvas(policy, prompts)
    if config.guidance > 0:
        whole = WholeCanvas(policy, with_hidden_prompts(prompts, policy.special.mask))
        network = Guided(whole, len(prompts))
    proposer = Proposer(policy, config, KeyedNoise(0, prompts.sample), statistics=False)
    states, tokens = network.states(ask), path.tokens[rows][revealed]
    pieces = []
    for part, chunk in proposer.chunks(states, len(tokens)):
        logits = proposer.logits(chunk)
        logp = proposer.tempered(logits.log_softmax(-1), proposer.sampling_logits(logits))
        pieces.append(logp.gather(1, tokens[part][:, None]).squeeze(1))
    found = torch.cat(pieces) if pieces else states.new_zeros(0)
    return found.to(torch.float32), path.commit_logp[rows][revealed]


def journal_gap(
    policy: Policy, prompts: PromptBatch, path: Trajectory, config: SamplerConfig, seed: int
) -> dict[str, float]:
    """The metric `sampler_gap` where the cache is an approximation, nothing otherwise (there it is rounding)."""
    if config.cache not in APPROXIMATE:
        return {}
    return {"sampler_gap": sampler_gap(policy, prompts, path, config, seed)}
