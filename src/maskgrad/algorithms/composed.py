"""Any valid combination of the four sockets, chosen by name: `view`, `bound`, `credit`, `surrogate`.

    algorithm:
      name: composed
      view: {name: selected_steps, steps: 4}
      bound: {name: step}
      credit: {name: stepwise, weight: 0.5}
      surrogate: {form: score, coef: step_token_mean, clip: always, clip_high: 6.0, self_normalise: group}

is EGSPO-SA on the exact kernel with StableDRL's clipped, self-normalised weights. The sockets are those of the named
methods; a combination in which the numbers would not mean what their names say cannot be constructed and says why.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import model_validator
from torch import Tensor

from maskgrad.algorithms import advantages
from maskgrad.algorithms.base import Algorithm, refuse_idle
from maskgrad.algorithms.egspo_sa import EGSPOSA
from maskgrad.algorithms.objective import Objective
from maskgrad.algorithms.sockets import (
    BlockBoundView,
    Bound,
    Credit,
    ExactCountView,
    MeanFieldView,
    RandomRateView,
    SelectedStepsView,
    TraceSlicesView,
    View,
    faults,
)
from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.errors import UserError
from maskgrad.likelihood import block_views, bounds, elbo_views, views
from maskgrad.records import MaskedViews, RolloutBatch, Trajectory, Units


class Composed(Algorithm):
    name: Literal["composed"] = "composed"
    view: View
    bound: Bound
    credit: Credit = Credit()
    surrogate: Objective

    @model_validator(mode="after")
    def _valid(self) -> Composed:
        for wrong, why in faults(self.view, self.bound, self.credit, self.surrogate, self.masks):
            if wrong:
                raise ValueError(why)
        return self

    def _steps(self) -> EGSPOSA | None:
        """The method that owns denoising steps, with the settings of view and credit."""
        if not isinstance(self.view, SelectedStepsView):
            return None
        chosen = self.view.model_dump(exclude={"name"})
        return EGSPOSA(**chosen, stepwise_weight=self.credit.weight, centring=self.credit.centring)

    def objective(self) -> Objective:
        return self.surrogate.model_copy(update={"allow_fresh_masks": self.masks == "fresh"})

    def check(self, sampler: SamplerConfig, group_size: int) -> None:
        super().check(sampler, group_size)
        steps = self._steps()
        if steps is not None:
            steps.check(sampler, group_size)
        if self.view.name == "trace_slices" and sampler.guidance > 0:
            raise UserError(f"rollout guidance {sampler.guidance} is not in the scored states: set it to 0")

    def check_attention(self, block: int | None) -> None:
        if block is None or not isinstance(self.view, BlockBoundView):
            return
        for name in ("block", "p_context", "mode"):
            value, default = getattr(self.view, name), BlockBoundView.model_fields[name].default
            if value != default:
                refuse_idle(f"algorithm.view.{name}", value, default, block)

    @property
    def wants_trajectory(self) -> bool:
        return self.view.name == "trace_slices"

    @property
    def wants_one_shot(self) -> bool:
        return self.credit.name == "stepwise" and self.credit.weight > 0

    @property
    def wants_step_baseline(self) -> bool:
        return self.wants_one_shot and self.credit.centring == "time_loo"

    @property
    def wants_proposals(self) -> bool:
        return isinstance(self.view, SelectedStepsView) and self.view.score == "proposal"

    def select(self, trajectory: Trajectory, live: Tensor, sample: Tensor, seed: int) -> tuple[Tensor, Tensor] | None:
        steps = self._steps()
        return None if steps is None else steps.select(trajectory, live, sample, seed)

    def views(self, batch: RolloutBatch, sampler: SamplerConfig, seed: int, use: int) -> MaskedViews:
        view = self.view
        if batch.block is not None and (found := self._block_views(batch, seed, use)) is not None:
            return found
        options = view.model_dump(exclude={"name"})
        if isinstance(view, MeanFieldView):
            return views.mean_field(batch, seed, use, **options)
        if isinstance(view, BlockBoundView):
            return views.block_bound(batch, seed, use, **options)
        if isinstance(view, ExactCountView):
            return elbo_views.exact_count(batch, seed, use, **options)
        if isinstance(view, RandomRateView):
            return elbo_views.random_rate(batch, seed, use, epochs=self.epochs, **options)
        if isinstance(view, TraceSlicesView):
            return elbo_views.trace_slices(batch, **options)
        return views.selected_steps(batch, sampler, view.score)

    def _block_views(self, batch: RolloutBatch, seed: int, use: int) -> MaskedViews | None:
        """What a view means on a block-causal policy, where that differs: noise and slices are those of a block."""
        view = self.view
        if isinstance(view, BlockBoundView):
            return block_views.block_elbo(batch, seed, use, draws=view.draws, pairing="antithetic")
        if isinstance(view, ExactCountView):
            return block_views.counted_pairs(batch, seed, use, draws=view.draws, coupled=view.coupled)
        return block_views.block_slices(batch, shrink=view.shrink) if isinstance(view, TraceSlicesView) else None

    def units(self, logp: Tensor, views: MaskedViews, batch: RolloutBatch) -> Units:
        bound = self.bound
        if bound.name == "token":
            return bounds.token_units(logp, views)
        if bound.name == "slice":
            return bounds.slice_units(logp, views)
        if bound.name == "step":
            return bounds.step_units(logp, views, batch.selected_weight)
        if bound.name == "sequence":
            whole = isinstance(self.view, ExactCountView) and not self.view.live_only and batch.block is None
            size = torch.full_like(batch.group, batch.live.shape[1]) if whole else batch.live.sum(1)
            return bounds.sequence_units(logp, views, size)
        weighted = batch.block is not None and isinstance(self.view, BlockBoundView)
        reduce = bounds.block_sandwich_units if weighted else bounds.sandwich_units
        return reduce(logp, views, batch.live, kind=bound.upper, beta=bound.beta_eubo, omega=bound.omega)

    def advantage(self, batch: RolloutBatch) -> Tensor:
        credit, steps = self.credit, self._steps()
        if credit.name == "stepwise":
            assert steps is not None
            return steps.advantage(batch)
        if credit.name == "leave_one_out":
            return advantages.leave_one_out(batch.reward, batch.group)
        if credit.name == "softmax_difference":
            return advantages.softmax_difference(batch.reward, batch.group, credit.positive_only)
        return advantages.centred(batch.reward, batch.group, None if credit.std == "none" else credit.std)
