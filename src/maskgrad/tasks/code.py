"""Code tasks: MBPP, HumanEval, KodCode, and "code" for problems of one's own.

The answer is a program, run in a sandbox against the problem's tests.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maskgrad.errors import UserError
from maskgrad.tasks.base import Example, Grade, Status, Task, require_index, require_split, short_hash
from maskgrad.tasks.code_blocks import defined_names, find_program
from maskgrad.tasks.code_compat import COMPAT_REWARDS, compat_reward
from maskgrad.tasks.code_prompts import CODE_PROTOCOLS, code_prompt
from maskgrad.tasks.code_rows import CodeRow, code_rows, example_from_row, read_rows
from maskgrad.tasks.code_splits import SOURCES, hub_rows, split_rows, without_test_rows
from maskgrad.tasks.layout import paid_for_layout
from maskgrad.tasks.sandbox import NAMES, SANDBOXES, Limits, check_sandbox
from maskgrad.tasks.sandbox_run import ProgramTests, run_program
from maskgrad.tasks.settings import choice, layout_weight, optional_path, whole

GRADER = "code strict 2"
REWARDS = ("pass_fraction", "all", *COMPAT_REWARDS)
CANARY = "def canary(n):\n    return [n, str(n)]\n"
CANARY_TESTS = ProgramTests(names=("canary",), tests=("assert canary(3) == [3, '3']",))


@dataclass(frozen=True, kw_only=True)
class CodeSettings:
    """Settings of a code task.

    prompt: "d1", "espo" or "tracerl", see code_prompts. file: JSON lines (or .jsonl.gz) in the data set's own columns,
    in place of the hub. reward: "pass_fraction", "all" (every test or nothing), or a published rule, see code_compat.
    sandbox: "bwrap", or "rlimit", which is weaker. test_seconds, total_seconds: CPU time of a test and of a program;
    wall time is three times that. memory: MiB of one program. seed: chooses the validation split of a training set.
    format_weight: added to the reward for the layout of prompt d1, see `layout.has_layout`.
    """

    prompt: str = "espo"
    file: str | Path | None = None
    reward: str = "pass_fraction"
    sandbox: str = "bwrap"
    test_seconds: float = 4.0
    total_seconds: float = 12.0
    memory: int = 512
    seed: int = 42
    format_weight: float = 0.0

    def __post_init__(self) -> None:
        choice("code", "prompt", self.prompt, CODE_PROTOCOLS)
        choice("code", "reward", self.reward, REWARDS)
        choice("code", "sandbox", self.sandbox, SANDBOXES)
        whole("code", "memory", self.memory, 64, 2**16)
        whole("code", "seed", self.seed, 0)
        for key in ("test_seconds", "total_seconds"):
            object.__setattr__(self, key, _seconds(key, getattr(self, key)))
        weight = layout_weight("code", self.format_weight, self.prompt, ("d1",), self.reward)
        object.__setattr__(self, "format_weight", weight)
        object.__setattr__(self, "file", optional_path("code", "file", self.file))

    def limits(self) -> Limits:
        return Limits(test_seconds=self.test_seconds, total_seconds=self.total_seconds, memory=self.memory * 2**20)


def _seconds(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.1 <= value <= 600:
        raise UserError(f"task code: {key} must be a number from 0.1 to 600, not {value!r}")
    return float(value)


class CodeTask(Task):
    """Examples carry the columns `names`, `setup`, `tests_setup`, `tests`, `before` and `solution`."""

    metrics = ("pass_fraction",)
    grader = GRADER

    def __init__(self, name: str, settings: CodeSettings | None = None) -> None:
        self.name = name
        self.settings = settings or CodeSettings()
        check_sandbox(self.settings.sandbox)
        self.sandbox = NAMES[self.settings.sandbox]
        self.pays_in_full = self.settings.reward not in COMPAT_REWARDS and not self.settings.format_weight
        # Wall time of grading one answer, start of the interpreters included; published rewards run it again.
        self.item_seconds = 2 * (self.settings.limits().wall + 30.0)
        self.dropped = 0
        if self.settings.file is not None:
            self.size("test")  # a bad file is reported now

    @functools.cached_property
    def _rows(self) -> Mapping[str, Sequence[CodeRow]]:
        """Rows by split, from the file or else from the hub."""
        file = self.settings.file
        raw = hub_rows(self.name) if file is None else read_rows(Path(file))
        where = str(file or SOURCES[self.name].hub)
        rows, self.dropped = code_rows(self.name, raw, where)
        if SOURCES[self.name].trains:
            clean = without_test_rows(rows, where)
            self.dropped += len(rows) - len(clean)
            return split_rows(self.name, clean, self.settings.seed)
        return split_rows(self.name, rows, self.settings.seed)

    def size(self, split: str) -> int | None:
        require_split(split)
        return len(self._rows[split])

    def example(self, split: str, index: int) -> Example:
        require_index(split, index, self.size(split))
        return self._example(self._rows[split][index])

    def _example(self, row: CodeRow) -> Example:
        columns = {"solution": row.solution, "before": row.before, **dataclasses.asdict(row.tests)}
        prompt = code_prompt(self.settings.prompt, self.name, row.question, row.shown)
        return Example(id=f"{self.name}/{row.id}", prompt=prompt, columns=columns)

    def from_row(self, row: Mapping[str, Any], where: str = "row") -> Example:
        """An example from our own columns, from the data set's, or from `test_cases` (assert statements) alone."""
        return example_from_row(self.name, row, where, self._example)

    def target(self, example: Example, index: int = 0) -> str:
        """The data set's own solution as one fenced block; `index` changes nothing."""
        return f"```python\n{example.columns['solution'].strip()}\n```"

    def grade(self, example: Example, completion: str) -> Grade:
        grade = grade_program(example, completion, self.settings)
        return paid_for_layout(grade, completion, self.settings.format_weight)

    def hash(self) -> str:
        chosen = self.settings
        prompt = code_prompt(chosen.prompt, self.name, "Q", ("assert f(1) == 1",))
        rows: object = SOURCES[self.name]
        if chosen.file is not None:
            rows = [(split, [(row.id, row.tests) for row in rows]) for split, rows in self._rows.items()]
        limits = (chosen.sandbox, chosen.test_seconds, chosen.total_seconds, chosen.memory)
        return short_hash(prompt, GRADER, chosen.reward, chosen.format_weight, limits, chosen.seed, rows)

    def check(self) -> None:
        """Run a program known to be right; UserError when the sandbox does not pass it on this machine."""
        verdict = run_program(CANARY, CANARY_TESTS, self.settings.sandbox, self.settings.limits())
        if verdict.outcome != "ok":
            hint = ": bubblewrap may not be allowed to make namespaces here, see --sandbox rlimit"
            raise UserError(
                f"sandbox {self.settings.sandbox} does not work on this machine: a program known to be right ended as "
                f"{verdict.outcome} ({verdict.detail}){hint if self.settings.sandbox == 'bwrap' else ''}"
            )


