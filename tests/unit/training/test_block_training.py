"""Training on block-causal models: every method, supervised training, both grids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from maskgrad.algorithms import ALGORITHMS, SPG, StableDRL
from maskgrad.algorithms.composed import Composed
from maskgrad.algorithms.objective import Objective
from maskgrad.algorithms.sockets import BlockBoundView, Bound
from maskgrad.config import RunConfig, SftConfig, merge, run_config, sft_config
from maskgrad.errors import UserError
from maskgrad.models.families import SDAR
from maskgrad.models.load import load_policy, new_policy
from maskgrad.reporting.journal import read, without_time
from maskgrad.training import loop
from maskgrad.training.corpus import draw_block_masks, masked_loss
from maskgrad.training.loop import TrainingRun
from maskgrad.training.sft import SupervisedRun

BASE = "maskgrad:base_sudoku_block_tiny"
ARCHITECTURE: dict[str, Any] = {
    "model_type": "sdar",
    "block_size": 4,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
METHODS: dict[str, dict[str, Any]] = {
    name: {} for name in ("stabledrl", "spg", "espo", "grpo_elbo", "wd1", "unigrpo", "diffu_grpo", "egspo", "egspo_sa")
} | {"tracerl": {"shrink": 1}, "dipo": {"shrink": 1}, "composed": {}}


def sft(**settings: Any) -> SftConfig:
    light = {
        "model": {"architecture": ARCHITECTURE},
        "batch": 16,
        "stages": [{"updates": 100, "lr": 0.01, "warmup_updates": 5}],
        "eval": {"count": 2},
    }
    return sft_config("base_sudoku_block_tiny", merge(light, settings))


def config(method: str, **settings: Any) -> RunConfig:
    light = {
        "model": {"path": BASE},
        "task": {"reward": "cells"},
        "rollout": {"prompts_per_batch": 2, "sampler": {"block_length": 4, "steps": 8}},
        "eval": {"count": 2},
        "train": {"max_updates": 2, "eval_every": 0, "checkpoint_every": 100},
        "algorithm": METHODS[method],
    }
    return run_config("smoke", merge(light, settings), method)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_steps_on_a_block_model(method: str, tmp_path: Path) -> None:
    before = dict(load_policy(BASE).named_parameters())
    run = TrainingRun.new(config(method), tmp_path / "run")
    run.start()
    updates = [r for r in read(tmp_path / "run" / "journal.jsonl") if r["event"] == "update"]
    assert len(updates) == 2 and not any(r["skipped"] for r in updates)
    assert all(r["grad_norm"] > 0 for r in updates)
    assert any(not torch.equal(p, before[name]) for name, p in run.policy.named_parameters())


def test_the_grid_of_the_rollouts_is_the_grid_of_the_policy_and_of_the_reference(tmp_path: Path) -> None:
    settings = {"rollout": {"sampler": {"grid": "response"}}, "algorithm": {"beta": 0.04}}
    run = TrainingRun.new(config("diffu_grpo", **settings), tmp_path / "run")
    assert run.reference is not None
    assert (run.policy.grid, run.reference.grid) == ("response", "response")
    run.start()


def test_a_block_length_of_another_model_is_refused(tmp_path: Path) -> None:
    settings = {"rollout": {"sampler": {"block_length": 8}}}
    with pytest.raises(UserError, match="block_length 8 disagrees"):
        TrainingRun.new(config("stabledrl", **settings), tmp_path / "run")


@pytest.mark.parametrize(
    ("method", "settings", "words"),
    [
        ("stabledrl", {"mode": "all"}, "algorithm.mode 'all' has no effect on a model that is block-causal"),
        ("stabledrl", {"p_context": 0.3}, "algorithm.p_context 0.3 .*blocks of 4.*set its default 0.15"),
        ("stabledrl", {"score_context": False}, "algorithm.score_context False has no effect"),
        ("spg", {"block": 8}, "algorithm.block 8 has no effect"),
        ("spg", {"blocks": "modulo"}, "algorithm.blocks 'modulo' has no effect"),
        ("grpo_elbo", {"proxy": "exact_count"}, "algorithm.proxy 'exact_count' has no effect"),
    ],
)
def test_settings_of_full_attention_are_refused(
    method: str, settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    run = config(method, algorithm=settings)
    with pytest.raises(UserError, match=words):
        TrainingRun.new(run, tmp_path / "run")
    full = ALGORITHMS[method].model_validate(run.algorithm.model_dump())
    full.check_attention(None)


def test_a_composed_view_of_full_attention_is_refused() -> None:
    view, bound = BlockBoundView(mode="all"), Bound(name="sandwich")
    surrogate = Objective(form="score", coef="length_mean", weights="none")
    method = Composed(view=view, bound=bound, surrogate=surrogate)
    method.check_attention(None)
    with pytest.raises(UserError, match=r"algorithm.view.mode 'all' has no effect"):
        method.check_attention(4)


def test_settings_that_say_what_is_done_anyway_are_accepted() -> None:
    StableDRL(block=4, p_context=0.0).check_attention(4)
    SPG(compat="released").check_attention(4)
    with pytest.raises(UserError, match=r"algorithm.pairing 'complementary' has no effect on a model with full"):
        StableDRL(pairing="complementary").check_attention(None)


def test_a_block_run_resumes_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted inside a rollout batch, so that the buffer, with the blocks of its rows, comes from the file."""
    settings = {"train": {"max_updates": 4, "checkpoint_every": 1}, "rollout": {"sampler": {"grid": "response"}}}
    run = config("stabledrl", algorithm={"epochs": 3}, **settings)
    TrainingRun.new(run, tmp_path / "whole").start()
    real = loop.update

    def dying(*arguments: Any) -> dict[str, Any]:
        if arguments[6] == 2:  # the step
            raise RuntimeError("the process ends")
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "update", dying)
        with pytest.raises(RuntimeError, match="the process ends"):
            TrainingRun.new(run, tmp_path / "torn").start()
    again = TrainingRun.reopen(tmp_path / "torn")
    again.resume()
    assert again.policy.grid == "response"
    found, wanted = (tmp_path / name for name in ("torn", "whole"))
    weights = [(folder / "final" / "model.safetensors").read_bytes() for folder in (found, wanted)]
    assert weights[0] == weights[1]
    assert without_time(read(found / "journal.jsonl")) == without_time(read(wanted / "journal.jsonl"))


