"""A task whose completions are judged by the grading service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from maskgrad.errors import UserError
from maskgrad.tasks.base import Example, Grade, Task
from maskgrad.tasks.grading import GradingService, GradingSettings


class ServedTask(Task):
    """Stands for `task` everywhere; grading, and example making where it is foreign code, happen in workers."""

    def __init__(self, task: Task, settings: Mapping[str, Any], grading: GradingSettings | None = None) -> None:
        self.task = task
        self.name, self.metrics, self.has_gold = task.name, task.metrics, task.has_gold
        self.pays_in_full, self.columns, self.aliases = task.pays_in_full, task.columns, task.aliases
        self.grader, self.sandbox = task.grader, task.sandbox
        self.service = GradingService(settings, grading, item_seconds=task.item_seconds, prefix=task.worker_prefix())

    def __getattr__(self, name: str) -> Any:
        if name == "task":
            raise AttributeError(name)
        return getattr(self.task, name)

    def size(self, split: str) -> int | None:
        return self.task.size(split)

    def example(self, split: str, index: int) -> Example:
        if self.task.made_in_worker:
            return Example(**self.service.call("example", split, index))
        return self.task.example(split, index)

    def target(self, example: Example, index: int = 0) -> str:
        if self.task.made_in_worker:
            return str(self.service.call("target", example, index))
        return self.task.target(example, index)

    def grade(self, example: Example, completion: str) -> Grade:
        return self.service.grade([(example, completion)])[0]

    def grade_batch(self, examples: Sequence[Example], completions: Sequence[str]) -> list[Grade]:
        if len(examples) != len(completions):
            raise UserError(f"{len(completions)} completions for {len(examples)} examples; pass one per example")
        return self.service.grade(list(zip(examples, completions, strict=True)))

    def from_row(self, row: Mapping[str, Any], where: str = "row") -> Example:
        return self.task.from_row(row, where)

    def hash(self) -> str:
        return self.task.hash()

    def check(self) -> None:
        self.task.check()

    def close(self) -> None:
        self.service.close()
