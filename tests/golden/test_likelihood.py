"""Likelihood proxies against values recorded from the authors' code on a tiny LLaDA, on the recorded noisy batches.

Errors caught: 1/beta missing; tau inverted; omega on the wrong bound; draws summed; padding attended; hidden tokens in
the input; one-shot completion of the next state; tokens of the next pass; top-k of the lowest entropy.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from maskgrad.algorithms import selection
from maskgrad.diffusion import trajectory as records_of
from maskgrad.diffusion.sampler import KeyedNoise, Record, sample
from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.likelihood import bounds, views
from maskgrad.likelihood.score import score, score_rows
from maskgrad.models.load import load_policy
from maskgrad.records import MaskedViews, PromptBatch, RolloutBatch

GOLDEN = Path(__file__).parents[2].parent / "shared" / "golden"
FOLDER = GOLDEN / "likelihood"
INDEX = json.loads((FOLDER / "index.json").read_text()) if FOLDER.is_dir() else {}
LOGP = {"rtol": 0, "atol": 1e-4}

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="golden data (../shared/golden) is not here")


@pytest.fixture(scope="module")
def policy():
    return load_policy(GOLDEN / "models" / "llada_tiny" / "base")


def files(pattern: str) -> list:
    found = sorted(FOLDER.glob(f"{pattern}.safetensors"))
    names = [str(f.relative_to(FOLDER)).removesuffix(".safetensors") for f in found]
    return [pytest.param(n, id=n.split("/")[-1]) for n in names if n in INDEX]


def inputs() -> RolloutBatch:
    file = load_file(FOLDER / "inputs.safetensors")
    tokens = torch.cat([file["prompt_ids"], file["completion_ids"]], 1)
    real = torch.cat([file["prompt_mask"].bool(), torch.ones_like(file["completion_ids"], dtype=torch.bool)], 1)
    return RolloutBatch(
        tokens=tokens,
        attend=real,
        live=file["completion_mask"].bool(),
        group=torch.arange(4),
        sample=torch.arange(4),
        reward=torch.zeros(4),
    )


@pytest.mark.parametrize("name", files("d1_mean_field_*"))
def test_mean_field(policy, name: str) -> None:
    """Token log-probs of the hidden completion, at and behind the stop token too, with and without guidance."""
    file, batch = load_file(FOLDER / f"{name}.safetensors"), inputs()
    hidden = (file["perturbed"] == policy.special.mask).transpose(0, 1)
    assert bool(hidden[:, :, 6:].all())
    shape = views.mean_field(batch, 0, p_prompt=INDEX[name]["p_mask_prompt"], draws=2)
    scored = torch.ones_like(shape.scored)
    guidance = INDEX[name]["cfg_scale"]
    seen = MaskedViews(hidden=hidden, scored=scored, weight=shape.weight, unit=shape.unit, units=16, guidance=guidance)
    logp = score(policy, batch, seen, 3)
    torch.testing.assert_close(logp.transpose(0, 1), file["per_token_logps"], **LOGP)
    lower = bounds.token_units(logp, seen).lower
    torch.testing.assert_close(lower, file["per_token_logps"].mean(0), **LOGP)


def noisy_views(policy, batch: RolloutBatch, noisy: Tensor) -> MaskedViews:
    """Recorded noisy copies [B,N,T] as views: hidden where the token became MASK, scored where that place is live."""
    hidden = (noisy == policy.special.mask) & (batch.tokens[:, None] != policy.special.mask)
    assert torch.equal(torch.where(hidden, policy.special.mask, batch.tokens[:, None]), noisy)
    return views.sequence_views(hidden, hidden[:, :, batch.prompt_length :] & batch.live[:, None])


class LogitGradients:
    """Keeps the logits that the scorer reads, with their gradient."""

    def __init__(self, policy):
        self.policy, self.logits_of, self.seen = policy, policy.logits, []

    def __enter__(self):
        def logits(hidden: Tensor) -> Tensor:
            out = self.logits_of(hidden.detach())
            out = out.detach().requires_grad_(True)
            self.seen.append(out)
            return out

        self.policy.logits = logits
        return self

    def __exit__(self, *_):
        del self.policy.logits


@pytest.mark.parametrize("name", files("spg/spg_[0-9]*"))
def test_spg_bounds(policy, name: str) -> None:
    """ELBO for positive samples, ELBO | EUBO | mix | zero for negative ones, StableDRL's copy, and where recorded the
    gradient of the sum with respect to the completion logits."""
    args, file = INDEX[name]["args"], load_file(FOLDER / f"{name}.safetensors")
    batch = inputs()
    setting = {"kind": args["logp_estimation"], "beta": args["eubo_beta"], "omega": args["mix_weight"]}
    for i, noisy in enumerate(file["perturbed"]):
        seen = noisy_views(policy, batch, noisy)
        logp = score(policy, batch, seen, 5)
        recorded = torch.where(seen.scored, file["token_logps_of_targets"][i], 0.0)
        torch.testing.assert_close(logp, recorded, **LOGP)
        found = bounds.sandwich_units(logp, seen, batch.live, **setting)
        torch.testing.assert_close(found.lower[:, 0], file["positive"][i], **LOGP)
        torch.testing.assert_close(found.upper[:, 0], file["negative"][i], **LOGP)
        mixed = torch.where(file["mixed_reward_mask"], found.lower[:, 0], found.upper[:, 0])
        torch.testing.assert_close(mixed, file["mixed"][i], **LOGP)
        torch.testing.assert_close(found.lower[:, 0], file["stabledrl_elbo"][i], **LOGP)
        torch.testing.assert_close(mixed, file["stabledrl_bound_mixed"][i], **LOGP)
    if "grad_of_mixed_sum_wrt_logits_completion" in file:
        check_logit_gradient(policy, batch, file, setting)


def check_logit_gradient(policy, batch: RolloutBatch, file: dict[str, Tensor], setting: dict) -> None:
    seen = noisy_views(policy, batch, file["perturbed"][0])
    row, view = seen.scored.any(-1).nonzero(as_tuple=True)
    with LogitGradients(policy) as kept:
        values = score_rows(policy, batch, seen, row, view)
    logp = torch.zeros(seen.scored.shape).index_put((row, view), values)
    found = bounds.sandwich_units(logp, seen, batch.live, **setting)
    torch.where(file["mixed_reward_mask"], found.lower[:, 0], found.upper[:, 0]).sum().backward()
    (logits,) = [x for x in kept.seen if x.grad is not None]
    wanted = file["grad_of_mixed_sum_wrt_logits_completion"][0]
    full = torch.zeros(*seen.scored.shape, logits.shape[-1])
    full[seen.scored] = logits.grad
    torch.testing.assert_close(full[: len(wanted)], wanted, rtol=1e-3, atol=1e-4)


def check_spg_left_padded(policy, name: str) -> None:
    """The same with padded prompts and bidirectional attention (the causal value is disputed)."""
    file, args = load_file(FOLDER / f"{name}.safetensors"), INDEX[name]["args"]
    base = inputs()
    prompt = file["prompt_mask"].bool()
    batch = RolloutBatch(
        tokens=file["ids"],
        attend=torch.cat([prompt, torch.ones(4, 16, dtype=torch.bool)], 1),
        live=base.live,
        group=base.group,
        sample=base.sample,
        reward=base.reward,
    )
    noisy = file["perturbed"].view(4, 2, 22)
    seen = noisy_views(policy, batch, noisy)
    setting = {"kind": args["logp_estimation"], "beta": args["eubo_beta"], "omega": args["mix_weight"]}
    found = bounds.sandwich_units(score(policy, batch, seen, 100), seen, batch.live, **setting)
    mixed = torch.where(file["reward_mask"], found.lower[:, 0], found.upper[:, 0])
    torch.testing.assert_close(mixed, file["value_with_bidirectional_dllm_model"][0], **LOGP)


if LEFT_PADDED := files("spg/spg_leftpad*"):  # not in every copy of the data
    test_spg_left_padded = pytest.mark.parametrize("name", LEFT_PADDED)(check_spg_left_padded)


# --- EGSPO's trajectory ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=files("egspo/trajectory_*"))
def run(policy, request):
    """(index entry, recorded file, our batch) of the same greedy run."""
    entry, file = INDEX[request.param], load_file(FOLDER / f"{request.param}.safetensors")
    config = sampler_of(entry)
    prompt = file["prompt_ids"]
    rows = torch.arange(len(prompt))
    real = torch.ones_like(prompt, dtype=torch.bool)
    prompts = PromptBatch(ids=prompt, real=real, sample=rows)
    path = sample(policy, prompts, config, KeyedNoise(0, rows), Record(one_shot=True))
    steps = torch.arange(entry["steps"]).expand(len(prompt), -1)
    batch = RolloutBatch(
        tokens=torch.cat([prompt, path.tokens], 1),
        attend=torch.cat([real, torch.ones_like(path.tokens, dtype=torch.bool)], 1),
        live=torch.ones_like(path.tokens, dtype=torch.bool),
        group=rows,
        sample=rows,
        reward=torch.zeros(len(prompt)),
        trajectory=path,
        selected=steps,
        selected_weight=torch.ones(steps.shape),
    )
    return entry, file, batch


def sampler_of(entry: dict) -> SamplerConfig:
    return SamplerConfig(
        gen_length=entry["gen_length"],
        block_length=entry["block_length"],
        steps=entry["steps"],
        temperature=entry["temperature"],
        stop_early=False,
    )


def test_trajectory_states(policy, run) -> None:
    """Every recorded state is rebuilt from the commit map."""
    _, file, batch = run
    canvas = file["trajectory_ids"][:, :, batch.prompt_length :].transpose(0, 1)
    steps = torch.arange(canvas.shape[1]).expand(len(canvas), -1)
    hidden = records_of.hidden_before(batch.trajectory, steps)
    assert torch.equal(torch.where(hidden, policy.special.mask, batch.completion[:, None]), canvas)


def test_one_shot_completions(run) -> None:
    """Greedy completions of every state, revealed tokens kept; the last one is the final canvas."""
    _, file, batch = run
    wanted = file["greedy_completions"][:, :, batch.prompt_length :].transpose(0, 1)
    assert torch.equal(records_of.one_shot_at(batch.trajectory, batch.selected), wanted[:, :-1])
    assert torch.equal(batch.completion, wanted[:, -1])


def test_step_entropies_and_top_steps(run) -> None:
    """Mean entropy of the revealed positions per pass, and the three passes where it is largest."""
    _, file, batch = run
    entropy = selection.step_entropy(batch.trajectory, "mean_revealed", "revealed")
    torch.testing.assert_close(entropy, file["entropy_per_step"], rtol=1e-4, atol=1e-4)
    steps, _ = selection.select_steps("topk", entropy, batch.trajectory.revealed > 0, 3, batch.sample, 0)
    assert torch.equal(steps, file["high_entropy_steps_top3"])


def test_revealed_log_probs(policy, run) -> None:
    """Untempered log-probs of the revealed tokens at the state before each pass: per token, per step, top 3."""
    entry, file, batch = run
    seen = views.selected_steps(batch, sampler_of(entry), "revealed_untempered")
    logp = score(policy, batch, seen, 7)
    per_token = logp[seen.scored].view(*seen.scored.shape[:2], -1)  # [B,S,n], by position
    torch.testing.assert_close(
        per_token.sort(-1).values, file["logps_at_unmask"].transpose(0, 1).sort(-1).values, **LOGP
    )
    found = bounds.step_units(logp, seen)
    value = found.lower if entry["logps_aggregation_mode"] == "sum" else found.lower / found.size
    torch.testing.assert_close(value.T, file["next.logps_all_steps_2d_path"], rtol=0, atol=2e-4)
    top = value.gather(1, file["high_entropy_steps_top3"]).T
    torch.testing.assert_close(top, file["next.logps_top3_steps"], rtol=0, atol=2e-4)
