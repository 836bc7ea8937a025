"""The commands and the Python door, from arguments to files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import maskgrad
from maskgrad import Trainer, load_policy
from maskgrad.algorithms import ALGORITHMS, EGSPOSA, StableDRL
from maskgrad.cli import COMMANDS, main
from maskgrad.config import RunConfig, merge, parse_overrides, recipe_names, run_config
from maskgrad.reporting.journal import read, without_time
from maskgrad.tasks.base import Grade
from maskgrad.tasks.registry import TASKS

MODEL = "maskgrad:base_sudoku_tiny"
DATA = Path(__file__).parents[2].parent / "shared" / "data"
ASSETS = Path(maskgrad.__file__).parent / "assets"
LIGHT = ["--eval.count", "4", "--rollout.prompts_per_batch", "2", "--train.max_updates", "3", "--train.eval_every", "0"]


def ok(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Run a command that must succeed; its standard output."""
    code = main([str(a) for a in arguments])
    captured = capsys.readouterr()
    assert code == 0, captured
    assert captured.err == ""
    return captured.out


# --- help ------------------------------------------------------------------------------------------------------------


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert all(command in text for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert f"maskgrad {command}" in text and "--json" in text


def test_no_command_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: maskgrad" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert ok(capsys, "--version").strip() == maskgrad.__version__


LAZY = """
import sys
from maskgrad.cli import main
try:
    main(["train", "--help"])
except SystemExit:
    pass
heavy = {"torch", "transformers", "pydantic", "numpy", "maskgrad.config"} & set(sys.modules)
sys.exit(f"imported: {heavy}" if heavy else 0)
"""


def test_help_imports_nothing_heavy(python: Callable[..., Any]) -> None:
    done = python("-c", LAZY)
    assert done.returncode == 0, done.stderr
    assert "--resume" in done.stdout


# --- recipes ---------------------------------------------------------------------------------------------------------


def test_recipes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = ok(capsys, "recipes", "--json", tmp_path / "recipes.json")
    listed = json.loads((tmp_path / "recipes.json").read_text())
    assert list(listed["recipes"]) == recipe_names() and listed["algorithms"] == list(ALGORITHMS)
    assert listed["tasks"] == [*sorted(TASKS), "gym:NAME"] and "base_sudoku_tiny" in listed["models"]
    for name in [*recipe_names(), *ALGORITHMS, MODEL]:
        assert name in text


def test_one_recipe_can_be_printed_edited_and_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = ok(capsys, "recipes", "smoke", "--json", tmp_path / "smoke.json")
    assert yaml.safe_load(text) == json.loads((tmp_path / "smoke.json").read_text())
    (tmp_path / "mine.yaml").write_text(text)
    assert run_config(str(tmp_path / "mine.yaml"), algorithm="stabledrl") == run_config("smoke", algorithm="stabledrl")


# --- sample and eval -------------------------------------------------------------------------------------------------


def test_sample_prompts_with_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = ["1234341221434321", "12"]
    arguments = ["--gen-length", "8", "--block-length", "4", "--steps", "4", "--temperature", "0.7", "--seed", "3"]
    files = ["--json", tmp_path / "out.json", "--trace", tmp_path / "trace.json"]
    text = ok(capsys, "sample", "--model", MODEL, "--prompt", prompts[0], "--prompt", prompts[1], *arguments, *files)
    result, trace = (json.loads((tmp_path / f"{n}.json").read_text()) for n in ("out", "trace"))
    assert [s["prompt"] for s in result["samples"]] == prompts
    assert result["sampler"]["gen_length"] == 8 and result["sampler"]["temperature"] == 0.7
    for sample, row in zip(result["samples"], trace["rows"], strict=True):
        assert f"{sample['prompt']}\n  -> {sample['completion']}\n" in text
        assert row["tokens"] == sample["tokens"] and len(row["passes"]) <= 4
        hidden = {k for k in range(8)}
        for number, step in enumerate(row["passes"]):
            assert step["step"] == number and set(step["committed"]) <= hidden
            hidden -= set(step["committed"])
            assert {k for k, t in enumerate(step["canvas"]) if t == trace["mask"]} == hidden
            assert step["entropy"] >= 0
        assert hidden == {k for k, s in enumerate(row["commit_step"]) if s < 0}
        assert len(row["commit_logp"]) == 8 and max(row["commit_logp"]) <= 0
    assert ok(capsys, "sample", "--model", MODEL, "--prompt", prompts[1], "--gen-length", "8") == ok(
        capsys, "sample", "--model", MODEL, "--prompt", prompts[1], "--gen-length", "8", "--micro-batch", "1"
    )


def test_what_is_left_out_comes_from_the_model(
    model_copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trained model knows the sampler it was evaluated with; another canvas drops what belongs to that one."""
    (model_copy / "sampler.json").write_text('{"gen_length": 8, "block_length": 4, "steps": 4, "temperature": 0.5}')

    def used(*options: str) -> dict[str, Any]:
        ok(capsys, "sample", "--model", model_copy, "--prompt", "12", "--json", tmp_path / "o.json", *options)
        sampler = json.loads((tmp_path / "o.json").read_text())["sampler"]
        return {name: sampler[name] for name in ("gen_length", "block_length", "steps", "threshold", "temperature")}

    own = {"gen_length": 8, "block_length": 4, "steps": 4, "threshold": None, "temperature": 0.5}
    assert used() == own
    assert used("--steps", "8") == {**own, "steps": 8}
    assert used("--gen-length", "8") == own
    assert used("--gen-length", "6") == {**own, "gen_length": 6, "block_length": None, "steps": None}
    assert used("--threshold", "0.5") == {**own, "steps": None, "threshold": 0.5}


def test_sample_from_a_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--task", "sudoku:blanks=[1,2],seed=4", "--count", "3", "--gen-length", "16"]
    ok(capsys, "sample", "--model", MODEL, *arguments, "--json", tmp_path / "out.json")
    samples = json.loads((tmp_path / "out.json").read_text())["samples"]
    assert len(samples) == 3
    assert all(1 <= s["prompt"].count("0") <= 2 and len(s["completion"]) <= 16 for s in samples)


def test_eval_on_generated_puzzles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--json", tmp_path / "result.json", "--outputs", tmp_path / "items.jsonl"]
    text = ok(capsys, "eval", "--model", MODEL, "--task", "sudoku", "--gen-length", "16", "--limit", "12", *files)
    result = json.loads((tmp_path / "result.json").read_text())
    items = [json.loads(line) for line in (tmp_path / "items.jsonl").read_text().splitlines()]
    assert result["n"] == len(items) == 12 and result["split"] == "test" and result["model"] == MODEL
    assert result["accuracy"] == sum(item["correct"] for item in items) / 12
    low, high = result["interval"]
    assert 0 <= low <= result["accuracy"] <= high <= 1
    assert sum(result["status"].values()) == 12
    assert "accuracy" in text and "cell_accuracy" in text and "n 12" in text
    again = ["eval", "--model", MODEL, "--task", "sudoku", "--gen-length", "16", "--limit", "12", "--micro-batch", "5"]
    ok(capsys, *again, "--json", tmp_path / "again.json")
    other = json.loads((tmp_path / "again.json").read_text())
    result.pop("time"), other.pop("time")
    assert other == result, "the micro-batch changed the result"


@pytest.mark.skipif(not (DATA / "sudoku_4x4_test.csv").is_file(), reason="public data (../shared/data) is not here")
def test_eval_on_the_public_sudoku_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = DATA / "sudoku_4x4_test.csv"
    arguments = ["--gen-length", "16", "--file", file, "--protocol", "compact", "--limit", "16"]
    text = ok(capsys, "eval", "--model", MODEL, "--task", "sudoku", *arguments, "--json", tmp_path / "r.json")
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["n"] == 16 and result["file"] == str(file)
    assert 0 < result["metrics"]["cell_accuracy"] <= 1 and "cell_accuracy" in text
    assert len(result["interval"]) == 2


@pytest.mark.skipif(not (DATA / "countdown_cd3_test.jsonl").is_file(), reason="public data is not here")
@pytest.mark.skipif(not (ASSETS / "base_countdown_tiny").is_dir(), reason="the Countdown model is not here yet")
def test_eval_on_the_public_countdown_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--gen-length", "12", "--file", DATA / "countdown_cd3_test.jsonl", "--limit", "16"]
    task = "countdown:operators=+-*/"
    ok(
        capsys,
        "eval",
        "--model",
        "maskgrad:base_countdown_tiny",
        "--task",
        task,
        *arguments,
        "--json",
        tmp_path / "r.json",
    )
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["n"] == 16 and result["task"] == "countdown" and "well_formed" in result["metrics"]


# --- train and sft ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [None, "stabledrl"])
def test_train(algorithm: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, chosen = tmp_path / "run", [] if algorithm is None else ["--algorithm", algorithm]
    text = ok(capsys, "train", "smoke", *chosen, "--out", out, "--json", tmp_path / "r.json", *LIGHT)
    result = json.loads((tmp_path / "r.json").read_text())
    records = read(out / "journal.jsonl")
    assert [r["step"] for r in records if r["event"] == "eval"] == [0, 3]
    last = next(r for r in reversed(records) if r["event"] == "eval")
    assert result["accuracy"] == last["accuracy"] and result["n"] == 4
    assert {p.name for p in out.iterdir()} == {
        "checkpoints",
        "config.yaml",
        "eval",
        "final",
        "journal.jsonl",
        "samples",
    }
    assert f"model: {out}/final" in text and "accuracy" in text and "\x1b" not in text
    assert records[-1]["event"] == "end" and records[-1]["reason"] == "completed"
    config = run_config(str(out / "config.yaml"))
    assert config == run_config("smoke", parse_overrides(LIGHT), algorithm), "config.yaml is the resolved configuration"
    assert config.algorithm.name == (algorithm or "egspo_sa")
    trained = load_policy(str(out / "final"))
    assert trained.num_parameters() == records[0]["params"]
    samples = [json.loads(line) for line in (out / "samples" / "batch-000001.jsonl").read_text().splitlines()]
    assert len(samples) == 8 and all(s["prompt"] and s["status"] for s in samples)
    ok(
        capsys,
        "eval",
        "--model",
        out / "final",
        "--task",
        "sudoku",
        "--gen-length",
        "16",
        "--steps",
        "8",
        "--limit",
        "2",
    )


def test_the_final_result_when_the_last_evaluation_was_on_schedule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schedule = [*LIGHT, "--train.eval_every", "3"]
    ok(capsys, "train", "smoke", "--out", tmp_path / "run", "--quiet", "--json", tmp_path / "r.json", *schedule)
    result = json.loads((tmp_path / "r.json").read_text())
    evals = [r for r in read(tmp_path / "run" / "journal.jsonl") if r["event"] == "eval"]
    assert [r["step"] for r in evals] == [0, 3], "evaluated once at the end, not twice"
    assert result["accuracy"] == evals[-1]["accuracy"]


def test_a_run_can_be_made_again_from_its_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, recipe in (("one", "smoke"), ("two", tmp_path / "one" / "config.yaml")):
        ok(capsys, "train", recipe, "--out", tmp_path / name, "--quiet", *(LIGHT if name == "one" else []))
    one, two = (tmp_path / name for name in ("one", "two"))
    assert (one / "final/model.safetensors").read_bytes() == (two / "final/model.safetensors").read_bytes()
    assert without_time(read(one / "journal.jsonl")) == without_time(read(two / "journal.jsonl"))


def test_the_default_folder_is_named_after_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    light = [*LIGHT, "--train.max_updates", "1", "--seed", "5"]
    ok(capsys, "train", "smoke", "--algorithm", "diffu_grpo", "--quiet", *light)
    assert (tmp_path / "runs" / "smoke-diffu_grpo-seed5" / "final").is_dir()


SFT = [
    *("--model.architecture", "{d_model: 16, n_layers: 1, n_heads: 2, n_kv_heads: 2, mlp_hidden_size: 24}"),
    *(
        "--stages",
        "[{updates: 12, lr: 0.01, warmup_updates: 2}]",
        "--batch",
        "4",
        "--eval.count",
        "3",
        "--threads",
        "1",
    ),
]


def test_sft(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    text = ok(capsys, "sft", "base_sudoku_tiny", "--out", out, "--json", tmp_path / "r.json", *SFT)
    assert f"model: {out}/final" in text
    assert json.loads((tmp_path / "r.json").read_text())["n"] == 3
    policy = load_policy(str(out / "final"))
    assert policy.tokenizer is not None and policy.num_parameters() < 10_000
    records = read(out / "journal.jsonl")
    assert [r["event"] for r in records] == ["run", "update", "update", "eval", "end"]
    ok(capsys, "sample", "--model", out / "final", "--prompt", "12", "--gen-length", "4")


# --- Python ----------------------------------------------------------------------------------------------------------

ROWS = [{"prompt": f"{i}{j}", "wish": str(1 + (i + j) % 4)} for i in range(3) for j in range(3)]
SETTINGS: dict[str, Any] = {
    "rollout": {"prompts_per_batch": 3, "group_size": 4, "sampler": {"gen_length": 4, "temperature": 1.0}},
    "optim": {"lr": 1e-3},
    "train": {"max_updates": 2, "checkpoint_every": 1, "threads": 1},
    "eval": {"count": 5},
}


def count_wish(prompts: list[str], completions: list[str], wish: list[str]) -> list[float]:
    assert len(prompts) == len(completions) == len(wish)
    return [float(text.count(w)) for text, w in zip(completions, wish, strict=True)]


def strict(prompts: list[str], completions: list[str], wish: list[str], **_: Any) -> list[Grade]:
    return [
        Grade(reward=0.0, correct=text == w * 4, status="ok" if text == w * 4 else "wrong")
        for text, w in zip(completions, wish, strict=True)
    ]


@pytest.mark.parametrize(
    "algorithm", [StableDRL(epochs=2, block=4), EGSPOSA(steps=2, minibatches=2)], ids=lambda a: a.name
)
def test_trainer_with_your_own_data_and_rewards(algorithm: Any, tmp_path: Path) -> None:
    def trainer(out: str) -> Trainer:
        return Trainer(
            MODEL,
            algorithm,
            out=tmp_path / out,
            config=SETTINGS,
            reward_funcs=[count_wish, strict],
            reward_weights=[2.0, 1.0],
            train_dataset=ROWS[:6],
            eval_dataset=ROWS[6:],
            quiet=True,
        )

    result = trainer("run").train()
    assert result["n"] == 3, "the held-out set has three rows"
    assert result["task"] == "custom" and result["accuracy"] is not None
    records = read(tmp_path / "run" / "journal.jsonl")
    rollouts = [r for r in records if r["event"] == "rollout"]
    for record in rollouts:
        assert set(record["parts"]) == {"count_wish", "strict"}
        assert record["reward"] == pytest.approx(2 * record["parts"]["count_wish"])
    before = (tmp_path / "run" / "final" / "model.safetensors").read_bytes()
    assert trainer("run").train(resume=True)["accuracy"] == result["accuracy"]
    assert (tmp_path / "run" / "final" / "model.safetensors").read_bytes() == before


def test_trainer_with_a_task_of_the_library(tmp_path: Path) -> None:
    settings = merge(SETTINGS, {"rollout": {"sampler": {"gen_length": 16}}, "train": {"max_updates": 1}})
    trainer = Trainer(MODEL, EGSPOSA(steps=2), out=tmp_path, config=settings, task={"name": "sudoku"}, quiet=True)
    assert isinstance(trainer.config, RunConfig)
    assert trainer.train()["task"] == "sudoku"


def test_rewards_without_a_verdict_can_be_watched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plain reward function cannot tell what is correct; the console has to live without an accuracy."""
    settings = merge(SETTINGS, {"train": {"max_updates": 1}})
    data: dict[str, Any] = {"train_dataset": ROWS, "reward_funcs": [count_wish]}
    result = Trainer(MODEL, StableDRL(block=4), out=tmp_path, config=settings, **data).train()
    assert result["accuracy"] is None and result["reward"] >= 0
    assert "eval" in capsys.readouterr().out


def test_task_and_model_by_name_in_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--task name:key=value` and `--model PATH` mean the same in train as in every other command."""
    small = ["--train.max_updates", "1", "--eval.count", "2", "--rollout.prompts_per_batch", "2"]
    run = tmp_path / "run"
    ok(capsys, "train", "smoke", "--task", "sudoku:blanks=[5,6]", "--model", MODEL, "--out", run, *small)
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["task"]["blanks"] == [5, 6] and config["model"]["path"] == MODEL
