"""A LoRA run from the command line: the adapter alone is trained, saved, resumed to the bit, and evaluated."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from maskgrad.cli import main
from maskgrad.config import RunConfig, sft_config
from maskgrad.errors import UserError
from maskgrad.likelihood import score as scorer
from maskgrad.models import load_policy
from maskgrad.models.adapters import adapter_weights
from maskgrad.reporting.journal import read, without_time
from maskgrad.training import checkpoint, loop, sft
from maskgrad.training.loop import TrainingRun
from maskgrad.training.sft import SupervisedRun
from maskgrad.training.update import Prepared

BASE = "maskgrad:base_sudoku_tiny"
UPDATES = 5
SETTINGS: dict[str, Any] = {
    "model": {"lora": {"rank": 4}},
    "algorithm": {"beta": 0.04, "epochs": 2},
    "optim": {"lr": 0.003},
    "train": {"max_updates": UPDATES, "checkpoint_every": 1, "track_drift": True},
}


class Crash(RuntimeError):
    """Stands for the end of the process: nothing of ours catches it."""


def outcome(out: Path) -> tuple[bytes, list[dict[str, Any]]]:
    return (out / "final" / "adapter_model.safetensors").read_bytes(), without_time(read(out / "journal.jsonl"))


@pytest.fixture(scope="module")
def finished(smoke: Callable[..., RunConfig], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("lora") / "run"
    TrainingRun.new(smoke("diffu_grpo", SETTINGS), out).start()
    return out


def test_final_is_a_peft_folder_of_the_adapter_alone(finished: Path) -> None:
    names = {file.name for file in (finished / "final").iterdir()}
    assert names >= {"adapter_config.json", "adapter_model.safetensors", "sampler.json"}
    assert not names & {"model.safetensors", "config.json"}
    settings = json.loads((finished / "final" / "adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"], settings["base_model_name_or_path"]) == (4, 8.0, BASE)
    card = (finished / "final" / "README.md").read_text()
    assert f"LoRA adapter of `{BASE}`" in card and "`diffu_grpo`" in card and "maskgrad eval --model final" in card
    header = read(finished / "journal.jsonl")[0]
    policy = load_policy(finished / "final")
    trained = sum(tensor.numel() for tensor in adapter_weights(policy).values())
    assert header["adapted_modules"] == len(policy.adapter.modules) == 7 * len(policy.backbone.layers)
    assert header["trainable"] == trained < header["params"] / 4


def test_the_base_stays_and_the_adapter_moves(finished: Path) -> None:
    policy, base = load_policy(finished / "final"), load_policy(BASE)
    mine, theirs = policy.weights(), base.weights()
    assert set(mine) == set(theirs) and all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert all(tensor.abs().sum() > 0 for tensor in adapter_weights(policy).values())
    drift = [line["drift"] for line in read(finished / "journal.jsonl") if line["event"] == "update"]
    assert 0 < drift[0] < drift[-1]


@pytest.mark.parametrize("place", [2, 3])  # at and inside a rollout batch
def test_an_interrupted_run_resumes_to_the_bit(
    finished: Path, smoke: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    real = loop.update

    def dying(*arguments: Any) -> dict[str, Any]:
        if arguments[6] == place:  # the step
            raise Crash
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "update", dying)
        with pytest.raises(Crash):
            TrainingRun.new(smoke("diffu_grpo", SETTINGS), tmp_path / "run").start()
    torch.manual_seed(12345)
    TrainingRun.reopen(tmp_path / "run").resume()
    assert outcome(tmp_path / "run") == outcome(finished)


def test_the_reference_is_the_base_without_a_copy(
    smoke: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Prepared] = []
    real = loop.prepare
    monkeypatch.setattr(loop, "prepare", lambda *arguments: seen.append(real(*arguments)) or seen[-1])
    config = smoke("diffu_grpo", {**SETTINGS, "train": {"max_updates": 3, "checkpoint_every": 9}})
    run = TrainingRun.new(config, tmp_path / "run")
    assert run.reference is run.policy
    run.start()
    base, second = load_policy(BASE), seen[1]
    views = run.algorithm.views(second.batch, config.rollout.sampler, config.seed, 0)
    wanted = scorer.score(base, second.batch, views, config.train.micro_batch)
    assert torch.equal(second.reference[0], wanted)
    assert not torch.equal(second.reference[0], second.old[0])  # by then the adapter has moved


def test_an_exact_kl_is_to_the_base(smoke: Callable[..., RunConfig], tmp_path: Path) -> None:
    """Told from two networks: one run with the adapter switched off for the reference, one with the base beside it."""
    settings = {**SETTINGS, "algorithm": {"beta": 0.04, "kl": "exact", "minibatches": 1}, "train": {"max_updates": 3}}
    kls = []
    for name in ("one", "two"):
        run = TrainingRun.new(smoke("egspo", settings), tmp_path / name)
        if name == "two":
            run.reference = load_policy(BASE).requires_grad_(False)
        run.start()
        kls.append([line["kl"] for line in read(tmp_path / name / "journal.jsonl") if line["event"] == "update"])
    assert kls[0] == kls[1] and kls[0][0] == 0 < kls[0][2]
    finals = [(tmp_path / name / "final" / "adapter_model.safetensors").read_bytes() for name in ("one", "two")]
    assert finals[0] == finals[1]


def test_training_goes_on_with_an_adapter(finished: Path, smoke: Callable[..., RunConfig], tmp_path: Path) -> None:
    settings = {**SETTINGS, "model": {"adapter": str(finished / "final")}, "train": {"max_updates": 1}}
    run = TrainingRun.new(smoke("diffu_grpo", settings), tmp_path / "run")
    assert run.reference is not None and run.reference is not run.policy
    assert checkpoint.weights_hash(run.reference) == checkpoint.weights_hash(load_policy(finished / "final"))
    run.start()
    before, after = (adapter_weights(load_policy(out / "final")) for out in (finished, tmp_path / "run"))
    assert not all(torch.equal(before[name], after[name]) for name in before)
    with pytest.raises(UserError, match="set one of them"):
        smoke("diffu_grpo", {"model": {"adapter": "x", "lora": {"rank": 2}}})


def test_command_line(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    light = [
        "--train.max_updates",
        "1",
        "--eval.count",
        "4",
        "--rollout.prompts_per_batch",
        "2",
        "--model.lora.rank",
        "8",
    ]
    assert main(["train", "smoke", "--out", str(out), "--quiet", *light]) == 0
    result = tmp_path / "result.json"
    options = ["--task", "sudoku", "--limit", "4", "--json", str(result)]
    assert main(["eval", "--model", str(out / "final"), *options]) == 0
    assert json.loads(result.read_text())["n"] == 4
    assert main(["eval", "--model", BASE, "--adapter", str(out / "final"), *options]) == 0
    assert main(["sample", "--model", BASE, "--adapter", str(out / "final"), "--task", "sudoku", "--count", "1"]) == 0
    assert "->" in capsys.readouterr().out
    capsys.readouterr()
    assert main(["train", "smoke", "--out", str(tmp_path / "bad"), "--model.lora.targets", "[attn_out]", *light]) == 2
    assert "attn_out" in capsys.readouterr().err


def test_supervised_training_of_an_adapter_resumes_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {
        "model": {"path": BASE, "architecture": None, "characters": None, "lora": {"rank": 2}},
        "stages": [{"updates": 4, "lr": 1e-3}],
        "checkpoint_every": 2,
        "batch": 4,
        "eval": {"count": 4},
    }
    config = sft_config("base_sudoku_tiny", settings)
    SupervisedRun.new(config, tmp_path / "whole").train()
    real, calls = sft.optim.guarded_step, [0]

    def dying(*arguments: Any) -> bool:
        calls[0] += 1
        if calls[0] == 4:
            raise Crash
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(sft.optim, "guarded_step", dying)
        with pytest.raises(Crash):
            SupervisedRun.new(config, tmp_path / "torn").train()
    SupervisedRun.reopen(tmp_path / "torn").train()
    assert outcome(tmp_path / "torn") == outcome(tmp_path / "whole")
    with pytest.raises(UserError, match="an adapter needs a trained base"):
        sft_config("base_sudoku_tiny", {"model": {"lora": {"rank": 2}}})


def test_the_card_names_options_without_which_the_result_would_be_another(
    tmp_path: Path, smoke: Callable[..., RunConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    light = {"max_updates": 1, "eval_every": 0}
    config = smoke("egspo", {"seed": 3, "train": light, "eval": {"temperature": 1.0, "count": 8}})
    trained = TrainingRun.new(config, tmp_path / "run").start()
    page = (tmp_path / "run" / "final" / "README.md").read_text()
    command = next(line.split()[1:] for line in page.splitlines() if line.startswith("    maskgrad eval"))
    assert command[-2:] == ["--seed", "3"]
    command[command.index("final")] = str(tmp_path / "run" / "final")
    command[command.index("sudoku")] = "sudoku:prompt=compact,blanks=[8,12],reward=cells"
    assert main([*command, "--json", str(tmp_path / "r.json")]) == 0
    found = json.loads((tmp_path / "r.json").read_text())
    assert {key: found[key] for key in ("accuracy", "reward", "metrics")} == {
        key: trained[key] for key in ("accuracy", "reward", "metrics")
    }
