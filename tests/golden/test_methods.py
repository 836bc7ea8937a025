"""Losses and ELBOs of the wd1, SPG and ESPO trainers, and LLaDA's likelihood: values and gradients as recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from maskgrad.algorithms import ESPO, SPG, WD1
from maskgrad.algorithms.objective import Objective
from maskgrad.algorithms.surrogate import kl_estimate, policy_loss
from maskgrad.likelihood import bounds, elbo_views
from maskgrad.likelihood.score import score
from maskgrad.models.load import load_policy
from maskgrad.records import Counts, LossSum, MaskedViews, RolloutBatch, Units

GOLDEN = Path(__file__).parents[2].parent / "shared" / "golden"
LOSSES, LIKELIHOOD = GOLDEN / "losses", GOLDEN / "likelihood"
HERE = LOSSES.is_dir()
INDEX = json.loads((LOSSES / "index.json").read_text()) if HERE else {}
PROXIES = json.loads((LIKELIHOOD / "index.json").read_text()) if HERE else {}
FIXED = load_file(LOSSES / "fixed_tensors.safetensors") if HERE else {}
GRADIENT = {"rtol": 1e-3, "atol": 1e-4}

pytestmark = pytest.mark.skipif(not HERE, reason="golden data (../shared/golden) is not here")


def files(folder: Path, pattern: str, index: dict) -> list:
    """Recorded files that are both in the index and on disk."""
    names = [
        str(f.relative_to(folder)).removesuffix(".safetensors") for f in sorted(folder.glob(f"{pattern}.safetensors"))
    ]
    return [pytest.param(n, id=n.split("/")[-1]) for n in names if n in index]


def close(value: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(value.detach(), wanted, rtol=1e-4, atol=1e-6)


def sums(lower: Tensor, size: float = 1.0, per_token: bool = False) -> Units:
    """Sequence units [B,1] of the values [B]."""
    lower = lower[:, None]
    mask = torch.ones_like(lower, dtype=torch.bool)
    return Units(lower=lower, upper=lower, mask=mask, size=torch.full_like(lower, size), per_token=per_token, views="")


def loss_of(objective: Objective, new: Units, advantage: Tensor, live: Tensor, **others: Units | None) -> LossSum:
    """The loss of six rows in one group, the released trainers' micro-batch."""
    counts = Counts(rows=6, groups=1, live_tokens=float(live.sum()), units=6, scored_tokens=1)
    return policy_loss(objective, new, advantage, torch.zeros(6, dtype=torch.int64), live, counts, **others)


@pytest.mark.parametrize("name", files(LOSSES, "wd1/*", INDEX))
def test_wd1(name: str) -> None:
    """Weights, loss and gradient; the released softmax runs over the batch, here one group. The advantages recorded
    are already centred per prompt, so they are taken as rewards whose group mean is zero."""
    file, live = load_file(LOSSES / f"{name}.safetensors"), FIXED["completion_mask"].bool()
    algorithm = WD1(positive_only="_psr" in name)
    group = torch.zeros(6, dtype=torch.int64)
    batch = RolloutBatch(
        tokens=FIXED["completion_ids"], attend=live, live=live, group=group, sample=group, reward=file["advantages"]
    )
    advantage = algorithm.advantage(batch)
    wanted = file["weights_plus"] - (0 if algorithm.positive_only else file["weights_minus"])
    close(advantage[:, 0], wanted)
    leaf = FIXED["logps"].clone().requires_grad_(True)
    new = sums((leaf * live).sum(1))
    loss = loss_of(algorithm.objective(), new, advantage, live)
    torch.testing.assert_close(loss.total.detach(), recorded_loss(name, file), rtol=1e-4, atol=1e-5)
    (grad,) = torch.autograd.grad(loss.total, leaf)
    torch.testing.assert_close(grad, file["grad_wrt_logps"], **GRADIENT)


