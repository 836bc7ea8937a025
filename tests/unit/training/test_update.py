"""Updates: the finite guard inside a run, micro-batches that change nothing, groups without signal."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from maskgrad.cli import main
from maskgrad.config import RunConfig, dump
from maskgrad.likelihood import score as scorer
from maskgrad.models.policy import Policy
from maskgrad.records import LossSum
from maskgrad.reporting.journal import read
from maskgrad.training import checkpoint, loop
from maskgrad.training import update as updating
from maskgrad.training.loop import TrainingRun, TrainingStopped

METHODS: dict[str, dict[str, Any]] = {
    "egspo": {},
    "egspo_sa": {},
    "stabledrl": {"algorithm": {"draws": 3}},
    "diffu_grpo": {"algorithm": {"beta": 0.04}},
}
FAST = {"eval": {"count": 2}, "train": {"eval_every": 0, "checkpoint_every": 100}}


def weights(policy: Policy) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in policy.named_parameters()}


def spoil(monkeypatch: pytest.MonkeyPatch, how: str, numbers: set[int]) -> None:
    """Make the updates `numbers` (from 1) non-finite."""
    real_update, real_loss, real_backward = updating.update, updating.policy_loss, updating._backward
    now = [0]

    def update(*arguments: Any) -> dict[str, Any]:
        now[0] = arguments[6] + 1  # the step
        return real_update(*arguments)

    def policy_loss(*arguments: Any, **keywords: Any) -> LossSum:
        loss = real_loss(*arguments, **keywords)
        return replace(loss, total=loss.total * math.nan) if how == "loss" and now[0] in numbers else loss

    def backward(policy: Policy, *arguments: Any) -> LossSum:
        if how == "score" and now[0] in numbers:
            raise scorer.NonFiniteScore("a scored log-prob is not finite")
        loss = real_backward(policy, *arguments)
        if how == "gradient" and now[0] in numbers:
            next(p for p in policy.parameters() if p.grad is not None).grad[0] = math.inf  # type: ignore[index]
        return loss

    monkeypatch.setattr(loop, "update", update)
    monkeypatch.setattr(updating, "policy_loss", policy_loss)
    monkeypatch.setattr(updating, "_backward", backward)


@pytest.mark.parametrize("how", ["loss", "gradient", "score"])
def test_a_non_finite_update_is_skipped_counted_and_kept(
    how: str, smoke: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, how, {2, 3, 5})
    run = TrainingRun.new(smoke(None, {**FAST, "train": {**FAST["train"], "max_updates": 6}}), tmp_path / "run")
    history = [weights(run.policy)]
    one_update = run._one_update

    def watch() -> None:
        one_update()
        history.append(weights(run.policy))

    monkeypatch.setattr(run, "_one_update", watch)
    run.start()
    for number in range(1, 7):
        same = all(torch.equal(history[number][k], v) for k, v in history[number - 1].items())
        assert same == (number in {2, 3, 5}), f"update {number}"
    assert all(bool(p.isfinite().all()) for p in run.policy.parameters())
    records = read(tmp_path / "run" / "journal.jsonl")
    updates = {r["step"]: r for r in records if r["event"] == "update"}
    assert {step for step, r in updates.items() if r["skipped"]} == {2, 3, 5}
    assert [r["message"] for r in records if r["event"] == "warning"] == [
        f"update {n} was not finite and was skipped" for n in (2, 3, 5)
    ]
    if how == "score":
        assert updates[2]["skip_reason"] == "a scored log-prob is not finite"
    assert (run.progress.skipped, run.progress.skipped_in_row) == (3, 0)
    saved = sorted((tmp_path / "run" / "skipped").iterdir())
    assert [p.name for p in saved] == ["step-000002.pt", "step-000003.pt", "step-000005.pt"]
    kept = torch.load(saved[0], weights_only=False)
    assert len(kept.batch) == 8 and kept.batch.tokens.shape == (8, 17 + 16)


def test_too_many_skipped_updates_in_a_row_end_the_run(
    smoke: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, "loss", {3, 5, 6})
    settings = {"eval": {"count": 2}, "train": {"max_skipped_in_row": 2, "max_updates": 9, "eval_every": 0}}
    run = TrainingRun.new(smoke(None, settings), tmp_path / "run")
    with pytest.raises(TrainingStopped, match="2 updates in a row were not finite") as caught:
        run.start()
    assert str(tmp_path / "run" / "skipped") in str(caught.value) and "optim.lr" in str(caught.value)
    assert run.progress.step == 6
    assert checkpoint.steps(tmp_path / "run")[-1][0] == 6, "the last good weights are saved"
    good = load_file(tmp_path / "run" / "checkpoints" / "step-000004" / "model" / "model.safetensors")
    last = load_file(tmp_path / "run" / "checkpoints" / "step-000006" / "model" / "model.safetensors")
    assert all(torch.equal(good[name], last[name]) for name in good)
    assert not (tmp_path / "run" / "final").exists()


def test_a_stopped_run_exits_with_1(
    smoke: Callable[..., RunConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spoil(monkeypatch, "gradient", set(range(100)))
    (tmp_path / "smoke.yaml").write_text(dump(smoke(None, {"eval": {"count": 2}})))
    assert main(["train", str(tmp_path / "smoke.yaml"), "--out", str(tmp_path / "run"), "--quiet"]) == 1
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and "3 updates in a row were not finite" in captured.err
    assert captured.out.count("was not finite and was skipped") == 3


def gradients(config: RunConfig, out: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Tensor]]:
    """Gradients of the three updates of one rollout batch, each before clipping."""
    seen: list[dict[str, Tensor]] = []
    real = updating.optim.clip_gradients

    def clip(model: Policy, limit: float) -> float:
        seen.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
        return real(model, limit)

    with monkeypatch.context() as patch:
        patch.setattr(updating.optim, "clip_gradients", clip)
        TrainingRun.new(config, out).start()
    return seen


@pytest.mark.parametrize("method", METHODS)
def test_micro_batches_never_change_the_update(
    method: str, smoke: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 takes the two-pass path for every view, 5 leaves a smaller rest, 1000 takes the direct path."""
    found = {}
    for micro in (1000, 5, 1):
        train = {"micro_batch": micro, "max_updates": 3, "eval_every": 0, "checkpoint_every": 100}
        settings = {**METHODS[method], "eval": {"count": 1}, "train": train, "optim": {"lr": 1e-6}}
        settings["rollout"] = {"micro_batch": min(micro, 8)}
        found[micro] = gradients(smoke(method, settings), tmp_path / str(micro), monkeypatch)
    whole = found.pop(1000)
    assert len(whole) == 3 and any(bool(g.any()) for g in whole[0].values())
    for micro, several in found.items():
        for number, (mine, theirs) in enumerate(zip(several, whole, strict=True)):
            assert mine.keys() == theirs.keys()
            scale = max(float(g.abs().max()) for g in theirs.values())
            for name, value in theirs.items():
                torch.testing.assert_close(
                    mine[name],
                    value,
                    rtol=1e-4,
                    atol=1e-6 + 1e-5 * scale,
                    msg=lambda m, w=(micro, number, name): f"micro_batch {w[0]}, update {w[1]}, {w[2]}: {m}",
                )


