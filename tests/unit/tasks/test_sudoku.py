"""4x4 Sudoku: grading, splits, files."""

from __future__ import annotations

from pathlib import Path

import pytest

from maskgrad.errors import UserError
from maskgrad.tasks.answers import whole_answer
from maskgrad.tasks.base import SPLITS, Example, self_test
from maskgrad.tasks.grids import grid_texts, split_grids
from maskgrad.tasks.sudoku import SudokuSettings, SudokuTask
from maskgrad.tasks.sudoku_answer import grade_grid, read_cells

SHARED = Path(__file__).parents[3].parent / "shared" / "data"
PUZZLE, SOLUTION = "1030040200404001", "1234341221434321"
EXAMPLE = Example(id="x", prompt=PUZZLE, columns={"puzzle": PUZZLE, "solution": SOLUTION})


@pytest.mark.parametrize(
    ("text", "cells"),
    [
        (SOLUTION, SOLUTION),
        ("1234\n3412\n2143\n4321", SOLUTION),
        ("1234\n\n3412\n\n2143\n\n4321", SOLUTION),
        ("12|34\n34|12\n--+--\n21|43\n43|21", SOLUTION),
        ("1 2_3 4,3412;2143-4321", SOLUTION),
        ("[[1,2,3,4],[3,4,1,2],[2,1,4,3],[4,3,2,1]]", SOLUTION),
        ("┌──┬──┐\n│12│34│\n│34│12│\n├──┼──┤\n│21│43│\n│43│21│\n└──┴──┘", SOLUTION),
        ("```text\n1234\n3412\n2143\n4321\n```", SOLUTION),
        ("Row 1: 1234 Row 2: 3412\nRow 3: 2143\nrow 4: 4321", SOLUTION),
        ("１２３４３４１２２１４３４３２１", SOLUTION),
        (SOLUTION + "\n\nCheck: 1+2=3", SOLUTION),
        ("Here it is:\n \n" + SOLUTION, SOLUTION),
        (SOLUTION + "\n\n" + SOLUTION, SOLUTION + SOLUTION),
        ("0934", "0934"),
        ("The grid is " + SOLUTION, SOLUTION),
        ("The grid is " + SOLUTION + " or " + SOLUTION, None),
        ("Grid:\n1234\n3412\n2143\n4321\nIt is valid.", SOLUTION),
        ("0x" + SOLUTION, None),
        ("A" + SOLUTION[1:], None),
        ("²" + SOLUTION, None),
        ("٣" + SOLUTION[1:], None),
        (SOLUTION + "=", None),
        (SOLUTION.replace("1", "."), SOLUTION.replace("1", "")),
        (SOLUTION + ".", SOLUTION),
        ("|-+|", None),
        (" " * 3000 + SOLUTION, None),
    ],
)
def test_read_cells(text: str, cells: str | None) -> None:
    assert read_cells(text) == cells


@pytest.mark.parametrize(
    ("cells", "correct", "accuracy", "detail"),
    [
        (SOLUTION, True, 1.0, ""),
        ("1134341221434321", False, 8 / 9, "repeats"),
        ("1934341221434321", False, 8 / 9, "not 1 to 4"),
        ("1034341221434321", False, 8 / 9, "not 1 to 4"),
        ("2134341221434321", False, 0.0, "given digit"),
        (SOLUTION[:15], False, 0.0, "15 cells"),
        (SOLUTION + "1", False, 0.0, "17 cells"),
        ("1234" * 10, False, 0.0, "40 cells"),
        (PUZZLE, False, 0.0, "not 1 to 4"),
        ("nonsense", False, 0.0, "not a grid"),
    ],
)
def test_verdict_and_cell_accuracy(cells: str, correct: bool, accuracy: float, detail: str) -> None:
    solved = SudokuTask().grade(EXAMPLE, cells)
    shared = SudokuTask(SudokuSettings(reward="cells")).grade(EXAMPLE, cells)
    assert solved.correct is shared.correct is correct
    assert solved.reward == float(correct)
    assert shared.reward == shared.parts["cell_accuracy"] == solved.parts["cell_accuracy"] == pytest.approx(accuracy)
    assert detail in solved.detail
    assert solved.status == ("ok" if correct else "wrong")


