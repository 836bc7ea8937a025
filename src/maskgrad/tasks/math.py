"""MATH: competition problems with answers of many kinds (Hendrycks et al., arXiv 2103.03874; MATH-500 as the test
set).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from maskgrad.tasks.answers import EXTRACTOR, Extracted, final_answer
from maskgrad.tasks.base import Example, Grade, Status, Task
from maskgrad.tasks.compat import COMPAT, compat_grade
from maskgrad.tasks.layout import paid_for_layout
from maskgrad.tasks.math_equal import INTERVALS, LISTS, PERCENT, UNITS, MathPolicy, Verdict, compare
from maskgrad.tasks.math_library import version
from maskgrad.tasks.math_objects import Value, read_value
from maskgrad.tasks.problem_files import Columns, HubSource
from maskgrad.tasks.prompts import word_problem_answer
from maskgrad.tasks.settings import choice
from maskgrad.tasks.word_problems import REASONING, ProblemSplits, WordProblemSettings, unusable_gold

GRADER = f"math strict 2, {EXTRACTOR}"
REWARDS = ("strict", *COMPAT["math"])
_TRAIN = Columns(problem=("problem", "question"), gold=("answer", "solution"))
_TEST = Columns(problem=("problem", "question"), gold=("answer", "solution"))
_SENTENCE = re.compile(
    r"[A-Za-z][A-Za-z ,'’-]*?\b(?:is|are|equals):?\s+(\S.*?)\.?|(?:final )?answer:\s*(\S.*?)\.?",
    re.IGNORECASE | re.DOTALL,
)
MAX_SENTENCE = 2000
_STATUS: dict[str, Status] = {"equal": "ok", "error": "error"}


@dataclass(frozen=True, kw_only=True)
class MathSettings(WordProblemSettings):
    __doc__ = f"""{WordProblemSettings.__doc__}
    units, lists, intervals: see `math_equal.MathPolicy`.
    """

    units: str = "ignore"
    lists: str = "unordered"
    intervals: str = "inequality"

    def __post_init__(self) -> None:
        self.check("math", REWARDS, PERCENT)
        choice("math", "units", self.units, UNITS)
        choice("math", "lists", self.lists, LISTS)
        choice("math", "intervals", self.intervals, INTERVALS)

    @property
    def policy(self) -> MathPolicy:
        return MathPolicy(percent=self.percent, units=self.units, lists=self.lists, intervals=self.intervals)


def gold_text(answer: str) -> str:
    """The gold answer inside a column: the last box of a solution, a bare answer as it is; empty if a box never
    closes.
    """
    return final_answer(answer).text


def gold_problem(answer: str) -> str:
    """Why a gold answer cannot be used: it has to be read completely and to equal itself."""
    gold = gold_text(answer)
    if not gold:
        return "the gold answer is missing or cut off"
    if _has_unknown(read_value(gold)):
        return "the gold answer cannot be read completely"
    return (
        ""
        if compare(gold=gold, answer=gold, library=False).outcome == "equal"
        else "the gold answer does not equal itself"
    )


def _has_unknown(value: Value) -> bool:
    return value.kind == "unknown" or any(_has_unknown(part) for part in value.parts)


def stated_in_words(text: str) -> str:
    """What the last sentence says the answer is: the rest of "The answer is ..." or of "Answer: ..."; empty if it is no
    such sentence. Words alone may stand before "is".
    """
    if len(text) > MAX_SENTENCE:
        return ""
    sentence = re.split(r"(?<=[.!?])\s+(?=[A-Z])|\n", text.strip())[-1].strip()
    match = _SENTENCE.fullmatch(sentence)
    return (match.group(1) or match.group(2)) if match else ""


class _Splits(ProblemSplits):
    def gold_problem(self, gold: str) -> str:
        return gold_problem(gold)


class MathTask(Task):
    """Examples carry the columns `answer` (as in the data: bare, or a solution with its last box), `problem`,
    `source_id`.
    """

    name = "math"
    metrics = ("undecided",)
    columns = ("answer",)
    aliases = {"ground_truth": "answer", "solution": "answer"}
    grader = GRADER
    bounded = False  # the second pass is a general library: it runs in worker processes

    def __init__(self, settings: MathSettings | None = None) -> None:
        self.settings = settings or MathSettings()
        self.pays_in_full = self.settings.reward == "strict" and not self.settings.format_weight
        train, test = HubSource("ankner/math-500", "train"), HubSource("HuggingFaceH4/MATH-500", "test")
        self.data = _Splits(self.name, self.settings, train, test, (_TRAIN, _TEST))

    def size(self, split: str) -> int | None:
        return len(self.data.rows(split))

    def example(self, split: str, index: int) -> Example:
        return self.data.example(split, index, mathematics=True)

    def target(self, example: Example, index: int = 0) -> str:
        """The gold answer in the protocol's form, with one fixed sentence of reasoning."""
        return word_problem_answer(self.settings.prompt, gold_text(str(example.columns["answer"])), REASONING)

    def warm_up(self) -> None:
        """Import the library of the second pass."""
        compare(gold="\\sqrt{8}", answer="2\\sqrt{2}")

    def grade(self, example: Example, completion: str) -> Grade:
        gold = gold_text(str(example.columns["answer"]))
        if not gold:
            return unusable_gold("is missing or cut off")
        answer = final_answer(completion)
        strict = _graded(answer, self._verdict(gold, answer.text) if answer.text else None)
        if self.settings.reward == "strict":
            return paid_for_layout(strict, completion, self.settings.format_weight)
        return compat_grade("math", self.settings.reward, completion, example.columns, strict)

    def _verdict(self, gold: str, answer: str) -> Verdict:
        """Verdict on the answer as it stands, else on what its last sentence states."""
        verdict = compare(gold=gold, answer=answer, policy=self.settings.policy)
        stated = stated_in_words(answer)
        if verdict.outcome == "equal" or not stated:
            return verdict
        again = compare(gold=gold, answer=stated, policy=self.settings.policy)
        return again if again.outcome == "equal" else verdict

    def hash(self) -> str:
        grader = f"{GRADER}, {self.settings.policy}, math-verify {version()}"
        return self.data.hash(grader, mathematics=True)


def _graded(answer: Extracted, verdict: Verdict | None) -> Grade:
    """1 for `equal`, else 0; whatever was left undecided is counted in the part `undecided` and named in `detail`."""
    if verdict is None or answer.status != "ok":
        detail = "answer not closed" if answer.status == "truncated" else "no answer"
        return Grade(reward=0.0, correct=False, status="no_answer", parts={"undecided": 0.0}, detail=detail)
    right = verdict.outcome == "equal"
    return Grade(
        reward=float(right),
        correct=right,
        status=_STATUS.get(verdict.outcome, "wrong"),
        parts={"undecided": float(verdict.outcome not in ("equal", "different"))},
        detail="" if right else f"{verdict.outcome}: {verdict.reason}"[:200],
        extracted=answer.text,
    )
