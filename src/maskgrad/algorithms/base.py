"""What the training loop asks of a method: four sockets and a few facts. Takes tensors, returns tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from maskgrad import randomness
from maskgrad.algorithms.objective import Objective
from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.errors import UserError
from maskgrad.records import Counts, MaskedViews, RolloutBatch, Trajectory, Units
from maskgrad.settings import Settings


class Algorithm(Settings):
    """Base of every method's frozen configuration; the configuration assembles the method."""

    #: Settings that reproduce the authors' released code, applied to keys the user left out with `compat: released`.
    RELEASED: ClassVar[Mapping[str, Any]] = {}

    #: Settings of masks that full attention alone has, and those that block-causal policies alone have.
    FULL_ONLY: ClassVar[tuple[str, ...]] = ()
    BLOCK_ONLY: ClassVar[tuple[str, ...]] = ()

    name: str
    compat: Literal["none", "released"] = "none"
    epochs: int = Field(default=1, ge=1)  # mu, passes over one rollout batch
    minibatches: int = Field(default=1, ge=1)  # optimiser steps per pass
    masks: Literal["shared", "epoch", "fresh"] = "shared"  # one draw | one per epoch | new numerator masks (released)

    @model_validator(mode="before")
    @classmethod
    def _apply_compat(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("compat") == "released":
            return {**cls.RELEASED, **values}
        return values

    def objective(self) -> Objective:
        raise NotImplementedError

    def views(self, batch: RolloutBatch, sampler: SamplerConfig, seed: int, use: int) -> MaskedViews:
        raise NotImplementedError

    def units(self, logp: Tensor, views: MaskedViews, batch: RolloutBatch) -> Units:
        raise NotImplementedError

    def advantage(self, batch: RolloutBatch) -> Tensor:
        raise NotImplementedError

    def check(self, sampler: SamplerConfig, group_size: int) -> None:
        """Refuse combinations in which the method would be wrong. Raises UserError."""
        if sampler.temperature == 0:
            raise UserError("rollout temperature 0 makes every rollout of a group the same: set it above 0")

    def check_attention(self, block: int | None) -> None:
        """Refuse settings that have no effect on this kind of policy (`block`: its block length, None = full)."""
        released = self.RELEASED if self.compat == "released" else {}
        for name in self.BLOCK_ONLY if block is None else self.FULL_ONLY:
            default = type(self).model_fields[name].default
            if getattr(self, name) not in (default, released.get(name, default)):
                refuse_idle(f"algorithm.{name}", getattr(self, name), default, block)

    def select(self, trajectory: Trajectory, live: Tensor, sample: Tensor, seed: int) -> tuple[Tensor, Tensor] | None:
        """(passes int64 [B,K], weights [B,K]) for methods that score chosen denoising passes."""
        return None

    @property
    def wants_one_shot(self) -> bool:
        """Whether the sampler must record greedy completions of every state."""
        return False

    @property
    def guess_reward(self) -> str:
        """What the reward of a one-shot completion counts, see training/step_rewards.py."""
        return "all"

    @property
    def wants_step_baseline(self) -> bool:
        """Whether one-shot completions of the whole group are graded at every pass that a member chose."""
        return False

    @property
    def wants_proposals(self) -> bool:
        return False

    @property
    def wants_trajectory(self) -> bool:
        """Whether the views need the commit map although no passes are selected."""
        return False

    @property
    def updates_per_batch(self) -> int:
        return self.epochs * self.minibatches

    def partition(self, batch: RolloutBatch, views: MaskedViews, seed: int, use: int) -> list[Tensor]:
        """Active views bool [B,N] of each minibatch of a pass: whole prompt groups, in random order."""
        rows, draws = views.scored.shape[:2]
        if self.minibatches == 1:
            return [torch.ones(rows, draws, dtype=torch.bool, device=views.scored.device)]
        unique, index = torch.unique(batch.group, return_inverse=True)
        order = torch.tensor(randomness.permutation(seed, "loop.minibatch", use, len(unique)), device=index.device)
        part = (order.argsort() * self.minibatches // len(unique))[index]
        return [(part == m)[:, None].expand(rows, draws) for m in range(self.minibatches)]


def refuse_idle(key: str, value: Any, default: Any, block: int | None) -> None:
    """Refuse a setting that nobody would read, unless it says what is done anyway."""
    done = {"block": block, "p_context": 0.0}  # on block-causal policies: their own blocks, and clean context
    if block is not None and done.get(key.rpartition(".")[2]) == value:
        return
    kind = "with full attention" if block is None else f"that is block-causal (blocks of {block})"
    raise UserError(f"{key} {value!r} has no effect on a model {kind}: leave it out, or set its default {default!r}")


def unit_mask(views: MaskedViews) -> Tensor:
    """Units that have a scored position, bool [B,U]."""
    rows = views.scored.shape[0]
    hit = torch.zeros(rows, views.units, dtype=torch.int64, device=views.scored.device)
    return hit.scatter_add_(1, views.unit.reshape(rows, -1), views.scored.reshape(rows, -1).to(torch.int64)) > 0


def count(batch: RolloutBatch, views: MaskedViews) -> Counts:
    """Denominators of the (mini)batch that `views` scores; call it before zero-signal groups are left out."""
    active = views.scored.any(-1).any(-1)
    return Counts(
        rows=float(active.sum()),
        groups=float(len(torch.unique(batch.group[active]))),
        live_tokens=float(batch.live[active].sum()),
        units=float(unit_mask(views).sum()),
        scored_tokens=float(views.scored.sum()),
        views=float(views.scored.any(-1).sum()),
    )
