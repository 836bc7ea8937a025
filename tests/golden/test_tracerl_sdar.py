"""Block diffusion against values recorded from the authors' code on a tiny SDAR: SDAR's doubled training layout, and
TraceRL's slices with their loss and gradients.

Errors caught: a stair with `<=`; noisy blocks that see all noisy tokens; block numbers from the wrong end; slices
numbered over the canvas instead of inside a block; shrink counted in passes instead of distinct steps; KL left out.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from maskgrad.algorithms.base import count
from maskgrad.algorithms.surrogate import policy_loss
from maskgrad.algorithms.tracerl import TraceRL
from maskgrad.likelihood import block_views, bounds
from maskgrad.likelihood.score import active_views, score_rows
from maskgrad.models import attention
from maskgrad.models.load import load_policy
from maskgrad.models.policy import Policy
from maskgrad.models.staircase import pack
from maskgrad.records import MaskedViews, RolloutBatch, Trajectory

GOLDEN = Path(__file__).parents[2].parent / "shared" / "golden"
SDAR = GOLDEN / "models" / "sdar_tiny" / "base"
TRACE = GOLDEN / "likelihood" / "tracerl_sdar"
INDEX = json.loads((TRACE / "index.json").read_text()) if TRACE.is_dir() else {}
LOGITS, LOGP, GRAD = {"rtol": 0, "atol": 2e-4}, {"rtol": 0, "atol": 1e-4}, {"rtol": 1e-3, "atol": 1e-4}

pytestmark = pytest.mark.skipif(not INDEX, reason="golden data (../shared/golden) is not here")


def files(folder: Path, pattern: str) -> list:
    return [pytest.param(f, id=f.stem) for f in sorted(folder.glob(pattern))]


def samples(file: dict[str, Tensor]) -> list[slice]:
    """Columns of each sample in the recorded row; positions restart where a new one begins."""
    starts = (file["position_ids"][0] == 0).nonzero()[:, 0].tolist()
    return [slice(a, b) for a, b in zip(starts, [*starts[1:], file["x0"].shape[1]], strict=True)]


@pytest.mark.parametrize("path", files(SDAR, "doubled_*.safetensors"))
def test_doubled_layout(path: Path) -> None:
    """Mask, logits of both copies, and the loss with its gradients; samples packed in a row are rows here."""
    file, policy = load_file(path), load_policy(SDAR)
    total, ce, seen = torch.zeros(()), [], 0
    for part in samples(file):
        x0, noisy, masked = (file[name][:, part] for name in ("x0", "noisy", "masked"))
        start, width = int(file["prompt_mask"][0, part].sum()), x0.shape[1]
        attend, row = torch.ones_like(x0, dtype=torch.bool), torch.zeros(1, dtype=torch.int64)
        read = torch.ones(1, width - start, dtype=torch.bool)
        slots = pack(attend, policy.block_numbers(attend, start), row, read, "doubled")
        mask = attention.dense(slots.rule(), 1, 2 * width, 2 * width)
        here = torch.cat([torch.arange(width, 2 * width), torch.arange(width)])  # recorded order: noisy first
        there = slice(2 * part.start, 2 * part.stop)
        assert torch.equal(mask[0, 0][here][:, here], file["attention_mask"][0, there, there])
        assert not bool(file["attention_mask"][0, there, : 2 * part.start].any())
        tokens = slots.tokens(x0, noisy)
        assert torch.equal(tokens[:, here], file["concat_input_ids"][:, there])
        assert torch.equal(slots.place[:, here], file["concat_position_ids"][:, there])
        with torch.no_grad():
            logits = policy.logits(policy.states(tokens, mask, slots.place))
        torch.testing.assert_close(logits[:, here], file["logits"][:, there], **LOGITS)
        scored = masked[:, start:]
        logp = policy.logits(policy.staircase_at(x0, attend, noisy, row, scored)).log_softmax(-1)
        losses = -logp.gather(1, x0[:, start:][scored][:, None])[:, 0]
        rate = file["p_mask_of_masked_tokens"][seen : seen + len(losses)]
        seen += len(losses)
        ce.append((losses / rate).detach())
        total = total + (losses / rate).sum() / (file["labels"] != -100).sum()
    torch.testing.assert_close(torch.cat(ce), file["per_token_ce_over_p"], rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(total.detach(), file["training.loss"], rtol=1e-4, atol=0)
    total.backward()
    check_gradients(policy, file, "training.grad.", 9)


def check_gradients(policy: Policy, file: dict[str, Tensor], prefix: str, least: int) -> None:
    weights = policy.weights()
    names = [name for name in file if name.startswith(prefix)]
    assert len(names) >= least
    for name in names:
        grad = weights[name.removeprefix(prefix)].grad
        assert grad is not None
        torch.testing.assert_close(grad, file[name], **GRAD)


def recorded_batch(policy: Policy, file: dict[str, Tensor], name: str) -> RolloutBatch:
    tokens, commit = file["input_ids"], file["step_map"]
    policy.grid = "response"
    prompt = INDEX[name]["L0"]
    attend = torch.ones_like(tokens, dtype=torch.bool)
    attend[:, :prompt] = tokens[:, :prompt] != policy.special.pad
    zeros = torch.zeros(commit.shape)
    steps = torch.zeros(len(commit), 4)
    path = Trajectory(
        tokens=tokens[:, prompt:],
        commit_step=commit.to(torch.int16),
        commit_logp=zeros,
        passes=commit.amax(1) + 1,
        revealed=steps.to(torch.int16),
        masked=steps.to(torch.int16),
        rank_floor=steps,
        entropy_revealed=steps,
        entropy_masked=steps,
        joint_revealed=steps,
        joint_masked=steps,
    )
    numbers = policy.block_numbers(attend, prompt)[:, prompt:]
    return RolloutBatch(
        tokens=tokens,
        attend=attend,
        live=torch.ones_like(commit, dtype=torch.bool),
        group=torch.zeros(len(tokens), dtype=torch.int64),
        sample=torch.arange(len(tokens)),
        reward=torch.zeros(len(tokens)),
        trajectory=path,
        block=numbers - numbers[:, :1],
    )


def recorded_views(policy: Policy, batch: RolloutBatch, file: dict[str, Tensor]) -> tuple[MaskedViews, Tensor, Tensor]:
    """The recorded noisy copies as views, and the (row, view) of each recorded copy."""
    copies, length = file["extended_input_ids"], batch.live.shape[1]
    start = batch.prompt_length
    row = (copies[:, None, : start + length] == batch.tokens[None]).all(-1).to(torch.int64).argmax(1)
    view = torch.stack([(row[:i] == r).sum() for i, r in enumerate(row)])
    hidden = torch.zeros(len(batch), int(view.max()) + 1, start + length, dtype=torch.bool)
    scored = torch.zeros(len(batch), int(view.max()) + 1, length, dtype=torch.bool)
    hidden[row, view, start:] = copies[:, start + length :] == policy.special.mask
    scored[row, view] = file["p_mask"][:, start:]
    return block_views._token_views(batch, hidden[:, :, start:], scored), row, view


@pytest.mark.parametrize("path", files(TRACE, "TraceRL*.safetensors"))
def test_slices_are_numbered_inside_blocks(path: Path) -> None:
    file, policy = load_file(path), load_policy(SDAR)
    batch = recorded_batch(policy, file, path.stem)
    recorded, row, view = recorded_views(policy, batch, file)
    ours = block_views.block_slices(batch, shrink=2 if "shrink2" in path.stem else 1)
    assert torch.equal(ours.hidden[row, view], recorded.hidden[row, view])
    assert len(row) == int(ours.scored.any(-1).sum())
    if "postNone" in path.stem:  # otherwise the record drops padding, each slice its own
        assert torch.equal(ours.scored[row, view], recorded.scored[row, view])
        assert bool((ours.scored.sum(1) == 1).all())


@pytest.mark.parametrize("path", files(TRACE, "*.safetensors"))
def test_log_probs_loss_and_gradients(path: Path) -> None:
    """Layout, grid, slices, ratio, clip, k3 KL to the old policy and aggregation of the release, on its own masks."""
    file, policy = load_file(path), load_policy(SDAR)
    batch = recorded_batch(policy, file, path.stem)
    views, row, view = recorded_views(policy, batch, file)
    assert INDEX[path.stem]["L1"] == batch.live.shape[1]
    index = active_views(views)
    logp = torch.zeros(views.scored.shape).index_put(index, score_rows(policy, batch, views, *index))
    mask = file["p_mask"][:, batch.prompt_length :]
    start = batch.prompt_length
    torch.testing.assert_close(logp.detach()[row, view][mask], file["logps"][:, start:][mask], **LOGP)
    old = torch.zeros_like(logp.detach()).index_put((row, view), file["old_logps"][:, start:])
    old = torch.where(views.scored, old, 0.0)
    objective = TraceRL(aggregation="fixed_length", kl_sum=False, beta=0.01, shrink=1).objective()
    counts, total = count(batch, views), torch.zeros(())
    advantage = torch.zeros(len(batch), 1).index_put((row, torch.zeros_like(row)), file["advantages"])
    for n in range(views.scored.shape[1]):  # copies of a row may score the same place, each with its own ratio
        part = views.restrict((torch.arange(views.scored.shape[1]) == n).expand(len(batch), -1))
        part = replace(part, weight=torch.ones_like(part.weight))
        new, before = bounds.slice_units(logp, part), bounds.slice_units(old, part)
        total = total + policy_loss(objective, new, advantage, batch.group, batch.live, counts, old=before).total
    torch.testing.assert_close(total.detach(), file["loss"], rtol=1e-4, atol=1e-6)
    total.backward()
    check_gradients(policy, file, "grad.", 8)
