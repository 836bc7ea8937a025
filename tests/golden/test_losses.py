"""`policy_loss` and the advantages against losses recorded from the authors' trainers: values and gradients.

Errors caught: max for min in the clip; symmetric gate; k3 with the other sign; token scale not divided; aggregations
swapped; returns not divided by 1 + lambda; length weights or the cap dropped; state after instead of before the pass.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from maskgrad.algorithms import EGSPO, EGSPOSA, DiffuGRPO, StableDRL, advantages
from maskgrad.algorithms.base import count
from maskgrad.algorithms.objective import Objective
from maskgrad.algorithms.surrogate import policy_loss
from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.likelihood import views
from maskgrad.likelihood.exact import divergence
from maskgrad.likelihood.score import score, score_rows
from maskgrad.models.load import load_policy
from maskgrad.records import Counts, LossSum, MaskedViews, RolloutBatch, Trajectory, Units
from maskgrad.tasks.base import Grade
from maskgrad.training.step_rewards import step_value

GOLDEN = Path(__file__).parents[2].parent / "shared" / "golden"
FOLDER = GOLDEN / "losses"
BASE = GOLDEN / "models" / "llada_tiny" / "base"
INDEX = json.loads((FOLDER / "index.json").read_text()) if FOLDER.is_dir() else {}
FIXED = load_file(FOLDER / "fixed_tensors.safetensors") if FOLDER.is_dir() else {}
GRADIENT = {"rtol": 1e-3, "atol": 1e-4}

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="golden data (../shared/golden) is not here")


def files(pattern: str) -> list:
    """Recorded files that are both in the index and on disk."""
    found = sorted(FOLDER.glob(f"{pattern}.safetensors"))
    names = [str(f.relative_to(FOLDER)).removesuffix(".safetensors") for f in found]
    return [pytest.param(n, id=n.split("/")[1]) for n in names if n in INDEX]


def check_clip_fractions(loss: LossSum, objective: Objective, d: Tensor, advantage: Tensor, recorded: float) -> None:
    """Ours counts the gated terms, clip(rho) A < rho A. The trainers count the opposite inequality: terms outside the
    interval that are *not* gated. Both are checked, so that the difference stays explained. d, advantage: [n]."""
    free, gated = d.exp() * advantage, d.exp().clamp(objective.clip_low, objective.clip_high) * advantage
    ours = sum(loss.metrics[f"clip_fraction_{sign}"][0] for sign in ("positive", "negative"))
    assert ours == float((gated < free).sum())
    assert abs(float((free < gated).double().mean()) - recorded) < 1e-6


def close(value: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(value.detach(), wanted, rtol=1e-4, atol=1e-6)


def units(lower: Tensor, mask: Tensor | None = None, size: float = 1.0, per_token: bool = True) -> Units:
    mask = torch.ones_like(lower, dtype=torch.bool) if mask is None else mask
    return Units(lower=lower, upper=lower, mask=mask, size=torch.full_like(lower, size), per_token=per_token, views="")


@pytest.mark.parametrize("name", files("diffu_grpo/*"))
def test_diffu_grpo(name: str) -> None:
    """Token-level PPO clip and k3 KL over the live tokens of the batch: loss, gradient, clip fraction, KL."""
    entry, file = INDEX[name], load_file(FOLDER / f"{name}.safetensors")
    live, logps = FIXED["completion_mask"].bool(), FIXED["logps"].clone().requires_grad_(True)
    clip = {"clip_low": 1 - entry["epsilon"], "clip_high": 1 + entry["epsilon"]}
    algorithm = DiffuGRPO(beta=entry["beta"], **clip)
    group = torch.arange(6) // 3
    advantage = advantages.centred(FIXED["rewards"], group)
    close(advantage[:, 0], FIXED["advantages_mean_centred"])
    old = None if entry["num_iterations"] == 1 else units(file["old_logps_used"], live)
    reference = units(file["ref_logps_used"], live) if entry["beta"] > 0 else None
    counts = Counts(rows=6, groups=2, live_tokens=float(live.sum()), units=1, scored_tokens=1)
    loss = policy_loss(algorithm.objective(), units(logps, live), advantage, group, live, counts, old, reference)
    close(loss.total, file["loss"])
    (grad,) = torch.autograd.grad(loss.total, logps)
    torch.testing.assert_close(grad, file["grad_wrt_logps"], **GRADIENT)
    d = torch.zeros_like(logps) if old is None else (logps - old.lower).detach()
    check_clip_fractions(loss, algorithm.objective(), d[live], advantage.expand_as(d)[live], entry["clip_ratio"])
    if entry["kl"] is not None:
        assert abs(loss.metrics["kl"][0] / loss.metrics["kl"][1] - entry["kl"]) < 1e-4


@pytest.mark.parametrize("name", files("stabledrl/*"))
def test_stabledrl(name: str) -> None:
    """Weights softmax(min(log ratio, log cap)) over the batch (released: one prompt per device), gradient through the
    bound only; without self-normalisation the length-weighted SPG loss."""
    entry, file = INDEX[name], load_file(FOLDER / f"{name}.safetensors")
    cap, live = entry["ais_clip_iw"], FIXED["completion_mask"].bool()
    bound = file["per_seq_bound"].clone().requires_grad_(True)
    log_ratio = file["per_seq_elbo"] - file["ref_elbo"]
    # The recorded elbo and bound are unrelated numbers; only the difference of `lower` enters the ratio.
    old = units((bound.detach() - log_ratio)[:, None])
    if entry["use_snis"]:
        setting = {"clip": False} if cap <= 0 else {"clip_high": cap}
        objective = StableDRL(**setting).objective()
    else:
        objective, old = Objective(form="score", coef="length_mean"), None
    counts = Counts(rows=6, groups=1, live_tokens=float(live.sum()), units=6, scored_tokens=1)
    group, advantage = torch.zeros(6, dtype=torch.int64), file["advantages"][:, None]
    loss = policy_loss(objective, units(bound[:, None]), advantage, group, live, counts, old)
    close(loss.total, file["loss"])
    (grad,) = torch.autograd.grad(loss.total, bound)
    torch.testing.assert_close(grad, file["grad_wrt_bound"], **GRADIENT)
    if entry["use_snis"]:
        torch.testing.assert_close(-grad / file["advantages"], file["snis_weights"], rtol=1e-4, atol=1e-6)
        assert float(file["grad_wrt_elbo"].abs().max()) == 0.0


def egspo_of(mode: str, beta: float, kind: type[EGSPO] = EGSPO, **extra) -> EGSPO:
    scale = {"ratio_scale": "sequence" if mode == "sum" else "token", "aggregation": mode}
    return kind(beta=beta, score="revealed_untempered", centring="rank_mean", **scale, **extra)


@pytest.mark.parametrize("name", files("egspo/*"))
def test_egspo(name: str) -> None:
    """Step ratios with the asymmetric clip, k3 KL or exact KL (released `mean` divides it by V)."""
    entry, file = INDEX[name], load_file(FOLDER / f"{name}.safetensors")
    mode, n, exact = entry["logps_aggregation_mode"], entry["tokens_per_step"], entry["use_exact_kl"]
    algorithm = egspo_of(mode, entry["beta"], compat="released", kl="exact" if exact else "k3")
    assert (algorithm.clip_low, algorithm.clip_high) == (1 - entry["epsilon"], 1 + entry["epsilon_high"])
    factor = 1 if mode == "sum" else n  # `mean` records log-probs per token
    leaf = file["step_logps"].clone().requires_grad_(True)
    new, old, ref = (
        units(x[:, None] * factor, size=n, per_token=False)
        for x in (leaf, file["old_step_logps"], file["ref_step_logps"])
    )
    counts = Counts(rows=6, groups=2, live_tokens=1, units=6, scored_tokens=6 * n)
    live, group = torch.ones(6, 1, dtype=torch.bool), torch.arange(6) // 3
    objective, table, apart = algorithm.objective(), None, None
    if exact:
        table = file["all_tokens_logps"].clone().requires_grad_(True)
        kl = divergence(table, file["ref_all_tokens_logps"], objective.kl == "exact_mean").sum(-1, keepdim=True)
        apart = units(kl, size=n, per_token=False)
    advantage = file["advantages"][:, None]
    loss = policy_loss(objective, new, advantage, group, live, counts, old, ref, divergence=apart)
    close(loss.total, file["loss"])
    if table is not None:
        (grad,) = torch.autograd.grad(loss.total, table, retain_graph=True)
        torch.testing.assert_close(grad, file["grad_wrt_all_tokens_logps"], **GRADIENT)
        assert abs(loss.metrics["kl"][0] / (6 if mode == "mean" else 6 * n) - entry["metrics"]["exact_kl"]) < 1e-4
    (grad,) = torch.autograd.grad(loss.total, leaf)
    torch.testing.assert_close(grad, file["grad_wrt_step_logps"], **GRADIENT)
    d = (leaf - file["old_step_logps"]).detach()
    check_clip_fractions(loss, algorithm.objective(), d, file["advantages"], entry["metrics"]["clip_ratio"])
    if "k3_estimate_kl" in entry["metrics"] and not exact:
        assert abs(loss.metrics["kl"][0] / 6 - entry["metrics"]["k3_estimate_kl"]) < 1e-4


# --- whole chains on the tiny model ---------------------------------------------------------------------------------


def policies():
    """(sampling policy, policy at loss time): the base model and its recorded perturbation."""
    old, new = load_policy(BASE), load_policy(BASE)
    moved = load_file(FOLDER / "chain" / "perturbed_model.safetensors")
    weights = new.weights()
    assert set(moved) == set(weights)
    with torch.no_grad():
        for name, value in moved.items():
            weights[name].copy_(value)
    return old, new


def check_gradients(policy, total: Tensor, file: dict[str, Tensor], norms: dict[str, float]) -> None:
    policy.zero_grad()
    total.backward()
    weights = policy.weights()
    recorded = [k for k in file if k.startswith("grad.")]
    assert recorded
    for key in recorded:
        torch.testing.assert_close(weights[key.removeprefix("grad.")].grad, file[key], **GRADIENT)
    for name, norm in norms.items():
        assert float(weights[name].grad.norm()) == pytest.approx(norm, rel=1e-3, abs=1e-4), name


def scored(policy, batch: RolloutBatch, seen: MaskedViews) -> Tensor:
    row, view = seen.scored.any(-1).nonzero(as_tuple=True)
    values = score_rows(policy, batch, seen, row, view)
    return torch.zeros(seen.scored.shape).index_put((row, view), values)


@pytest.mark.parametrize("name", files("chain/d1*"))
def test_chain_of_diffu_grpo(name: str) -> None:
    """Prompt masks, old and reference log-probs, advantages, loss and parameter gradients of a whole d1 update."""
    entry, file = INDEX[name], load_file(FOLDER / f"{name}.safetensors")
    turn = entry["_step_in_compute_loss"] % entry["num_iterations"]
    tokens = torch.cat([file["prompt_ids"], file["completion_ids"]], 1)
    # d1 regenerates its masks: prompt tokens whose uniform draw lies below p_mask_prompt
    noise = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(int(file["mask_seeds"][turn])))
    hidden = noise < entry["args"]["p_mask_prompt"]
    hidden[:, 6:] = True
    live = file["completion_mask"].bool()
    weights = torch.tensor(entry["reward_weights"])
    reward = torch.tensor([entry["rewards_func1"], entry["rewards_func2"]]).T @ weights
    close(reward, file["rewards"])
    batch = RolloutBatch(
        tokens=tokens,
        attend=torch.ones_like(tokens, dtype=torch.bool),
        live=live,
        group=torch.arange(6) // 3,
        sample=torch.arange(6),
        reward=reward,
    )
    shape = views.mean_field(batch, 0, p_prompt=0.15)
    seen = MaskedViews(hidden=hidden[:, None], scored=shape.scored, weight=shape.weight, unit=shape.unit, units=16)
    old_policy, policy = policies()
    algorithm = DiffuGRPO(beta=entry["beta"], clip_low=0.8, clip_high=1.2)  # the trainer's default epsilon
    old = score(old_policy, batch, seen, 100)
    recorded = file["old_per_token_logps"][turn]
    torch.testing.assert_close(old[:, 0][live], recorded[live], rtol=0, atol=1e-4)
    torch.testing.assert_close(file["ref_per_token_logps"][turn], recorded, rtol=0, atol=1e-5)
    advantage = algorithm.advantage(batch)
    close(advantage[:, 0], file["advantages"])
    new, base = (algorithm.units(x, seen, batch) for x in (scored(policy, batch, seen), old))
    counts = count(batch, seen)
    loss = policy_loss(algorithm.objective(), new, advantage, batch.group, live, counts, base, base)
    torch.testing.assert_close(loss.total.detach(), file["loss"], rtol=1e-3, atol=1e-5)
    assert abs(loss.metrics["kl"][0] / loss.metrics["kl"][1] - entry["metrics"]["kl"]) < 1e-4
    check_gradients(policy, loss.total, file, entry["grad_norms"])


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


def chain_algorithm(args: dict, beta: float) -> EGSPO:
    mode = args["logps_aggregation_mode"]
    if args["lambda1"] == 0:
        return egspo_of(mode, beta)
    centring = "outcome_mean_plus_delta" if args["standard_grpo_returns"] else "rank_mean"
    return egspo_of(mode, beta, EGSPOSA).model_copy(
        update={"stepwise_weight": args["lambda1"], "normalise": args["normalize_returns"], "centring": centring}
    )


def egspo_batch(entry: dict, file: dict[str, Tensor]) -> RolloutBatch:
    states, steps = file["trajectory_ids"], file["eval_time_steps"]
    weights = torch.tensor(entry["reward_weights"])
    rewards = weights[0] * file["step_rewards_func1"] + weights[1] * file["step_rewards_func2"]
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
        step_reward=rewards[:, :-1] if entry["args"]["lambda1"] > 0 else None,
    )


@pytest.mark.parametrize("name", files("chain/egspo*"))
def test_chain_of_egspo(name: str) -> None:
    """Recorded trajectories and chosen steps: old log-probs, stepwise advantages, the loss of each step slot, and the
    parameter gradients of the first slot.

    `correctness_step_reward_only`: the second reward function is the verdict, and the released code ignores the reward
    weights, so the functions are added up unweighted here."""
    entry, file = INDEX[name], load_file(FOLDER / f"{name}.safetensors")
    args = entry["args"]
    algorithm, batch = chain_algorithm(args, entry["beta"]), egspo_batch(entry, file)
    seen = algorithm.views(batch, sampler_of(args), 0, 0)
    old_policy, policy = policies()
    before = algorithm.units(score(old_policy, batch, seen, 100), seen, batch)
    assert bool((before.size == 2).all())
    divisor = 1.0 if args["logps_aggregation_mode"] == "sum" else before.size
    torch.testing.assert_close((before.lower / divisor).T, file["old_per_token_logps"], rtol=0, atol=2e-4)
    advantage = file["advantages_per_step"]
    if args["correctness_step_reward_only"]:
        final = Grade(reward=0.0, correct=True, status="ok")
        verdicts = file["step_rewards_func2"][:, :-1].tolist()  # not 0 or 1 in the recording, which the rule allows
        guess = [[Grade(reward=9.0, correct=c, status="ok") for c in row] for row in verdicts]
        values = [[step_value("correctness_released", final, g) for g in row] for row in guess]
        unweighted = file["step_rewards_func1"][:, -1] + file["step_rewards_func2"][:, -1]
        batch = replace(batch, reward=unweighted, step_reward=torch.tensor(values))
    close(algorithm.advantage(batch), advantage)
    for slot, wanted in enumerate(file["loss_step0_1_2"]):
        active = torch.zeros(seen.scored.shape[:2], dtype=torch.bool)
        active[:, slot] = True
        part = seen.restrict(active)
        old, new = (
            algorithm.units(x, part, batch) for x in (score(old_policy, batch, part, 100), scored(policy, batch, part))
        )
        counts = count(batch, part)
        loss = policy_loss(algorithm.objective(), new, advantage, batch.group, batch.live, counts, old, old)
        torch.testing.assert_close(loss.total.detach(), wanted, rtol=1e-3, atol=2e-5)
        if slot == 0:
            check_gradients(policy, loss.total, file, entry["grad_norms_step0"])


def sampler_of(args: dict) -> SamplerConfig:
    return SamplerConfig(
        gen_length=args["max_completion_length"],
        block_length=args["block_length"],
        steps=args["diffusion_steps"],
        temperature=args["temperature"],
    )