@pytest.mark.parametrize("method", ["egspo", "stabledrl", "diffu_grpo"])
def test_groups_with_equal_rewards_give_no_gradient(
    method: str, smoke: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No solved puzzle at all: rewards are all 0, and the weights stay as they are."""
    monkeypatch.setattr("maskgrad.training.collect.decode", lambda policy, tokens: ["" for _ in tokens])
    settings = {"task": {"reward": "solved"}, "eval": {"count": 1}, "train": {"max_updates": 3, "eval_every": 0}}
    run = TrainingRun.new(smoke(method, settings), tmp_path / "run")
    before = weights(run.policy)
    run.start()
    records = read(tmp_path / "run" / "journal.jsonl")
    assert [r["equal_reward_groups"] for r in records if r["event"] == "rollout"] == [2]
    assert all(r["loss"] == 0 and not r["skipped"] for r in records if r["event"] == "update")
    assert all(torch.equal(before[k], v) for k, v in weights(run.policy).items())


def test_the_journal_of_an_update_has_the_schedule(smoke: Callable[..., RunConfig], tmp_path: Path) -> None:
    settings = {"eval": {"count": 1}, "train": {"max_updates": 4, "eval_every": 0, "checkpoint_every": 100}}
    TrainingRun.new(smoke(None, settings), tmp_path / "run").start()
    updates = [r for r in read(tmp_path / "run" / "journal.jsonl") if r["event"] == "update"]
    assert [r["step"] for r in updates] == [1, 2, 3, 4]
    assert [r["lr"] for r in updates] == pytest.approx([3e-4 * (1 - u / 4) for u in range(4)])
    assert [r["on_policy"] for r in updates] == [True, False, False, True]
