"""Whole updates of the wd1, SPG and ESPO trainers: advantages, masks from the recorded seeds, old and reference values,
loss, four recorded parameter gradients and the gradient norms of all weights, through the real model.

The trainers draw masks from the global generator; `*_masks` below repeat those draws on generators of their own and
are themselves held to the recorded noisy batches of the likelihood files.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from maskgrad.algorithms import ESPO, SPG, WD1, Algorithm
from maskgrad.algorithms.base import count
from maskgrad.algorithms.surrogate import policy_loss
from maskgrad.likelihood import elbo_views, views
from maskgrad.likelihood.score import active_views, score, score_rows
from maskgrad.models.load import load_policy
from maskgrad.records import LossSum, MaskedViews, RolloutBatch, Units

GOLDEN = Path(__file__).parents[2].parent / "shared" / "golden"
FOLDER, LIKELIHOOD = GOLDEN / "losses", GOLDEN / "likelihood"
HERE = FOLDER.is_dir()
INDEX = json.loads((FOLDER / "index.json").read_text()) if HERE else {}
PROXIES = json.loads((LIKELIHOOD / "index.json").read_text()) if HERE else {}
MASK = 500
GRADIENT = {"rtol": 1e-3, "atol": 1e-4}

pytestmark = pytest.mark.skipif(not HERE, reason="golden data (../shared/golden) is not here")


def files(folder: Path, pattern: str, index: dict) -> list:
    names = [
        str(f.relative_to(folder)).removesuffix(".safetensors") for f in sorted(folder.glob(f"{pattern}.safetensors"))
    ]
    return [pytest.param(n, id=n.split("/")[-1]) for n in names if n in index]


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


@pytest.mark.parametrize("name", files(LIKELIHOOD, "spg/spg_[0-9]*_block_*", PROXIES))
def test_draws_of_spg(name: str) -> None:
    args, file = PROXIES[name]["args"], load_file(LIKELIHOOD / f"{name}.safetensors")
    live = load_file(LIKELIHOOD / "inputs.safetensors")["completion_mask"].bool()
    for seed, noisy in zip(PROXIES[name]["mask_seeds"], file["perturbed"], strict=True):
        assert torch.equal(spg_masks(live, 6, seed, args), noisy == MASK)


@pytest.mark.parametrize("name", files(LIKELIHOOD, "espo/espo_full_*", PROXIES))
def test_draws_of_espo(name: str) -> None:
    file = load_file(LIKELIHOOD / f"{name}.safetensors")
    rows, length = file["input_ids"].shape[0], 16
    seeds = file["mask_seeds"].T.flatten().tolist()  # [iteration, draw]; the batches are recorded draw by draw
    for seed, noisy in zip(seeds, file["perturbed"], strict=True):
        assert torch.equal(espo_masks(rows, length, seed), noisy[:, -length:] == MASK)


# --- updates --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sampled():
    """The policy that sampled."""
    return load_policy(GOLDEN / "models" / "llada_tiny" / "base")


@pytest.fixture
def current():
    """The policy at loss time."""
    policy = load_policy(GOLDEN / "models" / "llada_tiny" / "base")
    weights = policy.weights()
    with torch.no_grad():
        for name, value in load_file(FOLDER / "chain" / "perturbed_model.safetensors").items():
            weights[name].copy_(value)
    return policy


def rollouts(file: dict[str, Tensor]) -> RolloutBatch:
    tokens = torch.cat([file["prompt_ids"], file["completion_ids"]], 1)
    live = file["completion_mask"].bool()
    real = torch.cat([file["prompt_mask"].bool(), torch.ones_like(live)], 1)
    index = torch.arange(len(tokens))
    return RolloutBatch(tokens=tokens, attend=real, live=live, group=index // 3, sample=index, reward=file["rewards"])


def scored(policy, algorithm: Algorithm, batch: RolloutBatch, seen: MaskedViews) -> Units:
    row, view = active_views(seen)
    values = score_rows(policy, batch, seen, row, view)
    return algorithm.units(torch.zeros(seen.scored.shape).index_put((row, view), values), seen, batch)


def check_update(policy, loss: LossSum, file: dict[str, Tensor], norms: dict[str, float]) -> None:
    torch.testing.assert_close(loss.total.detach(), file["loss"], rtol=1e-4, atol=1e-4)
    policy.zero_grad()
    loss.total.backward()
    weights = policy.weights()
    recorded = [k for k in file if k.startswith("grad.")]
    assert recorded
    for key in recorded:
        torch.testing.assert_close(weights[key.removeprefix("grad.")].grad, file[key], **GRADIENT)
    for name, norm in norms.items():
        assert float(weights[name].grad.norm()) == pytest.approx(norm, rel=1e-3, abs=1e-4), name


@pytest.mark.parametrize("name", files(FOLDER, "chain/wd1*", INDEX))
def test_chain_of_wd1(current, name: str) -> None:
    """wd1 takes its softmax over the six rows of the micro-batch, so one group holds both prompts here; the centred
    rewards keep their prompt's mean."""
    entry, file = INDEX[name], load_file(FOLDER / f"{name}.safetensors")
    batch, algorithm = rollouts(file), WD1(positive_only="psr" in name)
    turn, prompt = entry["_step_in_compute_loss"] % entry["num_iterations"], batch.prompt_length
    hidden = wd1_masks(batch.tokens.shape, prompt, int(file["mask_seeds"][turn]), entry["args"]["p_mask_prompt"])
    shape = algorithm.views(batch, None, 0, 0)
    seen = MaskedViews(hidden=hidden, scored=shape.scored, weight=shape.weight, unit=shape.unit, units=shape.units)
    merged = torch.zeros_like(batch.group)
    whole = RolloutBatch(**{**vars(batch), "group": merged, "reward": file["advantages"]})
    new = scored(current, algorithm, whole, seen)
    loss = policy_loss(algorithm.objective(), new, algorithm.advantage(whole), merged, batch.live, count(whole, seen))
    check_update(current, loss, file, entry["grad_norms"])


