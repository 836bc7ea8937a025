"""EGSPO and EGSPO-SA (arXiv 2603.12554): policy gradient over denoising steps, chosen by entropy.

    ghat = sum_{s in Sel} A_s grad log pi(y_{s+1} | y_s)                                           (step selection)
    A_s: r(x_0), centred; the stepwise advantages of EGSPO-SA are in egspo_sa.py
    loss = - sum_{b,k} weight min(rho A, clip(rho, clip_low, clip_high) A) / (tokens scored)  + beta KL

Kept: K passes of highest mean entropy, undiscounted terminal reward, asymmetric clip, no division by the deviation.
Changed against the released code: log pi is the true kernel of low-confidence remasking at the sampling temperature
(`score: kernel`, see likelihood/kernel.py) instead of the untempered product over revealed tokens; the baseline is the
mean over the *other* members of the group and all their chosen steps (`centring: pooled_loo`); the divisor is the
number of scored tokens instead of a constant; old log-probs come from the same code path as new ones; KL off unless
asked. `compat: released` restores the released choices.
Left out: `final` and `merge` prediction states and adaptive K of the experimental branches.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from maskgrad import randomness
from maskgrad.algorithms import advantages, selection
from maskgrad.algorithms.base import Algorithm
from maskgrad.algorithms.objective import Objective
from maskgrad.diffusion.reveal import BLIND_RULES, TOKEN_FREE_RULES
from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.errors import UserError
from maskgrad.likelihood import bounds, views
from maskgrad.records import MaskedViews, RolloutBatch, Trajectory, Units


class EGSPO(Algorithm):
    RELEASED = {
        "score": "revealed_untempered",
        "centring": "rank_mean",
        "beta": 0.04,
        "split": "slots",
        "minibatches": 4,
    }

    name: Literal["egspo"] = "egspo"
    masks: Literal["shared"] = "shared"  # the sampler's states: none are drawn
    steps: int = Field(default=8, ge=1)  # K, passes scored per sequence
    select_rule: selection.Rule = "topk"
    entropy: selection.EntropyKind = "mean_revealed"
    score: Literal["kernel", "proposal", "revealed", "revealed_untempered"] = "kernel"
    stop_at_live: bool = False  # consider only passes up to the last one that reveals a live token
    ratio_scale: Literal["token", "sequence"] = "sequence"
    clip_low: float = Field(default=0.8, ge=0, le=1)
    clip_high: float = Field(default=1.5, ge=1)
    aggregation: Literal["sum", "mean"] = "sum"  # divide by scored tokens | by scored passes
    beta: float = Field(default=0.0, ge=0)  # KL to the starting policy
    kl: Literal["k3", "exact"] = "k3"  # estimate from the step's log-prob | summed over the vocabulary
    centring: selection.Centring = "pooled_loo"
    split: Literal["states", "slots", "groups"] = "states"  # how minibatches divide the (sequence, pass) pairs

    @property
    def lam(self) -> float:
        """Weight of the one-shot term; EGSPO is EGSPO-SA with weight 0 and makes no intermediate reward call."""
        return 0.0

    def check(self, sampler: SamplerConfig, group_size: int) -> None:
        super().check(sampler, group_size)
        if self.select_rule != "all" and self.steps > sampler.max_passes:
            raise UserError(
                f"algorithm.steps {self.steps} exceeds the {sampler.max_passes} denoising passes of the sampler: "
                f"use at most {sampler.max_passes}"
            )
        if sampler.guidance > 0:
            raise UserError(f"rollout guidance {sampler.guidance} has no step kernel: set it to 0 for {self.name}")
        if sampler.top_k > 0 or sampler.top_p < 1 or sampler.confidence != "model":
            raise UserError(
                f"rollouts with top_k {sampler.top_k}, top_p {sampler.top_p}, confidence {sampler.confidence!r} have "
                f"no closed step kernel: use 0, 1.0 and 'model' for {self.name}"
            )
        if sampler.order_temperature > 0:
            raise UserError(
                f"rollouts with order_temperature {sampler.order_temperature} draw the positions of a pass by the "
                f"model's confidence, which no step kernel here counts: set it to 0 for {self.name}"
            )
        delayed = sampler.suppress_stop == "delay"
        if self.score == "kernel" and delayed and sampler.remasking in TOKEN_FREE_RULES - BLIND_RULES:
            raise UserError(
                f"suppress_stop 'delay' with remasking {sampler.remasking!r} has no closed kernel: "
                "use remasking 'low_confidence' or suppress_stop 'never'"
            )

    @property
    def wants_one_shot(self) -> bool:
        return self.lam > 0

    @property
    def wants_proposals(self) -> bool:
        return self.score == "proposal"

    def select(self, trajectory: Trajectory, live: Tensor, sample: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        decided: Literal["masked", "revealed"] = "masked" if self.score in ("kernel", "proposal") else "revealed"
        entropy = selection.step_entropy(trajectory, self.entropy, decided)
        exists = trajectory.revealed > 0
        if self.stop_at_live:
            step = torch.arange(exists.shape[1], device=exists.device)
            exists = exists & (step <= selection.last_live_pass(trajectory, live)[:, None])
        return selection.select_steps(self.select_rule, entropy, exists, self.steps, sample, seed)

    def objective(self) -> Objective:
        return Objective(
            form="ratio",
            coef="step_token_mean" if self.aggregation == "sum" else "step_mean",
            ratio_scale=self.ratio_scale,
            clip="ppo",
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            kl=self._kl() if self.beta > 0 else "none",
            beta=self.beta,
        )

    def _kl(self) -> Literal["k3", "exact", "exact_mean"]:
        """The released exact KL of aggregation `mean` divides by the vocabulary."""
        return (
            "exact_mean" if self.kl == "exact" and self.compat == "released" and self.aggregation == "mean" else self.kl
        )

    def views(self, batch: RolloutBatch, sampler: SamplerConfig, seed: int, use: int) -> MaskedViews:
        return views.selected_steps(batch, sampler, self.score)

    def units(self, logp: Tensor, views: MaskedViews, batch: RolloutBatch) -> Units:
        return bounds.step_units(logp, views, batch.selected_weight)

    def returns(self, batch: RolloutBatch) -> tuple[Tensor, Tensor]:
        """(R_s [B,K], lambda delta_s [B,K]); for EGSPO the final reward at every step."""
        assert batch.selected is not None
        flat = batch.reward[:, None].expand(batch.selected.shape)
        return flat, torch.zeros_like(flat)

    def advantage(self, batch: RolloutBatch) -> Tensor:
        assert batch.selected is not None
        if self.centring == "time_loo":  # the outcome is the same at every pass
            return torch.where(batch.selected >= 0, advantages.leave_one_out(batch.reward, batch.group), 0.0)
        returns, delta = self.returns(batch)
        return advantages.stepwise(batch.reward, returns, batch.selected >= 0, batch.group, self.centring, delta)

    def partition(self, batch: RolloutBatch, views: MaskedViews, seed: int, use: int) -> list[Tensor]:
        if self.split == "groups" or self.minibatches == 1:
            return super().partition(batch, views, seed, use)
        rows, slots = views.scored.shape[:2]
        if self.split == "slots":
            part = (torch.arange(slots, device=views.scored.device) * self.minibatches // slots).expand(rows, slots)
        else:
            order = torch.tensor(randomness.permutation(seed, "loop.states", use, rows * slots))
            part = (order.argsort() * self.minibatches // (rows * slots)).view(rows, slots).to(views.scored.device)
        return [part == m for m in range(self.minibatches)]
