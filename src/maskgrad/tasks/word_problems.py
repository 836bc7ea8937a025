"""What GSM8K and MATH share: problems in three splits, local or from the hub, and prompts by protocol."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from maskgrad.errors import UserError
from maskgrad.tasks.base import Example, Grade, require_index, require_split, short_hash
from maskgrad.tasks.contamination import split_validation, without_test_problems
from maskgrad.tasks.problem_files import Columns, HubSource, Problem, ProblemSet, load_problems
from maskgrad.tasks.prompts import PROTOCOLS, TAGGED, word_problem_prompt
from maskgrad.tasks.settings import choice, layout_weight, optional_path, whole

REASONING = "The steps lead to one value."


@dataclass(frozen=True, kw_only=True)
class WordProblemSettings:
    """Settings of `gsm8k` and `math`.

    prompt: "compact" (the bare problem), "d1", "spg", "espo" or "tracerl".
    reward: "strict" pays 1 or 0; a name such as "compat_d1" pays what that release pays, see `tasks/compat.py`.
    percent: "ignore_sign" (72% is 72), "exact" (72% is 0.72) or "percent_or_fraction" (either).
    file: test problems in a local file; train_file: training problems. Without either, both come from the hub.
    With one of the two, nothing is fetched and the other's splits are empty.
    validation: rows of the training data that are held out as the validation split (at most a tenth).
    seed: chooses which.
    format_weight: added to the reward for the layout of a tagged protocol, see `layout.has_layout`.
    """

    prompt: str = "d1"
    reward: str = "strict"
    percent: str = "ignore_sign"
    file: str | Path | None = None
    train_file: str | Path | None = None
    validation: int = 500
    seed: int = 0
    format_weight: float = 0.0

    def check(self, task: str, rewards: tuple[str, ...], percent: tuple[str, ...]) -> None:
        choice(task, "prompt", self.prompt, PROTOCOLS)
        choice(task, "reward", self.reward, rewards)
        choice(task, "percent", self.percent, percent)
        whole(task, "validation", self.validation, 0)
        whole(task, "seed", self.seed, 0)
        weight = layout_weight(task, self.format_weight, self.prompt, TAGGED, self.reward)
        object.__setattr__(self, "format_weight", weight)
        object.__setattr__(self, "file", optional_path(task, "file", self.file))
        object.__setattr__(self, "train_file", optional_path(task, "train_file", self.train_file))


class ProblemSplits:
    """The three splits of a task, loaded on first use. Test problems never appear in the other two."""

    def __init__(
        self,
        task: str,
        settings: WordProblemSettings,
        train: HubSource,
        test: HubSource,
        columns: tuple[Columns, Columns],
    ) -> None:
        self._task = task
        self._settings = settings
        self._hub = {"train": train, "test": test}
        self._columns = {"train": columns[0], "test": columns[1]}
        self._splits: dict[str, list[Problem]] = {}
        self.dropped: dict[str, Counter[str]] = {}

    def gold_problem(self, gold: str) -> str:
        """Why a gold answer cannot be used; empty if it can. Tasks replace this."""
        return ""

    def _source(self, part: str) -> Path | HubSource | None:
        local = {"train": self._settings.train_file, "test": self._settings.file}
        if local[part] is not None:
            return Path(local[part])  # type: ignore[arg-type]
        return None if any(path is not None for path in local.values()) else self._hub[part]

    def rows(self, split: str) -> list[Problem]:
        """Rows of a split, empty where the settings name no source for it."""
        require_split(split)
        part = "test" if split == "test" else "train"
        source = self._source(part)
        if source is None:
            return []
        if split not in self._splits:
            found = load_problems(source, self._columns[part], self.gold_problem)
            if part == "train":
                self._divide(source, found)
            else:
                self._splits["test"] = found.problems
                self.dropped["test"] = found.dropped
        return self._splits[split]

    def _divide(self, source: Path | HubSource, found: ProblemSet) -> None:
        """Problems of the test file in use are taken out too; a hub test set is known by its hashes already."""
        test = self.rows("test") if self._settings.file is not None else []
        clean = without_test_problems(source.repo if isinstance(source, HubSource) else source, found, test)
        if not clean.problems:
            raise UserError(f"{source}: every row is a test problem; pass other training data")
        self._splits["train"], self._splits["validation"] = split_validation(
            clean.problems, self._settings.seed, self._settings.validation
        )
        self.dropped["train"] = clean.dropped

    def example(self, split: str, index: int, *, mathematics: bool) -> Example:
        rows = self.rows(split)
        if not rows:
            raise UserError(
                f"task {self._task} has no {split} data: pass `{'file' if split == 'test' else 'train_file'}`, "
                "or leave both files out"
            )
        require_index(split, index, len(rows))
        problem = rows[index]
        return Example(
            id=f"{self._task}/{split}/{index}",
            prompt=word_problem_prompt(self._settings.prompt, problem.text, mathematics=mathematics),
            columns={"answer": problem.gold, "problem": problem.text, "source_id": problem.id},
        )

    def hash(self, grader: str, *, mathematics: bool) -> str:
        """Covers prompt wording, grader, rewards and the sources. Loaded rows are covered by their number and first
        texts.
        """
        chosen = self._settings
        prompt = word_problem_prompt(chosen.prompt, "", mathematics=mathematics)
        rows = [
            (split, len(rows), [p.text for p in rows[:16]]) for split, rows in sorted(self._rows_of_files().items())
        ]
        return short_hash(
            prompt,
            grader,
            chosen.reward,
            chosen.format_weight,
            chosen.percent,
            chosen.validation,
            chosen.seed,
            self._hub,
            rows,
        )

    def _rows_of_files(self) -> dict[str, list[Problem]]:
        return {split: self.rows(split) for split in ("test", "train") if isinstance(self._source(split), Path)}


def unusable_gold(problem: str) -> Grade:
    """The row abstains: it can be neither right nor wrong, and never earns a reward."""
    return Grade(reward=None, correct=None, status="error", detail=f"the gold answer {problem}")
