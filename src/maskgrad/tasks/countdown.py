"""Countdown: reach a target with every given number once, generated without end or read from a file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from maskgrad.errors import UserError
from maskgrad.tasks.answers import EXTRACTOR, final_answer, tagged_answer
from maskgrad.tasks.base import SPLITS, Example, Grade, Task, require_index, require_split, short_hash
from maskgrad.tasks.compat import COMPAT, compat_grade
from maskgrad.tasks.countdown_problems import draw_problem, solve
from maskgrad.tasks.draws import keyed_random
from maskgrad.tasks.expression import OPERATORS, IllegalExpression, Statement, read_statement
from maskgrad.tasks.layout import paid_for_layout
from maskgrad.tasks.prompts import PROTOCOLS, completion_text, countdown_prompt
from maskgrad.tasks.puzzle_files import (
    MAX_NUMBERS,
    CountdownRow,
    checked_numbers,
    checked_target,
    load_countdown_jsonl,
)
from maskgrad.tasks.settings import choice, layout_weight, optional_path, share, span, switch, whole

GRADER = f"countdown strict 3, {EXTRACTOR}"
REWARDS = ("strict", *COMPAT["countdown"])
REASONING = "Signs and order are chosen so that every number is used once and the target is met."


@dataclass(frozen=True, kw_only=True)
class CountdownSettings:
    """Settings of the task.

    prompt: "compact" ("12,7,3=16" in, the bare expression out; an answer in tags or a box is read too), or "d1", "spg",
    "espo", "tracerl" (the same instructions; the answer stands in its tag).
    reward: "strict" pays 1 or 0; a name such as "compat_d1" pays what that release pays, see `tasks/compat.py`.
    count, max_number: how many numbers a generated problem has (2 to 6) and how large they may be.
    operators: some of + - * /, used by the generator and enforced by the grader.
    targets: smallest and largest target of generated problems.
    seed: chooses the stream of generated problems; the split of a problem does not depend on it.
    file: JSON lines with `input` and `output`, served as the test split; every row must have a solution. No problem
    of the file, in any order of its numbers, is generated for the other splits.
    unary_minus: whether a sign may stand before a number or bracket.
    format_share: reward of an answer that is a well-formed expression but wrong.
    near_target: added for a wrong answer that uses every number once, divided by one plus its distance to the target.
    format_weight: added to the reward for the layout of a tagged protocol, see `layout.has_layout`.
    """

    prompt: str = "compact"
    reward: str = "strict"
    count: int = 3
    max_number: int = 20
    operators: str = "+-"
    targets: tuple[int, int] = (0, 99)
    seed: int = 0
    file: str | Path | None = None
    unary_minus: bool = False
    format_share: float = 0.0
    near_target: float = 0.0
    format_weight: float = 0.0

    def __post_init__(self) -> None:
        choice("countdown", "prompt", self.prompt, PROTOCOLS)
        choice("countdown", "reward", self.reward, REWARDS)
        whole("countdown", "count", self.count, 2, MAX_NUMBERS)
        whole("countdown", "max_number", self.max_number, 1, 9999)
        whole("countdown", "seed", self.seed, 0)
        switch("countdown", "unary_minus", self.unary_minus)
        for key in ("format_share", "near_target"):
            object.__setattr__(self, key, share("countdown", key, getattr(self, key)))
        shaping = self.format_share + self.near_target
        if shaping and self.reward != "strict":
            raise UserError(f"task countdown: format_share and near_target go with reward strict, not {self.reward}")
        if shaping >= 1.0:
            raise UserError(
                f"task countdown: format_share {self.format_share} and near_target {self.near_target} together must "
                "stay below 1, the reward of a right answer"
            )
        weight = layout_weight("countdown", self.format_weight, self.prompt, PROTOCOLS[1:], self.reward)
        object.__setattr__(self, "format_weight", weight)
        object.__setattr__(self, "operators", _operator_set(self.operators))
        object.__setattr__(self, "targets", span("countdown", "targets", self.targets, -(10**6), 10**6))
        object.__setattr__(self, "file", optional_path("countdown", "file", self.file))


def _operator_set(value: object) -> str:
    """The operators in their usual order; duplicates and other characters are refused."""
    if not isinstance(value, str) or not value or len(set(value)) != len(value) or set(value) - set(OPERATORS):
        raise UserError(f"task countdown: operators must be some of '{OPERATORS}', each once, not {value!r}")
    return "".join(sign for sign in OPERATORS if sign in value)


class CountdownTask(Task):
    """Examples carry the columns `numbers` (list of ints) and `target` (int)."""

    name = "countdown"
    grader = GRADER
    metrics = ("well_formed",)
    bounded = True
    columns = ("numbers", "target")
    aliases = {"nums": "numbers", "input": "numbers", "output": "target"}

    def __init__(self, settings: CountdownSettings | None = None) -> None:
        self.settings = settings or CountdownSettings()
        self.pays_in_full = not self.settings.reward.startswith("compat") and not self.settings.format_weight
        self._worked = _worked_example(self.settings.operators)
        self._rows: tuple[CountdownRow, ...] | None = None
        self._held_out: frozenset[CountdownRow] = frozenset()
        if self.settings.file is not None:
            self._rows = load_countdown_jsonl(Path(self.settings.file))
            self._held_out = frozenset((tuple(sorted(numbers)), target) for numbers, target in self._rows)
            self._require_solvable(self._rows)
        for split in SPLITS:  # settings that leave nothing to draw are reported now, not in the middle of a run
            self.example(split, 0)

    def _require_solvable(self, rows: tuple[CountdownRow, ...]) -> None:
        for number, (numbers, target) in enumerate(rows, start=1):
            if solve(numbers, target, self.settings.operators) is None:
                raise UserError(
                    f"{self.settings.file}, problem {number}: {target} cannot be reached from "
                    f"{', '.join(map(str, numbers))} with operators {self.settings.operators}: "
                    "set operators=+-*/ if the file uses all four"
                )

    def size(self, split: str) -> int | None:
        require_split(split)
        return len(self._rows) if split == "test" and self._rows is not None else None

    def example(self, split: str, index: int) -> Example:
        require_index(split, index, self.size(split))
        chosen = self.settings
        if split == "test" and self._rows is not None:
            numbers, target = self._rows[index]
        else:
            rng = keyed_random("countdown", chosen.seed, split, index)
            numbers, target = draw_problem(
                rng, split, chosen.count, chosen.max_number, chosen.operators, chosen.targets, self._held_out
            )
        return Example(
            id=f"countdown/{split}/{index}",
            prompt=countdown_prompt(chosen.prompt, numbers, target, chosen.operators, self._worked),
            columns={"numbers": list(numbers), "target": target},
        )

    def from_row(self, row: Mapping[str, Any], where: str = "row") -> Example:
        """`numbers` may be a list or text with commas; both columns are checked like those of a file."""
        found = super().from_row(row, where)
        numbers = checked_numbers(where, "numbers", found.columns["numbers"])
        target = checked_target(where, "target", found.columns["target"])
        return replace(found, columns={"numbers": list(numbers), "target": target})

    def target(self, example: Example, index: int = 0) -> str:
        """One fixed solution in the protocol's form; `index` changes nothing."""
        return completion_text(self.settings.prompt, self._gold(example), REASONING)

    def wrong_mode_target(self, example: Example) -> str:
        """The gold completion with its first number written again in place of its last: 12+7-3 becomes 12+7-12.

        Operators stay as they were. It is right only where the two numbers are equal.
        """
        gold = self._gold(example)
        first, *_, last = re.finditer(r"\d+", gold)
        wrong = gold[: last.start()] + first.group() + gold[last.end() :]
        return completion_text(self.settings.prompt, wrong, REASONING)

    def _gold(self, example: Example) -> str:
        numbers, target = example.columns["numbers"], example.columns["target"]
        gold = solve(tuple(numbers), target, self.settings.operators)
        if gold is None:
            raise UserError(f"{example.id} has no solution with operators {self.settings.operators}")
        return gold

    def grade(self, example: Example, completion: str) -> Grade:
        strict = self._strict(example, completion)
        if self.settings.reward == "strict":
            return paid_for_layout(strict, completion, self.settings.format_weight)
        return compat_grade("countdown", self.settings.reward, completion, example.columns, strict)

    def _strict(self, example: Example, completion: str) -> Grade:
        answer = final_answer(completion) if self.settings.prompt == "compact" else tagged_answer(completion)
        if answer.status != "ok":
            return self._verdict("answer not closed" if answer.status == "truncated" else "no answer", no_answer=True)
        try:
            statement = read_statement(answer.text, self.settings.operators, unary_minus=self.settings.unary_minus)
        except IllegalExpression as reason:
            return replace(self._verdict(str(reason)), extracted=answer.text)
        problem = _problem(statement, example.columns["numbers"], example.columns["target"])
        distance = _distance(statement, example.columns["numbers"], example.columns["target"])
        return replace(self._verdict(problem, well_formed=True, distance=distance), extracted=answer.text)

    def _verdict(
        self, problem: str, *, well_formed: bool = False, no_answer: bool = False, distance: Fraction | None = None
    ) -> Grade:
        shaped = self.settings.format_share if problem and well_formed else 0.0
        near = self.settings.near_target / float(1 + distance) if problem and distance is not None else 0.0
        return Grade(
            reward=shaped + near if problem else 1.0,
            correct=not problem,
            status="no_answer" if no_answer else "wrong" if problem else "ok",
            parts={"well_formed": float(well_formed), "format_share": shaped, "near_target": near},
            detail=problem,
        )

    def hash(self) -> str:
        chosen = self.settings
        prompt = countdown_prompt(chosen.prompt, (1, 2, 3), 6, chosen.operators, self._worked)
        generator = (chosen.count, chosen.max_number, chosen.operators, chosen.targets, chosen.seed)
        rewards = (chosen.unary_minus, chosen.format_share, chosen.near_target, chosen.format_weight, chosen.reward)
        return short_hash(prompt, GRADER, generator, rewards, self._rows)


def _problem(statement: Statement, numbers: list[int], target: int) -> str:
    """What is wrong with a well-formed answer; empty if it is right."""
    if Counter(statement.numbers) != Counter(numbers):
        return "does not use every given number exactly once"
    if statement.value is None:
        return "divides by zero"
    if statement.value != target:
        return f"has the value {statement.value}, not {target}"
    if statement.claim is not None and statement.claim != target:
        return f"claims the value {statement.claim}, not {target}"
    return ""


def _distance(statement: Statement, numbers: list[int], target: int) -> Fraction | None:
    """How far the value of an expression over exactly the given numbers is from the target; None for any other."""
    if statement.value is None or Counter(statement.numbers) != Counter(numbers):
        return None
    return abs(statement.value - target)


def _worked_example(operators: str) -> tuple[str, int]:
    """An expression over 16, 4, 2 with the operators allowed, and its (always whole) value."""
    text = f"16{operators[0]}4{operators[-1]}2"
    value = read_statement(text).value
    assert value is not None and value.denominator == 1
    return text, int(value)
