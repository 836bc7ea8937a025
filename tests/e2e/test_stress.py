"""`maskgrad stress` from arguments to files, in small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from maskgrad.cli import main
from maskgrad.diagnostics import stress
from maskgrad.reporting.journal import read

SMALL = ["--seeds", "0", "--algorithms", "grpo,stabledrl", "--rollout.prompts_per_batch", "4", "--eval.count", "4"]
SMALL += ["--rollout.group_size", "4", "--train.max_updates", "2", "--task.reward", "cells"]


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_two_arms(jobs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    command = ["stress", "smoke", "--out", str(out), "--inflate", "0.5:1000", "--jobs", jobs, *SMALL]
    command += ["--json", str(tmp_path / "r.json"), *(["--setting", "inflate"] if jobs == "2" else [])]
    assert main(command) == 0
    captured = capsys.readouterr()
    assert "stabledrl" in captured.out and f"{out}/stress.json" in captured.out
    result = json.loads((out / "stress.json").read_text())
    assert result == json.loads((tmp_path / "r.json").read_text())
    assert (out / "stress.png").read_bytes()[:4] == b"\x89PNG"
    settings = ["noisy", "inflate"] if jobs == "1" else ["inflate"]
    assert [(r["setting"], r["arm"]) for r in result["runs"]] == [
        (s, a) for s in settings for a in ("grpo", "stabledrl")
    ]
    for run in result["runs"]:
        assert run["updates"] == 2 and run["n"] == 4 and run["skipped"] == 0 and run["drift"] > 0
        assert 0 <= run["start"] <= 1 and 0 <= run["end"] <= 1
        assert (run["inflated_fraction"] is not None) == (run["setting"] == "inflate")
        updates = [r for r in read(out / run["run"] / "journal.jsonl") if r["event"] == "update"]
        names = {"grad_norm", "log_ratio_q05", "log_ratio_q50", "log_ratio_q95", "log_ratio_max", "ess_share", "drift"}
        names |= {"weight_max", "clip_fraction_positive", "clip_fraction_negative", "reward"}
        assert all(names <= r.keys() for r in updates)
    grpo, calm = (r for r in result["runs"] if r["setting"] == "inflate")
    assert grpo["log_ratio_max"] > 6.9 and calm["log_ratio_max"] > 6.9, "both arms got the same inflation"
    assert grpo["weight_max"] > 900 and calm["weight_max"] <= 1
    first = [next(r for r in read(out / r["run"] / "journal.jsonl") if r["event"] == "rollout") for r in (grpo, calm)]
    assert first[0]["reward"] == first[1]["reward"], "the same first batch"


def test_finished_runs_are_reused_and_more_arms_can_be_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ["stress", "smoke", "--out", str(out), "--setting", "inflate", *SMALL]
    assert main(command) == 0
    before = (out / "stress.json").read_text()
    with monkeypatch.context() as patch:
        patch.setattr(stress, "run_cell", lambda *_: pytest.fail("a finished run was made again"))
        assert main(command) == 0
    assert (out / "stress.json").read_text() == before
    made: list[str] = []
    real = stress.run_cell
    monkeypatch.setattr(
        stress, "run_cell", lambda config, folder: (made.append(Path(folder).name), real(config, folder))
    )
    assert main([*command, "--algorithms", "grpo,stabledrl,spg"]) == 0
    assert made == ["inflate-spg-seed0"]
    assert len(json.loads((out / "stress.json").read_text())["runs"]) == 3
    assert main([*command, "--optim.lr", "1"]) == 2
    assert "was made with other settings" in capsys.readouterr().err
