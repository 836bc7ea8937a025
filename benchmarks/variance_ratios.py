"""Part A of the variance study: how far a log-ratio of sequences moves when only the masks are redrawn."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from variance_estimators import ratio_noise

from maskgrad import randomness
from maskgrad.algorithms.surrogate import log_ratio
from maskgrad.config import RunConfig, run_config
from maskgrad.diffusion import masking
from maskgrad.likelihood import bounds, elbo_views, score, views
from maskgrad.models.load import load_policy
from maskgrad.models.policy import Policy
from maskgrad.records import MaskedViews, RolloutBatch, Units
from maskgrad.tasks.registry import make_task
from maskgrad.training import optim
from maskgrad.training.collect import collect, rows_of
from maskgrad.training.update import prepare, update

Make = Callable[[RolloutBatch, int, int, int], MaskedViews]  # (batch, seed, use, K) -> K views per sequence


def drawn_counts(batch: RolloutBatch, seed: int, use: int, k: int, paired: bool, strata: bool) -> MaskedViews:
    """K counts of hidden positions, independent or from K equal `strata` of a row; `paired`: a mask and its complement.

    A pair already holds both ends of the range, so stratified pairs draw from the lower half: K/2 strata of [0, n/2].
    """
    rows, length = batch.live.shape
    draws = k // 2 if paired else k
    level = randomness.uniform(randomness.row_keys(seed, "variance.level", batch.sample, use), draws)
    level = (level + torch.arange(draws)) / k if strata else level
    noise = randomness.uniform(randomness.row_keys(seed, "variance.token", batch.sample, use), draws, length)
    domain = torch.ones_like(batch.live)
    count = masking.uniform_count(level, 0, torch.full_like(level, length).long())
    first = masking.hide_count(noise, domain[:, None].expand(rows, draws, length), count)
    return elbo_views.counted(batch, first, domain, paired)


#: Of the method that makes the updates; fixed here, so that a retuned recipe leaves the study as it is.
SETTINGS = {"steps": 4, "score": "revealed", "stepwise_weight": 0.5}
#: Mask designs. K is the number of views, so of forward passes, per sequence.
DESIGNS: dict[str, tuple[tuple[int, ...], Make]] = {
    "plain": ((1, 2, 4, 8), lambda b, s, u, k: drawn_counts(b, s, u, k, False, False)),
    "pairs": ((2, 4, 8), lambda b, s, u, k: drawn_counts(b, s, u, k, True, False)),
    "stratified": ((2, 4, 8), lambda b, s, u, k: drawn_counts(b, s, u, k, False, True)),
    "stratified pairs": ((4, 8), lambda b, s, u, k: drawn_counts(b, s, u, k, True, True)),
    "block bound": (
        (1, 2, 4, 8),
        lambda b, s, u, k: views.block_bound(b, s, u, draws=k, block=b.live.shape[1], p_context=0.0),
    ),
    "mean field": ((1, 4), lambda b, s, u, k: views.mean_field(b, s, u, p_prompt=0.15, draws=k)),
}


def units_of(design: str, logp: Tensor, view: MaskedViews, batch: RolloutBatch) -> Units:
    """The likelihood that methods form on these views: SPG's per-token bound, or the sum over tokens."""
    if design == "block bound":
        return bounds.sandwich_units(logp, view, batch.live, kind="elbo", beta=1.0, omega=0.0)
    length = torch.full_like(batch.group, batch.live.shape[1])
    return bounds.sequence_units(logp, view, batch.live.sum(1) if design == "mean field" else length)


def trained(config: RunConfig, start: Policy, batch: RolloutBatch, stops: list[int]) -> dict[int, Policy]:
    """Copies of the policy after the given numbers of updates on one batch of rollouts, by the training code itself."""
    policy, out = copy.deepcopy(start), {0: start}
    optimizer = optim.adamw(policy, config.optim)
    prepared = prepare(policy, None, config.algorithm, config, batch)
    for index in range(max(stops)):
        update(policy, optimizer, config.algorithm, config, prepared, index, index)
        if index + 1 in stops:
            out[index + 1] = copy.deepcopy(policy)
    return out


def measure(
    policies: dict[int, Policy], design: str, k: int, batch: RolloutBatch, budget: int, seed: int, micro: int
) -> list[dict[str, Any]]:
    """One row per policy: noise of its log-ratio to the start over `budget // k` independent draws of K views."""
    drawn = [DESIGNS[design][1](batch, seed, use, k) for use in range(budget // k)]
    joined = MaskedViews(
        hidden=torch.cat([v.hidden for v in drawn], 1),
        scored=torch.cat([v.scored for v in drawn], 1),
        weight=torch.cat([v.weight for v in drawn], 1),
        unit=torch.cat([v.unit for v in drawn], 1),
        units=drawn[0].units,
    )

    def units(policy: Policy) -> list[Units]:
        pieces = score.score(policy, batch, joined, micro).split(k, 1)
        return [units_of(design, x, v, batch) for x, v in zip(pieces, drawn, strict=True)]

    old = units(policies[0])
    rows: list[dict[str, Any]] = []
    for updates, policy in policies.items():
        new = units(policy)  # the start is scored a second time
        row: dict[str, Any] = {"design": design, "k": k, "updates": updates}
        for scale in ("sequence", "token"):
            d = torch.stack([log_ratio(n, o, scale)[:, 0] for n, o in zip(new, old, strict=True)])
            sides = [torch.stack([scaled(u, scale) for u in side]) for side in (new, old)]
            row[scale] = {
                **ratio_noise(*sides),
                "largest": float(d.abs().max()),
                "true": float(d.mean(0).abs().mean()),  # mean |log-ratio| of the average over all draws
            }
        rows.append(row)
    return rows


def scaled(units: Units, scale: str) -> Tensor:
    """Log-likelihood [B] on the scale that `log_ratio` would give its difference."""
    return log_ratio(units, replace(units, lower=torch.zeros_like(units.lower)), scale)[:, 0]


def study(
    recipe: str, algorithm: str, stops: list[int], budget: int, members: int, seed: int, only: int | None = None
) -> dict[str, Any]:
    """All designs on one recipe: rollouts of the shipped base, updates on these rollouts, log-ratios on some of them.

    `members` of each prompt group are scored, `budget` views of each per design and K (`only` one K if given).
    """
    config = run_config(recipe, {"algorithm": {"epochs": max(stops), **SETTINGS}}, algorithm)
    policy, task, size = load_policy(config.model.path), make_task(config.task), config.rollout.group_size
    examples = [task.example("train", i) for i in range(config.rollout.prompts_per_batch)]
    batch = collect(policy, task, config.algorithm, config.rollout, examples, 0, seed).batch
    policies = trained(config, policy, batch, stops)
    chosen = rows_of(batch, (torch.arange(len(batch)) % size < members).nonzero()[:, 0])
    rows = [
        row
        for design, (numbers, _) in DESIGNS.items()
        for k in numbers
        if only in (None, k)
        for row in measure(policies, design, k, chosen, budget, seed, config.train.micro_batch)
    ]
    return {
        "recipe": recipe,
        "algorithm": algorithm,
        "sequences": len(chosen),
        "views": budget,
        "canvas": batch.live.shape[1],
        "rows": rows,
    }
