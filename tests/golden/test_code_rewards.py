"""Code rewards against hand-made completions whose truth was judged by people, and the scores of the releases."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from maskgrad.tasks.base import Example
from maskgrad.tasks.code import CodeSettings, grade_program
from maskgrad.tasks.code_compat import egspo_code_reward, espo_code_reward, espo_format_reward
from maskgrad.tasks.code_rows import pytest_functions

FILE = Path(__file__).parents[2].parent / "shared" / "golden" / "rewards" / "code.jsonl"
KIND = "bwrap" if shutil.which("bwrap") else "rlimit"
SETTINGS = CodeSettings(sandbox=KIND, test_seconds=0.5, total_seconds=3.0)
ROWS: list[dict[str, Any]] = (
    [json.loads(line) for line in FILE.read_text("utf-8").splitlines()] if FILE.exists() else []
)

pytestmark = pytest.mark.skipif(not ROWS, reason="the shared golden rewards are not next to the repository")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_strict_verdicts(row: dict[str, Any]) -> None:
    columns = {"names": ["add"], "tests": row["prompt_fields"]["test_cases"]}
    found = grade_program(Example(id=row["id"], prompt="", columns=columns), row["completion"], SETTINGS)
    assert row["truly_correct"] in (None, found.correct)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_published_scores(row: dict[str, Any]) -> None:
    text, fields, limits = row["completion"], row["prompt_fields"], SETTINGS.limits()
    tests = pytest_functions(fields["answer"]["tests"])
    assert tests is not None
    found = {
        "espo.code_format_reward": espo_format_reward(text),
        "espo.code_reward": espo_code_reward(text, fields["test_cases"], KIND, limits),
        "egspo.coding_reward_func": egspo_code_reward(
            text, "add", [f"{tests.tests_setup}\n{test}" for test in tests.tests], KIND, limits
        ),
    }
    assert found == pytest.approx(row["official"], abs=1e-6)
