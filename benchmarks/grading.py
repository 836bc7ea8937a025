"""Graded answers per second, in this process and through the grading service, and the delay by one endless answer.

python benchmarks/grading.py [--answers 20000] [--workers 2]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from maskgrad.tasks.base import Example, Grade
from maskgrad.tasks.countdown import CountdownSettings, CountdownTask
from maskgrad.tasks.grading import GradingSettings
from maskgrad.tasks.grading_task import ServedTask


def timed(name: str, count: int, run: Callable[[], list[Grade]]) -> list[Grade]:
    started = time.perf_counter()
    grades = run()
    seconds = time.perf_counter() - started
    print(f"{name:42} {seconds:8.2f} s   {count / seconds:10,.0f} answers/s")
    return grades


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answers", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=2)
    known = parser.parse_args()
    task = CountdownTask(CountdownSettings(prompt="d1"))
    served = ServedTask(task, {"name": "countdown", "prompt": "d1"}, GradingSettings(workers=known.workers))
    base = [task.example("train", index) for index in range(min(known.answers, 1000))]
    kinds = [task.target, lambda e: "<answer>1+1</answer>", lambda e: "", lambda e: "<answer>((1+</answer>"]
    examples: list[Example] = [base[n % len(base)] for n in range(known.answers)]
    texts = [kinds[n % len(kinds)](example) for n, example in enumerate(examples)]
    served.grade_batch(examples[:8], texts[:8])  # starts the workers
    here = timed("countdown, in this process", len(texts), lambda: task.grade_batch(examples, texts))
    there = timed(f"countdown, {known.workers} workers", len(texts), lambda: served.grade_batch(examples, texts))
    assert here == there
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