def grade_program(example: Example, completion: str, settings: CodeSettings) -> Grade:
    """Judge the program in a completion by the tests in the example's columns.

    Strict: every test passes. The reward is the share that passes, or what `settings.reward` says of it.
    """
    columns = example.columns
    tests = ProgramTests(**{key: _plain(columns.get(key, "")) for key in ("names", "tests", "setup", "tests_setup")})
    found = find_program(completion, tests.names)
    if found.status != "ok":
        detail = "the code block is not closed" if found.status == "truncated" else "no block defines the function"
        grade = _failed("no_answer", detail)
    elif defined_names(found.text) is None:
        grade = _failed("wrong", "the program does not parse")
    else:
        grade = _run(str(columns.get("before", "")), found.text, tests, settings)
    if found.status == "ok":
        grade = dataclasses.replace(grade, extracted=found.text)
    if settings.reward not in COMPAT_REWARDS or grade.status == "infra":
        return grade
    reward = compat_reward(settings.reward, completion, columns, settings.sandbox, settings.limits())
    return dataclasses.replace(grade, reward=reward)


def _failed(status: Status, detail: str) -> Grade:
    return Grade(reward=0.0, correct=False, status=status, parts={"pass_fraction": 0.0}, detail=detail)


def _run(before: str, program: str, tests: ProgramTests, settings: CodeSettings) -> Grade:
    whole_program = f"{before}\n\n{program}" if before else program
    verdict = run_program(whole_program, tests, settings.sandbox, settings.limits())
    if verdict.outcome == "infra":
        return Grade(reward=None, correct=None, status="infra", detail=verdict.detail)
    passed, right = verdict.passed, verdict.outcome == "ok"
    return Grade(
        reward=float(right) if settings.reward == "all" else passed,
        correct=right,
        status=verdict.outcome,
        parts={"pass_fraction": passed},
        detail=verdict.detail,
    )


def _plain(value: Any) -> Any:
    """Lists, as they come from JSON, as tuples."""
    return tuple(value) if isinstance(value, list) else value