def test_every_solved_grid_is_accepted_for_an_open_puzzle() -> None:
    for cells in grid_texts():
        grade = grade_grid("0" * 16, SOLUTION, whole_answer(cells), pay_cells=True)
        assert grade.correct and grade.reward == 1.0


def test_no_answer() -> None:
    compact, tagged = SudokuTask(), SudokuTask(SudokuSettings(prompt="d1"))
    for grade in (
        compact.grade(EXAMPLE, " \n"),
        tagged.grade(EXAMPLE, SOLUTION),
        tagged.grade(EXAMPLE, f"<answer>{SOLUTION}"),
    ):
        assert (grade.reward, grade.correct, grade.status) == (0.0, False, "no_answer")
        assert grade.parts == {"cell_accuracy": 0.0}


@pytest.mark.parametrize("prompt", ["compact", "d1"])
def test_gold_is_right_and_the_wrong_mode_is_wrong_in_every_empty_cell(prompt: str) -> None:
    task = SudokuTask(SudokuSettings(prompt=prompt, reward="cells"))
    self_test(task, 30)
    for index in range(50):
        example = task.example("train", index)
        grade = task.grade(example, task.wrong_mode_target(example))
        assert (grade.correct, grade.reward, grade.status) == (False, 0.0, "wrong")
    assert "given digit" not in grade.detail


def test_wrong_mode_exchanges_digits_in_empty_cells_only() -> None:
    assert SudokuTask().wrong_mode_target(EXAMPLE) == "1133442212444411"


def test_self_test_notices_a_bad_gold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SudokuTask, "target", lambda self, example, index=0: "1" * 16)
    with pytest.raises(RuntimeError, match="sudoku/train/0"):
        self_test(SudokuTask())


def test_examples_are_pure_functions_of_seed_split_and_index() -> None:
    first, again, other = SudokuTask(), SudokuTask(), SudokuTask(SudokuSettings(seed=1))
    backwards = [again.example("train", index) for index in reversed(range(40))][::-1]
    assert [first.example("train", index) for index in range(40)] == backwards
    assert [other.example("train", index) for index in range(40)] != backwards
    assert len({example.prompt for example in backwards}) > 35
    assert first.example("train", 17).id == "sudoku/train/17"
    assert first.size("train") is None


@pytest.mark.parametrize("seed", [0, 5])
def test_splits_share_no_solution(seed: int) -> None:
    task = SudokuTask(SudokuSettings(seed=seed))
    for split in SPLITS:
        allowed = {grid_texts()[grid] for grid in split_grids(split)}
        drawn = {task.example(split, index).columns["solution"] for index in range(400)}
        assert drawn <= allowed
        assert len(drawn) > 0.75 * len(allowed)


def test_prompts_and_targets_per_protocol() -> None:
    compact, tagged = SudokuTask(), SudokuTask(SudokuSettings(prompt="d1"))
    example = compact.example("train", 0)
    assert example.prompt == example.columns["puzzle"]
    assert compact.target(example) == example.columns["solution"]
    prompt = tagged.example("train", 0).prompt
    assert isinstance(prompt, str) and prompt.endswith(example.columns["puzzle"])
    assert all(part in prompt for part in ("<reasoning>", "</reasoning>", "<answer>", "</answer>", "2x2"))
    assert tagged.target(example).endswith(f"<answer>\n{example.columns['solution']}\n</answer>")
    assert tagged.hash() == "5341bbad9b48"  # changes with the wording, the grader version and the settings


