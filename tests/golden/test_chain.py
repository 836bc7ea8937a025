"""Whole updates of the d1, wd1, SPG, ESPO and StableDRL trainers: advantages, masks from the recorded seeds, old and
reference values, loss, recorded parameter gradients and the gradient norms of all weights, through the real model.

The trainers draw masks from the global generator; `*_masks` below repeat those draws on generators of their own and
are themselves held to the recorded noisy batches of the likelihood files.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from chains import (
    HERE,
    INDEX,
    LIKELIHOOD,
    PROXIES,
    check_advantage,
    check_gradients,
    check_loss,
    entries,
    recorded,
    rollouts,
    scored,
)
from safetensors.torch import load_file
from torch import Tensor

from maskgrad.algorithms import ESPO, SPG, WD1, DiffuGRPO, StableDRL
from maskgrad.algorithms.base import count
from maskgrad.algorithms.surrogate import policy_loss
from maskgrad.likelihood import elbo_views, views
from maskgrad.likelihood.score import score
from maskgrad.records import MaskedViews, RolloutBatch

MASK = 500

pytestmark = pytest.mark.skipif(not HERE, reason="golden data (../shared/golden) is not here")


def proxies(pattern: str) -> list:
    """Likelihood files that are both in the index and on disk."""
    found = sorted(LIKELIHOOD.glob(f"{pattern}.safetensors"))
    names = [str(f.relative_to(LIKELIHOOD)).removesuffix(".safetensors") for f in found]
    return [pytest.param(n, id=n.split("/")[-1]) for n in names if n in PROXIES]


# --- the trainers' draws --------------------------------------------------------------------------------------------


def wd1_masks(shape: tuple[int, int], prompt: int, seed: int, p: float) -> Tensor:
    """d1 and wd1: completion hidden, prompt tokens where the uniform draw lies below p. bool [B,1,T]."""
    hidden = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < p
    hidden[:, prompt:] = True
    return hidden[:, None]


def espo_masks(rows: int, length: int, seed: int) -> Tensor:
    """ESPO: l_i = round(u + i (L+1)/B) mod (L+1), a random subset per row. bool [B,L]."""
    draw = torch.Generator().manual_seed(seed)
    start = float(torch.randint(0, length + 1, (), generator=draw))
    counts = torch.linspace(start, start + (rows - 1) * ((length + 1) / rows), steps=rows).round().long()
    first = torch.arange(length) < (counts % (length + 1))[:, None]
    return torch.stack([row[torch.randperm(length, generator=draw)] for row in first])


def spg_masks(live: Tensor, prompt: int, seed: int, args: dict) -> Tensor:
    """SPG `block_random` and `block_all`: block = permutation modulo the used blocks; 1..n live tokens of it hidden, or
    all; later blocks and what lies behind the stop hidden; the context perturbed. bool [B,N,T]."""
    draw, (rows, length), draws = torch.Generator().manual_seed(seed), live.shape, args["num_t"]
    block = args["block_length"]
    counts = live.sum(1).tolist()
    perms = [torch.randperm(length // block, generator=draw)[:draws] % -(-n // block) for n in counts]
    hidden = torch.zeros(rows, draws, prompt + length, dtype=torch.bool)
    for i, n in enumerate(counts):
        for j, b in enumerate(perms[i].tolist()):
            size = min(block, n - b * block)
            inside = torch.ones(size, dtype=torch.bool)
            if args["forward_type"] == "block_random":
                k = int(torch.randint(1, size + 1, (1,), generator=draw))
                inside = (torch.arange(size) < k)[torch.randperm(size, generator=draw)]
            start = prompt + b * block
            hidden[i, j, start : start + size] = inside
            hidden[i, j, start + size :] = True
    if args["use_mask_prompt"]:
        noise = torch.rand(hidden.shape, generator=draw) < args["p_mask_prompt"]
        start = torch.stack(perms) * block + prompt
        hidden |= noise & (torch.arange(prompt + length) < start[:, :, None])
    return hidden


@pytest.mark.parametrize("name", proxies("spg/spg_[0-9]*_block_*"))
def test_draws_of_spg(name: str) -> None:
    args, file = PROXIES[name]["args"], load_file(LIKELIHOOD / f"{name}.safetensors")
    live = load_file(LIKELIHOOD / "inputs.safetensors")["completion_mask"].bool()
    for seed, noisy in zip(PROXIES[name]["mask_seeds"], file["perturbed"], strict=True):
        assert torch.equal(spg_masks(live, 6, seed, args), noisy == MASK)


@pytest.mark.parametrize("name", proxies("espo/espo_[!d]*"))
def test_draws_of_espo(name: str) -> None:
    file = load_file(LIKELIHOOD / f"{name}.safetensors")
    rows, length = file["input_ids"].shape[0], 16
    seeds = file["mask_seeds"].T.flatten().tolist()  # [iteration, draw]; the batches are recorded draw by draw
    for seed, noisy in zip(seeds, file["perturbed"], strict=True):
        assert torch.equal(espo_masks(rows, length, seed), noisy[:, -length:] == MASK)


# --- updates --------------------------------------------------------------------------------------------------------


def mean_field(algorithm: DiffuGRPO | WD1, batch: RolloutBatch, file: dict[str, Tensor], entry: dict) -> MaskedViews:
    """Our mean-field views with the prompt masks of the inner iteration that the recorded loss belongs to."""
    turn, p = entry["_step_in_compute_loss"] % entry["num_iterations"], entry["args"]["p_mask_prompt"]
    hidden = wd1_masks(tuple(batch.tokens.shape), batch.prompt_length, int(file["mask_seeds"][turn]), p)
    return replace(views.mean_field(batch, 0, p_prompt=algorithm.p_prompt), hidden=hidden)


@pytest.mark.parametrize("name", entries("d1"))
def test_chain_of_diffu_grpo(sampled, current, name: str) -> None:
    entry, file = INDEX[name], recorded(name, "d1_diffu_grpo")
    turn = entry["_step_in_compute_loss"] % entry["num_iterations"]
    functions = torch.tensor([entry["rewards_func1"], entry["rewards_func2"]])
    batch = rollouts(file, reward=torch.tensor(entry["reward_weights"]) @ functions)
    algorithm = DiffuGRPO(beta=entry["beta"], clip_low=0.8, clip_high=1.2)  # the trainer's default epsilon
    advantage, seen = algorithm.advantage(batch), mean_field(algorithm, batch, file, entry)
    check_advantage(advantage[:, 0], file)
    old = score(sampled, batch, seen, 100)
    live = batch.live
    for key in ("old_per_token_logps", "ref_per_token_logps"):
        torch.testing.assert_close(old[:, 0][live], file[key][turn][live], rtol=0, atol=1e-4)
    base = algorithm.units(old, seen, batch)
    new = scored(current, algorithm, batch, seen)
    loss = policy_loss(algorithm.objective(), new, advantage, batch.group, live, count(batch, seen), base, base)
    check_loss(loss, entry["loss"])
    assert loss.metrics["kl"][0] / loss.metrics["kl"][1] == pytest.approx(entry["metrics"]["kl"], abs=1e-4)
    check_gradients(current, loss, file, entry["grad_norms"])


@pytest.mark.parametrize("name", entries("wd1"))
def test_chain_of_wd1(current, name: str) -> None:
    """wd1 takes its softmax over the six rows of the micro-batch, so one group holds both prompts here; the centred
    rewards keep their prompt's mean."""
    entry, file = INDEX[name], recorded(name, "wd1")
    batch, algorithm = rollouts(file), WD1(positive_only="psr" in name)
    centred = DiffuGRPO().advantage(batch)[:, 0]
    check_advantage(centred, file)
    batch = replace(batch, group=torch.zeros_like(batch.group), reward=centred)
    seen = mean_field(algorithm, batch, file, entry)
    args = scored(current, algorithm, batch, seen), algorithm.advantage(batch), batch.group, batch.live
    loss = policy_loss(algorithm.objective(), *args, count(batch, seen))
    check_loss(loss, entry["loss"])
    check_gradients(current, loss, file, entry["grad_norms"])


