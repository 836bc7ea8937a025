"""The reward-function contract and tasks made of the user's data."""

from __future__ import annotations

import asyncio
import functools
import warnings
from typing import Any

import numpy as np
import pytest

from maskgrad.errors import UserError
from maskgrad.tasks.base import Grade, self_test
from maskgrad.tasks.custom import CustomTask
from maskgrad.tasks.rewards import RewardFailure, RewardFunctions, call_reward_functions


def equals(*, completions: list[str], answer: list[str], **_: Any) -> list[float]:
    return [float(text == gold) for text, gold in zip(completions, answer, strict=True)]


def length(completions: list[str], **_: Any) -> list[float]:
    return [float(len(text)) for text in completions]


def abstains_on_b(completions: list[str], **_: Any) -> list[float | None]:
    return [None if text == "b" else 0.5 for text in completions]


def call(*funcs: Any, weights: Any = None, completions: tuple[str, ...] = ("a", "b")) -> list[Grade]:
    prompts = ["p"] * len(completions)
    return call_reward_functions(funcs, weights, prompts, list(completions), {"answer": ["a"] * len(completions)})


def constant(value: Any) -> Any:
    def fixed(**_: Any) -> Any:
        return value

    return fixed


def test_weighted_sum_with_named_parts() -> None:
    first, second = call(equals, length, weights=[2.0, -0.5], completions=("a", "bcd"))
    assert (first.reward, second.reward) == (1.5, -1.5)
    assert first.parts == {"equals": 1.0, "length": 1.0}
    assert second.parts == {"equals": 0.0, "length": 3.0}
    assert first.correct is None and first.status == "ok"


def test_none_abstains_and_a_row_of_abstentions_has_no_reward() -> None:
    first, second = call(abstains_on_b, equals, weights=[1.0, 10.0])
    assert first.reward == 10.5
    assert second.reward == 0.0 and second.parts == {"equals": 0.0}
    first, second = call(abstains_on_b)
    assert first.reward == 0.5
    assert second.reward is None and second.parts == {} and "abstained" in second.detail


def test_a_zero_reward_is_not_an_abstention() -> None:
    assert [grade.reward for grade in call(constant([0.0, 0]))] == [0.0, 0.0]


def test_grades_carry_the_verdict() -> None:
    right = Grade(reward=1.0, correct=True, status="ok", parts={"steps": 3.0})
    wrong = Grade(reward=0.0, correct=False, status="no_answer", detail="empty")
    first, second = call(constant([right, wrong]), length)
    assert (first.correct, first.status, first.reward) == (True, "ok", 2.0)
    assert first.parts == {"fixed": 1.0, "fixed.steps": 3.0, "length": 1.0}
    assert (second.correct, second.status, second.detail) == (False, "no_answer", "empty")
    assert call(constant([right, right]), constant([wrong, wrong]))[0].correct is False


