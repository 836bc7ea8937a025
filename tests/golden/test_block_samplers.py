"""SDAR's sampler against recorded runs of the authors' code (tiny SDAR), with and without the cache."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from maskgrad.diffusion.filters import top_k_logits, top_p_logits
from maskgrad.diffusion.proposals import Proposer
from maskgrad.diffusion.reveal import schedule
from maskgrad.diffusion.sampler import KeyedNoise, Record, sample
from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.models.load import load_policy
from maskgrad.records import PromptBatch, Trajectory

GOLDEN = Path(__file__).parents[2].parent / "shared" / "golden"
FOLDER = GOLDEN / "samplers" / "sdar"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="golden data (../shared/golden) is not here")


def index() -> list[dict]:
    return json.loads((FOLDER / "index.json").read_text()) if FOLDER.is_dir() else []


ENTRIES = [e for e in index() if "file" in e and (FOLDER / f"{e['file']}.safetensors").is_file()]
# In these the reference lets its model write over prompt tokens (README of the folder): it asks top-k for more places
# than are masked. What is right there is tested below instead.
WRONG = {e["file"] for e in ENTRIES if e["prompt_tokens_overwritten"] > 0}
RIGHT = [e for e in ENTRIES if e["file"] not in WRONG]
SAMPLED = [e for e in RIGHT if e["token_choice"].startswith("sampled")]


def tied(entry: dict) -> bool:
    """Whether two draws of a pass have the same confidence: the reference breaks ties by the whim of its sort."""
    data = load_file(FOLDER / f"{entry['file']}.safetensors")
    probs = [v.flatten().sort().values for k, v in data.items() if re.fullmatch(r"draw\d+\.prob", k)]
    return any(bool((p.diff() < 2**-16).any()) for p in probs)


UNTIED = [e for e in RIGHT if not tied(e)]


@pytest.fixture(scope="module")
def policy():
    return load_policy(GOLDEN / "models" / "sdar_tiny" / "base").requires_grad_(False)


@dataclass
class Drawn:
    """Draws under which the recorded token wins at every position."""

    tokens: list[Tensor]  # of each pass, int64 [block]
    prompt_length: int
    block: int

    def token(self, row: Tensor, step: Tensor, position: Tensor, vocab: int) -> Tensor:
        noise = torch.full((len(row), vocab), 1e-300, dtype=torch.float64)
        for i, (s, k) in enumerate(zip(step.tolist(), position.tolist(), strict=True)):
            noise[i, self.tokens[s][(self.prompt_length + k) % self.block]] = 1 - 2.0**-53
        return noise

    def order(self, row: Tensor, step: Tensor, position: Tensor) -> Tensor:
        raise AssertionError("no order draws")


def config_of(entry: dict, cache: str) -> SamplerConfig:
    values = {
        # the authors round prompt and canvas up to whole blocks
        "gen_length": entry["total_length"] - entry["prompt_length"],
        "block_length": entry["block_length"],
        "steps_per_block": entry["denoising_steps"],
        "stop_early": False,
        "cache": cache,
    }
    strategy = entry["remasking_strategy"]
    if strategy == "sequential":
        values["remasking"] = "sequential"
    if strategy == "low_confidence_dynamic":
        values["threshold"] = entry["confidence_threshold"]
    if entry["token_choice"].startswith("sampled"):
        found = re.fullmatch(r"sampled(?:_T([\d.]+)_k(\d+)_p([\d.]+))?", entry["token_choice"])
        assert found is not None, entry["token_choice"]
        t, k, p = (found[1] or 1.0), (found[2] or 0), (found[3] or 1.0)
        values |= {"temperature": float(t), "top_k": int(k), "top_p": float(p), "confidence": "sampling"}
    return SamplerConfig.model_validate(values)


def run(policy, entry: dict, data: dict[str, Tensor], cache: str) -> Trajectory:
    prompt = data["prompt"]
    batch = PromptBatch(ids=prompt, real=torch.ones_like(prompt, dtype=torch.bool), sample=torch.arange(len(prompt)))
    noise: object = KeyedNoise(0, batch.sample)
    if "draw00.token" in data:
        names = sorted(name for name in data if re.fullmatch(r"draw\d+\.token", name))
        noise = Drawn([data[name].flatten() for name in names], prompt.shape[1], entry["block_length"])
    return sample(policy, batch, config_of(entry, cache), noise, Record())  # type: ignore[arg-type]


def passes(data: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """The reference's calls that denoise: inputs, positions and logits, in order."""
    calls = sorted({name.split(".")[0] for name in data if name.startswith("call")})
    found = [{k: data[f"{c}.{k}"] for k in ("input_ids", "position_ids", "logits", "store_kv")} for c in calls]
    return [call for call in found if not int(call["store_kv"])]


