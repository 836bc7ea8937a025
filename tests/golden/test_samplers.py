"""The sampler against recorded runs of the public reference implementation (tiny LLaDA, step by step)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from maskgrad.diffusion.reveal import schedule
from maskgrad.diffusion.sampler import KeyedNoise, Record, sample
from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.models.load import load_policy
from maskgrad.records import PromptBatch, Trajectory

GOLDEN = Path(__file__).parents[2].parent / "shared" / "golden"
FOLDER = GOLDEN / "samplers" / "llada"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="golden data (../shared/golden) is not here")


@pytest.fixture(scope="module")
def policy():
    return load_policy(GOLDEN / "models" / "llada_tiny" / "base")


@dataclass
class Recorded:
    """Replays recorded draws in the order of the network calls."""

    token_draws: Tensor | None = None  # [calls, B, T, V]
    order_draws: Tensor | None = None  # [calls, B, T]
    prompt_length: int = 0

    def token(self, row: Tensor, step: Tensor, position: Tensor, vocab: int) -> Tensor:
        assert self.token_draws is not None
        return self.token_draws[step, row, position + self.prompt_length]

    def order(self, row: Tensor, step: Tensor, position: Tensor) -> Tensor:
        assert self.order_draws is not None
        return self.order_draws[step, row, position + self.prompt_length]


def entries(prefix: tuple[str, ...]) -> list[dict]:
    if not FOLDER.is_dir():
        return []
    index = json.loads((FOLDER / "index.json").read_text())
    here = [e for e in index if e["file"].startswith(prefix) and (FOLDER / f"{e['file']}.safetensors").is_file()]
    return [e for e in here if "gen_length" in e]


def states(path: Trajectory, prompt: Tensor, mask: int) -> list[Tensor]:
    """Canvas before the first pass and after each pass, rebuilt from the commit map alone."""
    out = []
    for step in range(int(path.passes.max()) + 1):
        visible = (path.commit_step >= 0) & (path.commit_step < step)
        out.append(torch.cat([prompt, torch.where(visible, path.tokens, mask)], 1))
    return out


def distinct(recorded: Tensor) -> list[Tensor]:
    """Recorded states without the calls that changed nothing."""
    out = [recorded[0]]
    for state in recorded[1:]:
        if not torch.equal(state, out[-1]):
            out.append(state)
    return out


def run(policy, entry: dict, file: dict[str, Tensor], noise=None, **extra) -> tuple[Trajectory, Tensor]:
    prompt = file["prompt"]
    real = file["attention_mask"].bool() if "attention_mask" in file else torch.ones_like(prompt, dtype=torch.bool)
    batch = PromptBatch(ids=prompt, real=real, sample=torch.arange(len(prompt)))
    config = SamplerConfig(
        gen_length=entry["gen_length"],
        block_length=entry["block_length"],
        steps=entry["steps"],
        uneven="released",
        stop_early=False,
        **extra,
    )
    return sample(policy, batch, config, noise or KeyedNoise(0, batch.sample), Record()), prompt


def assert_same_states(policy, path: Trajectory, prompt: Tensor, recorded: Tensor) -> None:
    mine, theirs = states(path, prompt, policy.special.mask), distinct(recorded)
    assert len(mine) == len(theirs)
    for step, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        assert torch.equal(a, b), f"state {step} differs"


@pytest.mark.parametrize("entry", entries(("low_confidence_gen", "d1_", "stabledrl_")), ids=lambda e: e["file"])
def test_greedy_runs_equal_step_by_step(policy, entry) -> None:
    file = load_file(FOLDER / f"{entry['file']}.safetensors")
    path, prompt = run(policy, entry, file)
    assert_same_states(policy, path, prompt, file["states"])
    final = torch.cat([prompt, path.tokens], 1)
    assert torch.equal(final, file["final"])


@pytest.mark.parametrize("entry", entries(("low_confidence_gen",)), ids=lambda e: e["file"])
def test_commit_log_probs_equal_the_recorded_confidence(policy, entry) -> None:
    file = load_file(FOLDER / f"{entry['file']}.safetensors")
    path, prompt = run(policy, entry, file)
    calls = path.commit_step.long()  # the reference's calls that commit nothing are left out
    changed = (file["states"][1:] != file["states"][:-1]).any(-1).any(-1)
    recorded = file["confidence"][changed][:, :, prompt.shape[1] :]
    expected = recorded.gather(0, calls[None]).squeeze(0)
    torch.testing.assert_close(path.commit_logp.exp(), expected, atol=1e-4, rtol=0)


def test_left_padding_stays_bidirectional(policy) -> None:
    (entry,) = entries(("leftpad_bidirectional",))
    file = load_file(FOLDER / f"{entry['file']}.safetensors")
    path, prompt = run(policy, entry, file)
    assert_same_states(policy, path, prompt, file["states"])


def test_the_accidental_causal_run_is_not_copied(policy) -> None:
    (entry,) = entries(("leftpad_causal",))
    file = load_file(FOLDER / f"{entry['file']}.safetensors")
    path, prompt = run(policy, entry, file)
    assert not torch.equal(torch.cat([prompt, path.tokens], 1), file["final"])


@pytest.mark.parametrize("entry", entries(("cfg",)), ids=lambda e: e["file"])
def test_classifier_free_guidance(policy, entry) -> None:
    file = load_file(FOLDER / f"{entry['file']}.safetensors")
    path, prompt = run(policy, entry, file, guidance=entry["cfg_scale"])
    assert_same_states(policy, path, prompt, file["states"])


@pytest.mark.parametrize("entry", entries(("random_",)), ids=lambda e: e["file"])
def test_random_order_with_recorded_draws(policy, entry) -> None:
    file = load_file(FOLDER / f"{entry['file']}.safetensors")
    noise = Recorded(order_draws=file["rand_confidence"], prompt_length=file["prompt"].shape[1])
    path, prompt = run(policy, entry, file, noise, remasking="random")
    assert_same_states(policy, path, prompt, file["states"])


def test_temperature_with_recorded_noise(policy) -> None:
    (entry,) = entries(("temperature",))
    file = load_file(FOLDER / f"{entry['file']}.safetensors")
    noise = Recorded(token_draws=file["noise_float64"], prompt_length=file["prompt"].shape[1])
    path, prompt = run(policy, entry, file, noise, temperature=entry["temperature"])
    assert_same_states(policy, path, prompt, file["states"])


def test_transfer_schedule() -> None:
    table = json.loads((FOLDER / "num_transfer_tokens.json").read_text())
    for row in table["single"]:
        assert schedule(row["mask_count"], row["steps"]) == row["llada"]


FAST = GOLDEN / "samplers" / "fast_dllm"


@pytest.mark.parametrize(
    "file", sorted(FAST.glob("generate_gen*.safetensors")) if FAST.is_dir() else [], ids=lambda f: f.stem
)
def test_threshold_parallel_decoding(policy, file: Path) -> None:
    index = {e["file"]: e for e in json.loads((FAST / "index.json").read_text())}
    entry, data = index[file.stem], load_file(file)
    prompt = data["prompt"]
    batch = PromptBatch(ids=prompt, real=torch.ones_like(prompt, dtype=torch.bool), sample=torch.arange(len(prompt)))
    threshold = entry["threshold"]
    config = SamplerConfig(
        gen_length=entry["gen_length"],
        block_length=entry["block_length"],
        steps=None if threshold else entry["steps"],
        threshold=threshold,
        uneven="released",
        stop_early=False,
    )
    path = sample(policy, batch, config, KeyedNoise(0, batch.sample))
    assert torch.equal(torch.cat([prompt, path.tokens], 1), data["final"])


def cached_runs() -> list[dict]:
    index = json.loads((FAST / "index.json").read_text()) if FAST.is_dir() else []
    named = [e for e in index if e["file"] and "_cache_" in e["file"]]
    return [e for e in named if (FAST / f"{e['file']}.safetensors").is_file()]


@pytest.mark.parametrize("entry", cached_runs(), ids=lambda e: e["file"])
def test_prefix_and_dual_caches_equal_the_released_ones(policy, entry: dict) -> None:
    """Every pass sees the same input and the same probabilities; the released code runs full blocks once more."""
    data, mask = load_file(FAST / f"{entry['file']}.safetensors"), policy.special.mask
    prompt = data["prompt"]
    batch = PromptBatch(ids=prompt, real=torch.ones_like(prompt, dtype=torch.bool), sample=torch.arange(len(prompt)))
    config = SamplerConfig(
        gen_length=entry["gen_length"],
        block_length=entry["block_length"],
        steps=None if entry["threshold"] else entry["steps"],
        threshold=entry["threshold"],
        uneven="released",
        stop_early=False,
        cache="dual" if "dual" in entry["file"] else "prefix",
    )
    path = sample(policy, batch, config, KeyedNoise(0, batch.sample))
    assert torch.equal(torch.cat([prompt, path.tokens], 1), data["final"])
    calls = sorted({name.split(".")[0] for name in data if name.startswith("call")})
    begin, step, block, total = 0, 0, entry["block_length"], prompt.shape[1] + entry["gen_length"]
    for call in calls:
        inputs, confidence = data[f"{call}.input_ids"][0], data[f"{call}.confidence64"][0]
        if len(inputs) == total:  # the call that refreshes the cache, at the first block with a MASK
            begin = (int((inputs == mask).nonzero()[0]) - prompt.shape[1]) // block * block + prompt.shape[1]
        start = 0 if len(inputs) == total else begin
        state = torch.where((path.commit_step < step) & (path.commit_step >= 0), path.tokens, mask)
        state = torch.cat([prompt, state], 1)[0]
        assert torch.equal(state[start : start + len(inputs)], inputs), f"input of {call}"
        if not bool((state[begin : begin + block] == mask).any()):
            continue
        revealed = (path.commit_step[0] == step).nonzero().squeeze(1)
        expected = confidence[prompt.shape[1] + revealed - start].to(torch.float32)
        torch.testing.assert_close(path.commit_logp[0, revealed].exp(), expected, atol=1e-4, rtol=0, msg=call)
        step += 1
    assert path.passes.tolist() == [step]