def recorded_loss(name: str, file: dict[str, Tensor]) -> Tensor:
    assert abs(float(file["loss"]) - INDEX[name]["loss"]) < 1e-6
    return file["loss"]


@pytest.mark.parametrize("name", files(LOSSES, "spg/*", INDEX))
def test_spg(name: str) -> None:
    """- sum A logp len / sum len, and its gradient with respect to the bound."""
    file, live = load_file(LOSSES / f"{name}.safetensors"), FIXED["completion_mask"].bool()
    assert torch.equal(live.sum(1), file["completion_lengths"])
    leaf = file["per_seq_logps"].clone().requires_grad_(True)
    loss = loss_of(SPG().objective(), sums(leaf, per_token=True), file["advantages"][:, None], live)
    close(loss.total, file["loss"])
    (grad,) = torch.autograd.grad(loss.total, leaf)
    torch.testing.assert_close(grad, file["grad_wrt_per_seq_logps"], **GRADIENT)


@pytest.mark.parametrize("name", files(LOSSES, "espo/espo_*", INDEX))
def test_espo(name: str) -> None:
    """Sequence ratio on the token scale with its clip, k2 of the summed ELBO over L: loss, gradient, KL, gates."""
    entry, file = INDEX[name], load_file(LOSSES / f"{name}.safetensors")
    length = float(entry["completion_length_used"])
    algorithm = ESPO(beta=entry["beta"], clip_low=1 - entry["epsilon_low"], clip_high=1 + entry["epsilon_high"])
    leaf = file["elbo"].clone().requires_grad_(True)
    old = None if entry["num_iterations"] == 1 else sums(file["old_elbo"], length)
    reference = sums(file["ref_elbo"], length)
    live = torch.ones(6, int(length), dtype=torch.bool)
    advantage = file["advantages"][:, None]
    loss = loss_of(algorithm.objective(), sums(leaf, length), advantage, live, old=old, reference=reference)
    close(loss.total, file["loss"])
    (grad,) = torch.autograd.grad(loss.total, leaf)
    torch.testing.assert_close(grad, file["grad_wrt_elbo"], **GRADIENT)
    metrics = loss.metrics
    if "kl" in entry["metrics"]:
        assert abs(metrics["kl"][0] / 6 - entry["metrics"]["kl"]) < 1e-5
    gated = (metrics["clip_fraction_positive"][0] / 6, metrics["clip_fraction_negative"][0] / 6)
    assert gated[0] == pytest.approx(entry["metrics"]["clip_ratio/high_mean"], abs=1e-6)
    assert gated[1] == pytest.approx(entry["metrics"]["clip_ratio/low_mean"], abs=1e-6)


@pytest.mark.parametrize("name", sorted(p.stem for p in (LOSSES / "espo").glob("approx_kl_*")))
def test_kl_estimators(name: str) -> None:
    """k1, k2, k3: values, and gradients of k2 and k3. The trainer adds d to k1's gradient (a score-function term);
    here k1 has the gradient of its value."""
    kind, file = name.removeprefix("approx_kl_"), load_file(LOSSES / "espo" / f"{name}.safetensors")
    leaf = file["log_probs"].clone().requires_grad_(True)
    d = leaf - file["log_probs_base"]
    value = kl_estimate(kind, d)
    close(value, file["kl"])
    (grad,) = torch.autograd.grad(value.sum(), leaf)
    torch.testing.assert_close(grad + (d.detach() if kind == "k1" else 0), file["grad"], **GRADIENT)


# --- likelihoods ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def policy():
    return load_policy(GOLDEN / "models" / "llada_tiny" / "base")


def rollouts(tokens: Tensor, length: int) -> RolloutBatch:
    rows = torch.arange(len(tokens))
    live = torch.ones(len(tokens), length, dtype=torch.bool)
    return RolloutBatch(
        tokens=tokens,
        attend=torch.ones_like(tokens, dtype=torch.bool),
        live=live,
        group=rows,
        sample=rows,
        reward=torch.zeros(len(tokens)),
    )


