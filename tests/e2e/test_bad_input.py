"""Bad input: one sentence that names the value, exit code 2, before any long work, and nothing on disk changes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

import maskgrad
from maskgrad import Trainer
from maskgrad.algorithms import EGSPO, DiffuGRPO
from maskgrad.cli import main
from maskgrad.config import RunConfig
from maskgrad.diffusion import batching
from maskgrad.errors import UserError
from maskgrad.reporting.journal import FILE_NAME, read
from maskgrad.training import checkpoint, loop
from maskgrad.training.loop import TrainingRun, TrainingStopped

MODEL = "maskgrad:base_sudoku_tiny"
EVAL = ["eval", "--model", MODEL, "--task", "sudoku", "--gen-length", "16"]
SAMPLE = ["sample", "--model", MODEL, "--gen-length", "16"]


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """No mistake of this file may be found out by sampling, so the sampler is out of order."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("long work was begun before the mistake was reported")

    monkeypatch.setattr(batching, "sample", refuse)
    monkeypatch.setattr(loop, "update", refuse)


def complaint(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line that the command prints, after it has refused."""
    code = main([str(a) for a in arguments])
    captured = capsys.readouterr()
    assert code == 2, f"exit code {code}: {captured}"
    assert captured.out == ""
    assert captured.err.startswith("maskgrad: ") and captured.err.endswith("\n")
    line = captured.err[len("maskgrad: ") : -1]
    assert "\n" not in line and "Traceback" not in line and line
    assert not line.startswith(" ") and "  " not in line
    return line


# --- settings: words that must occur in the sentence ------------------------------------------------------------------

TRAIN: dict[str, tuple[list[str], list[str]]] = {
    "wrong key": (["--optim.lrr", "1"], ["'optim.lrr'", "did you mean 'lr'"]),
    "wrong top-level key": (["--sead", "1"], ["'sead'", "did you mean 'seed'"]),
    "wrong key in the algorithm": (["--algorithm.stepz", "1"], ["'algorithm.stepz'", "did you mean 'steps'"]),
    "wrong key of another algorithm": (["--algorithm", "stabledrl", "--algorithm.drawz", "1"], ["drawz", "'draws'"]),
    "wrong key in the sampler": (
        ["--rollout.sampler.gen_len", "1"],
        ["'rollout.sampler.gen_len'", "did you mean 'gen_length'"],
    ),
    "wrong kind of value": (["--train.max_updates", "many"], ["train.max_updates", "'many'"]),
    "value missing": (["--optim.lr"], ["--optim.lr needs a value"]),
    "negative learning rate": (["--optim.lr", "-1"], ["optim.lr", "-1"]),
    "infinite learning rate": (["--optim.lr", ".inf"], ["optim.lr", "inf"]),
    "stray word": (["extra"], ["'extra'", "--leaf.path VALUE"]),
    "unknown algorithm": (["--algorithm", "egspoo"], ["'egspoo'", "did you mean 'egspo'"]),
    "unknown algorithm by key": (["--algorithm.name", "egspoo"], ["'egspoo'", "did you mean 'egspo'"]),
    "unknown task": (["--task.name", "sudokuu"], ["'sudokuu'", "did you mean 'sudoku'"]),
    "unknown task setting": (["--task.blankz", "3"], ["'blankz'", "did you mean 'blanks'"]),
    "task setting out of range": (["--task.blanks", "[8, 13]"], ["blanks", "1 to 12", "13"]),
    "group of one": (["--rollout.group_size", "1"], ["group_size 1", "at least 2"]),
    "more steps than tokens": (["--rollout.sampler.steps", "17"], ["steps 17", "gen_length 16", "use 1 to 16"]),
    "fewer steps than blocks": (
        ["--rollout.sampler.block_length", "4", "--rollout.sampler.steps", "3", "--algorithm.steps", "1"],
        ["steps 3", "4 block(s)", "use 4 to 16"],
    ),
    "block longer than the canvas": (["--rollout.sampler.block_length", "17"], ["block_length 17", "gen_length 16"]),
    "threshold and steps": (["--rollout.sampler.threshold", "0.5"], ["steps 8", "threshold 0.5"]),
    "infinite temperature": (["--rollout.sampler.temperature", ".inf"], ["temperature", "inf"]),
    "temperature 0": (["--algorithm", "egspo", "--rollout.sampler.temperature", "0"], ["temperature 0", "above 0"]),
    "steps of the evaluation": (["--eval.steps", "99"], ["steps 99", "use 1 to 16"]),
    "more selected steps than passes": (["--algorithm.steps", "9"], ["algorithm.steps 9", "8 denoising passes"]),
    "guidance without a kernel": (["--rollout.sampler.guidance", "1"], ["guidance 1", "egspo_sa"]),
    "clip bounds crossing": (
        ["--algorithm", "stabledrl", "--algorithm.clip_low", "7"],
        ["clip_low 7", "clip_high 6", "swap or widen"],
    ),
    "clip bound zero": (["--algorithm", "stabledrl", "--algorithm.clip_high", "0"], ["clip_high", "0"]),
    "clip bound negative": (["--algorithm.clip_low", "-1"], ["algorithm.clip_low", "-1"]),
    "clip bound below one": (["--algorithm.clip_high", "0.5"], ["algorithm.clip_high", "0.5"]),
    "missing model folder": (["--model.path", "/nowhere/model"], ["'/nowhere/model'", "config.json"]),
    "unknown model of the package": (["--model.path", "'maskgrad:base_sudoku'"], ["did you mean 'base_sudoku_tiny'"]),
    "unknown device": (["--model.device", "gpu"], ["model.device", "'gpu'"]),
    "json into a missing folder": (["--json", "/nowhere/x.json"], ["/nowhere/x.json", "does not exist"]),
    "json onto a folder": (["--json", "/tmp"], ["/tmp", "is a folder"]),
    "prompt too long": (["--rollout.max_prompt_length", "5"], ["17 tokens", "max_prompt_length 5"]),
}


@pytest.mark.parametrize("case", TRAIN)
def test_train_settings(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, words = TRAIN[case]
    line = complaint(capsys, "train", "smoke", "--out", tmp_path / "run", *arguments)
    for word in words:
        assert word in line
    assert not [p for p in tmp_path.rglob("*") if p.is_file()], "a refused run left files"


COMMANDS: dict[str, tuple[list[str], list[str]]] = {
    "unknown recipe": (["train", "smok"], ["'smok'", "did you mean 'smoke'"]),
    "missing recipe file": (["train", "none.yaml"], ["none.yaml", "does not exist"]),
    "recipe of the other command": (["train", "base_sudoku_tiny"], ["use maskgrad sft base_sudoku_tiny"]),
    "recipe of the other command, sft": (["sft", "smoke"], ["use maskgrad train smoke"]),
    "nothing to do": (["train"], ["--resume DIR"]),
    "start and resume": (["train", "smoke", "--resume", "x"], ["leave other options out"]),
    "unknown command": (["trainn"], ["'trainn'"]),
    "unknown option": ([*EVAL, "--foo"], ["'--foo'"]),
    "option without its value": ([*EVAL, "--limit"], ["--limit"]),
    "option of the wrong kind": ([*EVAL, "--steps", "many"], ["--steps", "'many'"]),
    "unknown choice": ([*EVAL, "--split", "tests"], ["--split", "'tests'"]),
    "model left out": (["eval", "--task", "sudoku"], ["--model"]),
    "task left out": (["eval", "--model", MODEL], ["--task"]),
    "no items": ([*EVAL, "--limit", "0"], ["--limit", "'0'"]),
    "negative items": ([*EVAL, "--limit", "-1"], ["--limit", "-1"]),
    "micro-batch of none": ([*EVAL, "--micro-batch", "0"], ["--micro-batch", "'0'"]),
    "unknown task": (["eval", "--model", MODEL, "--task", "sudok"], ["'sudok'", "'sudoku'"]),
    "task setting without value": ([*EVAL[:4], "sudoku:blanks"], ["'blanks'", "key=value"]),
    "unknown task setting": ([*EVAL[:4], "sudoku:blankz=[1,2]"], ["'blankz'", "'blanks'"]),
    "unknown protocol": ([*EVAL, "--protocol", "d2"], ["prompt", "'d2'"]),
    "data file missing": ([*EVAL, "--file", "none.csv"], ["none.csv", "No such file"]),
    "steps": ([*EVAL, "--steps", "17"], ["steps 17", "use 1 to 16"]),
    "steps and threshold": ([*EVAL, "--steps", "4", "--threshold", "0.9"], ["steps 4", "threshold 0.9"]),
    "unknown device": ([*EVAL, "--device", "gpu"], ["device", "'gpu'"]),
    "missing model": (["eval", "--model", "/nowhere", "--task", "sudoku", "--gen-length", "16"], ["'/nowhere'"]),
    "json": ([*EVAL, "--json", "/nowhere/x.json"], ["/nowhere/x.json"]),
    "outputs": ([*EVAL, "--outputs", "/nowhere/x.jsonl"], ["/nowhere/x.jsonl"]),
    "no prompt": (SAMPLE, ["--prompt TEXT"]),
    "prompt and task": ([*SAMPLE, "--prompt", "1", "--task", "sudoku"], ["--prompt TEXT", "--task NAME"]),
    "empty prompt": ([*SAMPLE, "--prompt", ""], ["--prompt", "empty"]),
    "prompt outside the alphabet": ([*SAMPLE, "--prompt", "hello"], ["'h'", "no token"]),
    "prompt longer than allowed": ([*SAMPLE, "--prompt", "1234", "--max-prompt-length", "3"], ["max_prompt_length 3"]),
    "no prompts of a task": ([*SAMPLE, "--task", "sudoku", "--count", "0"], ["--count", "'0'"]),
    "trace": ([*SAMPLE, "--prompt", "1", "--trace", "/nowhere/x.json"], ["/nowhere/x.json"]),
    "recipes": (["recipes", "smok"], ["'smok'", "'smoke'"]),
    "recipes with an option": (["recipes", "--all"], ["'--all'"]),
    "answer longer than the canvas": (
        ["sft", "base_sudoku_tiny", "--sampler", "{gen_length: 8, block_length: 8, steps: 8}", "--batch", "1"],
        ["16 tokens", "sampler.gen_length is 8"],
    ),
    "two models": (["sft", "base_sudoku_tiny", "--model.path", "x"], ["model.path", "model.architecture"]),
    "stage": (["sft", "base_sudoku_tiny", "--stages", "[{updates: 1, lr: 1, wrong: 1}]"], ["stages.0.wrong"]),
}


@pytest.mark.parametrize("case", COMMANDS)
def test_other_commands(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, words = COMMANDS[case]
    line = complaint(capsys, *arguments)
    for word in words:
        assert word in line


def test_in_a_process_of_its_own(python: Callable[..., Any], tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = python("-m", "maskgrad.cli", "train", "smoke", "--rollout.group_size", "1", "--out", str(out))
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "maskgrad: rollout in recipe smoke: group_size 1 gives no baseline: use at least 2\n"
    assert not out.exists()


# --- files -----------------------------------------------------------------------------------------------------------

FILES: dict[str, tuple[bytes, list[str]]] = {
    "broken": (b"a: [1\nb: }", ["not valid YAML"]),
    "binary": (b"\xff\xfe\x00", ["not valid YAML"]),
    "list": (b"- 1", ["a mapping", "list"]),
    "empty": (b"", ["a mapping", "NoneType"]),
    "nothing in it": (b"seed: 1", ["'model'", "missing"]),
    "variants": (b"variants: 3", ["variants", "3"]),
    "null algorithm": (b"algorithm: null\nvariants: null", ["missing"]),
}


@pytest.mark.parametrize("case", FILES)
def test_recipe_files(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, words = FILES[case]
    file = tmp_path / "mine.yaml"
    file.write_bytes(text)
    line = complaint(capsys, "train", file, "--out", tmp_path / "run")
    for word in [*words, "mine.yaml"]:
        assert word in line


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("x.csv", "a,b\n1,2\n", ["Puzzle and Solution", "found a, b"]),
        ("x.csv", "Puzzle,Solution\n", ["no puzzles"]),
        ("x.csv", "Puzzle,Solution\n12,34\n", ["line 2"]),
    ],
)
def test_sudoku_files(
    name: str, text: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(text)
    line = complaint(capsys, *EVAL, "--file", tmp_path / name)
    for word in [*words, name]:
        assert word in line


@pytest.mark.parametrize("text", ['{"numbers": [1, 2]}\n', "[]\n", "{\n", ""])
def test_countdown_files(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.jsonl").write_text(text)
    arguments = ["eval", "--model", MODEL, "--task", "countdown", "--gen-length", "12", "--file"]
    assert "x.jsonl" in complaint(capsys, *arguments, tmp_path / "x.jsonl")


# --- models ----------------------------------------------------------------------------------------------------------

CONFIGS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "another family": ({"model_type": "gpt2"}, ["'gpt2'", "llada"]),
    "another layout": ({"model_type": "qwen2"}, ["hidden_size", "None"]),
    "a family nobody knows": ({"model_type": "lladaa"}, ["'lladaa'", "did you mean 'llada'"]),
    "no family": ({"model_type": None}, ["model_type", "llada"]),
    "mask id outside the vocabulary": ({"mask_token_id": 9999}, ["mask_token_id", "9999", "25 rows"]),
    "negative mask id": ({"mask_token_id": -1}, ["mask_token_id", "-1"]),
}


@pytest.mark.parametrize("command", ["train", "eval", "sample"])
@pytest.mark.parametrize("case", CONFIGS)
def test_model_folders(case: str, command: str, model_copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, words = CONFIGS[case]
    file = model_copy / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    arguments = {
        "train": ["train", "smoke", "--out", model_copy.parent / "run", "--model.path", model_copy],
        "eval": [*EVAL[:2], model_copy, *EVAL[3:]],
        "sample": ["sample", "--model", model_copy, "--gen-length", "16", "--prompt", "1"],
    }[command]
    line = complaint(capsys, *arguments)
    for word in words:
        assert word in line


def test_a_model_that_states_no_canvas_length(model_copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (model_copy / "sampler.json").unlink(missing_ok=True)
    line = complaint(capsys, "eval", "--model", model_copy, "--task", "sudoku")
    assert str(model_copy) in line and "--gen-length" in line


def test_a_broken_sampler_file(model_copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (model_copy / "sampler.json").write_text("{")
    assert "sampler.json" in complaint(capsys, "eval", "--model", model_copy, "--task", "sudoku")


def test_weights_missing(model_copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (model_copy / "model.safetensors").unlink()
    assert "model.safetensors" in complaint(capsys, *EVAL[:2], model_copy, *EVAL[3:])


# --- run folders -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(smoke: Callable[..., RunConfig], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    TrainingRun.new(smoke(None, {"train": {"max_updates": 2, "eval_every": 0}}), out).start()
    return out


@pytest.fixture
def run_copy(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.mark.parametrize("command", [["train", "smoke"], ["sft", "base_sudoku_tiny"]])
@pytest.mark.parametrize("left", [["config.yaml"], ["journal.jsonl"], ["final"], ["checkpoints"], None])
def test_a_folder_that_already_holds_a_run(
    command: list[str], left: list[str] | None, run_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole run, or any one part of it that a new run would write over."""
    for entry in list(run_copy.iterdir()):
        if left is not None and entry.name not in left:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    before = contents(run_copy)
    line = complaint(capsys, *command, "--out", run_copy)
    assert str(run_copy) in line and f"--resume {run_copy}" in line and "--out" in line
    assert contents(run_copy) == before


def test_a_python_run_in_a_folder_that_holds_one(run_copy: Path) -> None:
    before = contents(run_copy)
    with pytest.raises(UserError, match="already holds a run"):
        trainer(run_copy, lambda prompts, completions: [0.0] * len(prompts)).train()
    assert contents(run_copy) == before


@pytest.mark.parametrize("command", [["train", "smoke"], ["sft", "base_sudoku_tiny"]])
def test_an_output_folder_that_cannot_be_written(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    for out in (file, file / "run", Path("/proc/maskgrad")):
        assert str(out) in complaint(capsys, *command, "--out", out)
    assert contents(tmp_path) == {"file": b"precious"}


@pytest.mark.parametrize("command", ["train", "sft"])
def test_resume_without_a_run(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert "holds no run" in complaint(capsys, command, "--resume", tmp_path)
    assert "holds no run" in complaint(capsys, command, "--resume", tmp_path / "nothing")
    assert contents(tmp_path) == {"notes.txt": b"mine"}


@pytest.mark.parametrize(
    "extra", [["--optim.lr", "1"], ["--out", "x"], ["--algorithm", "egspo"], ["smoke"], ["--optim.lr=1"]]
)
def test_resume_with_other_settings(extra: list[str], run_copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(run_copy)
    assert "leave other options out" in complaint(capsys, "train", "--resume", run_copy, *extra)
    assert contents(run_copy) == before


def test_resume_by_the_wrong_command(run_copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "config.yaml" in complaint(capsys, "sft", "--resume", run_copy)


@pytest.mark.parametrize("text", ["a: [", "- 1", "seed: 1"])
def test_resume_with_a_broken_config(text: str, run_copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run_copy / "config.yaml").write_text(text)
    before = contents(run_copy)
    assert "config.yaml" in complaint(capsys, "train", "--resume", run_copy)
    assert contents(run_copy) == before


@pytest.mark.parametrize("name", ["state.json", "optimizer.pt", "buffer.pt"])
@pytest.mark.parametrize("damage", ["gone", "empty", "cut"])
def test_resume_from_a_damaged_checkpoint(
    name: str, damage: str, run_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = checkpoint.steps(run_copy)[-1][1] / name
    whole = file.read_bytes()
    file.unlink()
    if damage != "gone":
        file.write_bytes(b"" if damage == "empty" else whole[: len(whole) // 2])
    line = complaint(capsys, "train", "--resume", run_copy, "--quiet")
    assert "step-000002 cannot be read" in line and "delete it" in line


def test_resume_with_the_journal_lost(run_copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run_copy / "journal.jsonl").write_text("")
    assert "journal.jsonl has 0 bytes" in complaint(capsys, "train", "--resume", run_copy, "--quiet")


# --- the Python door -------------------------------------------------------------------------------------------------

ROWS = [{"prompt": "1234", "answer": "1"}, {"prompt": "43210", "answer": "2"}]


def trainer(out: Path, reward: Any = None, rows: Any = None, algorithm: Any = None, **config: Any) -> Trainer:
    return Trainer(
        MODEL,
        algorithm or DiffuGRPO(epochs=1),
        out=out,
        config={
            "rollout": {
                "prompts_per_batch": 2,
                "group_size": 2,
                "sampler": {"gen_length": 4, "temperature": 1.0},
                **config,
            },
            "optim": {"lr": 1e-4},
            "train": {"max_updates": 1, "threads": 1},
        },
        reward_funcs=[reward or (lambda prompts, completions, answer: [0.0] * len(prompts))],
        train_dataset=ROWS if rows is None else rows,
        quiet=True,
    )


class Columns:
    """Enough of `datasets.Dataset`."""

    column_names = ("question", "answer")

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> dict[str, str]:
        return {"question": "1", "answer": "2"}


@pytest.mark.parametrize("rows", [[{"question": "1", "answer": "2"}], Columns()])
def test_a_data_set_without_a_prompt_column(rows: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no column 'prompt'; found answer, question"):
        trainer(tmp_path / "run", rows=rows)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "empty"),
        ([{"prompt": ""}], "prompt must be text"),
        ([{"prompt": 3}], "not 3"),
        ([*ROWS, {"prompt": "1" * 200, "answer": ""}], "201 tokens, more than max_prompt_length 100"),
        ([*ROWS, {"prompt": "hello", "answer": ""}], "no token for 'h'"),
    ],
)
def test_a_bad_row_is_found_before_training(rows: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        trainer(tmp_path / "run", rows=rows, max_prompt_length=100).train()
    assert not (tmp_path / "run" / "config.yaml").exists(), "the folder may be used again"


def test_nothing_to_train_on(tmp_path: Path) -> None:
    common: dict[str, Any] = {"out": tmp_path / "run", "config": {}}
    with pytest.raises(UserError, match="pass either task, or train_dataset"):
        Trainer(MODEL, EGSPO(), **common)
    with pytest.raises(UserError, match="pass either task, or train_dataset"):
        Trainer(MODEL, EGSPO(), task={"name": "sudoku"}, train_dataset=ROWS, **common)
    with pytest.raises(UserError, match="needs reward_funcs"):
        Trainer(MODEL, EGSPO(), train_dataset=ROWS, **common)


def test_settings_are_refused_in_the_constructor(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"unknown key 'rollout.groupsize'.*did you mean 'group_size'"):
        trainer(tmp_path, groupsize=3)
    with pytest.raises(UserError, match=r"algorithm\.steps 5 exceeds the 4 denoising passes"):
        trainer(tmp_path, algorithm=EGSPO(steps=5))
    with pytest.raises(UserError, match="temperature 0"):
        trainer(tmp_path, algorithm=EGSPO(steps=2), sampler={"gen_length": 4})


def raising(prompts: list[str], completions: list[str], answer: list[str]) -> list[float]:
    raise KeyError("answer")


REWARDS: dict[str, tuple[Any, str]] = {
    "raises": (raising, "reward function raising raised KeyError: 'answer'"),
    "too few": (lambda prompts, completions, answer: [0.0], r"returned 1 values, expected \d"),
    "too many": (lambda prompts, completions, answer: [0.0] * 99, "returned 99 values, expected"),
    "a scalar": (lambda prompts, completions, answer: 1.0, "returned float; return a list"),
    "nothing": (lambda prompts, completions, answer: None, "returned NoneType; return a list"),
    "text": (lambda prompts, completions, answer: "ab", "returned str; return a list"),
    "nan": (lambda prompts, completions, answer: [float("nan")] * len(prompts), "the value is nan; return None"),
    "words": (lambda prompts, completions, answer: ["good"] * len(prompts), "str is not a number or None"),
    "another argument": (lambda prompts, gold: [0.0] * len(prompts), "needs 'gold', which is no column of the data"),
}


@pytest.mark.parametrize("case", REWARDS)
def test_reward_functions(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reward, message = REWARDS[case]
    monkeypatch.undo()  # a reward function is first called on completions, those of the first evaluation
    monkeypatch.setattr(loop, "update", lambda *_: pytest.fail("an update was made"))
    with pytest.raises(UserError, match=message) as caught:
        trainer(tmp_path / "run", reward).train()
    assert "\n" not in str(caught.value)


def test_a_reward_function_that_fails_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    calls: list[int] = []

    def late(prompts: list[str], completions: list[str], answer: list[str]) -> list[float]:
        calls.append(len(prompts))
        return [0.0] * (len(prompts) if len(calls) <= 3 else 0)

    # two calls before the run (one a split), the evaluation at step 0, then the first batch
    with pytest.raises(UserError, match="reward function late returned 0 values, expected 4"):
        trainer(tmp_path / "run", late).train()
    assert calls == [2, 2, 2, 4]
    assert read(tmp_path / "run" / FILE_NAME)[-1]["reason"].startswith("stopped: reward function late")


def test_reward_functions_that_always_abstain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with pytest.raises(TrainingStopped, match="0 usable rewards of 4 rollouts"):
        trainer(tmp_path / "run", lambda prompts, completions, answer: [None] * len(prompts)).train()


def test_a_python_run_cannot_be_resumed_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()
    trainer(tmp_path / "run").train()
    line = complaint(capsys, "train", "--resume", tmp_path / "run")
    assert str(tmp_path / "run") in line and "Trainer" in line
    assert os.path.isdir(tmp_path / "run" / "final")


def broken_copy(folder: Path) -> Path:
    """The shipped Sudoku model with one weight that is not a number."""
    source = Path(maskgrad.__file__).parent / "assets" / "base_sudoku_tiny"
    shutil.copytree(source, folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.transformer.ln_f.weight"][0] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_a_broken_model_is_a_failure_and_never_an_accuracy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()
    model = broken_copy(tmp_path / "model")
    assert main(["eval", "--model", str(model), "--task", "sudoku", "--gen-length", "16", "--limit", "2"]) == 1
    assert "not finite" in capsys.readouterr().err
    out = tmp_path / "run"
    assert main(["train", "smoke", "--model.path", str(model), "--out", str(out), "--quiet"]) == 1
    assert "not finite" in capsys.readouterr().err and not (out / "final").exists()
    assert read(out / FILE_NAME)[-1]["reason"].startswith("stopped: ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--algorithm", "stabledrl", "--algorithm.minibatches", "9"], ["minibatches 9", "at most 4"]),
        (["--algorithm", "egspo", "--algorithm.split", "slots", "--algorithm.minibatches", "6"], ["minibatches 6"]),
        (["--rollout.sampler.gen_length", "250", "--rollout.sampler.block_length", "250"], ["250", "256"]),
    ],
)
def test_settings_that_cannot_fit(
    arguments: list[str], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = complaint(capsys, "train", "smoke", *arguments, "--out", tmp_path / "run")
    assert all(word in line for word in words)


def test_resume_refuses_other_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    trainer(tmp_path / "run").train()
    other = trainer(tmp_path / "run", rows=[{"prompt": "1234", "answer": "4"}] * 2)
    with pytest.raises(UserError, match="has changed since it was started"):
        other.train(resume=True)


# --- front doors that contradict themselves --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sft", "quickstart"], "use maskgrad train quickstart"),
        (["train", "base_sudoku_tiny"], "use maskgrad sft base_sudoku_tiny"),
        (["train", "quickstart", "--task", "sudoku:blank=3"], "no setting 'blank'"),
        (["train", "quickstart", "--task", "sudokuu"], "unknown task 'sudokuu'; did you mean 'sudoku'"),
        (["train", "quickstart", "--model", "maskgrad:nowhere"], "nowhere"),
        (["train", "quickstart", "--model.lora.rnk", "8"], "unknown key 'model.lora.rnk'"),
        (["eval", "--model", "m", "--task", "sudoku", "--json", "notes.md"], "no .json or .jsonl file"),
        (["eval", "--model", "m", "--task", "sudoku", "--json", "a.jsonl", "--outputs", "a.jsonl"], "the same file"),
        (["score", "a.jsonl", "--task", "sudoku", "--json", "a.jsonl"], "the same file"),
    ],
    ids=lambda value: " ".join(value[:3]) if isinstance(value, list) else "",
)
def test_one_sentence_and_nothing_is_lost(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.md").write_text("mine")
    (tmp_path / "a.jsonl").write_text('{"completion": "1"}\n')
    out = ["--out", "run"] if arguments[0] in ("train", "sft") else []
    assert main([*arguments, *out]) == 2
    text = capsys.readouterr().err
    assert words in text and text.count("\n") == 1, text
    assert (tmp_path / "notes.md").read_text() == "mine" and (tmp_path / "a.jsonl").read_text().startswith("{")


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"task": {"name": "sudoku"}, "reward_funcs": [len]}, "reward_funcs"),
        ({"task": {"name": "sudoku"}, "config": {"algorithm": {"name": "spg"}}}, "name one"),
        ({"task": "sudoku"}, "is no mapping"),
        ({"task": {"name": "sudoku"}, "config": {"algorithm": None}}, "no mapping"),
    ],
)
def test_trainer_arguments_that_contradict_each_other(extra: dict, words: str, tmp_path: Path) -> None:
    from maskgrad import Trainer
    from maskgrad.algorithms import EGSPO

    base = {"config": {"train": {"max_updates": 1}, "optim": {"lr": 1e-3}}}
    with pytest.raises(UserError, match=words):
        Trainer("maskgrad:base_sudoku_tiny", EGSPO(steps=2), out=tmp_path / "run", **{**base, **extra})
