"""The oracle: every proposal, reveal and trajectory of the toy, in plain Python, without the code under test.

A branch of a state is (proposal at every masked position of the active block, set of revealed positions); merging the
branches that lead to the same next state gives the exact kernel and its exact score.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from toy import Toy

from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.records import RolloutBatch, Trajectory

State = tuple[int, ...]


@dataclass
class Local:
    """Conditionals of one state: untempered and tempered log-probs [L,V+1] and their gradients [L,V+1,D]."""

    plain: Tensor
    tempered: Tensor
    d_plain: Tensor
    d_tempered: Tensor


def local(toy: Toy, state: State, prompt: State, tau: float, scores: bool = True) -> Local:
    tokens = torch.tensor([prompt + state])
    logits = toy.all_logits(tokens)[0].detach()

    def both(scale: float, banned: Tensor) -> tuple[Tensor, Tensor]:
        logp = (logits / scale).masked_fill(banned, -torch.inf).log_softmax(-1)
        if not scores:
            return logp, logp
        mean = torch.einsum("lv,lvd->ld", logp.exp(), features)
        return logp, (features - mean[:, None]) / scale

    if scores:
        features = torch.autograd.functional.jacobian(
            lambda theta: toy.all_logits(tokens, theta=theta)[0], toy.theta.detach(), vectorize=True
        )
    plain, d_plain = both(1.0, torch.zeros(toy.rows, dtype=torch.bool))
    tempered, d_tempered = both(tau, toy.forbidden)
    return Local(plain, tempered, d_plain, d_tempered)


def rank(rule: str, logp: Tensor, token: int) -> float:
    """Rank value of proposing `token`, rounded to 2^-16 as the reveal rule states."""
    p = logp.exp()
    if rule == "low_confidence":
        value = p[token]
    elif rule == "max_prob":
        value = p.max()
    elif rule == "entropy":
        value = (p * logp).nan_to_num(0.0).sum()
    else:  # margin
        top = sorted(p.tolist(), reverse=True)
        value = torch.tensor(top[0] - top[1])
    return round(float(value) * 2**16)


@dataclass
class Branch:
    prob: float
    proposal: dict[int, int]
    revealed: tuple[int, ...]
    after: State
    full: Tensor | float  # score of all proposals


def branches(
    toy: Toy, state: State, prompt: State, window: range, count: int, sampler: SamplerConfig, scores: bool = True
) -> list[Branch]:
    """Every (proposal, reveal) of one pass over the masked positions of `window`."""
    here = local(toy, state, prompt, sampler.temperature, scores)
    masked = [i for i in window if state[i] == toy.vocab]
    rule, out = sampler.remasking, []
    ranks = {} if rule == "random" else {(i, v): rank(rule, here.plain[i], v) for i in masked for v in range(toy.vocab)}
    for tokens in itertools.product(range(toy.vocab), repeat=len(masked)):
        proposal = dict(zip(masked, tokens, strict=True))
        logq = sum(float(here.tempered[i, v]) for i, v in proposal.items())
        full = sum(here.d_tempered[i, v] for i, v in proposal.items()) if scores else 0.0
        if rule == "random":
            sets = list(itertools.combinations(masked, count))
        else:
            if sampler.threshold is not None:
                limit = sampler.threshold * 2**16
                count = max(1, sum(rank(rule, here.plain[i], v) >= limit for i, v in proposal.items()))
            best = sorted(masked, key=lambda i: (-ranks[i, proposal[i]], i))
            sets = [tuple(sorted(best[:count]))]
        for chosen in sets:
            after = tuple(proposal[i] if i in chosen else y for i, y in enumerate(state))
            out.append(Branch(math.exp(logq) / len(sets), proposal, chosen, after, full))
    return out


def merge(found: list[Branch]) -> dict[State, Branch]:
    """Exact kernel: k = sum p, score = sum p * full / k, per next state."""
    out: dict[State, Branch] = {}
    for b in found:
        old = out.get(b.after)
        if old is None:
            out[b.after] = Branch(b.prob, b.proposal, b.revealed, b.after, b.full)
        else:
            total = old.prob + b.prob
            old.full = (old.prob * old.full + b.prob * b.full) / total
            old.prob = total
    return out


@dataclass
class Path:
    prob: float = 1.0
    states: list[State] = field(default_factory=list)  # states[s] before pass s; the last one is final
    revealed: list[tuple[int, ...]] = field(default_factory=list)
    proposals: list[dict[int, int]] = field(default_factory=list)
    scores: list[Tensor | float] = field(default_factory=list)


def paths(toy: Toy, sampler: SamplerConfig, prompt: State = (), merged: bool = True, scores: bool = True) -> list[Path]:
    """Every trajectory from the all-masked canvas; with `merged` rejected proposals are summed out."""
    known: dict[tuple[State, int], list[Branch]] = {}
    blocks = [range(b, min(b + sampler.block, toy.length)) for b in range(0, toy.length, sampler.block)]
    plan = sampler.commits()

    def grow(path: Path, block: int, step: int) -> list[Path]:
        state = path.states[-1]
        while block < len(blocks) and all(state[i] != toy.vocab for i in blocks[block]):
            block, step = block + 1, 0
        if block == len(blocks):
            return [path]
        if (state, step) not in known:
            count = 0 if sampler.threshold is not None else plan[block][step]
            found = branches(toy, state, prompt, blocks[block], count, sampler, scores)
            known[state, step] = list(merge(found).values()) if merged else found
        out = []
        for b in known[state, step]:
            longer = Path(
                path.prob * b.prob,
                [*path.states, b.after],
                [*path.revealed, b.revealed],
                [*path.proposals, b.proposal],
                [*path.scores, b.full],
            )
            out += grow(longer, block, step + 1)
        return out

    return grow(Path(states=[(toy.vocab,) * toy.length]), 0, 0)


def entropies(toy: Toy, state: State, prompt: State, positions: tuple[int, ...], tau: float | None) -> float:
    """Entropy summed over `positions` in nats, at temperature tau over the permitted ids, or untempered over all."""
    here = local(toy, state, prompt, tau or 1.0, scores=False)
    logp = here.plain if tau is None else here.tempered
    return sum(float(-(logp[i].exp() * logp[i]).nan_to_num(0.0).sum()) for i in positions)


def greedy(toy: Toy, state: State, prompt: State) -> State:
    """One-shot completion: the most likely permitted token at every masked position."""
    here = local(toy, state, prompt, 1.0, scores=False)
    return tuple(int(here.tempered[i].argmax()) if y == toy.vocab else y for i, y in enumerate(state))


def trajectory(toy: Toy, found: list[Path], sampler: SamplerConfig, prompt: State = ()) -> Trajectory:
    """The records the sampler would have returned for these paths, all statistics from the oracle in fp64."""
    rows, steps, length = len(found), max(len(p.revealed) for p in found), toy.length
    commit = torch.full((rows, length), -1, dtype=torch.int16)
    proposals = torch.full((rows, steps, length), -1, dtype=torch.int32)
    one_shot = torch.zeros(rows, steps, length, dtype=torch.int32)
    stats = torch.zeros(6, rows, steps, dtype=torch.float64)
    known: dict[tuple, tuple] = {}
    for b, path in enumerate(found):
        for s, chosen in enumerate(path.revealed):
            state, window = path.states[s], tuple(path.proposals[s])
            if (state, chosen) not in known:
                at = [
                    entropies(toy, state, prompt, w, t) for t in (None, sampler.temperature) for w in (chosen, window)
                ]
                known[state, chosen] = (greedy(toy, state, prompt), [len(chosen), len(window), *at])
            guess, numbers = known[state, chosen]
            commit[b, list(chosen)] = s
            proposals[b, s, list(window)] = torch.tensor(list(path.proposals[s].values()), dtype=torch.int32)
            one_shot[b, s] = torch.tensor(guess, dtype=torch.int32)
            stats[:, b, s] = torch.tensor(numbers, dtype=torch.float64)
    return Trajectory(
        tokens=torch.tensor([p.states[-1] for p in found]),
        commit_step=commit,
        commit_logp=torch.zeros(rows, length),
        passes=torch.tensor([len(p.revealed) for p in found]),
        revealed=stats[0].to(torch.int16),
        masked=stats[1].to(torch.int16),
        rank_floor=torch.zeros(rows, steps),
        entropy_revealed=stats[2],
        entropy_masked=stats[3],
        joint_revealed=stats[4],
        joint_masked=stats[5],
        one_shot=one_shot,
        proposals=proposals,
    )


def rollouts(
    path: Trajectory, reward: Tensor, prompt: State = (), group: Tensor | None = None, **extra
) -> RolloutBatch:
    rows = len(path.tokens)
    tokens = torch.cat([torch.tensor([prompt] * rows, dtype=torch.int64).view(rows, len(prompt)), path.tokens], 1)
    return RolloutBatch(
        tokens=tokens,
        attend=torch.ones_like(tokens, dtype=torch.bool),
        live=torch.ones_like(path.tokens, dtype=torch.bool),
        group=torch.arange(rows) if group is None else group,
        sample=torch.arange(rows),
        reward=reward,
        trajectory=path,
        **extra,
    )
