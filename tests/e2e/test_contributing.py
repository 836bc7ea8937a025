"""The task that CONTRIBUTING shows is a task: registered as described, tested, trained, evaluated and scored."""

from __future__ import annotations

import json
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from maskgrad import Trainer
from maskgrad.algorithms import DiffuGRPO
from maskgrad.cli import main
from maskgrad.tasks import base, registry

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
MODEL = "maskgrad:base_sudoku_tiny"


def blocks() -> list[str]:
    section = PAGE.read_text().split("## Add a task in five steps")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


def test_it_is_short() -> None:
    code = blocks()
    assert len(code) == 3, "the task, its registration, its test"
    assert sum(block.count("\n") for block in code) < 80


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """The shown task as a module, registered the shown way; its shown test is in there too."""
    task, registration, test = blocks()
    made = types.ModuleType("maskgrad.tasks.reverse")
    monkeypatch.setitem(sys.modules, made.__name__, made)  # dataclasses look the module up
    exec(compile(task, "CONTRIBUTING.md", "exec"), made.__dict__)
    scope = {"TASKS": registry.TASKS, "TaskEntry": registry.TaskEntry, **made.__dict__}
    exec(compile(registration, "CONTRIBUTING.md", "exec"), scope)
    made.__dict__["self_test"] = base.self_test
    exec(compile(test, "CONTRIBUTING.md", "exec"), made.__dict__)
    yield made
    del registry.TASKS["reverse"]


def test_the_shown_test_passes_and_the_splits_are_disjoint(module: types.ModuleType) -> None:
    module.test_answers()
    task = registry.make_task({"name": "reverse", "length": 4})
    found = {split: {task.example(split, i).prompt for i in range(200)} for split in base.SPLITS}
    assert not found["train"] & found["test"] and not found["train"] & found["validation"]
    assert not found["validation"] & found["test"]
    with pytest.raises(ValueError, match="length must be a whole number from 4 to 12"):
        registry.make_task({"name": "reverse", "length": 3})


def test_it_trains_evaluates_and_scores(
    module: types.ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {
        "rollout": {"prompts_per_batch": 2, "group_size": 2, "sampler": {"gen_length": 6, "temperature": 1.0}},
        "optim": {"lr": 1e-4},
        "train": {"max_updates": 1, "threads": 1},
        "eval": {"count": 2},
    }
    trainer = Trainer(
        MODEL, DiffuGRPO(epochs=1), out=tmp_path / "run", config=config, task={"name": "reverse"}, quiet=True
    )
    assert trainer.train()["task"] == "reverse"
    command = ["eval", "--model", str(tmp_path / "run" / "final"), "--task", "reverse", "--gen-length", "6"]
    assert main([*command, "--limit", "2", "--outputs", str(tmp_path / "o.jsonl")]) == 0
    capsys.readouterr()
    assert main(["score", str(tmp_path / "o.jsonl"), "--task", "reverse"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["id"] for row in rows] == ["reverse/test/0", "reverse/test/1"]