@pytest.mark.parametrize("cache", ["none", "exact"])
@pytest.mark.parametrize("entry", UNTIED, ids=lambda e: e["file"])
def test_every_pass_equals_the_reference(policy, entry: dict, cache: str) -> None:
    data = load_file(FOLDER / f"{entry['file']}.safetensors")
    path, prompt = run(policy, entry, data, cache), data["prompt"]
    calls = passes(data)
    assert path.passes.tolist() == [len(calls)]
    for step, call in enumerate(calls):
        canvas = torch.where((path.commit_step < step) & (path.commit_step >= 0), path.tokens, policy.special.mask)
        whole = torch.cat([prompt, canvas], 1)
        place = call["position_ids"][0]
        assert torch.equal(whole[0, place], call["input_ids"][0]), f"state before pass {step}"
        revealed = torch.cat([torch.zeros_like(prompt), path.commit_step == step], 1)[0, place].bool()
        if entry["token_choice"] == "argmax":
            tokens, mine = (x[0, path.commit_step[0] == step] for x in (path.tokens, path.commit_logp))
            expected = call["logits"].log_softmax(-1)[0][revealed].gather(1, tokens[:, None]).squeeze(1)
            torch.testing.assert_close(mine, expected, atol=1e-4, rtol=0)
    assert torch.equal(torch.cat([prompt, path.tokens], 1), data["final"])


@pytest.mark.parametrize("entry", SAMPLED, ids=lambda e: e["file"])
def test_recorded_draws_rank_and_commit_as_released(policy, entry: dict) -> None:
    """Pass by pass from the recorded logits and draws, because top-p makes ties that no rule of ours can know."""
    data, config = load_file(FOLDER / f"{entry['file']}.safetensors"), config_of(entry, "none")
    calls = passes(data)
    for step, call in enumerate(calls):
        tokens = data[f"draw{step:02d}.token"].flatten()
        proposer = Proposer(policy, config, Drawn([tokens], 0, len(tokens)), False)
        place = torch.arange(len(tokens))
        zero = torch.zeros_like(place)
        found = proposer.propose(call["logits"][0], zero, zero, zero, place)
        assert torch.equal(found["token"], tokens)
        expected = data[f"draw{step:02d}.prob"].flatten()
        # MASK is never drawn here, which moves the others' probabilities by its own
        torch.testing.assert_close(found["logp"].exp(), expected, atol=2e-4, rtol=0)
        torch.testing.assert_close(found["rank"], found["logp"].exp(), atol=2**-16, rtol=0)
        after = calls[step + 1]["input_ids"][0] if step + 1 < len(calls) else None
        masked = call["input_ids"][0] == policy.special.mask
        if after is not None and bool((call["position_ids"] == calls[step + 1]["position_ids"]).all()):
            revealed = masked & (after != policy.special.mask)
            kept = masked & ~revealed
            assert bool((found["rank"][revealed].amin() >= found["rank"][kept].amax() - 2**-15).all())


@pytest.mark.parametrize("cache", ["none", "exact"])
@pytest.mark.parametrize("entry", [e for e in ENTRIES if e["file"] in WRONG], ids=lambda e: e["file"])
def test_the_prompt_is_never_written_over(policy, entry: dict, cache: str) -> None:
    """The first pass of the reference is right; from its second block on it reads a prompt that it changed itself."""
    data = load_file(FOLDER / f"{entry['file']}.safetensors")
    prompt = data["prompt"].clone()
    path = run(policy, entry, data, cache)
    assert torch.equal(data["prompt"], prompt)
    assert not torch.equal(data["final"][:, : prompt.shape[1]], prompt), "the reference did overwrite it"
    call = passes(data)[0]
    first = int(path.first_block[0])
    greedy = call["logits"][0, -first:].argmax(-1)
    now = path.commit_step[0, :first] == 0
    assert torch.equal(path.tokens[0, :first][now], greedy[now])
    assert bool((path.commit_step >= 0).all())


def test_filters() -> None:
    data = load_file(FOLDER / "filters.safetensors")
    logits = data.pop("logits")
    for name, expected in data.items():
        k, p = re.fullmatch(r"top_k(\d+)", name), re.fullmatch(r"top_p([\d.]+)", name)
        found = top_k_logits(logits, int(k[1])) if k else top_p_logits(logits, float(p[1]))  # type: ignore[index]
        assert torch.equal(found.isneginf(), expected.isneginf()), name
        kept = ~expected.isneginf()
        assert torch.equal(found[kept], expected[kept]), name


def test_transfer_schedule() -> None:
    (table,) = [e["num_transfer_tokens"] for e in index() if "num_transfer_tokens" in e]
    for name, counts in table.items():
        masked, steps = map(int, name.split("/"))
        assert schedule(masked, steps) == counts


@pytest.mark.parametrize("entry", [e for e in index() if "model_calls" in e], ids=lambda e: e["file"])
def test_passes_of_a_prompt_that_ends_inside_a_block(entry: dict) -> None:
    """Calls that do not store, also of the runs whose tensors are not here."""
    if entry["remasking_strategy"] == "low_confidence_dynamic":
        return
    first = entry["block_length"] - entry["prompt_length"] % entry["block_length"]
    assert config_of(entry, "none").most_passes(first) == entry["model_calls"] - entry["store_calls"]
