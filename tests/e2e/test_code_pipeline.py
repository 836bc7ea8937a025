"""Code and generated tasks through the command line, with a tiny random model: the pipeline runs, at chance level."""

from __future__ import annotations

import importlib.util
import json
import shutil
import string
from pathlib import Path
from typing import Any

import pytest

from maskgrad.cli import main
from maskgrad.config import run_config
from maskgrad.models.families import family_of
from maskgrad.models.load import new_policy
from maskgrad.models.save import save_policy
from maskgrad.models.tokenizer import build_character_tokenizer
from maskgrad.reporting.journal import read, without_time
from maskgrad.training import loop
from maskgrad.training.loop import TrainingRun

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
SANDBOX = "bwrap" if shutil.which("bwrap") else "rlimit"
ROW = {"prompt": "Add.", "test": ["assert add(1, 2) == 3"], "code": "def add(a, b): return a + b", "task_id": 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model that has a token for every printable character."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = build_character_tokenizer(string.printable + "’“”–—£€°", folder)
    shape: dict[str, Any] = {"d_model": 16, "n_layers": 1, "n_heads": 1, "n_kv_heads": 1, "mlp_hidden_size": 16}
    shape |= {"max_sequence_length": 2048, "vocab_size": len(tokenizer)}
    family = family_of({"model_type": "llada", **shape})
    save_policy(new_policy(family, shape, tokenizer, seed=0), folder)
    return folder


def evaluated(tmp_path: Path, model: Path, task: str, *more: str) -> Any:
    out = tmp_path / "out.json"
    fixed = ["--gen-length", "16", "--steps", "4", "--limit", "2", "--json", str(out), "--sandbox", SANDBOX]
    assert main(["eval", "--model", str(model), "--task", task, *fixed, *more]) == 0
    return json.loads(out.read_text())


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data is not next to the repository")
@pytest.mark.parametrize(("task", "file"), [("humaneval", "humaneval.jsonl.gz"), ("mbpp", "mbpp_test.jsonl")])
def test_published_code_sets(tmp_path: Path, model: Path, task: str, file: str) -> None:
    found = evaluated(tmp_path, model, task, "--file", str(SHARED / file))
    assert (found["n"], found["accuracy"], found["status"]) == (2, 0.0, {"no_answer": 2})
    assert found["sandbox"].startswith(SANDBOX)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data is not next to the repository")
@pytest.mark.parametrize(("task", "file"), [("gsm8k", "gsm8k_test.jsonl"), ("math", "math500_test.jsonl")])
def test_published_word_problems(tmp_path: Path, model: Path, task: str, file: str) -> None:
    out = tmp_path / "out.json"
    fixed = ["--gen-length", "16", "--steps", "4", "--limit", "2", "--json", str(out), "--file", str(SHARED / file)]
    assert main(["eval", "--model", str(model), "--task", task, *fixed]) == 0
    found = json.loads(out.read_text())
    assert (found["n"], found["accuracy"], sum(found["status"].values())) == (2, 0.0, 2)
    assert found["grader"].startswith(f"{task} strict") and found["task_hash"] and found["prompt_hash"]


@pytest.mark.skipif(importlib.util.find_spec("reasoning_gym") is None, reason="needs reasoning-gym")
def test_generated_task(tmp_path: Path, model: Path) -> None:
    found = evaluated(tmp_path, model, "gym:spell_backward:seed=3")
    assert (found["task"], found["n"], found["status"]) == ("gym:spell_backward", 2, {"no_answer": 2})


def test_training_on_code_counts_outcomes_and_leaves_infra_out(tmp_path: Path, model: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({**ROW, "prompt": f"Add {n}.", "task_id": n}) + "\n" for n in range(40)))
    sampler = {"gen_length": 16, "block_length": 16, "steps": 4, "temperature": 1.0}
    settings: dict[str, Any] = {
        "model": {"path": str(model)},
        "task": {"name": "code", "file": str(file), "sandbox": SANDBOX, "prompt": "tracerl"},
        "rollout": {"prompts_per_batch": 2, "sampler": sampler},
        "train": {"max_updates": 1},
        "eval": {"count": 2},
    }
    config = run_config("smoke", settings)
    run = TrainingRun.new(config.model_copy(update={"task": settings["task"]}), tmp_path / "run")
    result = run.start()
    assert result["task"] == "code" and sum(result["status"].values()) == 2
    events = [json.loads(line) for line in (tmp_path / "run" / "journal.jsonl").read_text().splitlines()]
    assert any(e["event"] == "rollout" and "no_answer" in e["status"] for e in events)


