"""An interrupted run, resumed, ends exactly like one that was not: weights, journal, evaluations, samples.

The recipe `smoke` makes three updates per rollout batch and a checkpoint every second update, so that checkpoints fall
inside a batch and the rollout buffer matters.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from maskgrad.cli import main
from maskgrad.config import RunConfig, SftConfig, dump, merge, sft_config
from maskgrad.evaluation import evaluate as evaluation
from maskgrad.reporting.journal import read, without_time
from maskgrad.training import checkpoint, loop, sft
from maskgrad.training import collect as collecting
from maskgrad.training.loop import Interrupted, TrainingRun
from maskgrad.training.sft import SupervisedRun

UPDATES = 12
METHODS: dict[str, dict[str, Any]] = {
    "egspo": {},
    "stabledrl": {},
    "diffu_grpo": {"algorithm": {"beta": 0.04}},
}


class Crash(RuntimeError):
    """Stands for the end of the process: nothing of ours catches it."""


def outcome(out: Path) -> dict[str, Any]:
    """Everything a finished run leaves that does not depend on the clock."""
    evaluations = {p.name: json.loads(p.read_text()) for p in (out / "eval").glob("*.json")}
    for result in evaluations.values():
        result.pop("time")
    return {
        "weights": (out / "final" / "model.safetensors").read_bytes(),
        "journal": without_time(read(out / "journal.jsonl")),
        "evaluations": evaluations,
        "samples": {p.name: p.read_text() for p in (out / "samples").glob("*")},
        "checkpoints": sorted(p.name for p in (out / "checkpoints").iterdir() if p.name.endswith(f"{UPDATES:06d}")),
        "left over": [p.name for p in out.iterdir() if p.name.startswith(".")],
    }


def assert_same(out: Path, expected: dict[str, Any]) -> None:
    found = outcome(out)
    assert [r["event"] for r in found["journal"]] == [r["event"] for r in expected["journal"]]
    for mine, theirs in zip(found["journal"], expected["journal"], strict=True):
        assert mine == theirs
    assert found["weights"] == expected["weights"], "the journal agrees but the weights do not"
    assert found == expected


def resume(out: Path) -> dict[str, Any]:
    # whatever the global generators hold in the new process may not matter
    torch.manual_seed(random.SystemRandom().randrange(2**31))
    np.random.seed(random.SystemRandom().randrange(2**31))
    return TrainingRun.reopen(out).resume()


def crash_in_update(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Die inside update `number`, after its optimiser step and before anything of it is written."""
    real = loop.update

    def update(*arguments: Any) -> dict[str, Any]:
        result = real(*arguments)
        if arguments[6] == number - 1:
            raise Crash
        return result

    monkeypatch.setattr(loop, "update", update)


def press(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, when: Callable[..., bool], times: int = 1) -> None:
    """Ctrl-C on entry of `owner.name`, the first time that `when(*arguments)` holds."""
    real, pressed = getattr(owner, name), []

    def pressing(*arguments: Any, **keywords: Any) -> Any:
        if not pressed and when(*arguments):
            pressed.append(True)
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)
        return real(*arguments, **keywords)

    monkeypatch.setattr(owner, name, pressing)


@contextmanager
def told(sentence: str = "interrupted at update") -> Iterator[None]:
    """Ctrl-C must end in `Interrupted`; bare, it would end the test session."""
    try:
        with pytest.raises(Interrupted, match=sentence):
            yield
    except KeyboardInterrupt:
        pytest.fail("Ctrl-C ended the run without saving it")


def in_update(number: int) -> Callable[..., bool]:
    return lambda *arguments: arguments[6] == number - 1


def nth_call(number: int) -> Callable[..., bool]:
    calls = [0]

    def when(*_: Any) -> bool:
        calls[0] += 1
        return calls[0] == number

    return when