@pytest.mark.parametrize(
    "settings",
    [{}, {"objective": "time"}, {"padding": "first_eos", "sampler": {"gen_length": 19}}],
    ids=["count", "time", "first_eos"],
)
def test_supervised_training_learns(settings: dict[str, Any], tmp_path: Path) -> None:
    run = SupervisedRun.new(sft(**settings), tmp_path / "run")
    run.train()
    losses = [r["loss"] for r in read(tmp_path / "run" / "journal.jsonl") if r["event"] == "update"]
    assert losses[-1] < losses[0] - 0.1
    again = load_policy(tmp_path / "run" / "final")
    assert again.block == 4 and again.special.mask == 0


def test_the_loss_is_the_block_bound_per_token() -> None:
    """Against a loop over blocks, each in a pass of its own with only the clean text before it."""
    policy = new_policy(SDAR, {**ARCHITECTURE, "vocab_size": 20, "mask_token_id": 19, "eos_token_id": 18}, None, 0)
    draws = torch.Generator().manual_seed(0)
    prompt, answer = (torch.randint(0, 17, (3, n), generator=draws) for n in (5, 7))
    real = torch.ones_like(prompt, dtype=torch.bool)
    attend = torch.ones(3, 12, dtype=torch.bool)
    block = policy.block_numbers(attend, 5)[:, 5:] - 1
    allowed = torch.ones_like(answer, dtype=torch.bool)
    hidden, weight = draw_block_masks("count", allowed, block, torch.arange(3), 0)
    loss = masked_loss(policy, prompt, real, answer, hidden, hidden, weight)
    total = 0.0
    for row in range(3):
        for b in block[row].unique().tolist():
            inside = block[row] == b
            n, count = int(inside.sum()), int((inside & hidden[row]).sum())
            assert count >= 1
            end = 5 + int(inside.nonzero().max()) + 1
            tokens = torch.cat([prompt[row], torch.where(hidden[row] & inside, 19, answer[row])])[None, :end]
            with torch.no_grad():
                logp = policy.logits(policy.hidden(tokens)[0, 5:]).log_softmax(-1)
            where = (inside & hidden[row]).nonzero()[:, 0]
            total -= float(logp[where, answer[row, where]].sum()) * n / count / 7
    assert abs(float(loss.detach()) - total / 3) < 1e-5
