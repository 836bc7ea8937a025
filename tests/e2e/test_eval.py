"""`maskgrad eval`: the grid, what a result says, going on after an interruption, repeats and comparison."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from maskgrad.cli import build_parser, main
from maskgrad.errors import UserError
from maskgrad.evaluation import evaluate as evaluation
from maskgrad.evaluation_commands import _sampler_grid
from maskgrad.models.adapters import add_adapter, save_adapter
from maskgrad.models.fingerprint import weights_hash
from maskgrad.models.load import load_policy
from maskgrad.tasks import SudokuTask

MODEL = "maskgrad:base_sudoku_tiny"
EVAL = ["eval", "--model", MODEL, "--task", "sudoku:blanks=[1,3]"]
SHORT = [*EVAL, "--gen-length", "16", "--steps", "4", "--limit", "6"]


def ok(*arguments: object) -> None:
    assert main([str(argument) for argument in arguments]) == 0


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the batches that were sampled."""
    sizes: list[int] = []
    real = evaluation.sample_in_chunks

    def watched(policy: Any, prompts: Any, *rest: Any) -> Any:
        sizes.append(len(prompts))
        return real(policy, prompts, *rest)

    monkeypatch.setattr(evaluation, "sample_in_chunks", watched)
    return sizes


def test_a_result_says_everything_needed_to_make_it_again(tmp_path: Path) -> None:
    ok(*SHORT, "--json", tmp_path / "r.json", "--outputs", tmp_path / "o.jsonl", "--seed", "5")
    result, rows = read(tmp_path / "r.json"), lines(tmp_path / "o.jsonl")
    assert result["weights"] == weights_hash(load_policy(MODEL))
    assert (result["dtype"], result["device"], result["seed"], result["seeds"]) == ("float32", "cpu", 5, [5])
    assert result["sampler"]["steps"] == 4 and result["max_prompt_length"] == 2048
    assert result["task_settings"] == {"name": "sudoku", "blanks": [1, 3]} and result["grader"]
    assert {"maskgrad", "torch", "python"} <= result["versions"].keys()
    assert result["failures"] == {"timeout": 0, "crash": 0, "infra": 0, "error": 0} and result["undecided"] == 0
    low, high = result["bootstrap"]["interval"]
    assert low <= result["accuracy"] <= high and result["interval_kind"] == "wilson"
    assert result["verdicts"] == {row["id"]: [row["correct"]] for row in rows} and len(rows) == 6
    for row in rows:
        assert row["extracted"] == row["completion"] and len(row["tokens"]) == 16
        assert row["settings"] == result["settings"] and row["prompt_fields"].keys() == {"puzzle", "solution"}


def test_saved_completions_score_the_same_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ok(*SHORT, "--outputs", tmp_path / "o.jsonl")
    ok("score", tmp_path / "o.jsonl", "--task", "sudoku", "--json", tmp_path / "s.jsonl")
    assert lines(tmp_path / "s.jsonl") == lines(tmp_path / "o.jsonl")


def test_the_grid(tmp_path: Path, capsys: pytest.CaptureFixture[str], sampled: list[int]) -> None:
    grid = [*EVAL, "--task", "sudoku:blanks=[4,6]", "--gen-length", "12", "16", "--steps", "L/4", "--limit", "2"]
    files = ["--json", tmp_path / "r.json", "--outputs", tmp_path / "o.jsonl"]
    ok(*grid, *files)
    results = read(tmp_path / "r.json")["results"]
    assert [(r["task_settings"]["blanks"], r["sampler"]["gen_length"], r["sampler"]["steps"]) for r in results] == [
        ([1, 3], 12, 3),
        ([1, 3], 16, 4),
        ([4, 6], 12, 3),
        ([4, 6], 16, 4),
    ]
    assert capsys.readouterr().out.count("eval (test") == 4 and sampled == [2] * 4
    alone = [*EVAL, "--gen-length", "16", "--steps", "4", "--limit", "2", "--json", tmp_path / "alone.json"]
    ok(*alone)
    one = read(tmp_path / "alone.json")
    results[1].pop("time"), one.pop("time")
    assert one == results[1], "a cell of the grid is the evaluation alone"
    sampled.clear()
    ok(*grid, *files)
    assert sampled == [], "every completion of the grid was there"