def canvas_length(file: dict[str, Tensor], mask: int) -> int:
    """L of recorded ESPO masks: the rate is masked / (L + 1), so wherever something is masked it gives L away."""
    masked, rate = (file["perturbed"] == mask).sum(-1), file["p_mask"].amax(-1)
    found = (masked[masked > 0] / rate[masked > 0]).round()
    assert bool((found == found[0]).all())
    return int(found[0]) - 1


def recorded_elbos() -> list:
    """Files of the index, and those of Dream, which the index leaves out."""
    dream = sorted(LIKELIHOOD.glob("espo/espo_dream_*.safetensors"))
    extra = [pytest.param(f"espo/{f.stem}", id=f.stem) for f in dream]
    return files(LIKELIHOOD, "espo/espo_[!d]*", PROXIES) + extra


@pytest.mark.parametrize("name", recorded_elbos())
def test_exact_count_elbo(policy, name: str) -> None:
    """The summed ELBO, plain and coupled, on the recorded masks (complements derived by us): each draw and the mean.
    Dream's logits are shifted by one place. Error caught: the states of Dream read at the same place."""
    file, coupled = load_file(LIKELIHOOD / f"{name}.safetensors"), name.endswith("coupled")
    if name in PROXIES:
        assert PROXIES[name]["reduce_var"] == coupled
    if "dream" in name:
        policy = load_policy(GOLDEN / "models" / "dream_tiny" / "base")
    iterations, draws = file["mask_seeds"].shape
    ids, length = file["input_ids"], canvas_length(file, policy.special.mask)
    batch = rollouts(ids, length)
    perturbed = file["perturbed"].view(draws, iterations, len(ids), -1)
    for i in range(iterations):
        totals = torch.zeros(len(ids))
        for j in range(draws):
            hidden = perturbed[j, i][:, -length:] == policy.special.mask
            seen = exact_count_views(batch, hidden[:, None], coupled)
            found = bounds.sequence_units(score(policy, batch, seen, 7), seen).lower[:, 0]
            if "elbo_each_mc" in file:
                torch.testing.assert_close(found, file["elbo_each_mc"][j, :, i], rtol=1e-5, atol=1e-3)
            totals += found / draws
        torch.testing.assert_close(totals, file["elbo"][:, i], rtol=1e-5, atol=1e-3)


def exact_count_views(batch: RolloutBatch, hidden: Tensor, coupled: bool) -> MaskedViews:
    """`exact_count` with given masks bool [B,N,L] in place of the drawn ones."""
    return elbo_views.counted(batch, hidden, torch.ones_like(batch.live), coupled)


@pytest.mark.parametrize("name", files(LIKELIHOOD, "llada_log_likelihood_*", PROXIES))
def test_llada_log_likelihood(policy, name: str) -> None:
    """Mean over draws of L/l times the summed log-prob of the l hidden tokens, guided files too."""
    file, entry = load_file(LIKELIHOOD / f"{name}.safetensors"), PROXIES[name]
    length = len(file["answer"])
    noisy = file["perturbed"].flatten(0, 1)[None]
    batch = rollouts(torch.cat([file["prompt"], file["answer"]])[None], length)
    hidden = noisy == policy.special.mask
    scored = hidden[:, :, -length:]
    weight = length / scored.sum(-1, keepdim=True) / scored.shape[1]
    unit = torch.zeros(scored.shape, dtype=torch.int64)
    seen = MaskedViews(
        hidden=hidden,
        scored=scored,
        weight=weight.expand(scored.shape),
        unit=unit,
        units=1,
        guidance=entry["cfg_scale"],
    )
    found = bounds.sequence_units(score(policy, batch, seen, 5), seen).lower[0, 0]
    assert float(found) == pytest.approx(float(file["log_likelihood"]), rel=1e-5)
