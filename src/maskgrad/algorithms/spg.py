"""SPG (arXiv 2510.09541): sandwiched policy gradient on a lower and an upper bound of the log-likelihood.

    score_i = ELBO_i if A_i > 0 else { EUBO_i | omega EUBO_i + (1-omega) ELBO_i | ELBO_i | 0 }
    loss    = - sum_i A_i score_i len_i / sum_i len_i,   bounds per token, len = live tokens,   A = R - mean

Kept: block-random masks with perturbed context, two draws, no ratio, clip or KL; stale data of later epochs are not
corrected; nothing behind the stop token is visible or scored.
Changed against the released code: blocks are drawn without replacement among the used ones (`blocks: distinct`;
released: a permutation of all blocks modulo the used ones, which is biased and repeats); ragged canvases work; the
prompt mask never touches padding; a probability that underflows stays in the EUBO; sums of lengths are global; both
LLaDA stop tokens end a completion. `compat: released` restores the block choice and the recipe.
On a block-causal policy the masks are those of `block_views.block_elbo` and the bounds are weighted per block.
Left out: masking rates other than U(0, 1).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from maskgrad.algorithms.advantages import centred
from maskgrad.algorithms.base import Algorithm
from maskgrad.algorithms.objective import Objective
from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.likelihood import block_views, bounds, views
from maskgrad.likelihood.block_views import Pairing
from maskgrad.records import MaskedViews, RolloutBatch, Units


class SPG(Algorithm):
    RELEASED = {"epochs": 4, "masks": "epoch", "blocks": "modulo"}

    FULL_ONLY = ("mode", "block", "blocks", "p_context", "score_later_blocks", "score_context")
    BLOCK_ONLY = ("pairing",)

    name: Literal["spg"] = "spg"
    epochs: int = Field(default=4, ge=1)
    masks: Literal["shared", "epoch"] = "epoch"  # type: ignore[assignment]
    draws: int = Field(default=2, ge=1)
    mode: Literal["block_random", "block_all", "random", "all"] = "block_random"
    block: int = Field(default=32, ge=1)
    blocks: Literal["distinct", "modulo"] = "distinct"  # choice of the partly hidden block; modulo: as released, biased
    p_context: float = Field(default=0.15, ge=0, le=1)
    score_later_blocks: bool = True
    score_context: bool = True
    pairing: Pairing = "antithetic"  # block-causal policies: how the draws of a sequence depend on each other
    score: Literal["mix", "elbo", "eubo", "zero"] = "mix"  # bound of samples with A <= 0
    beta_eubo: float = Field(default=1.5, gt=0)  # 1.0 on Sudoku; EUBO runs: Countdown 2.0
    omega: float = Field(default=0.5, ge=0, le=1)

    def objective(self) -> Objective:
        return Objective(form="score", coef="length_mean", weights="none")

    def views(self, batch: RolloutBatch, sampler: SamplerConfig, seed: int, use: int) -> MaskedViews:
        if batch.block is not None:
            return block_views.block_elbo(batch, seed, use, draws=self.draws, pairing=self.pairing)
        return views.block_bound(
            batch,
            seed,
            use,
            draws=self.draws,
            block=self.block,
            p_context=self.p_context,
            mode=self.mode,
            score_later_blocks=self.score_later_blocks,
            score_context=self.score_context,
            modulo=self.blocks == "modulo",
        )

    def units(self, logp: Tensor, views: MaskedViews, batch: RolloutBatch) -> Units:
        reduce = bounds.sandwich_units if batch.block is None else bounds.block_sandwich_units
        return reduce(logp, views, batch.live, kind=self.score, beta=self.beta_eubo, omega=self.omega)

    def advantage(self, batch: RolloutBatch) -> Tensor:
        return centred(batch.reward, batch.group)