def combinations(*options: str) -> list[tuple[Any, ...]]:
    known = build_parser().parse_args([*EVAL, *options])
    return [(o["gen_length"], o["steps"], o["temperature"]) for o in _sampler_grid(known)]


def test_which_steps_belong_to_which_length() -> None:
    assert combinations() == [(None, None, None)]
    assert combinations("--gen-length", "8", "16", "--steps", "4") == [(8, 4, None), (16, 4, None)]
    assert combinations("--gen-length", "8", "16", "--steps", "4", "L") == [(8, 4, None), (16, "L", None)]
    assert combinations("--gen-length", "8", "--steps", "4", "8") == [(8, 4, None), (8, 8, None)]
    assert combinations("--temperature", "0", "1") == [(None, None, 0.0), (None, None, 1.0)]


@pytest.mark.parametrize(("seed", "batch"), [(0, 2), (3, 256)])
def test_an_interrupted_evaluation_samples_nothing_twice(
    seed: int, batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampled: list[int]
) -> None:
    options = ["--temperature", "1.0", "--seed", seed, "--micro-batch", batch]
    ok(*SHORT, *options, "--outputs", tmp_path / "whole.jsonl", "--json", tmp_path / "whole.json")
    partial = lines(tmp_path / "whole.jsonl")[:4]
    (tmp_path / "o.jsonl").write_text("".join(json.dumps(row) + "\n" for row in partial) + '{"settings": "x')
    sampled.clear()
    ok(*SHORT, *options, "--outputs", tmp_path / "o.jsonl", "--json", tmp_path / "r.json")
    assert sampled == [2], "the two that were missing"
    assert (tmp_path / "o.jsonl").read_text() == (tmp_path / "whole.jsonl").read_text()
    whole, resumed = read(tmp_path / "whole.json"), read(tmp_path / "r.json")
    whole.pop("time"), resumed.pop("time")
    assert resumed == whole


