"""GSM8K and MATH: loading, splits, guards against test data in training, prompts, grading."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from maskgrad.errors import UserError
from maskgrad.tasks import Example, make_task, self_test
from maskgrad.tasks.contamination import normalised, problem_hash, refuse_known_file
from maskgrad.tasks.gsm8k_answer import read_gold

DATA = Path(__file__).parents[3].parent / "shared" / "data"
PROTOCOLS = ("compact", "d1", "spg", "espo", "tracerl")

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def train_rows(count: int = 60) -> list[dict[str, Any]]:
    return [
        {"question": f"Count {i} apples in {WORDS[i % 10]} bags.", "answer": f"work\n#### {i}"} for i in range(count)
    ]


def verdict(name: str, answer: str, completion: str, **settings: Any) -> tuple[bool | None, str]:
    grade = make_task({"name": name, **settings}).grade(
        Example(id="x", prompt="", columns={"answer": answer}), completion
    )
    return grade.correct, grade.status


@pytest.mark.parametrize("name", ["gsm8k", "math"])
@pytest.mark.parametrize("prompt", PROTOCOLS)
def test_gold_is_paid_and_nothing_is_not(tmp_path: Path, name: str, prompt: str) -> None:
    file = write(
        tmp_path / "a.jsonl",
        [{"question": "q1", "answer": 18.0}, {"problem": "x", "question": "q2", "answer": "1,080"}],
    )
    task = make_task({"name": name, "prompt": prompt, "file": str(file)})
    assert task.size("test") == 2
    assert task.size("train") == task.size("validation") == 0
    self_test(task)


def test_prompts_are_pinned_by_their_hash() -> None:
    hashes = {
        (name, prompt): make_task({"name": name, "prompt": prompt}).hash()
        for name in ("gsm8k", "math")
        for prompt in PROTOCOLS
    }
    assert len(set(hashes.values())) == 8  # d1 and spg ask the same of words; everything else differs


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("compact", ["What?"]),
        ("d1", ["<reasoning>", "</reasoning>", "<answer>", "</answer>", "What?"]),
        ("espo", ["What?\n", "\\boxed{}"]),
        ("tracerl", ["\\boxed{}", "\nWhat?"]),
    ],
)
def test_prompts_ask_for_what_the_protocol_asks_for(tmp_path: Path, prompt: str, words: list[str]) -> None:
    file = write(tmp_path / "a.jsonl", [{"question": "What?", "answer": 3}])
    text = make_task({"name": "gsm8k", "prompt": prompt, "file": file}).example("test", 0).prompt
    assert isinstance(text, str)
    assert all(word in text for word in words)
    mathematics = make_task({"name": "math", "prompt": prompt, "file": file}).example("test", 0).prompt
    assert ("\\boxed{}" in mathematics) == (prompt != "compact")


@pytest.mark.parametrize(
    ("answer", "completion", "correct", "status"),
    [
        ("72", "<answer>72</answer>", True, "ok"),
        ("72", "\\boxed{72.0}", True, "ok"),
        ("72", "The answer is 72.", True, "ok"),
        ("72", "#### 72.00", True, "ok"),
        ("72", "<answer>144/2</answer>", True, "ok"),
        ("72", "<answer>48 + 24</answer>", True, "ok"),
        ("72", "<answer>48 + 24 = 72</answer>", True, "ok"),
        ("72", "<answer>48 + 24 = $72</answer>", True, "ok"),
        ("72", "<answer>$72 dollars per week</answer>", True, "ok"),
        ("72", "<answer>72%</answer>", True, "ok"),
        ("43500", "\\boxed{43,500}", True, "ok"),
        ("work\n#### 1,080", "\\boxed{1080}", True, "ok"),
        ("-5", "<answer>−5</answer>", True, "ok"),
        ("72", "<answer>73</answer>", False, "wrong"),
        ("72", "<answer>7 2</answer>", False, "wrong"),
        ("72", "<answer>-72</answer>", False, "wrong"),
        ("72", "We get 72 apples and then 10 pears remain.", False, "wrong"),
        ("72", "<answer>72</answer><answer>71</answer>", False, "wrong"),
        ("72", "\\boxed{72} no, \\boxed{71}", False, "wrong"),
        ("72", "<answer>72", False, "no_answer"),
        ("72", "so \\boxed{72", False, "no_answer"),
        ("72", "<answer>none</answer>", False, "no_answer"),
        ("72", "it is 72\n</reasoning>", False, "no_answer"),
        ("72", "", False, "no_answer"),
        ("72", "<answer>" + "9" * 10**6 + "</answer>", False, "no_answer"),
        ("72", "<answer>so " + "9" * 300 + " or " + "9" * 10 + "72</answer>", False, "wrong"),
        ("seventy", "<answer>70</answer>", None, "error"),
    ],
)
def test_gsm8k_verdicts(answer: str, completion: str, correct: bool | None, status: str) -> None:
    assert verdict("gsm8k", answer, completion) == (correct, status)


def test_percent_policies_of_gsm8k() -> None:
    assert verdict("gsm8k", "0.72", "<answer>72%</answer>", percent="exact") == (True, "ok")
    assert verdict("gsm8k", "72", "<answer>72%</answer>", percent="exact") == (False, "wrong")
    assert verdict("gsm8k", "0.72", "<answer>72%</answer>", percent="percent_or_fraction") == (True, "ok")


@pytest.mark.parametrize(
    ("answer", "completion", "correct", "status"),
    [
        ("so \\boxed{\\frac{1}{2}}", "<answer>\\boxed{0.5}</answer>", True, "ok"),
        ("\\frac{1}{2}", "\\frac{1}{2}", True, "ok"),
        ("\\frac{1}{2}", "\\boxed{\\frac{1}{2}", True, "ok"),
        ("\\frac{1}{2}", "\\boxed \\frac{1}{2}", True, "ok"),
        ("\\frac{1}{2}", "\\fbox{\\frac{1}{2}}", True, "ok"),
        ("\\frac{1}{2}", "first \\boxed{3}, no: \\boxed{\\frac{1}{2}}", True, "ok"),
        ("3, 5", "\\boxed{3} and \\boxed{5}", False, "wrong"),
        ("5", "\\boxed{}", False, "no_answer"),
        ("5", "x \\boxed{5", False, "no_answer"),
        ("5", "\\boxed{\\frac}", False, "wrong"),
        ("5", "\\boxed{\\frac{1}{0}}", False, "wrong"),
        ("5", "It should be five or so.", False, "wrong"),
        ("\\boxed{5", "\\boxed{5}", None, "error"),
        ("", "\\boxed{5}", None, "error"),
    ],
)
def test_math_verdicts(answer: str, completion: str, correct: bool | None, status: str) -> None:
    assert verdict("math", answer, completion) == (correct, status)


def test_undecided_answers_are_counted_apart() -> None:
    grade = make_task({"name": "math"}).grade(Example(id="x", prompt="", columns={"answer": "204_5"}), "\\boxed{204}")
    assert (grade.reward, grade.parts["undecided"]) == (0.0, 1.0)
    assert grade.detail.startswith("unknown:")


def test_train_and_validation_are_disjoint_and_independent_of_row_order(tmp_path: Path) -> None:
    rows = train_rows()
    first, second = write(tmp_path / "a.jsonl", rows), write(tmp_path / "b.jsonl", rows[::-1])
    texts: list[dict[str, set[str]]] = []
    for file in (first, second):
        task = make_task({"name": "gsm8k", "train_file": file, "prompt": "compact"})
        texts.append(
            {
                split: {str(task.example(split, i).prompt) for i in range(task.size(split) or 0)}
                for split in ("train", "validation")
            }
        )
    assert texts[0] == texts[1]
    assert len(texts[0]["validation"]) == 6 and len(texts[0]["train"]) == 54
    assert not texts[0]["train"] & texts[0]["validation"]
    other = make_task({"name": "gsm8k", "train_file": first, "prompt": "compact", "seed": 1})
    assert {str(other.example("validation", i).prompt) for i in range(6)} != texts[0]["validation"]
    none = make_task({"name": "gsm8k", "train_file": first, "validation": 0})
    assert (none.size("train"), none.size("validation"), none.size("test")) == (60, 0, 0)
    with pytest.raises(UserError, match="has no test data: pass `file`"):
        none.example("test", 0)


def test_test_problems_are_taken_out_of_training(tmp_path: Path) -> None:
    rows = train_rows()
    test = write(tmp_path / "test.jsonl", [{"question": "COUNT 3 apples, in four bags", "answer": 3}])
    task = make_task({"name": "gsm8k", "train_file": write(tmp_path / "a.jsonl", rows), "file": test, "validation": 0})
    assert task.size("train") == 59
    assert task.data.dropped["train"] == {"a problem of a test set": 1}  # type: ignore[attr-defined]
    only = make_task({"name": "gsm8k", "train_file": test, "file": test})
    with pytest.raises(UserError, match="every row is a test problem"):
        only.size("train")


@pytest.mark.skipif(not DATA.exists(), reason="the shared data are not next to the repository")
@pytest.mark.parametrize(("name", "file", "count"), [("gsm8k", "gsm8k_test", 1128), ("math", "math500_test", 500)])
def test_public_test_sets_load_and_are_refused_for_training(name: str, file: str, count: int) -> None:
    path = DATA / f"{file}.jsonl"
    task = make_task({"name": name, "file": path})
    assert task.size("test") == count
    self_test(task, 20)
    with pytest.raises(UserError, match=f"problems of the test set {file} in .* rows; do not train on it"):
        make_task({"name": name, "train_file": path}).size("train")


@pytest.mark.skipif(not DATA.exists(), reason="the shared data are not next to the repository")
def test_every_gold_of_the_public_test_set_equals_itself_in_the_first_pass() -> None:
    task = make_task({"name": "math", "file": DATA / "math500_test.jsonl"})
    for index in range(500):
        example = task.example("test", index)
        assert task.grade(example, task.target(example)).correct, example.columns["answer"]


def test_bad_rows_are_dropped_with_a_count(tmp_path: Path) -> None:
    rows = [
        {"question": "a", "answer": 1},
        {"question": "b", "answer": "not a number"},
        {"question": "c", "answer": None},
        {"question": "", "answer": 1},
        {"question": "a", "answer": 2},
        {"question": "d"},
        {"question": "e", "answer": True},
        {"question": "f", "answer": [1]},
    ]
    task = make_task({"name": "gsm8k", "file": write(tmp_path / "a.jsonl", rows)})
    assert task.size("test") == 1
    assert task.data.dropped["test"] == {  # type: ignore[attr-defined]
        "the gold answer is not a number": 1,
        "no gold answer": 4,
        "no problem text": 1,
        "the problem was there before": 1,
    }
    golds = [{"problem": str(i), "answer": gold} for i, gold in enumerate(["\\boxed{5", "\\unknown{5}", "x_1", "7"])]
    assert make_task({"name": "math", "file": write(tmp_path / "b.jsonl", golds)}).size("test") == 1


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("a.jsonl", '{"question": "x"}\n{"question": 3}', "no column|lacks a column 'answer'"),
        ("a.jsonl", '{"text": "x", "answer": 1}', "lacks a column 'question' or 'problem'; found text, answer"),
        ("a.jsonl", "{", "line 1: not JSON"),
        ("a.jsonl", "[1]", "line 1: a row must be a JSON object, not list"),
        ("a.jsonl", "", "holds no usable problems"),
        ("a.jsonl", '{"question": "x", "answer": "y"}', "1 dropped: the gold answer is not a number"),
        ("a.json", "{}", "must hold a list of rows, not dict"),
        ("a.json", "[3]", "row 1: a row must be a JSON object"),
        ("a.txt", "x", "no known format; pass a file that ends in .jsonl"),
        ("a.csv", "question,answer\n", "holds no usable problems"),
    ],
)
def test_bad_files(tmp_path: Path, file: str, content: str, words: str) -> None:
    (tmp_path / file).write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=words):
        make_task({"name": "gsm8k", "file": tmp_path / file}).size("test")


def test_missing_files_folders_and_other_formats(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*none\.jsonl"):
        make_task({"name": "gsm8k", "file": tmp_path / "none.jsonl"}).size("test")
    with pytest.raises(UserError, match="is a folder"):
        make_task({"name": "gsm8k", "file": tmp_path}).size("test")
    (tmp_path / "a.csv").write_text('question,answer\n"how, many?",7\n', encoding="utf-8")
    assert make_task({"name": "gsm8k", "file": tmp_path / "a.csv"}).size("test") == 1
    (tmp_path / "a.json").write_text('[{"problem": "p", "solution": "so \\\\boxed{7}"}]', encoding="utf-8")
    assert make_task({"name": "math", "file": tmp_path / "a.json"}).size("test") == 1


def fake_hub(monkeypatch: pytest.MonkeyPatch, outcome: Exception | list[dict[str, Any]]) -> None:
    def load_dataset(*_: Any, **__: Any) -> list[dict[str, Any]]:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    module = types.ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    module.__spec__ = types.SimpleNamespace(name="datasets")  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "datasets", module)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            RuntimeError("Dataset scripts are no longer supported, but found gsm8k.py"),
            "made by a script, which is never run",
        ),
        (ValueError("use trust_remote_code=True"), "made by a script"),
        (ConnectionError("Couldn't reach the hub"), "is there a network"),
        (FileNotFoundError("Dataset 'openai/gsm8k' doesn't exist on the Hub"), "there is no data set 'openai/gsm8k'"),
    ],
)
def test_hub_failures_are_one_sentence(monkeypatch: pytest.MonkeyPatch, error: Exception, words: str) -> None:
    fake_hub(monkeypatch, error)
    with pytest.raises(UserError, match=words):
        make_task({"name": "gsm8k"}).size("test")


def test_hub_rows_are_used_where_no_file_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hub(monkeypatch, train_rows(20))
    task = make_task({"name": "gsm8k"})
    assert (task.size("train"), task.size("validation"), task.size("test")) == (18, 2, 20)


def test_without_the_hub_library_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="openai/gsm8k is a data set of the hub: pip install"):
        make_task({"name": "gsm8k"}).size("test")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"prompt": "d2"}, "prompt cannot be 'd2'; did you mean 'd1'"),
        ({"reward": "compat_d2"}, "reward cannot be 'compat_d2'; did you mean 'compat_d1'"),
        ({"percent": "off"}, "percent cannot be 'off'"),
        ({"validation": -1}, "validation must be a whole number from 0 up"),
        ({"file": 3}, "file must be a path"),
        ({"trainfile": "x"}, "no setting 'trainfile'; did you mean 'train_file'"),
    ],
)
def test_bad_settings(settings: dict[str, Any], words: str) -> None:
    for name in ("gsm8k", "math"):
        with pytest.raises(UserError, match=words):
            make_task({"name": name, **settings})


def test_problems_are_recognised_whatever_their_dressing() -> None:
    assert problem_hash("Find $x^2$, if  $\\left(x\\right)=\\dfrac{1}{2}$.") == problem_hash(
        "find x^2 if (x) = \\frac{1}{2}"
    )
    assert problem_hash("Find x + 2") != problem_hash("Find x - 2")
    assert normalised("Ａ b\tC?") == "abc"


def test_golds() -> None:
    assert read_gold("work #### 1,080") == 1080
    assert read_gold("18.0") == 18
    assert read_gold("about ten") is None


@pytest.mark.skipif(not DATA.is_dir(), reason="the shared data is not next to the repository")
def test_public_test_files_are_known_by_their_content(tmp_path: Path) -> None:
    for name in ("countdown_cd3_test.jsonl", "sudoku_4x4_test.csv", "sudoku_4x4_test_split_new.csv"):
        copy = tmp_path / "train.data"
        copy.write_bytes((DATA / name).read_bytes().replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"))
        with pytest.raises(UserError, match=f"train.data is the public test set {name}"):
            refuse_known_file(copy)
    copy.write_text("prompt,answer\n1,2\n")
    refuse_known_file(copy)
    refuse_known_file(tmp_path / "nothing")