def block_views(batch: RolloutBatch, seed: int, args: dict) -> MaskedViews:
    hidden = spg_masks(batch.live, batch.prompt_length, seed, args)
    return views.sequence_views(hidden, hidden[:, :, batch.prompt_length :] & batch.live[:, None])


def bound_of(args: dict) -> dict:
    """Settings of the bounds and of the masks as `SPG` and `StableDRL` name them."""
    bound = {"score": args["logp_estimation"], "beta_eubo": args["eubo_beta"], "omega": args["mix_weight"]}
    return {**bound, "draws": args["num_t"], "block": args["block_length"], "mode": args["forward_type"]}


@pytest.mark.parametrize("name", entries("spg"))
def test_chain_of_spg(current, name: str) -> None:
    entry, file = INDEX[name], recorded(name, "spg_elbo")
    batch, algorithm = rollouts(file), SPG(**bound_of(entry["args"]))
    turn = entry["_step_in_compute_loss"] % entry["num_iterations"]
    seen = block_views(batch, int(file["mask_seeds"][turn]), entry["args"])
    advantage = algorithm.advantage(batch)
    check_advantage(advantage[:, 0], file)
    new = scored(current, algorithm, batch, seen)
    loss = policy_loss(algorithm.objective(), new, advantage, batch.group, batch.live, count(batch, seen))
    check_loss(loss, entry["loss"])
    check_gradients(current, loss, file, entry["grad_norms"])


