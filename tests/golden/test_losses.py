"""`policy_loss` and the advantages against losses recorded from the authors' trainers: values and gradients.

Errors caught: max for min in the clip; symmetric gate; k3 with the other sign; token scale not divided; aggregations
swapped; returns not divided by 1 + lambda; length weights or the cap dropped; state after instead of before the pass.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from maskgrad.algorithms import EGSPO, DiffuGRPO, StableDRL, advantages
from maskgrad.algorithms.objective import Objective
from maskgrad.algorithms.surrogate import policy_loss
from maskgrad.likelihood.exact import divergence
from maskgrad.records import Counts, LossSum, Units

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