@pytest.mark.parametrize("name", files(FOLDER, "chain/spg*", INDEX))
def test_chain_of_spg(current, name: str) -> None:
    entry, file = INDEX[name], load_file(FOLDER / f"{name}.safetensors")
    batch, args = rollouts(file), entry["args"]
    setting = {"score": args["logp_estimation"], "beta_eubo": args["eubo_beta"], "omega": args["mix_weight"]}
    algorithm = SPG(draws=args["num_t"], block=args["block_length"], mode=args["forward_type"], **setting)
    turn = entry["_step_in_compute_loss"] % entry["num_iterations"]
    hidden = spg_masks(batch.live, batch.prompt_length, int(file["mask_seeds"][turn]), args)
    seen = views.sequence_views(hidden, hidden[:, :, batch.prompt_length :] & batch.live[:, None])
    advantage = algorithm.advantage(batch)
    torch.testing.assert_close(advantage[:, 0], file["advantages"], rtol=1e-4, atol=1e-6)
    new = scored(current, algorithm, batch, seen)
    loss = policy_loss(algorithm.objective(), new, advantage, batch.group, batch.live, count(batch, seen))
    check_update(current, loss, file, entry["grad_norms"])


@pytest.mark.parametrize("name", files(FOLDER, "chain/espo*", INDEX))
def test_chain_of_espo(sampled, current, name: str) -> None:
    entry, file = INDEX[name], load_file(FOLDER / f"{name}.safetensors")
    batch, beta = rollouts(file), entry["beta"]
    clip = {"clip_low": 1 - entry["epsilon_low"], "clip_high": 1 + entry["epsilon_high"]}
    algorithm = ESPO(draws=entry["num_mc"], beta=beta, scale_rewards=entry["scale_rewards"], **clip)
    advantage = algorithm.advantage(batch)
    torch.testing.assert_close(advantage[:, 0], file["advantages"], rtol=1e-4, atol=1e-6)
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
    best = min(losses, key=lambda x: abs(float(x.total.detach()) - float(file["loss"])))
    assert best.metrics["kl"][0] / 6 == pytest.approx(entry["metrics"]["kl"], rel=1e-3)
    check_update(current, best, file, entry["grad_norms"])
