"""Dream's commit orders against recorded runs of two public samplers (tiny Dream, step by step)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from maskgrad.diffusion.filters import sampling_logits
from maskgrad.diffusion.reveal import rank_value, schedule_on_time_grid
from maskgrad.diffusion.sampler import KeyedNoise, Record, sample
from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.models.load import load_policy
from maskgrad.records import PromptBatch, Trajectory

GOLDEN = Path(__file__).parents[2].parent / "shared" / "golden"
FOLDER = GOLDEN / "samplers" / "dream"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="golden data (../shared/golden) is not here")

ENTRIES = json.loads((FOLDER / "index.json").read_text()) if FOLDER.is_dir() else []
HERE = [e for e in ENTRIES if "file" in e and (FOLDER / f"{e['file']}.safetensors").is_file() and "alg" in e]
RANKED = [e for e in HERE if e["alg"] != "origin"]
ORIGIN = [e for e in HERE if e["alg"] == "origin"]


@pytest.fixture(scope="module")
def policy():
    return load_policy(GOLDEN / "models" / "dream_tiny" / "base").requires_grad_(False)


@dataclass
class Order:
    """Replays the draws of order `origin`, placed [steps, L] by canvas position."""

    draws: Tensor

    def token(self, row: Tensor, step: Tensor, position: Tensor, vocab: int) -> Tensor:
        raise AssertionError("temperature 0 draws no tokens")

    def order(self, row: Tensor, step: Tensor, position: Tensor) -> Tensor:
        return self.draws[step, position]


def run(policy, entry: dict, data: dict[str, Tensor], noise: object = None) -> Trajectory:
    prompt = data["prompt"]
    real = data["attention_mask"].bool() if "attention_mask" in data else torch.ones_like(prompt, dtype=torch.bool)
    batch = PromptBatch(ids=prompt, real=real, sample=torch.arange(len(prompt)))
    config = SamplerConfig(
        gen_length=entry["max_new_tokens"],
        steps=entry["steps"],
        remasking=entry["alg"],
        uneven="dream",
        stop_early=False,
    )
    return sample(policy, batch, config, noise or KeyedNoise(0, batch.sample), Record())  # type: ignore[arg-type]


def assert_same_states(path: Trajectory, data: dict[str, Tensor], mask: int) -> None:
    """The recorded states, those of steps that changed nothing left out, against the commit map."""
    recorded = [data["states"][0]]
    recorded += [s for before, s in zip(data["states"], data["states"][1:], strict=False) if not torch.equal(before, s)]
    assert len(recorded) == int(path.passes.max()) + 1
    for step, state in enumerate(recorded):
        canvas = torch.where((path.commit_step >= 0) & (path.commit_step < step), path.tokens, mask)
        assert torch.equal(torch.cat([data["prompt"], canvas], 1), state), f"state {step} differs"
    assert torch.equal(torch.cat([data["prompt"], path.tokens], 1), data["final"])


@pytest.mark.parametrize("entry", RANKED, ids=lambda e: e["file"])
def test_ranked_orders_equal_step_by_step(policy, entry: dict) -> None:
    data = load_file(FOLDER / f"{entry['file']}.safetensors")
    path = run(policy, entry, data)
    assert_same_states(path, data, policy.special.mask)
    start, changed = data["prompt"].shape[1], (data["states"][1:] != data["states"][:-1]).any(-1).any(-1)
    for step, confidence in enumerate(data["confidence"][changed][:, :, start:]):
        floor = torch.where(path.commit_step == step, confidence, torch.inf).amin(1)
        torch.testing.assert_close(path.rank_floor[:, step], floor, atol=2e-4, rtol=0)


@pytest.mark.parametrize("entry", ORIGIN, ids=lambda e: e["file"])
def test_origin_with_recorded_draws(policy, entry: dict) -> None:
    data = load_file(FOLDER / f"{entry['file']}.safetensors")
    masked = (data["states"][:, 0] == policy.special.mask)[:, data["prompt"].shape[1] :]
    draws = torch.full(masked.shape, 2.0)
    for step in range(entry["steps"]):
        if f"rand{step}" in data:
            draws[step, masked[step]] = data[f"rand{step}"]
    path = run(policy, entry, data, Order(draws))
    assert_same_states(path, data, policy.special.mask)


@pytest.mark.parametrize("entry", [e for e in ENTRIES if "unmasked_per_step" in e], ids=lambda e: e["file"])
def test_counts_follow_the_time_grid(entry: dict) -> None:
    """Also of the runs whose tensors are not here."""
    for counts in entry["unmasked_per_step"]:
        plan = schedule_on_time_grid(entry["max_new_tokens"], entry["steps"])
        assert plan == counts


def test_table_of_confidences() -> None:
    data = load_file(FOLDER / "sample_tokens.safetensors")
    cases = {
        "plain": ("max_prob", 0, 1.0),
        "neg_entropy": ("entropy", 0, 1.0),
        "margin": ("margin", 0, 1.0),
        "top_p0.9": ("max_prob", 0, 0.9),
        "top_k5_neg_entropy": ("entropy", 5, 1.0),
    }
    for name, (rule, k, p) in cases.items():
        logp = sampling_logits(data["logits"], 0.0, k, p).log_softmax(-1)
        token = logp.argmax(-1)
        value = rank_value(rule, logp, token, None, logp[:, 0], torch.arange(len(token)))  # type: ignore[arg-type]
        assert torch.equal(token, data[f"{name}.x0"]), name
        torch.testing.assert_close(value, data[f"{name}.confidence"], atol=2**-16, rtol=1e-5, msg=name)
