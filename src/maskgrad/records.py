"""The nouns that cross rooms. Frozen, keyword-only; every field states shape and meaning.

Shape letters: `B` sequences, `P` prompt length (left-padded), `L` completion canvas, `S` denoising passes,
`N` masked views per sequence, `U` units (tokens, steps or 1), `V` vocabulary, `T = P + L`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class PromptBatch:
    """Left-padded prompts. `ids` int64 [B,P]; `real` bool [B,P], False on padding; `sample` int64 [B] stream ids."""

    ids: Tensor
    real: Tensor
    sample: Tensor

    def __len__(self) -> int:
        return self.ids.shape[0]


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """What the sampler returns: the final canvas and the commit map. Nothing of vocabulary size.

    The state before pass `s` is rebuilt by `diffusion.trajectory`: a position is hidden iff
    `commit_step >= s` or it was never committed (`commit_step == -1`).
    """

    tokens: Tensor  # int64 [B,L]; no MASK; positions after an early stop hold the stop token
    commit_step: Tensor  # int16 [B,L]; pass of the row in which the position was committed, -1 = never
    commit_logp: Tensor  # fp32 [B,L]; log-prob of the committed token at the sampling temperature, 0 where never
    passes: Tensor  # int64 [B]; passes the row took
    revealed: Tensor  # int16 [B,S]; positions committed by the pass, 0 past the row's last pass
    masked: Tensor  # int16 [B,S]; masked positions of the active block before the pass
    rank_floor: Tensor  # fp32 [B,S]; lowest rank value among the revealed positions (c* of the exact kernel)
    entropy_revealed: Tensor  # fp32 [B,S]; nats, summed over the revealed positions, untempered
    entropy_masked: Tensor  # fp32 [B,S]; nats, summed over the masked positions of the active block, untempered
    joint_revealed: Tensor  # fp32 [B,S]; as entropy_revealed, at the sampling temperature
    joint_masked: Tensor  # fp32 [B,S]; as entropy_masked, at the sampling temperature
    one_shot: Tensor | None = None  # int32 [B,S,L]; greedy completion of the state before each pass
    proposals: Tensor | None = None  # int32 [B,S,L]; token proposed at every masked position of the active block, or -1
    forwards: int = 0  # sequences sent through the network
    first_block: Tensor | None = None  # int64 [B]; canvas positions in the row's first block, None = whole blocks


@dataclass(frozen=True, kw_only=True)
class RolloutBatch:
    """One batch of graded rollouts. Token ids end to end; text exists only inside reward functions."""

    tokens: Tensor  # int64 [B,T]
    attend: Tensor  # bool [B,T]; False on prompt padding only
    live: Tensor  # bool [B,L]; up to and including the first stop token
    group: Tensor  # int64 [B]; global prompt id, never a row position
    sample: Tensor  # int64 [B]; global sample id, key of the random streams
    reward: Tensor  # fp32 [B]
    trajectory: Trajectory | None = None
    selected: Tensor | None = None  # int64 [B,K]; chosen denoising passes, -1 = slot unused
    selected_weight: Tensor | None = None  # fp32 [B,K]; Horvitz-Thompson weight of the slot
    step_reward: Tensor | None = None  # fp32 [B,K]; rewards of the one-shot completions at the selected passes
    step_centred: Tensor | None = None  # fp32 [B,K]; step_reward minus the mean of the other members at the same pass
    # int64 [B,L]; block of each canvas position, 0 = the canvas's first; None under full attention
    block: Tensor | None = None

    @property
    def prompt_length(self) -> int:
        return self.tokens.shape[1] - self.live.shape[1]

    @property
    def completion(self) -> Tensor:
        return self.tokens[:, self.prompt_length :]

    def __len__(self) -> int:
        return self.tokens.shape[0]


@dataclass(frozen=True, kw_only=True)
class MaskedViews:
    """Noise as data: the partially masked copies that are scored. The same object scores old, reference and new."""

    hidden: Tensor  # bool [B,N,T]; where the network sees MASK
    scored: Tensor  # bool [B,N,L]; log-prob of the target is read here
    weight: Tensor  # fp32 or fp64 [B,N,L]; coefficient inside the lower estimate, cast to the log-probs' dtype
    unit: Tensor  # int64 [B,N,L]; unit the position belongs to
    units: int  # number of units U
    tail: Tensor | None = None  # bool [B,N,L]; log tail mass is read here (exact kernel, eq. in likelihood/kernel.py)
    target: Tensor | None = None  # int64 [B,N,L]; defaults to the completion
    temperature: float = 1.0  # log-probs are taken at this temperature
    exclude_forbidden: bool = False  # normalise over the ids the sampler may emit (step kernels) or over all (bounds)
    suppress_stop: str = "none"  # the sampler's treatment of stop tokens, see SamplerConfig
    threshold: float | None = None  # the sampler's commit threshold, if any
    guidance: float = 0.0  # classifier-free guidance: logits = un + (1 + guidance) (cond - un), un = prompt hidden

    def restrict(self, active: Tensor) -> MaskedViews:
        """The same views with nothing scored outside `active` (bool [B,N])."""
        keep = active[:, :, None]
        return replace(self, scored=self.scored & keep, tail=None if self.tail is None else self.tail & keep)

    def fingerprint(self) -> str:
        """Hash of the masks. Two likelihoods may form a ratio only if their fingerprints agree."""
        digest = hashlib.blake2b(digest_size=8)
        for tensor in (self.hidden, self.scored):
            digest.update(tensor.contiguous().to("cpu", torch.uint8).numpy().tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class Units:
    """Likelihoods of action units (tokens, denoising steps, or the whole sequence)."""

    lower: Tensor  # fp32 [B,U]
    upper: Tensor  # fp32 [B,U]; the same tensor as `lower` when there is no upper bound
    mask: Tensor  # bool [B,U]; unit exists
    size: Tensor  # fp32 [B,U]; tokens the estimate covers, >= 1
    per_token: bool  # lower/upper are means per token
    views: str  # fingerprint of the views
    weight: Tensor | None = None  # fp32 [B,U]; importance of the unit (Horvitz-Thompson), multiplies the coefficient


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Global denominators, summed over every rank and micro-batch before the first backward pass."""

    rows: float
    groups: float
    live_tokens: float
    units: float
    scored_tokens: float
    views: float = 0.0  # views that score something


@dataclass(frozen=True, kw_only=True)
class LossSum:
    """A loss divided by global counts, and metrics as (sum, count) pairs that add over ranks and micro-batches."""

    total: Tensor
    metrics: dict[str, tuple[float, float]] = field(default_factory=dict)
    log_ratio: Tensor | None = None  # [units that exist]; what the loss read: order statistics do not add
    weight: Tensor | None = None  # [units that exist]; ratio or weight of the unit
