"""Graded answers per second, in this process and through the grading service, and the delay by one endless answer.

python benchmarks/grading.py [--answers 20000] [--workers 2]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from maskgrad.tasks.base import Example, Grade, Task
from maskgrad.tasks.countdown import CountdownSettings, CountdownTask
from maskgrad.tasks.grading import GradingSettings
from maskgrad.tasks.grading_task import ServedTask
from maskgrad.tasks.gsm8k import Gsm8kTask


def timed(name: str, count: int, run: Callable[[], list[Grade]]) -> list[Grade]:
    started = time.perf_counter()
    grades = run()
    seconds = time.perf_counter() - started
    print(f"{name:42} {seconds:8.2f} s   {count / seconds:10,.0f} answers/s")
    return grades


def measured(name: str, task: Task, settings: dict[str, Any], items: list[tuple[Example, str]], workers: int) -> None:
    """The items in this process and through the service, whose grades have to be the same."""
    examples, texts = [example for example, _ in items], [text for _, text in items]
    served = ServedTask(task, {"name": name, **settings}, GradingSettings(workers=workers))
    served.grade_batch(examples[:64], texts[:64])  # starts the workers
    here = timed(f"{name}, in this process", len(texts), lambda: task.grade_batch(examples, texts))
    there = timed(f"{name}, {workers} workers", len(texts), lambda: served.grade_batch(examples, texts))
    served.service.close()
    assert here == there


def countdown(count: int, workers: int) -> None:
    task = CountdownTask(CountdownSettings(prompt="d1"))
    base = [task.example("train", index) for index in range(min(count, 1000))]
    kinds = [task.target, lambda e: "<answer>1+1</answer>", lambda e: "", lambda e: "<answer>((1+</answer>"]
    items = [(base[n % len(base)], kinds[n % 4](base[n % len(base)])) for n in range(count)]
    measured("countdown", task, {"prompt": "d1"}, items, workers)


def gsm8k(count: int, workers: int) -> None:
    """Answers of the length of real ones: 120 words of reasoning with numbers in them."""
    task = Gsm8kTask()
    reasoning = "First there are 12 boxes of 3 and then, as 12*3 = 36, one more. " * 8
    forms = [
        "<answer>\n{:,}\n</answer>",
        "<answer>\\boxed{{{}}}</answer>",
        "The total is ${}.00.",
        "<answer>{} - 1</answer>",
        "#### {}",
        "<answer>{}",
    ]
    items = []
    for number in range(count):
        gold = number * 7 % 10_000
        text = f"<reasoning>\n{reasoning}\n</reasoning>\n" if number % 6 in (0, 1, 3, 5) else reasoning
        items.append((task.from_row({"answer": str(gold)}), text + forms[number % 6].format(gold)))
    measured("gsm8k", task, {}, items, workers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answers", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=2)
    known = parser.parse_args()
    countdown(known.answers, known.workers)
    gsm8k(known.answers, known.workers)
    gym(known.workers)


def gym(workers: int) -> None:
    """One answer that would take for ever, among others of a generated task whose scorer evaluates answers."""
    from maskgrad.tasks.registry import make_task

    task = make_task({"name": "gym:countdown"}, GradingSettings(workers=workers, seconds=2.0))
    examples = [task.example("train", index) for index in range(64)]
    texts = [task.target(example) for example in examples]
    task.grade_batch(examples[:workers], texts[:workers])
    timed("gym:countdown", 64, lambda: task.grade_batch(examples, texts))
    texts[20] = "<answer>9**9**9**9</answer>"
    grades = timed("gym:countdown, one power tower (2 s limit)", 64, lambda: task.grade_batch(examples, texts))
    assert [g.status for g in grades].count("timeout") == 1


if __name__ == "__main__":
    main()
