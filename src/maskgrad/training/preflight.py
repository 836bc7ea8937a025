"""What can be refused before any long work: empty splits, ragged rows, prompts that do not fit."""

from __future__ import annotations

from maskgrad.errors import UserError
from maskgrad.evaluation.evaluate import check_prompts, examples_of
from maskgrad.models.policy import Policy
from maskgrad.tasks.base import Example, Task

#: Examples of an endless generator that are looked at.
LOOKED_AT = 64


def check_rows(policy: Policy, task: Task, split: str, max_prompt_length: int, gen_length: int) -> list[Example]:
    """Examples of a split (all of a finite one, else the first few), each fit to be sampled; else a UserError."""
    size = task.size(split)
    if size == 0:
        raise UserError(f"split {split!r} of task {task.name!r} is empty: give it rows, or name another split or task")
    examples = examples_of(task, split, size or LOOKED_AT)
    if len({tuple(sorted(example.columns)) for example in examples}) > 1:
        raise UserError(f"rows of split {split!r} have different columns: give every row the same ones")
    check_prompts(policy, examples, max_prompt_length, gen_length)
    return examples
