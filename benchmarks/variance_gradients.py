"""Part B of the variance study: signal and noise of each method's gradient at equal forward passes.

Every gradient is the one `maskgrad.training.update` would have stepped with: the optimizer is replaced by one that
keeps the gradient and leaves the weights alone.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import variance_estimators as stats
from torch import Tensor

from maskgrad.config import RunConfig, merge, run_config
from maskgrad.models.load import load_policy
from maskgrad.models.policy import Policy
from maskgrad.records import RolloutBatch
from maskgrad.tasks.registry import make_task
from maskgrad.training.collect import collect
from maskgrad.training.update import prepare, update

#: Masked views per sequence and gradient. Methods that score one view per pass take four passes, which are averaged.
VIEWS = 4
SPG = {"epochs": 1, "draws": VIEWS, "p_context": 0.0}
#: (row of the table, method, settings on top of the recipe's, whether masks or selection are drawn)
METHODS: list[tuple[str, str, dict[str, Any], bool]] = [
    ("diffu_grpo", "diffu_grpo", {"epochs": VIEWS, "masks": "epoch"}, True),
    ("wd1", "wd1", {"epochs": VIEWS, "masks": "epoch"}, True),
    ("unigrpo", "unigrpo", {"epochs": VIEWS, "beta": 0.0}, True),
    ("grpo_elbo, block bound", "grpo_elbo", {**SPG, "ratio_scale": "token"}, True),
    (
        "grpo_elbo, block bound, sequence scale, fresh masks",
        "grpo_elbo",
        {**SPG, "ratio_scale": "sequence", "masks": "fresh"},
        True,
    ),
    ("espo, pairs", "espo", {"epochs": 1, "draws": 2, "beta": 0.0}, True),
    ("espo, plain draws", "espo", {"epochs": 1, "draws": VIEWS, "coupled": False, "beta": 0.0}, True),
    ("spg, elbo", "spg", {**SPG, "score": "elbo"}, True),
    ("spg, eubo", "spg", {**SPG, "score": "eubo"}, True),
    ("stabledrl, mix", "stabledrl", {**SPG, "score": "mix"}, True),
    (
        "stabledrl, mix, sequence scale, fresh masks",
        "stabledrl",
        {**SPG, "score": "mix", "ratio_scale": "sequence", "masks": "fresh"},
        True,
    ),
    ("tracerl", "tracerl", {"shrink": 4}, False),
    ("egspo kernel, topk", "egspo", {"steps": VIEWS, "score": "kernel"}, False),
    ("egspo kernel, ht", "egspo", {"steps": VIEWS, "score": "kernel", "select_rule": "ht"}, True),
    ("egspo kernel, random", "egspo", {"steps": VIEWS, "score": "kernel", "select_rule": "random"}, True),
    ("egspo revealed, topk", "egspo", {"steps": VIEWS, "score": "revealed"}, False),
    ("egspo revealed, ht", "egspo", {"steps": VIEWS, "score": "revealed", "select_rule": "ht"}, True),
    ("egspo proposal, topk", "egspo", {"steps": VIEWS, "score": "proposal"}, False),
    ("egspo proposal, ht", "egspo", {"steps": VIEWS, "score": "proposal", "select_rule": "ht"}, True),
    ("egspo_sa kernel, topk", "egspo_sa", {"steps": VIEWS, "score": "kernel", "stepwise_weight": 0.5}, False),
    ("egspo_sa revealed, topk", "egspo_sa", {"steps": VIEWS, "score": "revealed", "stepwise_weight": 0.5}, False),
]
#: The exact step kernel over all passes: an unbiased policy gradient, at the price of every pass.
REFERENCE = ("egspo kernel, all passes (reference)", "egspo", {"score": "kernel", "select_rule": "all"}, False)


class Keep(torch.optim.Optimizer):
    """Keeps the gradient of each step, flat, and changes nothing."""

    def __init__(self, policy: Policy):
        super().__init__([p for p in policy.parameters() if p.requires_grad], {"lr": 0.0})
        self.seen: list[Tensor] = []

    def step(self, closure: Any = None) -> None:
        parameters = self.param_groups[0]["params"]
        self.seen.append(torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters]))


def configure(recipe: str, algorithm: str, settings: Mapping[str, Any], seed: int, prompts: int) -> RunConfig:
    own = {"algorithm": settings, "seed": seed, "rollout": {"prompts_per_batch": prompts}}
    return run_config(recipe, merge(own, {"optim": {"max_grad_norm": 1e12}}), algorithm)


def gradient(policy: Policy, config: RunConfig, batch: RolloutBatch) -> Tensor:
    """Gradient [D] of one batch under the masks and the selection of `config.seed`, averaged over the inner passes."""
    algorithm = config.algorithm
    assert batch.trajectory is not None
    chosen = algorithm.select(batch.trajectory, batch.live, batch.sample, config.seed)
    if chosen is not None:
        steps, weight = chosen
        same = batch.selected is not None and torch.equal(steps, batch.selected)
        graded = batch.step_reward if same and algorithm.wants_one_shot else None
        assert graded is not None or not algorithm.wants_one_shot, "one-shot rewards belong to other passes"
        batch = replace(batch, selected=steps, selected_weight=weight, step_reward=graded)
    optimizer = Keep(policy)
    prepared = prepare(policy, None, algorithm, config, batch)
    for index in range(algorithm.updates_per_batch):
        out = update(policy, optimizer, algorithm, config, prepared, index, 0)
        assert not out["skipped"], out
    return torch.stack(optimizer.seen).mean(0)


def rollouts(recipe: str, policy: Policy, batches: int, prompts: int, seed: int) -> list[RolloutBatch]:
    """Independent completions of the same prompts, with everything that any method reads."""
    recorder = configure(recipe, "egspo_sa", {"steps": VIEWS, "score": "proposal"}, seed, prompts)
    task, out = make_task(recorder.task), []
    examples = [task.example("train", i) for i in range(prompts)]
    for j in range(batches):
        out.append(collect(policy, task, recorder.algorithm, recorder.rollout, examples, j * prompts, seed).batch)
    return out


def estimates(
    recipe: str, policy: Policy, method: tuple[str, str, dict[str, Any], bool], batches: list[RolloutBatch], draws: int
) -> Tensor:
    """Gradients [J,M,D]: M draws of masks or selection on each of J batches; M = 1 where nothing is drawn."""
    _, algorithm, settings, drawn = method
    out = []
    for j, batch in enumerate(batches):
        seeds = [1000 + draws * j + m for m in range(draws if drawn else 1)]  # no two gradients share a seed
        prompts = len(torch.unique(batch.group))
        out.append(
            torch.stack([gradient(policy, configure(recipe, algorithm, settings, s, prompts), batch) for s in seeds])
        )
    return torch.stack(out)


def summarise(name: str, own: Tensor, target: Tensor) -> dict[str, Any]:
    """The table's row. Standard errors by leaving out one batch at a time."""
    gram, cross, other = stats.gram_matrix(own, own), stats.gram_matrix(own, target), stats.gram_matrix(target, target)
    count, found = len(own), stats.components(gram)
    different, same = stats.pair_cosines(gram)

    def aligned(index: Tensor) -> float:
        return stats.alignment(*(stats.restrict(g, index) for g in (gram, cross, other)))

    def ratio(index: Tensor) -> float:
        return stats.components(stats.restrict(gram, index)).snr

    return {
        "method": name,
        "draws": own.shape[1],
        "signal": found.signal,
        "snr": found.snr,
        "snr_error": stats.jackknife(count, ratio),
        "mask_share": found.mask_share,
        "cosine": different,
        "cosine_same_rollouts": same,
        "alignment": aligned(torch.arange(count)),
        "alignment_error": stats.jackknife(count, aligned),
    }


def study(recipe: str, batches: int, draws: int, prompts: int, seed: int) -> dict[str, Any]:
    policy = load_policy(configure(recipe, "egspo", {}, seed, prompts).model.path)
    data = rollouts(recipe, policy, batches, prompts, seed)
    target = estimates(recipe, policy, REFERENCE, data, draws)
    rows = [summarise(REFERENCE[0], target, target)]
    for method in METHODS:
        rows.append(summarise(method[0], estimates(recipe, policy, method, data, draws), target))
        print(f"  {method[0]}: {rows[-1]['snr']:.3f}", file=sys.stderr, flush=True)
    sequences = len(data[0])
    reward = sum(float(b.reward.mean()) for b in data) / batches
    return {
        "recipe": recipe,
        "batches": batches,
        "draws": draws,
        "sequences": sequences,
        "reward": reward,
        "rows": rows,
    }
