"""GSM8K: word problems whose answer is one number (Cobbe et al., arXiv 2110.14168)."""

from __future__ import annotations

from dataclasses import dataclass

from maskgrad.tasks.base import Example, Grade, Task
from maskgrad.tasks.compat import COMPAT, compat_grade
from maskgrad.tasks.gsm8k_answer import GRADER, PERCENT, grade_number, read_gold
from maskgrad.tasks.layout import paid_for_layout
from maskgrad.tasks.math_library import parsed, verified, version
from maskgrad.tasks.problem_files import Columns, HubSource
from maskgrad.tasks.prompts import word_problem_answer
from maskgrad.tasks.word_problems import REASONING, ProblemSplits, WordProblemSettings, unusable_gold

REWARDS = ("strict", *COMPAT["gsm8k"])
_COLUMNS = Columns(problem=("question", "problem"), gold=("answer",))
_ASKS_LIBRARY = ("compat_stabledrl", "compat_tracerl")


@dataclass(frozen=True, kw_only=True)
class Gsm8kSettings(WordProblemSettings):
    __doc__ = WordProblemSettings.__doc__

    def __post_init__(self) -> None:
        self.check("gsm8k", REWARDS, PERCENT)


class _Splits(ProblemSplits):
    def gold_problem(self, gold: str) -> str:
        return "" if read_gold(gold) is not None else "the gold answer is not a number"


class Gsm8kTask(Task):
    """Examples carry the columns `answer` (as in the data: a number, or a solution that ends in `#### number`),
    `problem`, `source_id`.
    """

    name = "gsm8k"
    metrics = ()
    columns = ("answer",)
    aliases = {"ground_truth": "answer"}
    grader = GRADER

    def __init__(self, settings: Gsm8kSettings | None = None) -> None:
        self.settings = settings or Gsm8kSettings()
        self.pays_in_full = self.settings.reward == "strict" and not self.settings.format_weight
        self.bounded = self.settings.reward not in _ASKS_LIBRARY
        train, test = (HubSource("openai/gsm8k", split, "main") for split in ("train", "test"))
        self.data = _Splits(self.name, self.settings, train, test, (_COLUMNS, _COLUMNS))

    def size(self, split: str) -> int | None:
        return len(self.data.rows(split))

    def example(self, split: str, index: int) -> Example:
        return self.data.example(split, index, mathematics=False)

    def target(self, example: Example, index: int = 0) -> str:
        """The gold number in the protocol's form, with one fixed sentence of reasoning."""
        gold = str(example.columns["answer"]).rsplit("####", 1)[-1].strip()
        return word_problem_answer(self.settings.prompt, gold, REASONING)

    def warm_up(self) -> None:
        """Import the library where the reward asks it: that takes seconds, which are no answer's own."""
        if not self.bounded:
            verified(gold=parsed("1"), answer=parsed("1"))

    def grade(self, example: Example, completion: str) -> Grade:
        gold = read_gold(str(example.columns["answer"]))
        if gold is None:
            return unusable_gold("is not a number")
        strict = grade_number(gold, completion, self.settings.percent)
        if self.settings.reward == "strict":
            return paid_for_layout(strict, completion, self.settings.format_weight)
        return compat_grade("gsm8k", self.settings.reward, completion, example.columns, strict)

    def hash(self) -> str:
        library = () if self.bounded else (version(),)
        return self.data.hash(" ".join((GRADER, *library)), mathematics=False)
