"""Whole updates of the EGSPO trainer on its recorded trajectories: old log-probs, stepwise advantages, the loss of each
step slot, and the parameter gradients of the first slot.

Errors caught: state after instead of before the pass; returns not divided by 1 + lambda; aggregations swapped.
"""

from __future__ import annotations

import pytest
import torch
from chains import HERE, INDEX, check_advantage, check_gradients, check_loss, entries, recorded, scored
from torch import Tensor

from maskgrad.algorithms import EGSPO, EGSPOSA
from maskgrad.algorithms.base import count
from maskgrad.algorithms.surrogate import policy_loss
from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.likelihood.score import score
from maskgrad.records import RolloutBatch, Trajectory
from maskgrad.tasks.base import Grade
from maskgrad.training.step_rewards import step_value

pytestmark = pytest.mark.skipif(not HERE, reason="golden data (../shared/golden) is not here")


def recorded_trajectory(states: Tensor, prompt: int, mask: int) -> Trajectory:
    """The commit map of recorded states int64 [S+1,B,T]."""
    canvas = states[:, :, prompt:]
    steps = len(states) - 1
    commit = (canvas == mask).sum(0) - 1  # hidden in states 0..s, hence committed by pass s
    zeros = torch.zeros(canvas.shape[1], steps)
    revealed = torch.stack([(commit == s).sum(1) for s in range(steps)], 1).to(torch.int16)
    return Trajectory(
        tokens=canvas[-1],
        commit_step=commit.to(torch.int16),
        commit_logp=torch.zeros(canvas.shape[1:]),
        passes=torch.full((canvas.shape[1],), steps),
        revealed=revealed,
        masked=revealed,
        rank_floor=zeros,
        entropy_revealed=zeros,
        entropy_masked=zeros,
        joint_revealed=zeros,
        joint_masked=zeros,
    )


def algorithm_of(args: dict, beta: float) -> EGSPO:
    """The library's method with the recorded run's settings, over those of `compat: released`."""
    mode, weight = args["logps_aggregation_mode"], args["lambda1"]
    setting = {"ratio_scale": "sequence" if mode == "sum" else "token", "aggregation": mode, "beta": beta}
    setting |= {"clip_low": 1 - args["epsilon"], "clip_high": 1 + args["epsilon_high"]}
    setting |= {"compat": "released", "stop_at_live": args["terminate_at_last_non_eos"]}
    if weight == 0:
        return EGSPO(**setting)
    parts = "correctness_released" if args["correctness_step_reward_only"] else "all"
    if args["standard_grpo_returns"]:
        setting["centring"] = "outcome_mean_plus_delta"
    return EGSPOSA(stepwise_weight=weight, normalise=args["normalize_returns"], step_reward_parts=parts, **setting)


def batch_of(entry: dict, file: dict[str, Tensor]) -> RolloutBatch:
    """`correctness_step_reward_only`: the second reward function is the verdict, and the released code ignores the
    reward weights, so the functions are added up unweighted there."""
    states, steps, args = file["trajectory_ids"], file["eval_time_steps"], entry["args"]
    first, second = file["step_rewards_func1"], file["step_rewards_func2"]
    weights = (1.0, 1.0) if args["correctness_step_reward_only"] else entry["reward_weights"]
    rewards = weights[0] * first + weights[1] * second
    guesses = rewards[:, :-1]
    if args["correctness_step_reward_only"]:
        final = Grade(reward=0.0, correct=True, status="ok")
        verdicts = second[:, :-1].tolist()  # not 0 or 1 in the recording, which the rule allows
        table = [[Grade(reward=9.0, correct=c, status="ok") for c in row] for row in verdicts]
        guesses = torch.tensor([[step_value("correctness_released", final, g) for g in row] for row in table])
    return RolloutBatch(
        tokens=states[-1],
        attend=torch.ones_like(states[-1], dtype=torch.bool),
        live=torch.ones(states.shape[1], 16, dtype=torch.bool),
        group=torch.arange(6) // 3,
        sample=torch.arange(6),
        reward=rewards[:, -1],
        trajectory=recorded_trajectory(states, states.shape[2] - 16, 500),
        selected=steps,
        selected_weight=torch.ones(steps.shape),
        step_reward=guesses if args["lambda1"] > 0 else None,
    )


def sampler_of(args: dict) -> SamplerConfig:
    return SamplerConfig(
        gen_length=args["max_completion_length"],
        block_length=args["block_length"],
        steps=args["diffusion_steps"],
        temperature=args["temperature"],
    )


@pytest.mark.parametrize("name", entries("egspo"))
def test_chain_of_egspo(sampled, current, name: str) -> None:
    entry = INDEX[name]
    args = entry["args"]
    file = recorded(name, "egspo_sa_lambda1_normalized" if args["lambda1"] > 0 else "egspo_lambda0")
    algorithm, batch = algorithm_of(args, entry["beta"]), batch_of(entry, file)
    seen = algorithm.views(batch, sampler_of(args), 0, 0)
    before = algorithm.units(score(sampled, batch, seen, 100), seen, batch)
    assert bool((before.size == 2).all())
    divisor = 1.0 if args["logps_aggregation_mode"] == "sum" else before.size
    torch.testing.assert_close((before.lower / divisor).T, file["old_per_token_logps"], rtol=0, atol=2e-4)
    advantage = algorithm.advantage(batch)
    check_advantage(advantage, file, "advantages_per_step")
    for slot, wanted in enumerate(entry["losses"]):
        active = torch.zeros(seen.scored.shape[:2], dtype=torch.bool)
        active[:, slot] = True
        part = seen.restrict(active)
        old = algorithm.units(score(sampled, batch, part, 100), part, batch)
        new, counts = scored(current, algorithm, batch, part), count(batch, part)
        loss = policy_loss(algorithm.objective(), new, advantage, batch.group, batch.live, counts, old, old)
        check_loss(loss, wanted)
        if slot == 0:
            check_gradients(current, loss, file, entry["grad_norms_step0"])
