"""Training on the user's own data files and reward functions, when these have faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from maskgrad import Trainer
from maskgrad.algorithms import DiffuGRPO
from maskgrad.errors import UserError
from maskgrad.reporting.journal import FILE_NAME, read
from maskgrad.tasks import make_task
from maskgrad.tasks.rewards import RewardFailure

MODEL = "maskgrad:base_sudoku_tiny"
ROWS = [{"prompt": f"{i}{j}", "answer": str(j)} for i in range(2) for j in range(2)]


def trainer(out: Path, reward: Any, data: Any) -> Trainer:
    config = {
        "rollout": {"prompts_per_batch": 2, "group_size": 4, "sampler": {"gen_length": 4, "temperature": 1.5}},
        "optim": {"lr": 1e-4},
        "train": {"max_updates": 2, "threads": 1},
        "eval": {"count": 4},
    }
    algorithm = DiffuGRPO(epochs=1)
    return Trainer(MODEL, algorithm, out=out, config=config, reward_funcs=[reward], train_dataset=data, quiet=True)


def test_a_function_that_crashes_on_some_rows_trains_on_the_others(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    crashed: list[str] = []

    def reward(completions: list[str], answer: list[str]) -> list[float]:
        bad = [text for text in completions if text.startswith("1")]
        if bad:
            crashed.extend(bad if len(completions) == 1 else [])
            raise KeyError("no ones, please")
        return [float(text.count(gold)) for text, gold in zip(completions, answer, strict=True)]

    with pytest.warns(RewardFailure) as caught:
        trainer(tmp_path / "run", reward, tmp_path / "rows.jsonl").train()
    assert len([w for w in caught if w.category is RewardFailure]) == 1, "one traceback for the whole run"
    records = read(tmp_path / "run" / FILE_NAME)
    rollouts = [r for r in records if r["event"] == "rollout"]
    assert len(rollouts) == 2 and records[-1]["reason"] == "completed"
    counted = sum(r["status"].get("crash", 0) for r in records if r["event"] in ("rollout", "eval"))
    assert counted == len(crashed) > 0, "every crash is counted"
    assert all(r["dropped_rows"] >= r["status"].get("crash", 0) for r in rollouts)


def test_a_bad_data_file_is_refused_before_the_model_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1"}\n{"question": "2"}\n')
    for data in (str(tmp_path / "rows.jsonl"), tmp_path / "rows.jsonl"):
        with pytest.raises(UserError, match=r"rows\.jsonl, line 2: column 'prompt' is missing; found question"):
            trainer(tmp_path / "run", lambda completions: [0.0] * len(completions), data)
    assert not (tmp_path / "run").exists()


def test_a_task_in_the_settings_is_used_or_refused(tmp_path: Path) -> None:
    config = {
        "rollout": {"sampler": {"gen_length": 16, "temperature": 1.0}},
        "optim": {"lr": 1e-4},
        "train": {"max_updates": 1},
        "task": {"prompt": "d1"},
    }
    made = Trainer(MODEL, DiffuGRPO(), out=tmp_path / "run", config=config, task={"name": "sudoku"})
    assert made.config.task == {"name": "sudoku", "prompt": "d1"}
    assert made.task.hash() == make_task(made.config.task).hash() != make_task({"name": "sudoku"}).hash()
    for name, value in {"reward_funcs": [len], "reward_weights": [1.0], "eval_dataset": ROWS}.items():
        with pytest.raises(UserError, match=f"{name} has no effect beside task"):
            Trainer(MODEL, DiffuGRPO(), out=tmp_path, config=config, task={"name": "sudoku"}, **{name: value})
    with pytest.raises(UserError, match="config has a task, which train_dataset"):
        Trainer(MODEL, DiffuGRPO(), out=tmp_path, config=config, reward_funcs=[len], train_dataset=ROWS)
