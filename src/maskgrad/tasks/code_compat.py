"""Published rewards for code, with their faults, so that published training signals can be reproduced.

As in the releases, the tests run in the same interpreter as the program, which can therefore tamper with them; that
interpreter is a sandboxed one here. Rules: ESPO `code_format_reward`, `code_reward` (its local provider); EGSPO
`coding_reward_func`, which comes from d1; StableDRL pays +1 or -1.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from maskgrad.tasks.sandbox import Limits
from maskgrad.tasks.sandbox_run import ProgramTests, run_program

COMPAT_REWARDS = ("compat_egspo", "compat_espo", "compat_stabledrl")
TEST_SECONDS = 1.0
INSIDE_TAG_BONUS = 0.5

#: A program with one of these words is refused by both releases, whatever it does with them.
REFUSED_WORDS = ("threading", "multiprocess", "import os", "from os", "shutil", "import torch", "from torch",
                 "import sklearn", "from sklearn")  # fmt: skip

_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
_ONE_FINAL_BLOCK = re.compile(r"(?:(?!```).)*```python\n(?:(?!```).)*```\n*", re.DOTALL)
_TAGGED_BLOCK = re.compile(r"<answer>(?:(?!</answer>).)*```python\n.*?```.*?</answer>", re.DOTALL)
_DEFINITION = re.compile(r"def\s+\w+")

_HARNESS = """


def _passes(code):
    exec(compile(code, "<test>", "exec"), globals())
    return True
"""


def compat_reward(rule: str, text: str, columns: Mapping[str, Any], kind: str, limits: Limits) -> float:
    """Reward of a published rule for a row with the columns of a code task."""
    names, before, after = tuple(columns["names"]), str(columns["setup"]), str(columns["tests_setup"])
    tests = [f"{after}\n{test}" for test in columns["tests"]]
    if rule == "compat_espo":
        return espo_code_reward(text, tests, kind, limits, before)
    if rule == "compat_egspo":
        return egspo_code_reward(text, names[0], tests, kind, limits, before)
    block = _BLOCK.search(text)
    return 1.0 if block and _share(block.group(1), tests, kind, limits, before) == 1.0 else -1.0


def espo_format_reward(text: str) -> float:
    """1 for exactly one fenced Python block that ends the text and parses, 0.5 if only it does not parse, else 0."""
    if not _ONE_FINAL_BLOCK.fullmatch(text):
        return 0.0
    return 1.0 if _parses(_blocks(text)[-1]) else 0.5


def espo_code_reward(text: str, tests: Sequence[str], kind: str, limits: Limits, before: str = "") -> float:
    """Share of the tests (code that raises on failure) passed, if the format reward is 1, else 0."""
    if espo_format_reward(text) < 1.0:
        return 0.0
    return _share(_blocks(text)[-1], tests, kind, limits, before)


def egspo_code_reward(text: str, name: str, tests: Sequence[str], kind: str, limits: Limits, before: str = "") -> float:
    """Share of the tests passed by the first fenced Python block, plus 0.5 if a block lies inside the answer tag.

    The first `def` of the block, be it a helper function or a method, is renamed to the wanted name. A block without
    `def`, or with a refused word, earns 0.
    """
    blocks = _blocks(text)
    if not blocks or not _DEFINITION.search(blocks[0]) or _refused(blocks[0]):
        return 0.0
    program = _DEFINITION.sub(f"def {name}", blocks[0], count=1)
    bonus = INSIDE_TAG_BONUS if _TAGGED_BLOCK.search(text) else 0.0
    return _share(program, tests, kind, limits, before) + bonus


def _blocks(text: str) -> list[str]:
    return [match.group(1) for match in _BLOCK.finditer(text)]


def _parses(code: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _refused(program: str) -> bool:
    return any(word in program for word in REFUSED_WORDS)


def _share(program: str, tests: Sequence[str], kind: str, limits: Limits, before: str) -> float:
    """Share of the tests passed when run in the program's own interpreter, a second of CPU time each."""
    if _refused(program):
        return 0.0
    checks = tuple(f"assert _passes({test!r}) is True" for test in tests)
    wanted = ProgramTests(names=("_passes",), tests=checks)
    short = replace(limits, test_seconds=min(TEST_SECONDS, limits.test_seconds))
    return run_program(f"{before}\n{program}{_HARNESS}", wanted, kind, short).passed