def test_ctrl_c_keeps_what_was_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, calls = evaluation.sample_in_chunks, []

    def interrupted(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(evaluation, "sample_in_chunks", interrupted)
    options = [*SHORT, "--micro-batch", "2", "--outputs", str(tmp_path / "o.jsonl")]
    assert main(options) == 130
    assert "o.jsonl, the same command goes on" in capsys.readouterr().err
    assert [row["id"] for row in lines(tmp_path / "o.jsonl")] == [f"sudoku/test/{i}" for i in range(4)]
    ok("score", tmp_path / "o.jsonl", "--task", "sudoku", "--json", tmp_path / "s.jsonl")
    assert [row["status"] in ("ok", "wrong") for row in lines(tmp_path / "s.jsonl")] == [True] * 4
    ok(*options)
    assert len(calls) == 4 and len(lines(tmp_path / "o.jsonl")) == 6


def test_repeats(tmp_path: Path) -> None:
    options = ["--temperature", "1.5", "--repeats", "3", "--json", tmp_path / "r.json"]
    ok(*SHORT, *options, "--outputs", tmp_path / "o.jsonl")
    result, rows = read(tmp_path / "r.json"), lines(tmp_path / "o.jsonl")
    assert (result["n"], result["repeats"], result["seeds"], len(rows)) == (6, 3, [0, 1, 2], 18)
    assert result["interval_kind"] == "bootstrap" and result["interval"] == result["bootstrap"]["interval"]
    right = [sum(v) for v in result["verdicts"].values()]
    assert result["accuracy"] == pytest.approx(sum(right) / 18) == pytest.approx(result["pass_at_k"]["1"])
    assert result["pass_at_k"].keys() == {"1", "2", "3"}
    assert result["pass_at_k"]["3"] == pytest.approx(sum(r > 0 for r in right) / 6)
    texts = {seed: [row["completion"] for row in rows if row["seed"] == seed] for seed in (0, 1, 2)}
    assert texts[0] != texts[1] != texts[2], "each repeat has its own randomness"
    ok(*SHORT, "--temperature", "1.5", "--seed", "1", "--outputs", tmp_path / "one.jsonl")
    assert [row["completion"] for row in lines(tmp_path / "one.jsonl")] == texts[1]


def test_comparison_of_two_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, steps in (("a", 4), ("b", 8)):
        ok(*EVAL, "--gen-length", "16", "--steps", steps, "--limit", "6", "--json", tmp_path / f"{name}.json")
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    capsys.readouterr()
    assert main(["eval", "--compare", "none.json", str(b)]) == 2
    assert "cannot read none.json" in capsys.readouterr().err
    assert main(["eval", "--compare", str(a), str(b)]) == 2
    assert "steps 4 and 8" in capsys.readouterr().err
    ok("eval", "--compare", a, b, "--across-samplers", "--json", tmp_path / "c.json")
    found = read(tmp_path / "c.json")
    assert found["difference"] == pytest.approx(read(b)["accuracy"] - read(a)["accuracy"])
    assert found["files"] == [str(a), str(b)] and found["sampler_differs"] == {"steps": [4, 8]}
    assert "difference" in capsys.readouterr().out


BAD: dict[str, tuple[list[str], list[str]]] = {
    "lengths and steps": (["--gen-length", "8", "12", "16", "--steps", "4", "8"], ["3 values", "2 for --steps"]),
    "share of nothing": (["--gen-length", "16", "--steps", "L/0"], ["'L/0'", "L/2"]),
    "repeats without chance": (["--gen-length", "16", "--repeats", "2"], ["2 repeats", "temperature above 0"]),
    "an adapter that is not there": (["--gen-length", "16", "--adapter", "/nowhere"], ["/nowhere"]),
    "another file": (["--gen-length", "16", "--outputs", __file__], ["no .json or .jsonl file"]),
    "one file for two tasks": (["--file", "x.csv", "--task", "countdown"], ["x.csv", "2 tasks", "NAME:file=PATH"]),
    "a model beside compare": (["--compare", "a.json", "b.json"], ["--model has no effect beside --compare"]),
    "across what": (["--gen-length", "16", "--across-samplers"], ["--across-samplers belongs to --compare"]),
}


@pytest.mark.parametrize("case", BAD)
def test_mistakes_cost_a_sentence(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, words = BAD[case]
    assert main([*EVAL, "--limit", "2", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and all(word in captured.err for word in words), captured.err


def test_the_test_split_is_not_watched_during_training(
    smoke: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "smoke", "--eval.split", "test"]) == 2
    assert "eval_every 6 would watch the test split" in capsys.readouterr().err
    assert smoke(None, {"eval": {"split": "test"}, "train": {"eval_every": 0}}).eval.split == "test"


def test_an_adapter_brings_its_own_sampler(tmp_path: Path) -> None:
    policy = load_policy(MODEL)
    add_adapter(policy, 2, 4.0)
    save_adapter(policy, tmp_path / "adapter")
    sampler = {"gen_length": 16, "block_length": 16, "steps": 2}
    (tmp_path / "adapter" / "sampler.json").write_text(json.dumps(sampler))
    given = [*EVAL, "--adapter", tmp_path / "adapter", "--limit", "2", "--json", tmp_path / "r.json"]
    ok(*given)
    assert read(tmp_path / "r.json")["sampler"]["steps"] == 2
    ok(*given, "--steps", "8")
    assert read(tmp_path / "r.json")["sampler"]["steps"] == 8
    (tmp_path / "adapter" / "sampler.json").unlink()
    ok(*given)
    assert read(tmp_path / "r.json")["sampler"]["steps"] == 16


def test_two_examples_of_one_id_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = SudokuTask.example
    monkeypatch.setattr(SudokuTask, "example", lambda *a: dataclasses.replace(real(*a), id="same"))
    assert main([*SHORT]) == 2
    assert "6 examples of split 'test' of task 'sudoku' have the id 'same'" in capsys.readouterr().err


def test_a_task_is_checked_before_the_work_and_closed_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], sampled: list[int]
) -> None:
    closed: list[int] = []
    monkeypatch.setattr(SudokuTask, "close", lambda self: closed.append(len(sampled)), raising=False)
    ok(*SHORT, "--task", "sudoku:blanks=[4,6]", "--outputs", tmp_path / "o.jsonl")
    assert closed == [1, 2], "the first task's workers end before the second is sampled"

    def broken(self: SudokuTask) -> None:
        raise UserError("nothing can be graded here")

    monkeypatch.setattr(SudokuTask, "check", broken, raising=False)
    sampled.clear()
    assert main([*SHORT]) == 2 and sampled == []
    (tmp_path / "row.jsonl").write_text(json.dumps({"puzzle": "1", "solution": "1", "completion": ""}) + "\n")
    assert main(["score", str(tmp_path / "row.jsonl"), "--task", "sudoku"]) == 2
    assert capsys.readouterr().err.count("nothing can be graded here") == 2