def test_hash_depends_on_what_changes_results() -> None:
    choices: list[dict[str, object]] = [{}, {"prompt": "d1"}, {"blanks": (8, 9)}, {"reward": "cells"}, {"seed": 3}]
    hashes = [SudokuTask(SudokuSettings(**choice)).hash() for choice in choices]  # type: ignore[arg-type]
    assert len(set(hashes)) == len(choices)
    assert SudokuTask().hash() == hashes[0]


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_csv_is_the_test_split_and_leading_zeros_return(tmp_path: Path) -> None:
    file = write(tmp_path / "p.csv", f"\ufeffId,Puzzle,Solution\n1,{PUZZLE},{SOLUTION}\n\n2,340020004001,{SOLUTION}\n")
    task = SudokuTask(SudokuSettings(file=str(file)))
    assert task.size("test") == 2
    assert task.example("test", 1).columns["puzzle"] == "0000340020004001"
    assert task.size("train") is None
    assert task.example("train", 3) == SudokuTask().example("train", 3)
    assert task.hash() != SudokuTask().hash()
    self_test(task)
    with pytest.raises(UserError, match="index 2 is outside split 'test'"):
        task.example("test", 2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "lacks column Puzzle and Solution"),
        ("Puzzle,Answer\n1,2\n", "lacks column Solution; found Puzzle, Answer"),
        ("Puzzle,Solution\n", "holds no puzzles"),
        (f"Puzzle,Solution\n{PUZZLE},{SOLUTION}\n10304,\n", "line 3: solution '' is not 16 digits"),
        (f"Puzzle,Solution\n{PUZZLE}\n", "line 2: solution '' is not 16"),
        (f"Puzzle,Solution\n1{PUZZLE},{SOLUTION}\n", "line 2: puzzle '11030040200404001' is not 16"),
        (f"Puzzle,Solution\n1030040200404005,{SOLUTION}\n", "line 2: puzzle"),
        (f"Puzzle,Solution\n{SOLUTION},{SOLUTION}\n", "no empty cell"),
        (f"Puzzle,Solution\n{PUZZLE},1134341221434321\n", "repeats a digit"),
        (f"Puzzle,Solution\n2030040200404001,{SOLUTION}\n", "changes a given digit"),
    ],
)
def test_bad_csv(tmp_path: Path, text: str, words: str) -> None:
    file = write(tmp_path / "bad.csv", text)
    with pytest.raises(UserError, match=words) as error:
        SudokuTask(SudokuSettings(file=file))
    assert "bad.csv" in str(error.value)


def test_missing_or_binary_csv(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*none\.csv"):
        SudokuTask(SudokuSettings(file=tmp_path / "none.csv"))
    (tmp_path / "binary.csv").write_bytes(b"Puzzle,\xff\xfe")
    with pytest.raises(UserError, match="not UTF-8"):
        SudokuTask(SudokuSettings(file=tmp_path / "binary.csv"))


def test_puzzles_of_the_test_file_are_not_generated(tmp_path: Path) -> None:
    drawn = [SudokuTask(SudokuSettings(blanks=(1, 1))).example("train", i).columns for i in range(50)]
    file = tmp_path / "t.csv"
    file.write_text("Puzzle,Solution\n" + "".join(f"{c['puzzle']},{c['solution']}\n" for c in drawn))
    held = SudokuTask(SudokuSettings(blanks=(1, 1), file=file))
    again = {held.example("train", i).columns["puzzle"] for i in range(50)}
    assert again.isdisjoint(c["puzzle"] for c in drawn) and len(again) > 40


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data is not next to the repository")
@pytest.mark.parametrize(
    ("name", "count", "blanks"),
    [("sudoku_4x4_test.csv", 500, {8}), ("sudoku_4x4_test_split_new.csv", 256, {7, 8, 9, 11, 12})],
)
def test_public_files_are_test_data(name: str, count: int, blanks: set[int]) -> None:
    chosen = SudokuTask(SudokuSettings(file=SHARED / name))
    found = {str(chosen.example("test", i).columns["puzzle"]).count("0") for i in range(count)}
    assert (chosen.size("test"), chosen.size("train"), found) == (count, None, blanks)
