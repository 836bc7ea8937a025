"""Grading saved generations again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from maskgrad.cli import main
from maskgrad.errors import UserError
from maskgrad.evaluation.score import read_rows, score_rows

PUZZLE, SOLUTION = "1030040200404001", "1234341221434321"
GOLDEN = Path(__file__).parents[3].parent / "shared" / "golden" / "rewards"
ABSENT = pytest.mark.skipif(not GOLDEN.is_dir(), reason="the shared golden rewards are not next to the repository")


def sudoku(completion: str, **more: Any) -> dict[str, Any]:
    return {"puzzle": PUZZLE, "solution": SOLUTION, "completion": completion, **more}


def save(path: Path, *rows: Any) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def graded(path: Path, task: str, **settings: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    return score_rows({"name": task, **settings}, read_rows(path))


def test_rows_keep_their_order_and_columns(tmp_path: Path) -> None:
    given = [
        sudoku(SOLUTION, note="first"),
        sudoku("1" * 16),
        sudoku(f"<reasoning>\nr\n</reasoning>\n<answer>\n{SOLUTION}\n</answer>"),
        sudoku("<answer>1234", reward=7.0),
        sudoku(""),
    ]
    rows, summary = graded(save(tmp_path / "s.jsonl", *given), "sudoku")
    added = ("reward", "correct", "extracted", "status")
    assert [{k: v for k, v in row.items() if k not in added} for row in rows] == [
        {k: v for k, v in row.items() if k not in added} for row in given
    ]
    assert [tuple(row[name] for name in added) for row in rows] == [
        (1.0, True, SOLUTION, "ok"),
        (0.0, False, "1" * 16, "wrong"),
        (1.0, True, SOLUTION, "ok"),
        (0.0, False, None, "no_answer"),
        (0.0, False, None, "no_answer"),
    ]
    assert (summary["n"], summary["accuracy"], summary["status"]) == (5, 0.4, {"no_answer": 2, "ok": 2, "wrong": 1})


def test_public_names_of_columns(tmp_path: Path) -> None:
    rows = [
        {"Puzzle": 1030040200404001, "Solution": SOLUTION, "completion": SOLUTION},
        {"prompt_fields": {"puzzle": PUZZLE, "solution": SOLUTION}, "completion": SOLUTION},
    ]
    assert [row["correct"] for row in graded(save(tmp_path / "s.jsonl", *rows), "sudoku")[0]] == [True, True]
    rows = [
        {"input": "2,3,4", "output": "24", "completion": "2*3*4"},
        {"nums": [2, 3, 4], "target": 24, "completion": "2*3*4 = 24"},
        {"numbers": "2, 3, 4", "target": "9", "completion": "2+3+4"},
        {"numbers": [2, 3, 4], "target": 9, "completion": "2+3*4"},
    ]
    found = graded(save(tmp_path / "c.jsonl", *rows), "countdown")[0]
    assert [row["correct"] for row in found] == [True, True, True, False]


def test_a_protocol_that_is_named_decides_for_all_rows(tmp_path: Path) -> None:
    path = save(tmp_path / "s.jsonl", sudoku(SOLUTION), sudoku(f"<answer>{SOLUTION}</answer>"))
    assert [row["correct"] for row in graded(path, "sudoku", prompt="d1")[0]] == [False, True]
    assert [row["correct"] for row in graded(path, "sudoku", prompt="compact")[0]] == [True, True]


def test_rows_of_eval_are_graded_by_the_rules_they_were_made_with(tmp_path: Path) -> None:
    row = {"numbers": [2, 3, 4], "target": 24, "completion": "2*3*4"}
    assert graded(save(tmp_path / "a.jsonl", row), "countdown")[0][0]["correct"] is True
    made = {**row, "task": {"name": "countdown", "operators": "+-"}}
    assert graded(save(tmp_path / "b.jsonl", made), "countdown")[0][0]["correct"] is False
    assert graded(tmp_path / "b.jsonl", "countdown", operators="*")[0][0]["correct"] is True
    with pytest.raises(UserError, match="of task 'countdown', not 'sudoku'"):
        graded(tmp_path / "b.jsonl", "sudoku")
    with pytest.raises(UserError, match="different task settings"):
        graded(save(tmp_path / "c.jsonl", row, made), "countdown")


@ABSENT
@pytest.mark.parametrize("task", ["countdown", "sudoku"])
def test_hand_made_completions(task: str) -> None:
    rows, _ = graded(GOLDEN / f"{task}.jsonl", task)
    wrong = [row["id"] for row in rows if row["truly_correct"] not in (None, row["correct"])]
    assert wrong == [] and len(rows) > 20


BAD: dict[str, tuple[Any, str]] = {
    "not JSON": ("{", "line 2: not JSON"),
    "a list": ("[1]", "line 2: list instead of an object"),
    "no completion": ({"puzzle": PUZZLE, "solution": SOLUTION}, "line 2: 'completion' is missing or not text"),
    "completion of another kind": (sudoku(SOLUTION) | {"completion": ["x"]}, "line 2: 'completion' is missing"),
    "column missing": ({"puzzle": PUZZLE, "completion": ""}, "line 2: column 'solution' is missing, which task sudoku"),
    "no puzzle": (sudoku("") | {"puzzle": "12"}, "line 2: "),
    "solution of another puzzle": (sudoku("") | {"solution": "4321214312343412"}, "line 2: .*changes a given digit"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_rows_are_named_by_their_line(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad, words = BAD[case]
    path = save(tmp_path / "s.jsonl", sudoku(SOLUTION), bad)
    with pytest.raises(UserError, match=words):
        graded(path, "sudoku")
    assert main(["score", str(path), "--task", "sudoku"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and "line 2" in captured.err


@pytest.mark.parametrize(
    "row", [{"numbers": [1], "target": 1}, {"numbers": [1, 2], "target": 1.5}, {"numbers": 3, "target": 1}]
)
def test_bad_countdown_rows(row: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"line 1: (numbers|target) .* is not"):
        graded(save(tmp_path / "c.jsonl", {**row, "completion": ""}), "countdown")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.jsonl", "--task", "sudoku"], "none.jsonl: No such file"),
        (["empty.jsonl", "--task", "sudoku"], "holds no rows"),
        (["s.jsonl", "--task", "sudokuu"], "did you mean 'sudoku'"),
        (["s.jsonl", "--task", "sudoku", "--protocol", "d2"], "did you mean 'd1'"),
        (["s.jsonl"], "--task"),
        (["s.jsonl", "--task", "sudoku", "--json", "/nowhere/x"], "/nowhere/x"),
        (["s.jsonl", "--task", "sudoku", "--limit", "3"], "'--limit'"),
    ],
)
def test_bad_commands(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "s.jsonl", sudoku(SOLUTION))
    (tmp_path / "empty.jsonl").write_text("\n")
    assert main(["score", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_the_command_writes_lines_or_an_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(tmp_path / "s.jsonl", sudoku(SOLUTION), sudoku("x"))
    rows, summary = graded(path, "sudoku")
    for name in ("out.jsonl", "out.json"):
        assert main(["score", str(path), "--task", "sudoku", "--json", str(tmp_path / name)]) == 0
        captured = capsys.readouterr()
        assert json.loads(captured.out) == summary and captured.err == ""
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == rows
    assert json.loads((tmp_path / "out.json").read_text()) == {"summary": summary, "rows": rows}
    assert main(["score", str(path), "--task", "sudoku"]) == 0
    captured = capsys.readouterr()
    assert [json.loads(line) for line in captured.out.splitlines()] == rows
    assert json.loads(captured.err) == summary


def test_half_of_a_surrogate_pair_stays_as_its_escape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = save(tmp_path / "s.jsonl", sudoku(SOLUTION + "\ud800"))
    assert main(["score", str(file), "--task", "sudoku", "--json", str(tmp_path / "out.jsonl")]) == 0
    assert json.loads((tmp_path / "out.jsonl").read_text("utf-8"))["completion"] == SOLUTION + "\ud800"
    capsys.readouterr()
    assert main(["score", str(file), "--task", "sudoku"]) == 0
    printed = capsys.readouterr().out
    assert printed.encode() and json.loads(printed)["completion"] == SOLUTION + "\ud800"