#: Loaded by every worker's interpreter at start: verdicts are drawn from the text, a quarter of them is infra.
DRAWN = """
import zlib
from maskgrad.tasks.base import Grade
from maskgrad.tasks.code import CodeTask
def grade(self, example, text):
    draw = zlib.crc32(text.encode())
    if draw % 4 == 0: return Grade(reward=None, correct=None, status="infra")
    right = draw % 3 == 0
    return Grade(reward=float(right), correct=right, status="ok" if right else "wrong")
CodeTask.grade = grade
"""


def journal(run: Path) -> list[dict[str, Any]]:
    return without_time(read(run / "journal.jsonl"))


def test_a_run_graded_by_workers_resumes_to_the_bit_and_drops_infra(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(DRAWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("maskgrad.training.loop.self_test", lambda task: None)
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({**ROW, "prompt": f"Add {n}.", "task_id": n}) + "\n" for n in range(40)))
    sampler = {"gen_length": 16, "block_length": 16, "steps": 4, "temperature": 1.0}
    task = {"name": "code", "file": str(file), "sandbox": SANDBOX, "prompt": "tracerl"}
    settings: dict[str, Any] = {
        "model": {"path": str(model)},
        "rollout": {"prompts_per_batch": 4, "sampler": sampler},
        "train": {"max_updates": 6, "checkpoint_every": 1, "eval_every": 0},
        "eval": {"count": 2},
    }
    config = run_config("smoke", settings).model_copy(update={"task": task})
    TrainingRun.new(config, tmp_path / "whole").start()
    real, calls = loop.update, []

    def update(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise RuntimeError("the process dies here")
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "update", update)
        with pytest.raises(RuntimeError, match="dies here"):
            TrainingRun.new(config, tmp_path / "parts").start()
    TrainingRun.reopen(tmp_path / "parts").resume()
    assert journal(tmp_path / "parts") == journal(tmp_path / "whole")
    weights = [tmp_path / run / "final" / "model.safetensors" for run in ("whole", "parts")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    rollouts = [record for record in journal(tmp_path / "whole") if record["event"] == "rollout"]
    assert sum(r["status"].get("infra", 0) for r in rollouts) > 0
    assert all(r["dropped_rows"] >= r["status"].get("infra", 0) for r in rollouts)
    assert any(r["grad_norm"] > 0 for r in journal(tmp_path / "whole") if r["event"] == "update")


def test_a_sandbox_is_needed_and_the_weaker_one_is_named(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert main(["eval", "--model", str(model), "--task", "mbpp:file=x.jsonl"]) == 2
    assert "--sandbox rlimit" in capsys.readouterr().err


def test_a_wrong_solution_in_the_data_costs_a_sentence_and_no_folder(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "rows.jsonl", tmp_path / "run"
    wrong = {**ROW, "test": ["assert add(1, 1) == 5"]}
    file.write_text("".join(json.dumps({**wrong, "prompt": f"Add {n}.", "task_id": n}) + "\n" for n in range(40)))
    given = [
        "--model.path",
        model,
        "--task.name",
        "code",
        "--task.file",
        file,
        "--task.prompt",
        "tracerl",
        "--out",
        out,
    ]
    assert main([str(v) for v in ("train", "smoke", *given, "--sandbox", SANDBOX)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "the gold completion earned 0.0" in error, error
    assert not (out / "config.yaml").exists(), "the same --out can be used again"