@pytest.mark.parametrize("values", [(1, True), np.array([1.0, 1.0], dtype=np.float32), [np.float32(1), np.int64(1)]])
def test_numbers_of_other_kinds_are_accepted(values: Any) -> None:
    assert [grade.reward for grade in call(constant(values))] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1.0], "fixed returned 1 values, expected 2"),
        ([1.0] * 3, "fixed returned 3 values, expected 2"),
        (1.0, "fixed returned float; return a list of 2 values"),
        (np.float32(1.0), "fixed returned float32; return a list"),
        (None, "fixed returned NoneType"),
        ("ab", "fixed returned str"),
        ({"a": 1.0, "b": 2.0}, "fixed returned dict"),
        ([1.0, float("nan")], "fixed, row 1: the value is nan"),
        ([float("-inf"), 1.0], "fixed, row 0: the value is -inf"),
        ([1.0, "1.0"], "fixed, row 1: str is not a number"),
        ([1.0, [1.0]], "fixed, row 1: list is not a number"),
        ([1.0, 1j], "fixed, row 1: complex is not a number"),
        ([1.0, Grade(reward=float("nan"), correct=None, status="ok")], "fixed, row 1: the value is nan"),
    ],
)
def test_bad_values(values: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        call(length, constant(values))


def test_exceptions_name_the_function_and_keep_their_cause() -> None:
    def broken(**_: Any) -> list[float]:
        return [1 / 0]

    with pytest.raises(UserError, match="reward function broken raised ZeroDivisionError: division by zero") as error:
        call(broken)
    assert isinstance(error.value.__cause__, ZeroDivisionError)


def one_over(completions: list[str], **_: Any) -> list[float]:
    """Raises on a batch that holds "0" anywhere."""
    return [1 / int(text) for text in completions]


def test_a_crash_is_an_outcome_of_its_rows_only() -> None:
    with pytest.warns(
        RewardFailure, match=r"one_over raised ZeroDivisionError(.|\n)*Traceback(.|\n)*1 / int"
    ) as caught:
        first, second, third = call(one_over, length, completions=("2", "0", "4"))
    assert (first.reward, third.reward, first.status) == (1.5, 1.25, "ok")
    assert (second.reward, second.correct, second.status) == (None, None, "crash"), (
        "a sum without its part is no reward"
    )
    assert second.detail == "one_over: ZeroDivisionError: division by zero"
    assert second.parts == {"length": 1.0}
    assert len(caught) == 1


def test_a_traceback_is_shown_once_for_each_kind() -> None:
    rewards = RewardFunctions([one_over])
    rewards(["p"], ["2"], {})
    for bad, shown in (("0", 1), ("0", 0), ("x", 1), ("x", 0)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            grades = rewards(["p", "p"], ["1", bad], {})
        assert [grade.status for grade in grades] == ["ok", "crash"]
        assert len(caught) == shown


def test_a_whole_batch_may_crash_once_the_function_has_worked() -> None:
    rewards = RewardFunctions([one_over])
    with pytest.raises(UserError, match="one_over raised ZeroDivisionError"):
        rewards(["p", "p"], ["0", "0"], {})
    rewards(["p"], ["1"], {})
    with pytest.warns(RewardFailure):
        assert [grade.status for grade in rewards(["p", "p"], ["0", "0"], {})] == ["crash", "crash"]


def test_functions_get_the_keywords_they_accept() -> None:
    def few(completions: list[str]) -> list[float]:
        return [float(len(text)) for text in completions]

    def columns_only(answer: list[str], completion_ids: Any = None) -> list[float]:
        assert completion_ids is None
        return [float(len(gold)) for gold in answer]

    class Judge:
        def __call__(self, completions: list[str], answer: list[str]) -> list[float]:
            return [float(text == gold) for text, gold in zip(completions, answer, strict=True)]

    assert call(few, columns_only, Judge())[0].parts == {"few": 1.0, "columns_only": 1.0, "Judge": 1.0}


def test_a_parameter_without_a_column_is_named() -> None:
    def wants(completions: list[str], gold: list[str]) -> list[float]:
        return [0.0 for _ in gold]

    def by_position(completions: list[str], /) -> list[float]:
        return [0.0 for _ in completions]

    with pytest.raises(UserError, match=r"wants needs 'gold', which is no column of the data: found prompts, .*answer"):
        call(wants)
    with pytest.raises(UserError, match="by_position takes 'completions' by position"):
        call(by_position)


def test_async_functions_with_and_without_a_running_loop() -> None:
    async def slow(completions: list[str], **_: Any) -> list[float]:
        await asyncio.sleep(0)
        return [float(len(text)) for text in completions]

    async def inside() -> list[Grade]:
        return call(slow)

    assert [grade.reward for grade in call(slow)] == [1.0, 1.0]
    assert [grade.reward for grade in asyncio.run(inside())] == [1.0, 1.0]

    async def broken(**_: Any) -> list[float]:
        raise KeyError("k")

    with pytest.raises(UserError, match="broken raised KeyError: 'k'"):
        call(broken)


@pytest.mark.parametrize(
    ("weights", "words"),
    [([1.0, 2.0], "2 reward weights for 1"), ([float("inf")], "not a finite"), (["1"], "not a finite")],
)
def test_bad_weights(weights: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        call(length, weights=weights)


def test_no_function_or_no_callable() -> None:
    with pytest.raises(UserError, match="no reward function"):
        call()
    with pytest.raises(UserError, match="cannot be called"):
        call(3)


def test_repeated_and_missing_names() -> None:
    assert set(call(length, length, functools.partial(length))[0].parts) == {"length", "length_2", "partial"}


def test_ragged_input_is_refused() -> None:
    with pytest.raises(UserError, match="completions has 1 entries for 2 prompts"):
        call_reward_functions([length], None, ["p", "q"], ["a"], {})
    with pytest.raises(UserError, match="answer has 1 entries for 2 prompts"):
        call_reward_functions([length], None, ["p", "q"], ["a", "b"], {"answer": ["x"]})


def test_functions_cannot_change_each_others_input() -> None:
    def greedy(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        completions.clear()
        answer.clear()
        return [0.0, 0.0]

    assert call(greedy, equals)[0].parts["equals"] == 1.0


ROWS = [{"prompt": "1+1", "answer": "2", "completion": "2"}, {"prompt": "1+2", "answer": "3", "completion": "3"}]


class Table:
    """Looks like a `datasets.Dataset`."""

    column_names = ["prompt", "answer"]

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> dict[str, str]:
        return {key: ROWS[index][key] for key in self.column_names}


def test_custom_task_on_rows() -> None:
    task = CustomTask(ROWS, [equals], name="sums")
    examples = [task.example("train", index) for index in range(2)]
    assert examples[1].id == "sums/train/1" and examples[1].prompt == "1+2"
    assert [grade.reward for grade in task.grade_batch(examples, ["2", "9"])] == [1.0, 0.0]
    assert task.grade(examples[0], "2").correct is None
    assert task.grade_batch([], []) == []
    assert (task.size("train"), task.size("test"), task.has_gold) == (2, 0, True)
    assert task.target(examples[0]) == "2"
    self_test(task)


def test_custom_task_on_a_table_and_on_splits() -> None:
    task = CustomTask({"train": Table(), "test": ROWS[:1]}, equals, weights=[2.0])
    assert task.grade(task.example("train", 1), "3").reward == 2.0
    assert task.size("test") == 1 and not task.has_gold
    with pytest.raises(UserError, match="needs a column 'completion'"):
        task.target(task.example("train", 0))
    with pytest.raises(UserError, match="index 2 is outside"):
        task.example("train", 2)
    with pytest.raises(UserError, match="index 0 is outside split 'validation'"):
        task.example("validation", 0)
    assert task.hash() == CustomTask({"train": Table(), "test": ROWS[:1]}, equals, weights=[2.0]).hash()
    assert task.hash() != CustomTask({"train": Table(), "test": ROWS[:1]}, equals).hash()


def test_chat_prompts_reach_the_functions_as_messages() -> None:
    seen: dict[str, Any] = {}

    def watch(prompts: list[Any], completions: list[Any], **columns: Any) -> list[float]:
        seen.update(prompts=prompts, completions=completions, columns=columns)
        return [1.0, 1.0]

    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    task = CustomTask([{"prompt": chat, "k": 1}, {"prompt": "text", "k": 2}], watch)
    examples = [task.example("train", 0), task.example("train", 1)]
    assert examples[0].prompt == chat
    task.grade_batch(examples, ["x", "y"])
    assert seen == {
        "prompts": [chat, "text"],
        "completions": [[{"role": "assistant", "content": "x"}], "y"],
        "columns": {"k": [1, 2]},
    }


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        ([{"question": "q", "answer": "a"}], "no column 'prompt'; found answer, question"),
        ([], "split 'train' is empty"),
        ({}, "no splits"),
        ({"dev": ROWS}, "unknown split 'dev'"),
        ([{"prompt": "p", "completions": "x"}], "'completions' clashes"),
        (["text"], "found none"),
    ],
)
def test_bad_data_sets(dataset: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        CustomTask(dataset, equals)


@pytest.mark.parametrize("prompt", ["", None, 3, [], ["hi"], [{"role": "user"}], [{"role": "user", "content": None}]])
def test_bad_prompts(prompt: Any) -> None:
    with pytest.raises(UserError, match="custom/train/0: prompt must be text or a list of messages"):
        CustomTask([{"prompt": prompt}], equals).example("train", 0)


def test_rows_with_other_columns_are_refused() -> None:
    task = CustomTask([{"prompt": "p", "answer": "a"}, {"prompt": "q", "other": "b"}], equals)
    with pytest.raises(UserError, match="custom/train/1: columns"):
        task.grade_batch([task.example("train", 0), task.example("train", 1)], ["a", "b"])
