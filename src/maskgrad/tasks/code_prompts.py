"""Prompts of the code tasks. Sentences are worded here; what they ask for is that of the published protocols."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from maskgrad.tasks.base import Prompt
from maskgrad.tasks.prompts import FORMAT_BLOCK

CODE_PROTOCOLS = ("d1", "espo", "tracerl")

EXPERT = "You are an expert Python programmer. Solve the problem below with working, efficient Python code. \
Put the complete code into one ```python block inside the <answer> tags."

FINAL_BLOCK = "Think about the problem, then end your response with exactly one fenced block that starts with \
```python and holds the complete solution. Write nothing after it."

ONE_BLOCK = "Solve the problem in Python and put the complete code into a single ```python block."

COMPLETE = "Complete this function:"


def code_prompt(protocol: str, name: str, question: str, shown: Sequence[str]) -> Prompt:
    """Prompt for a problem; `shown` are the tests it may show.

    "d1": format block, a paragraph for a coding expert, the question with all shown tests. "espo": a system message
    that demands one final block; the first shown test follows a question without a code fence. "tracerl": the question
    with all shown tests after a sentence that asks for a single block.
    """
    if name == "humaneval":
        question, shown = f"{COMPLETE}\n```python\n{question}\n```", ()
    tests = "".join(f"\n{test}" for test in shown)
    every = f"{question}\n\nThe code must pass these tests:{tests}" if shown else question
    if protocol == "d1":
        return f"{FORMAT_BLOCK}\n\n{EXPERT}\n\n{every}"
    if protocol == "tracerl":
        return f"{ONE_BLOCK}\n\n{every}"
    if shown and "```" not in question:
        question = f"{question}\n\nThe code must pass this test:\n{shown[0]}"
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": FINAL_BLOCK},
        {"role": "user", "content": question},
    ]
    return messages
