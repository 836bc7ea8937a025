"""The Python front door: train on your own prompts with your own reward functions.

    Trainer(model="path-or-id", algorithm=EGSPO(), reward_funcs=[fn], train_dataset=rows,
            config={"rollout": {"sampler": {"gen_length": 64}}, "optim": {"lr": 1e-5}, "train": {"max_updates": 100}},
            out="runs/mine").train()

Reward functions have TRL's signature: fn(prompts, completions, **columns) -> list[float | None].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from maskgrad.algorithms import Algorithm
from maskgrad.config import RunConfig, dump, merge
from maskgrad.errors import UserError
from maskgrad.reporting.console import Console
from maskgrad.settings import parse
from maskgrad.tasks.base import Task
from maskgrad.tasks.contamination import refuse_known_file
from maskgrad.tasks.custom import CustomTask
from maskgrad.tasks.registry import make_task
from maskgrad.tasks.rewards import RewardFunction
from maskgrad.tasks.row_files import load_rows
from maskgrad.training.loop import TrainingRun


class Trainer:
    """One training run. Nothing heavy happens before `train()`; bad settings are refused in the constructor."""

    def __init__(
        self,
        model: str | Path,
        algorithm: Algorithm,
        *,
        out: str | Path,
        config: Mapping[str, Any],
        reward_funcs: Sequence[RewardFunction] | None = None,
        reward_weights: Sequence[float] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        task: Mapping[str, Any] | None = None,
        quiet: bool = False,
    ):
        """Either `task` names a built-in task, or `train_dataset` (rows with a `prompt` column) and `reward_funcs`
        define one; `eval_dataset` is then the held-out set (default: the training prompts). Either may be a path
        of a .jsonl, .json or .csv file."""
        if not isinstance(algorithm, Algorithm):
            raise UserError(f"algorithm {algorithm!r} is no method: pass for example EGSPO()")
        if not isinstance(config, Mapping):
            raise UserError(f"config {config!r} is no mapping of settings: pass a dict")
        if isinstance(train_dataset, (str, Path)):
            refuse_known_file(Path(train_dataset))
        train_dataset, eval_dataset = map(_rows, (train_dataset, eval_dataset))
        for data in (train_dataset, eval_dataset):
            if data is not None and not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
                raise UserError(f"dataset {type(data).__name__} has no length: pass a list or a datasets.Dataset")
        if (task is None) == (train_dataset is None):
            raise UserError("pass either task, or train_dataset with reward_funcs")
        if task is not None and not isinstance(task, Mapping):
            raise UserError(f"task {task!r} is no mapping: pass for example {{'name': 'sudoku'}}")
        for key in ("model", "task", "algorithm"):
            if not isinstance(config.get(key, {}), Mapping):
                raise UserError(f"config[{key!r}] is {config[key]!r}, no mapping: pass it as an argument of Trainer")
        asked = config.get("algorithm", {}).get("name", algorithm.name)
        if asked != algorithm.name:
            raise UserError(f"config asks for algorithm {asked!r}, the argument is {algorithm.name!r}: name one")
        self.task: Task
        if task is not None:
            _refuse_idle(reward_funcs=reward_funcs, reward_weights=reward_weights, eval_dataset=eval_dataset)
            settings = dict(task)
        else:
            if not reward_funcs:
                raise UserError("train_dataset needs reward_funcs: pass at least one function")
            if "task" in config:
                raise UserError("config has a task, which train_dataset and reward_funcs replace: leave it out")
            held_out = train_dataset if eval_dataset is None else eval_dataset
            rows = {"train": train_dataset, "validation": held_out}
            self.task, settings = CustomTask(rows, reward_funcs, reward_weights), {"name": "custom"}
        values = merge({"model": {"path": str(model)}, "task": settings, "algorithm": algorithm.model_dump()}, config)
        self.config = parse(RunConfig, values, "config")
        self.config.algorithm.check(self.config.rollout.sampler, self.config.rollout.group_size)
        if task is not None:
            self.task = make_task(self.config.task, self.config.grading.settings())
        self.out, self.quiet = Path(out), quiet

    def train(self, resume: bool = False) -> dict[str, Any]:
        """Run to the end (or continue the run in `out`); returns the last evaluation."""
        console = Console(quiet=self.quiet)
        if resume:
            stored = self.out / "config.yaml"
            if stored.is_file() and stored.read_text() != dump(self.config):
                raise UserError(f"the settings differ from those {stored} was started with: resume with the same ones")
            return TrainingRun.reopen(self.out, self.task, console).resume()
        return TrainingRun.new(self.config, self.out, self.task, console).start()


def _refuse_idle(**given: Any) -> None:
    """Refuse what a built-in task would not read."""
    for name, value in given.items():
        if value is not None:
            raise UserError(f"{name} has no effect beside task, which has its own: leave it out, or pass train_dataset")


def _rows(data: Any) -> Any:
    """The data set, read from its file if it is given as a path."""
    return load_rows(data) if isinstance(data, (str, Path)) else data