@pytest.fixture(scope="module", autouse=True)
def _no_fsync() -> Iterator[None]:
    """Power cuts are not simulated, and waiting for the disk is a quarter of the time of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="module")
def snapshots(smoke: Callable[..., RunConfig], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The disk of one uninterrupted run as a power cut would leave it, at many moments; "end" is the whole run.

    Nothing the loop writes is buffered in the process, so a copy of the folder is what SIGKILL would leave.
    """
    root = tmp_path_factory.mktemp("snapshots")
    out, moments = root / "run", {"end": root / "run"}

    def take(name: str) -> None:
        moments[name] = Path(shutil.copytree(out, root / name))

    with pytest.MonkeyPatch.context() as patch:
        one_update, save_policy = TrainingRun._one_update, checkpoint.save_policy
        rename, prune = os.rename, checkpoint.prune

        def updating(run: TrainingRun) -> None:
            one_update(run)
            take(f"update {run.progress.step}")

        def saving(policy: Any, folder: Path, **keywords: Any) -> None:
            save_policy(policy, folder, **keywords)
            if folder.parent.name == ".step-000006.partial":
                take("weights of a checkpoint written")
            if folder.name == ".final.partial":
                take("weights of the final model written")

        def renaming(source: Path, target: Path) -> None:
            if Path(target).name == "step-000008":
                take("checkpoint complete but not in place")
            rename(source, target)

        def pruning(run: Path, keep: int) -> None:
            if checkpoint.steps(run)[-1][0] == 10:
                take("checkpoint in place, old one not removed")
            prune(run, keep)

        patch.setattr(TrainingRun, "_one_update", updating)
        patch.setattr(checkpoint, "save_policy", saving)
        patch.setattr(checkpoint.os, "rename", renaming)
        patch.setattr(checkpoint, "prune", pruning)
        TrainingRun.new(smoke(), out).start()
    return moments


@pytest.fixture(scope="module")
def expected(snapshots: dict[str, Path]) -> dict[str, Any]:
    return outcome(snapshots["end"])


MOMENTS = [
    "weights of a checkpoint written",
    "checkpoint complete but not in place",
    "checkpoint in place, old one not removed",
    "weights of the final model written",
]


def test_the_reference_run_is_what_the_tests_assume(expected: dict[str, Any]) -> None:
    events = [record["event"] for record in expected["journal"]]
    assert events.count("update") == UPDATES
    assert events.count("rollout") == 4, "three updates per batch, so that checkpoints fall inside a batch"
    assert events[:2] == ["run", "eval"] and events[-1] == "end"
    assert [r["step"] for r in expected["journal"] if r["event"] == "eval"] == [0, 6, 12]
    assert all(r["grad_norm"] > 0 for r in expected["journal"] if r["event"] == "update")


@pytest.mark.parametrize("number", range(1, UPDATES))
def test_killed_after_any_update(
    number: int, snapshots: dict[str, Path], expected: dict[str, Any], tmp_path: Path
) -> None:
    out = Path(shutil.copytree(snapshots[f"update {number}"], tmp_path / "run"))
    resume(out)
    assert_same(out, expected)


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_while_writing_a_checkpoint(
    moment: str, snapshots: dict[str, Path], expected: dict[str, Any], tmp_path: Path
) -> None:
    out = Path(shutil.copytree(snapshots[moment], tmp_path / "run"))
    half_written = list(out.rglob("*.partial"))
    assert half_written or moment == "checkpoint in place, old one not removed"
    resume(out)
    assert_same(out, expected)


def test_a_half_written_checkpoint_is_never_taken_for_one(snapshots: dict[str, Path]) -> None:
    out = snapshots["weights of a checkpoint written"]
    assert (out / "checkpoints" / ".step-000006.partial" / "model" / "model.safetensors").is_file()
    assert [number for number, _ in checkpoint.steps(out)] == [2, 4]


@pytest.mark.parametrize("tail", ['{"event":"update","st', '{"event":"update","step":6}\n{"event":"upd', "\x00\x00"])
def test_a_journal_torn_at_its_last_line(
    tail: str, snapshots: dict[str, Path], expected: dict[str, Any], tmp_path: Path
) -> None:
    out = Path(shutil.copytree(snapshots["update 9"], tmp_path / "run"))
    with open(out / "journal.jsonl", "a") as journal:
        journal.write(tail)
    resume(out)
    assert_same(out, expected)


def test_a_finished_run_resumed_changes_nothing(
    snapshots: dict[str, Path], expected: dict[str, Any], tmp_path: Path
) -> None:
    out = Path(shutil.copytree(snapshots["end"], tmp_path / "run"))
    assert resume(out)["accuracy"] == expected["evaluations"]["step-000012.json"]["accuracy"]
    assert_same(out, expected)


def begin(smoke: Callable[..., RunConfig], snapshots: dict[str, Path], after: int, out: Path) -> None:
    """The run from its start, or resumed from what a crash after update `after` left."""
    if after == 0:
        TrainingRun.new(smoke(), out).start()
    else:
        shutil.copytree(snapshots[f"update {after}"], out)
        resume(out)