@pytest.mark.parametrize("name", entries("stabledrl"))
def test_chain_of_stabledrl(sampled, current, name: str) -> None:
    """`compat: released`: fresh numerator masks, cap 5, softmax over the six rows of the device's batch, so one group
    holds both prompts here while rewards are centred per prompt. The shaping reward is the same for all rows."""
    entry, args = INDEX[name], INDEX[name]["config"]
    file = recorded(name, "spg_elbo")
    batch = rollouts(file, reward=torch.tensor(entry["base_rewards"]))
    algorithm = StableDRL(compat="released", **bound_of(args))
    assert args["use_snis"] and algorithm.clip_high == args["ais_clip_iw"]
    advantage, whole = algorithm.advantage(batch), torch.zeros_like(batch.group)
    check_advantage(advantage[:, 0], file)
    before, seen = (block_views(batch, entry[f"mask_seed_{k}"], args) for k in ("reference", "loss"))
    old = algorithm.units(score(sampled, batch, before, 100), before, batch)
    new = scored(current, algorithm, batch, seen)
    ratio = (new.lower - old.lower).detach().exp()
    assert float(ratio.mean()) == pytest.approx(entry["iw_mean"], rel=1e-4)
    assert float(ratio.max()) == pytest.approx(entry["iw_max"], rel=1e-4)
    counts = count(replace(batch, group=whole), seen)
    loss = policy_loss(algorithm.objective(), new, advantage, whole, batch.live, counts, old)
    check_loss(loss, entry["loss"])
    check_gradients(current, loss, file, entry["grad_norms"])


@pytest.mark.parametrize("name", entries("espo"))
def test_chain_of_espo(sampled, current, name: str) -> None:
    entry, file = INDEX[name], recorded(name, "espo_noscale")
    batch, beta = rollouts(file), entry["beta"]
    clip = {"clip_low": 1 - entry["epsilon_low"], "clip_high": 1 + entry["epsilon_high"]}
    algorithm = ESPO(draws=entry["num_mc"], beta=beta, scale_rewards=entry["scale_rewards"], **clip)
    advantage = algorithm.advantage(batch)
    check_advantage(advantage[:, 0], file)
    whole = torch.ones_like(batch.live)
    losses = []
    for turn, seeds in enumerate(file["mask_seeds"][0].tolist()):
        first = torch.stack([espo_masks(*batch.live.shape, seed) for seed in seeds], 1)
        seen = elbo_views.counted(batch, first, whole, coupled=True)
        old = algorithm.units(score(sampled, batch, seen, 100), seen, batch)
        torch.testing.assert_close(old.lower[:, 0], file["old_per_token_logps"][:, turn], rtol=1e-5, atol=2e-3)
        torch.testing.assert_close(old.lower[:, 0], file["ref_per_token_logps"][:, turn], rtol=1e-5, atol=2e-3)
        new = scored(current, algorithm, batch, seen)
        args = new, advantage, batch.group, batch.live, count(batch, seen), old, old
        losses.append(policy_loss(algorithm.objective(), *args))
    # The index does not say which inner iteration the loss belongs to: it is the one whose value agrees.
    best = min(losses, key=lambda x: abs(float(x.total.detach()) - entry["loss"]))
    assert best.metrics["kl"][0] / 6 == pytest.approx(entry["metrics"]["kl"], rel=1e-3)
    check_loss(best, entry["loss"])
    check_gradients(current, best, file, entry["grad_norms"])
