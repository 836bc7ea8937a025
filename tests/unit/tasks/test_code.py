"""Code tasks: loading, prompts, rewards and verdicts."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from maskgrad.errors import UserError
from maskgrad.tasks import make_task, self_test
from maskgrad.tasks.base import Grade
from maskgrad.tasks.code import CodeTask
from maskgrad.tasks.code_rows import called_names, pytest_functions
from maskgrad.tasks.registry import build_task

KIND = "bwrap" if shutil.which("bwrap") else "rlimit"
SHARED = Path(__file__).parents[3].parent / "shared" / "data"

MBPP = {
    "task_id": 1,
    "prompt": "Write a function to add.",
    "code": "def add(a, b):\r\n    return a + b",
    "test": ["assert add(1, 2) == 3", "assert add(0, 0) == 0", "assert add(-1, 1) == 0", "assert add(2, 2) == 4"],
}
HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": "import math\n\ndef double(x):\n    return 2 * x\n\ndef four(x):\n    '''Four times x.'''\n",
    "entry_point": "four",
    "canonical_solution": "    return double(double(x))\n",
    "test": "def check(candidate):\n    assert candidate(1) == 4\n    assert candidate(3) == double(6)\n",
}
KODCODE = {
    "question_id": "k1",
    "question": "Write f, which doubles.",
    "solution": "def f(x):\n    return 2 * x",
    "test": "from solution import f\n\ndef test_a():\n    assert f(1) == 2\n\ndef test_b():\n    assert f(2) == 4\n",
}


def write(folder: Path, *rows: Any) -> str:
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def task(name: str, folder: Path, *rows: Any, **settings: Any) -> CodeTask:
    made = build_task({"name": name, "file": write(folder, *rows), "sandbox": KIND, **settings})
    assert isinstance(made, CodeTask)
    return made


def grade(made: CodeTask, program: str, split: str = "test") -> Grade:
    return made.grade(made.example(split, 0), f"```python\n{program}\n```")


def test_gold_is_right_and_self_test_passes(tmp_path: Path) -> None:
    for name, row in (("mbpp", MBPP), ("humaneval", HUMANEVAL), ("kodcode", KODCODE)):
        made = task(name, tmp_path, row)
        self_test(made)
        split = next(s for s in ("train", "validation", "test") if made.size(s))
        example = made.example(split, 0)
        assert made.grade(example, made.target(example)).correct


def test_rows_with_one_id_get_their_own(tmp_path: Path) -> None:
    made = task("humaneval", tmp_path, HUMANEVAL, HUMANEVAL, HUMANEVAL)
    first = made.example("test", 0).id
    assert [made.example("test", n).id for n in range(3)] == [first, f"{first}, row 2", f"{first}, row 3"]


def test_reward_is_the_share_of_tests_or_all_or_nothing(tmp_path: Path) -> None:
    half = "def add(a, b):\n    return abs(a) + abs(b)"
    shared = grade(task("mbpp", tmp_path, MBPP), half)
    assert (shared.reward, shared.correct, shared.status) == (0.75, False, "wrong")
    strict = grade(task("mbpp", tmp_path, MBPP, reward="all"), half)
    assert (strict.reward, strict.parts["pass_fraction"]) == (0.0, 0.75)


def test_outcomes(tmp_path: Path) -> None:
    made = task("mbpp", tmp_path, MBPP, test_seconds=0.3, total_seconds=1)
    found = {
        program: grade(made, program).status
        for program in (
            "def plus(a, b): return a + b",
            "def add(a, b) return a + b",
            "def add(a, b):\n    while True: pass",
            "import os\ndef add(a, b):\n    os._exit(0)",
            "def add(a, b): return a - b",
        )
    }
    assert list(found.values()) == ["no_answer", "wrong", "timeout", "crash", "wrong"]
    assert made.grade(made.example("test", 0), "```python\ndef add(a, b):").detail == "the code block is not closed"


def test_the_prompt_of_humaneval_supplies_imports_and_helper_functions(tmp_path: Path) -> None:
    made = task("humaneval", tmp_path, HUMANEVAL)
    assert grade(made, "def four(x):\n    return int(math.floor(double(double(x))))").correct
    # The tests use the problem's own helper function, whatever the program makes of it.
    assert not grade(made, "def double(x):\n    return 0\ndef four(x):\n    return 0").correct


def test_infrastructure_failure_is_no_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = task("mbpp", tmp_path, MBPP)
    monkeypatch.setattr("maskgrad.tasks.sandbox.command", lambda *arguments: ["false"])
    found = grade(made, "def add(a, b): return a + b")
    assert (found.reward, found.correct, found.status) == (None, None, "infra")
    with pytest.raises(UserError, match=r"does not work on this machine.*known to be right ended as infra"):
        self_test(made)


def test_prompts(tmp_path: Path) -> None:
    prompts = {p: task("mbpp", tmp_path, MBPP, prompt=p).example("test", 0).prompt for p in ("d1", "espo", "tracerl")}
    assert isinstance(prompts["espo"], list)
    system, user = prompts["espo"]
    assert system["role"] == "system" and MBPP["test"][0] in user["content"] and MBPP["test"][1] not in user["content"]
    for protocol in ("d1", "tracerl"):
        assert all(test in prompts[protocol] for test in MBPP["test"])
    assert "<answer>" in prompts["d1"]
    asked = task("humaneval", tmp_path, HUMANEVAL, prompt="tracerl").example("test", 0).prompt
    assert "def four(x):" in asked and "check(" not in asked
    hashes = {task("mbpp", tmp_path, MBPP, prompt=p).hash() for p in ("d1", "espo", "tracerl")}
    assert len(hashes) == 3
    assert task("mbpp", tmp_path, MBPP).hash() != task("mbpp", tmp_path, MBPP, reward="all").hash()


def test_training_rows_are_split_by_content(tmp_path: Path) -> None:
    rows = [{**KODCODE, "question": f"Question {n // 2}", "question_id": str(n)} for n in range(400)]
    made = task("kodcode", tmp_path, *rows)
    train, held = ({made.example(s, i).prompt[1]["content"] for i in range(made.size(s) or 0)}  # type: ignore[index]
                   for s in ("train", "validation"))  # fmt: skip
    assert train and held and not train & held
    assert 10 <= (made.size("validation") or 0) <= 80 and made.size("test") == 0
    again = task("kodcode", tmp_path, *rows, seed=7)
    assert {again.example("validation", i).id for i in range(again.size("validation") or 0)} != {
        made.example("validation", i).id for i in range(made.size("validation") or 0)
    }


def test_unusable_rows_are_dropped_with_a_count(tmp_path: Path) -> None:
    bad = [
        {**MBPP, "test": ["assert ad("]},
        {**MBPP, "code": "def add(:"},
        {**MBPP, "test": ["assert add(root) == 1"]},
        {**MBPP, "test": []},
    ]
    made = task("mbpp", tmp_path, MBPP, *bad)
    assert (made.size("test"), made.dropped) == (1, 4)
    with pytest.raises(UserError, match=r"no usable problem \(all 4"):
        task("mbpp", tmp_path, *bad)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "holds no problems"),
        (b"{", "line 1: not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"prompt": "x", "test": 3, "code": "y"}', "row 1: needs the field 'test' or 'test_list'; found prompt"),
        (b"\xff", "not UTF-8"),
    ],
)
def test_bad_files(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_bytes(content)
    with pytest.raises(UserError, match=words):
        build_task({"name": "mbpp", "file": str(file), "sandbox": KIND})


def test_bad_settings_and_missing_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="cannot read"):
        build_task({"name": "mbpp", "file": str(tmp_path / "none.jsonl"), "sandbox": KIND})
    for key, value in (("sandbox", "none"), ("prompt", "d2"), ("reward", "most"), ("test_seconds", 0), ("memory", 1)):
        with pytest.raises(UserError, match=f"task code: {key}"):
            build_task({"name": "mbpp", "file": "x", key: value})
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(
        UserError, match=r"give file=PATH .* or pip install datasets to load google-research-datasets/mbpp"
    ):
        build_task({"name": "mbpp", "sandbox": KIND}).size("test")


def test_saved_rows_are_graded_from_any_of_three_forms(tmp_path: Path) -> None:
    made = build_task({"name": "mbpp", "sandbox": KIND})  # needs no data of its own for this
    ours = dict(task("mbpp", tmp_path, MBPP).example("test", 0).columns)
    for row in (ours, MBPP, {"prompt_fields": {"test_cases": MBPP["test"]}}):
        example = made.from_row(json.loads(json.dumps(row)), "line 1")
        found = made.grade(example, "```\ndef add(a, b): return a + b\n```")
        assert (found.correct, found.extracted) == (True, "def add(a, b): return a + b\n")
    with pytest.raises(UserError, match=r"line 1.* needs the field 'test' or 'test_list'"):
        made.from_row({"prompt": "x"}, "line 1")
    with pytest.raises(UserError, match="call no function"):
        made.from_row({"test_cases": ["assert True"]}, "line 1")


def test_names_and_test_files() -> None:
    assert called_names(["assert sum(max(1, 2)) == f(3)"], "def f(x): pass\ndef sum(x): pass") == ("sum", "f")
    assert pytest_functions("def test_a(): pass") is None
    assert pytest_functions("from solution import f\ndef test_a(tmp_path): f(1)") is None
    found = pytest_functions("from solution import f, g\ndef test_a(): f(1)\ndef helper(): pass")
    assert found is not None and found.names == ("f", "g") and found.tests == ("test_a()",)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data is not next to the repository")
@pytest.mark.parametrize(
    ("name", "file", "size"), [("humaneval", "humaneval.jsonl.gz", 164), ("mbpp", "mbpp_test.jsonl", 499)]
)
def test_published_sets_load_and_their_solutions_pass(name: str, file: str, size: int) -> None:
    made = make_task({"name": name, "file": str(SHARED / file), "sandbox": KIND})
    assert made.size("test") == size
    examples = [made.example("test", index) for index in range(3, size, size // 8)]
    assert [g.status for g in made.grade_batch(examples, [made.target(e) for e in examples])] == ["ok"] * len(examples)


def test_gzip_is_read(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl.gz"
    file.write_bytes(gzip.compress(json.dumps(MBPP).encode()))
    assert build_task({"name": "mbpp", "file": str(file), "sandbox": KIND}).size("test") == 1


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data is not next to the repository")
def test_test_sets_are_not_trained_on(tmp_path: Path) -> None:
    public = SHARED / "mbpp_test.jsonl"
    with pytest.raises(UserError, match="499 problems of the test set mbpp_test in 499 rows; do not train on it"):
        make_task({"name": "code", "sandbox": KIND, "file": str(public)})
    one = json.loads(public.read_text("utf-8").splitlines()[0])
    own = [{**MBPP, "prompt": f"Write function {n}.", "test": [f"assert add({n}, 1) == {n + 1}"]} for n in range(5)]
    reworded = {**one, "prompt": "Something else"}  # known by its tests
    made = task("code", tmp_path, *own, one, reworded)
    assert (made.dropped, sum(made.size(split) or 0 for split in ("train", "validation"))) == (2, 5)
