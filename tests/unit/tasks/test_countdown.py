"""Countdown: grading, generator, solver, files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskgrad.errors import UserError
from maskgrad.tasks.base import SPLITS, Example, self_test
from maskgrad.tasks.countdown import CountdownSettings, CountdownTask
from maskgrad.tasks.countdown_problems import solve, split_of
from maskgrad.tasks.expression import OPERATORS, read_statement


def item(numbers: list[int], target: int) -> Example:
    return Example(id="x", prompt="", columns={"numbers": numbers, "target": target})


def task(**settings: Any) -> CountdownTask:
    return CountdownTask(CountdownSettings(**{"operators": OPERATORS, **settings}))


@pytest.mark.parametrize(
    ("numbers", "target", "text", "status", "detail"),
    [
        ([2, 3, 4], 24, "2*3*4", "ok", ""),
        ([2, 3, 4], 24, "4*2*3", "ok", ""),
        ([2, 3, 4], 24, "2*3*4 = 24", "ok", ""),
        ([2, 3, 4], 24, "2*3*4=24.0", "ok", ""),
        ([2, 3, 4], 24, "2*3*4=25", "wrong", "claims the value 25"),
        ([2, 3, 4], 9, "2*3*4=9", "wrong", "has the value 24, not 9"),
        ([8, 3, 3, 8], 24, "8/(3-8/3)", "ok", ""),
        ([1, 3, 3], 1, "1/3*3", "ok", ""),
        ([2, 3, 4], 24, "2*3+4", "wrong", "value 10"),
        ([2, 3, 4], 24, "4*6", "wrong", "exactly once"),
        ([2, 3, 4], 24, "2*3*4+4-4", "wrong", "exactly once"),
        ([3, 8, 4], 24, "3*8", "wrong", "exactly once"),
        ([2, 2, 3], 12, "2*2*3", "ok", ""),
        ([2, 3, 3], 12, "2*2*3", "wrong", "exactly once"),
        ([2, 3, 1], 24, "23+1", "wrong", "exactly once"),
        ([2, 3, 4], 24, "24", "wrong", "exactly once"),
        ([1, 2, 2], 1, "1/(2-2)", "wrong", "divides by zero"),
        ([2, 3, 3], 24, "2**3*3", "wrong", "missing before *"),
        ([9, 9, 9], 1, "9**9**9", "wrong", "missing before *"),
        ([2, 3, 4], 24, "__import__('os')", "wrong", "not allowed"),
        ([2, 3, 4], 24, "(" * 10_000_000, "wrong", "longer than 256"),
        ([2, 3, 4, 14], 24, "-2+3*4+14", "wrong", "missing before -"),
        ([2, 3, 4], 24, "", "no_answer", "no answer"),
        ([2, 3, 4], 24, "  ", "no_answer", "no answer"),
    ],
)
def test_verdict(numbers: list[int], target: int, text: str, status: str, detail: str) -> None:
    grade = task().grade(item(numbers, target), text)
    assert grade.status == status
    assert grade.correct is (status == "ok")
    assert grade.reward == float(status == "ok")
    assert detail in grade.detail


def test_operators_bind_the_grader() -> None:
    assert task(operators="+-").grade(item([2, 3, 4], 24), "2*3*4").detail == "operator * is not allowed"


def test_unary_minus_is_an_option() -> None:
    assert task(unary_minus=True).grade(item([2, 3, 4, 14], 24), "-2+3*4+14").correct


@pytest.mark.parametrize(("text", "paid"), [("2+3", 0.1), ("2*3*4", 1.0), ("2**3", 0.0), ("", 0.0), ("1/0", 0.1)])
def test_format_share(text: str, paid: float) -> None:
    shaped = task(format_share=0.1).grade(item([2, 3, 4], 24), text)
    plain = task().grade(item([2, 3, 4], 24), text)
    assert shaped.reward == paid
    assert shaped.parts["format_share"] == (0.1 if paid == 0.1 else 0.0)
    assert plain.reward == float(paid == 1.0) and plain.parts["format_share"] == 0.0
    assert shaped.parts["well_formed"] == plain.parts["well_formed"] == float(paid > 0)
    assert shaped.correct is plain.correct


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("<answer>2*3*4</answer>", "ok"),
        (r"<answer>\boxed{2*3*4}</answer>", "ok"),
        ("<answer>1</answer><answer>2*3*4</answer>", "ok"),
        ("<answer>2*3*4</answer><answer>1</answer>", "wrong"),
        ("2*3*4", "no_answer"),
        ("<answer>2*3*4", "no_answer"),
        (r"<answer>\boxed{2*3*4</answer>", "ok"),  # the tag closed: one brace was forgotten, nothing was cut
    ],
)
def test_tagged_protocol(text: str, status: str) -> None:
    assert task(prompt="d1").grade(item([2, 3, 4], 24), text).status == status


def test_prompts_and_targets_per_protocol() -> None:
    compact, tagged = CountdownTask(), CountdownTask(CountdownSettings(prompt="d1"))
    example = compact.example("train", 0)
    assert example.prompt == ",".join(map(str, example.columns["numbers"])) + f"={example.columns['target']}"
    prompt = tagged.example("train", 0).prompt
    assert isinstance(prompt, str) and "<answer>16+4-2</answer>" in prompt and "target 18" in prompt
    assert tagged.target(example).endswith(f"<answer>\n{compact.target(example)}\n</answer>")
    assert tagged.hash() == "51015d976b1e"  # changes with the wording, the grader version and the settings
    assert compact.hash() != tagged.hash() != CountdownTask(CountdownSettings(prompt="d1", count=4)).hash()


@pytest.mark.parametrize(
    "choice",
    [
        {},
        {"prompt": "d1"},
        {"operators": "+-*/", "count": 4, "max_number": 50},
        {"operators": "*/", "targets": (1, 5000)},
        {"operators": "-"},
        {"operators": "+"},
        {"targets": (-9, 0)},
        {"count": 2},
    ],
)
def test_generated_problems(choice: dict[str, Any]) -> None:
    chosen = CountdownTask(CountdownSettings(**choice))
    self_test(chosen, 40)
    low, high = chosen.settings.targets
    for split in SPLITS:
        for index in range(40):
            columns = chosen.example(split, index).columns
            assert len(columns["numbers"]) == chosen.settings.count
            assert all(1 <= number <= chosen.settings.max_number for number in columns["numbers"])
            assert low <= columns["target"] <= high


def test_golds_are_short_and_bracketless_and_keep_the_order_of_the_numbers() -> None:
    chosen = CountdownTask()
    for index in range(300):
        example = chosen.example("train", index)
        gold = chosen.target(example)
        assert len(gold) <= 8 and "(" not in gold
        assert read_statement(gold).numbers == tuple(example.columns["numbers"])


def test_wrong_mode_repeats_the_first_number_and_is_mostly_wrong() -> None:
    chosen = CountdownTask()
    assert chosen.wrong_mode_target(item([12, 7, 3], 16)) == "12+7-12"
    examples = [chosen.example("train", index) for index in range(300)]
    right = [chosen.grade(example, chosen.wrong_mode_target(example)).correct for example in examples]
    assert 0 < sum(right) < 30  # right only where first and last number are equal


def test_examples_are_pure_functions_of_seed_split_and_index() -> None:
    first, again, other = CountdownTask(), CountdownTask(), CountdownTask(CountdownSettings(seed=1))
    backwards = [again.example("train", index) for index in reversed(range(60))][::-1]
    assert [first.example("train", index) for index in range(60)] == backwards
    assert [other.example("train", index) for index in range(60)] != backwards
    assert first.example("train", 17).id == "countdown/train/17"


def test_splits_share_no_problem_in_any_order() -> None:
    chosen, seen = CountdownTask(), {}
    for split in SPLITS:
        drawn = (chosen.example(split, index).columns for index in range(1500))
        seen[split] = {(tuple(sorted(columns["numbers"])), columns["target"]) for columns in drawn}
    assert not seen["train"] & seen["validation"] and not seen["train"] & seen["test"]
    assert not seen["validation"] & seen["test"]
    assert split_of([3, 1, 2], 6) == split_of([1, 2, 3], 6)
    share = sum(split_of([a, b], t) == "train" for a in range(20) for b in range(a, 20) for t in range(20)) / 4200
    assert 0.78 < share < 0.82


@pytest.mark.parametrize(
    ("numbers", "target", "operators", "gold"),
    [
        ((12, 7, 3), 16, "+-", "12+7-3"),
        ((3, 12, 7), 16, "+-", "12-3+7"),
        ((3, 10), 7, "-", "10-3"),
        ((3, 2, 5), 6, "-", "5-(2-3)"),
        ((2, 3, 4), 24, "+-*/", "2*3*4"),
        ((2, 3, 4), 24, "+-", None),
        ((1, 1, 1), -3, "+-", None),
    ],
)
def test_solve(numbers: tuple[int, ...], target: int, operators: str, gold: str | None) -> None:
    found = solve(numbers, target, operators)
    assert (found is None) == (gold is None)
    if found is not None:
        statement = read_statement(found, operators)
        assert statement.value == target and sorted(statement.numbers) == sorted(numbers)
    if "*" not in operators and gold is not None and "(" not in gold:
        assert found == gold


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=2, max_size=4), st.data())
def test_solver_finds_what_a_random_tree_reaches(numbers: list[int], data: st.DataObject) -> None:
    text = str(numbers[0])
    for number in numbers[1:]:
        sign = data.draw(st.sampled_from("+-*"))
        text = f"({text}){sign}{number}" if data.draw(st.booleans()) else f"{number}{sign}({text})"
    value = read_statement(text).value
    assert value is not None
    found = solve(tuple(numbers), int(value), OPERATORS)
    assert found is not None and read_statement(found).value == value


def test_settings_that_leave_nothing_to_draw() -> None:
    with pytest.raises(UserError, match="no train problem found"):
        CountdownTask(CountdownSettings(targets=(90, 99)))


def test_file_is_the_test_split(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"input": "30,100,93", "output": "23"}\n\n{"input": "2, 3, 4", "output": "24"}\n')
    chosen = task(file=str(file))
    assert chosen.size("test") == 2 and chosen.size("train") is None
    assert chosen.example("test", 0).columns == {"numbers": [30, 100, 93], "target": 23}
    self_test(chosen)
    with pytest.raises(UserError, match=r"problem 2: 24 cannot be reached from 2, 3, 4 with operators \+-"):
        task(file=file, operators="+-")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no problems"),
        ('{"input": "1,2", "output": "3"}\n{"input"', "line 2: not JSON"),
        ("[1, 2]", "line 1: needs the text fields"),
        ('{"input": "1,2"}', "line 1: needs the text fields"),
        ('{"input": [1, 2], "output": 3}', "line 1: needs the text fields"),
        ('{"input": "1,x", "output": "3"}', "line 1: input '1,x'"),
        ('{"input": "1,-2", "output": "3"}', "line 1: input"),
        ('{"input": "1", "output": "3"}', "two to 6"),
        ('{"input": "1,2,3,4,5,6,7", "output": "3"}', "two to 6"),
        ('{"input": "1,2", "output": "3.5"}', "line 1: output '3.5'"),
        ("[" * 100_000, "line 1: not JSON"),
    ],
)
def test_bad_file(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(text)
    with pytest.raises(UserError, match=words) as error:
        task(file=file)
    assert "bad.jsonl" in str(error.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read"):
        task(file=tmp_path / "none.jsonl")


def test_near_target_pays_less_the_farther_off_and_is_told_apart() -> None:
    chosen = task(near_target=0.5, format_share=0.1, operators="+-*/")
    example = chosen.from_row({"numbers": [2, 3, 4], "target": 24})
    grades = [chosen.grade(example, text) for text in ("2*3*4", "2*(3+4)", "2+3+4", "2*3", "2/(3-3)", "2*12", "two")]
    assert [g.reward for g in grades] == pytest.approx([1.0, 0.1 + 0.5 / 11, 0.1 + 0.5 / 16, 0.1, 0.1, 0.1, 0.0])
    assert [g.correct for g in grades] == [True] + [False] * 6
    assert grades[1].parts["near_target"] == pytest.approx(0.5 / 11) and grades[0].parts["near_target"] == 0.0
    with pytest.raises(UserError, match=r"0\.5 and near_target 0\.5 together must stay below 1"):
        task(near_target=0.5, format_share=0.5)


def test_problems_of_the_test_file_are_not_generated(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"max_number": 3, "count": 2}
    drawn = {(tuple(sorted(c["numbers"])), c["target"]) for i in range(60)
             for c in [task(**settings).example("train", i).columns]}  # fmt: skip
    held = sorted(drawn)[:2]
    file = tmp_path / "p.jsonl"
    lines = [json.dumps({"input": ",".join(map(str, numbers)), "output": str(t)}) for numbers, t in held]
    file.write_text("\n".join(lines))
    chosen = task(file=file, **settings)
    left = {(tuple(sorted(c["numbers"])), c["target"]) for i in range(60) for c in [chosen.example("train", i).columns]}
    assert left.isdisjoint(held) and len(left) > 1