@pytest.mark.parametrize("number", [1, 4, 5, 11, 12])
def test_ctrl_c_inside_an_update_completes_and_saves_it(
    number: int,
    smoke: Callable[..., RunConfig],
    snapshots: dict[str, Path],
    expected: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, before = tmp_path / "run", signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        press(patch, loop, "update", in_update(number))
        with told(f"interrupted at update {number}; continue with --resume {out}"):
            begin(smoke, snapshots, number - 1, out)
    assert signal.getsignal(signal.SIGINT) is before
    assert checkpoint.steps(out)[-1][0] == number, "the update was not saved"
    resume(out)
    assert_same(out, expected)


SAMPLING = (collecting, "sample_in_chunks")
POINTS: dict[str, tuple[Any, str, int, int]] = {  # name: (owner, function, begin after update, updates saved)
    "sampling the first batch": (*SAMPLING, 0, 0),
    "sampling the third batch": (*SAMPLING, 5, 6),
    "decoding the second batch": (collecting, "decode", 2, 3),
    "old log-probs of the second batch": (loop, "prepare", 2, 3),
    "writing samples": (TrainingRun, "_save_samples", 5, 6),
    "evaluation at the start": (evaluation, "sample_in_chunks", 0, 0),
    "evaluation between updates": (evaluation, "sample_in_chunks", 4, 6),
    "writing a checkpoint": (checkpoint, "save_policy", 7, 8),
    "writing the final model": (checkpoint, "save_final", 11, 12),
}


@pytest.mark.parametrize("point", POINTS)
def test_ctrl_c_anywhere_else(
    point: str,
    smoke: Callable[..., RunConfig],
    snapshots: dict[str, Path],
    expected: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owner, name, after, saved = POINTS[point]
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        press(patch, owner, name, nth_call(1))
        with told(f"interrupted at update {saved};"):
            begin(smoke, snapshots, after, out)
    assert [number for number, _ in checkpoint.steps(out)][-1:] == ([saved] if saved else [])
    resume(out)
    assert_same(out, expected)


def test_ctrl_c_during_the_closing_evaluation(
    smoke: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"train": {"max_updates": 2, "eval_every": 0}}
    whole, out = tmp_path / "whole", tmp_path / "run"
    TrainingRun.new(smoke(None, settings), whole).start()
    with monkeypatch.context() as patch:
        press(patch, evaluation, "sample_in_chunks", nth_call(2))
        with told("interrupted at update 2;"):
            TrainingRun.new(smoke(None, settings), out).start()
    assert not (out / "final").exists()
    resume(out)
    assert_same(out, outcome(whole))


def test_a_second_ctrl_c_stops_at_once_and_the_last_checkpoint_holds(
    smoke: Callable[..., RunConfig],
    snapshots: dict[str, Path],
    expected: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        press(patch, loop, "update", in_update(6), times=2)
        with pytest.raises(KeyboardInterrupt):
            begin(smoke, snapshots, 5, out)
    assert checkpoint.steps(out)[-1][0] == 4
    resume(out)
    assert_same(out, expected)


def test_interrupted_again_and_again(
    smoke: Callable[..., RunConfig], expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        press(patch, loop, "update", in_update(2))
        with told():
            TrainingRun.new(smoke(), out).start()
    with monkeypatch.context() as patch:
        press(patch, *SAMPLING, nth_call(2))
        with told("at update 6"):
            resume(out)
    with monkeypatch.context() as patch:
        crash_in_update(patch, 8)
        with pytest.raises(Crash):
            resume(out)
    assert checkpoint.steps(out)[-1][0] == 6
    with monkeypatch.context() as patch:
        press(patch, loop, "update", in_update(7))
        with told("at update 7"):
            resume(out)
    with monkeypatch.context() as patch:
        press(patch, checkpoint, "save_policy", nth_call(1))
        with told("at update 8"):
            resume(out)
    resume(out)
    assert_same(out, expected)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_resumes_inside_a_batch(
    method: str, smoke: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once from the checkpoint of update 4, which is one update into the second batch, and once after Ctrl-C."""
    config = smoke(method, merge(METHODS[method], {"train": {"max_updates": 6}}))
    assert config.algorithm.updates_per_batch == 3
    whole, out = tmp_path / "whole", tmp_path / "run"
    TrainingRun.new(config, whole).start()
    with monkeypatch.context() as patch:
        crash_in_update(patch, 6)
        with pytest.raises(Crash):
            TrainingRun.new(config, out).start()
    with monkeypatch.context() as patch:
        press(patch, loop, "update", in_update(5))
        with told():
            resume(out)
    resume(out)
    found = outcome(whole)
    assert sum(r["grad_norm"] > 0 for r in found["journal"] if r["event"] == "update") >= 4
    assert_same(out, found)


@pytest.fixture
def recipe(smoke: Callable[..., RunConfig], tmp_path: Path) -> Path:
    """The same run as a file for the command line."""
    file = tmp_path / "smoke.yaml"
    file.write_text(dump(smoke()))
    return file


KILLED = """
import os, signal, sys
from maskgrad.cli import main
from maskgrad.training import checkpoint
real = checkpoint.write_atomic
def dying(folder, fill):
    def half(target):
        fill(target)
        (target / "state.json").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    real(folder, half if folder.name == "step-000006" else fill)
checkpoint.write_atomic = dying
main(sys.argv[1:])
"""


def test_a_process_killed_while_saving_and_resumed_by_another(
    python: Callable[..., Any], recipe: Path, expected: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    killed = python("-c", KILLED, "train", str(recipe), "--out", str(out), "--quiet")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (out / "checkpoints" / ".step-000006.partial").is_dir()
    assert main(["train", "--resume", str(out), "--quiet"]) == 0
    assert_same(out, expected)


def test_ctrl_c_on_the_command_line_says_how_to_go_on(
    recipe: Path,
    expected: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        press(patch, loop, "update", in_update(10))
        assert main(["train", str(recipe), "--out", str(out), "--quiet"]) == 130
    assert capsys.readouterr().err == f"maskgrad: interrupted at update 10; continue with --resume {out}\n"
    assert main(["train", "--resume", str(out), "--quiet", "--json", str(tmp_path / "result.json")]) == 0
    assert_same(out, expected)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["accuracy"] == expected["evaluations"]["step-000012.json"]["accuracy"]


# --- supervised training ---------------------------------------------------------------------------------------------

SFT: dict[str, Any] = {
    "model": {"architecture": {"d_model": 16, "n_layers": 1, "mlp_hidden_size": 24}},
    "stages": [{"updates": 7, "lr": 0.003, "warmup_updates": 2}, {"updates": 6, "lr": 0.001, "wrong_share": 0.5}],
    "batch": 4,
    "checkpoint_every": 5,
    "threads": 1,
    "eval": {"count": 3},
}


def supervised() -> SftConfig:
    return sft_config("base_sudoku_tiny", SFT)


def sft_outcome(out: Path) -> tuple[bytes, list[dict[str, Any]]]:
    return (out / "final" / "model.safetensors").read_bytes(), without_time(read(out / "journal.jsonl"))


@pytest.fixture(scope="module")
def sft_expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[dict[str, Any]]]:
    out = tmp_path_factory.mktemp("sft") / "run"
    SupervisedRun.new(supervised(), out).train()
    return sft_outcome(out)


def die_in_sft_update(monkeypatch: pytest.MonkeyPatch, number: int, error: type[BaseException]) -> None:
    real = sft.optim.guarded_step
    calls = [0]

    def stepping(*arguments: Any) -> bool:
        healthy = real(*arguments)
        calls[0] += 1
        if calls[0] == number:
            raise error
        return healthy

    monkeypatch.setattr(sft.optim, "guarded_step", stepping)


def press_in_sft_update(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Ctrl-C inside update `number`: it is finished, saved and reported."""
    real = sft.optim.guarded_step
    calls = [0]

    def stepping(*arguments: Any) -> bool:
        calls[0] += 1
        if calls[0] == number:
            os.kill(os.getpid(), signal.SIGINT)
        return real(*arguments)

    monkeypatch.setattr(sft.optim, "guarded_step", stepping)


@pytest.mark.parametrize("number", [1, 5, 6, 8, 10, 11, 13])
def test_supervised_run_killed_inside_any_update(
    number: int,
    sft_expected: tuple[bytes, list[dict[str, Any]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        die_in_sft_update(patch, number, Crash)
        with pytest.raises(Crash):
            SupervisedRun.new(supervised(), out).train()
    with open(out / "journal.jsonl", "a") as journal:
        journal.write('{"event":"upd')
    SupervisedRun.reopen(out).train()
    assert sft_outcome(out) == sft_expected


def test_supervised_run_interrupted_twice_on_the_command_line(
    sft_expected: tuple[bytes, list[dict[str, Any]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "run"
    recipe = tmp_path / "base_sudoku_tiny.yaml"
    recipe.write_text(json.dumps(supervised().model_dump(mode="json")))
    with monkeypatch.context() as patch:
        press_in_sft_update(patch, 8)
        assert main(["sft", str(recipe), "--out", str(out), "--quiet"]) == 130
    assert f"--resume {out}" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        press_in_sft_update(patch, 3)
        assert main(["sft", "--resume", str(out), "--quiet"]) == 130
    assert main(["sft", "--resume", str(out), "--quiet"]) == 0
    assert sft_outcome(out) == sft_expected
