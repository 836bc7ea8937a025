"""A task made of the user's own data and reward functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from maskgrad.errors import UserError
from maskgrad.tasks.base import SPLITS, Example, Grade, Prompt, Task, require_index, require_split, short_hash
from maskgrad.tasks.rewards import RewardFunction, RewardFunctions

_HASHED_ROWS = 16
_RESERVED = ("prompts", "completions")  # keywords every reward function receives


class Rows(Protocol):
    """A sequence of dict rows: a list, or anything indexed like a `datasets.Dataset`."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class CustomTask(Task):
    """Data with a `prompt` column, scored by reward functions.

    `dataset` is a sequence of dict rows, served as the train split, or a mapping from split names to such
    sequences. `prompt` is text or a list of chat messages; all other columns reach the reward functions as
    lists. A `completion` column, if present, is the gold completion for supervised training. Where the prompt is a
    list of messages, the functions see the completion as one assistant message in a list, else as text.
    """

    def __init__(
        self,
        dataset: Rows | Mapping[str, Rows],
        reward_funcs: Sequence[RewardFunction] | RewardFunction,
        weights: Sequence[float] | None = None,
        name: str = "custom",
    ) -> None:
        self.name = name
        self.metrics = ()
        self._funcs = tuple(reward_funcs) if isinstance(reward_funcs, Sequence) else (reward_funcs,)
        self._rewards = RewardFunctions(self._funcs, weights)
        self._splits: dict[str, Rows] = dict(dataset) if isinstance(dataset, Mapping) else {"train": dataset}
        if not self._splits:
            raise UserError(f"task {name}: the data set has no splits; pass at least 'train'")
        for split, rows in self._splits.items():
            require_split(split)
            self._require_prompt_column(split, rows)
        self.has_gold = all("completion" in _columns(rows) for rows in self._splits.values())

    def _require_prompt_column(self, split: str, rows: Rows) -> None:
        if len(rows) == 0:
            raise UserError(f"task {self.name}: split {split!r} is empty")
        found = _columns(rows)
        if "prompt" not in found:
            raise UserError(
                f"task {self.name}: split {split!r} has no column 'prompt'; found {', '.join(sorted(found)) or 'none'}"
            )

        for column in _RESERVED:
            if column in found:
                raise UserError(f"task {self.name}: column {column!r} clashes with a reward keyword; rename it")

    def size(self, split: str) -> int | None:
        """Number of rows; 0 for a split that was not given."""
        require_split(split, SPLITS)
        return len(self._splits[split]) if split in self._splits else 0

    def example(self, split: str, index: int) -> Example:
        require_index(split, index, self.size(split))
        row = self._splits[split][index]
        where = f"{self.name}/{split}/{index}"
        if not isinstance(row, Mapping) or "prompt" not in row:
            raise UserError(f"{where}: the row is not a dict with a 'prompt'")
        columns = {key: value for key, value in row.items() if key != "prompt"}
        return Example(id=where, prompt=_checked_prompt(where, row["prompt"]), columns=columns)

    def target(self, example: Example, index: int = 0) -> str:
        """The row's `completion`, text or a list of messages whose last content is taken."""
        gold = example.columns.get("completion")
        if isinstance(gold, list) and gold and isinstance(gold[-1], Mapping):
            gold = gold[-1].get("content")
        if not isinstance(gold, str):
            raise UserError(f"{example.id}: supervised training needs a column 'completion' with text")
        return gold

    def grade(self, example: Example, completion: str) -> Grade:
        return self.grade_batch([example], [completion])[0]

    def grade_batch(self, examples: Sequence[Example], completions: Sequence[str]) -> list[Grade]:
        if len(examples) != len(completions):
            raise UserError(f"{len(completions)} completions for {len(examples)} examples; pass one per example")
        if not examples:
            return []
        names = list(examples[0].columns)
        for example in examples:
            if set(example.columns) != set(names):
                raise UserError(f"{example.id}: columns {sorted(example.columns)} differ from {sorted(names)}")
        columns = {key: [example.columns[key] for example in examples] for key in names}
        texts = [_as_message(example.prompt, text) for example, text in zip(examples, completions, strict=True)]
        prompts = [example.prompt for example in examples]
        return self._rewards(prompts, texts, columns)

    def hash(self) -> str:
        """Covers the name, function names, weights, split sizes and the first rows of each split."""
        parts: list[object] = [self.name, self._rewards.names, self._rewards.weights]
        for split in sorted(self._splits):
            count = len(self._splits[split])
            first = [self.example(split, index) for index in range(min(count, _HASHED_ROWS))]
            parts.append((split, count, [(example.prompt, sorted(example.columns)) for example in first]))
        return short_hash(*parts)


def _columns(rows: Rows) -> list[str]:
    names = getattr(rows, "column_names", None)
    if names is not None:
        return [str(name) for name in names]
    first = rows[0]
    return [str(key) for key in first] if isinstance(first, Mapping) else []


def _checked_prompt(where: str, prompt: object) -> Prompt:
    if isinstance(prompt, str) and prompt:
        return prompt
    if isinstance(prompt, list) and prompt and all(_is_message(message) for message in prompt):
        return [dict(message) for message in prompt]
    raise UserError(f"{where}: prompt must be text or a list of messages with 'role' and 'content', not {prompt!r:.80}")


def _is_message(message: object) -> bool:
    return isinstance(message, Mapping) and all(isinstance(message.get(key), str) for key in ("role", "content"))


def _as_message(prompt: Prompt, text: str) -> str | list[dict[str, str]]:
    return text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
