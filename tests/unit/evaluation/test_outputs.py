"""Completions on disk: nothing finished is lost, nothing foreign is touched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from maskgrad.errors import UserError
from maskgrad.evaluation.outputs import Finished, Outputs, OutputsFile
from maskgrad.tasks.base import Example


def example(place: int, prompt: str = "p") -> Example:
    return Example(id=f"t/test/{place}", prompt=prompt, columns={"gold": place})


def finished(place: int, seed: int = 0, text: str = "x") -> Finished:
    return Finished(f"t/test/{place}", seed, "p", {"gold": place}, text, [1, 2])


def store(path: Path, *settings: str, model: str = "m", models: tuple[str, ...] = ("m",)) -> OutputsFile:
    return OutputsFile(path, model, settings or ("a",), models)


def test_what_was_added_is_there_again(tmp_path: Path) -> None:
    first = store(tmp_path / "o.jsonl", "a", "b")
    first.part("a").add([finished(0), finished(1)])
    first.part("b").add([finished(0, text="other")])
    again = store(tmp_path / "o.jsonl", "a", "b")
    assert again.part("a").finished(0, example(1)) == finished(1)
    assert again.part("b").finished(0, example(0)).completion == "other"
    assert again.part("a").get(1, example(0)) is None, "another seed"
    assert again.part("a").get(0, example(0, "q")) is None, "another prompt under the same id"
    assert again.part("b").get(0, example(1)) is None


def test_a_torn_line_is_dropped_and_can_be_written_again(tmp_path: Path) -> None:
    path = tmp_path / "o.jsonl"
    store(path).part("a").add([finished(0), finished(1)])
    path.write_bytes(path.read_bytes()[:-5])
    again = store(path)
    assert again.part("a").get(0, example(0)) is not None and again.part("a").get(0, example(1)) is None
    again.part("a").add([finished(1)])
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == ["t/test/0", "t/test/1"]


def test_finish_puts_graded_rows_in_order_and_keeps_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "o.jsonl"
    first = store(path)
    first.part("a").add([finished(2), finished(0), finished(1)])
    again = store(path)
    rows: list[dict[str, Any]] = [
        {"id": f"t/test/{i}", "seed": 0, "prompt": "p", "completion": "x", "tokens": [1, 2], "reward": 1.0}
        for i in (0, 1)
    ]
    again.finish("a", rows)
    read = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["id"], row.get("reward")) for row in read] == [
        ("t/test/2", None),
        ("t/test/0", 1.0),
        ("t/test/1", 1.0),
    ]
    assert not list(tmp_path.glob(".*")), "no half-written file is left"
    assert store(path).part("a").get(0, example(1)) is not None


@pytest.mark.parametrize("line", ["{}", "[]", "no json", '{"id": "t/test/0", "completion": "x"}'])
def test_a_file_of_another_kind_is_refused_and_kept(line: str, tmp_path: Path) -> None:
    (tmp_path / "o.jsonl").write_text(line + "\n")
    with pytest.raises(UserError, match=r"o\.jsonl, line 1 is no output of eval"):
        store(tmp_path / "o.jsonl")
    assert (tmp_path / "o.jsonl").read_text() == line + "\n"


def test_a_file_without_a_line_end_is_not_taken_for_a_torn_one(tmp_path: Path) -> None:
    (tmp_path / "o.jsonl").write_text("my notes")
    with pytest.raises(UserError, match="ends with a line that is no output of eval"):
        store(tmp_path / "o.jsonl")
    assert (tmp_path / "o.jsonl").read_text() == "my notes"


def test_other_settings_are_refused_unless_they_are_of_another_model_of_the_grid(tmp_path: Path) -> None:
    path = tmp_path / "o.jsonl"
    store(path).part("a").add([finished(0)])
    with pytest.raises(UserError, match=r"line 1 was sampled with other settings"):
        store(path, "b")
    with pytest.raises(UserError, match="other settings"):
        store(path, "b", model="n", models=("n",))
    second = store(path, "b", model="n", models=("m", "n"))
    second.part("b").add([finished(0)])
    second.finish("b", [])
    assert [json.loads(line)["model"] for line in path.read_text().splitlines()] == ["m"], "b has no graded row"


def test_in_memory_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outputs = Outputs()
    outputs.add([finished(0)])
    assert outputs.get(0, example(0)) == finished(0) and not list(tmp_path.iterdir())
