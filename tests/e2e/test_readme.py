"""Every command that README and docs show is one the program understands; the quick ones are run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from maskgrad.cli import build_parser, main
from maskgrad.config import parse_overrides, run_config, sft_config

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHOWN = re.compile(r"^ {4}(?:\.venv/bin/)?maskgrad (.+?)(?:\s+#.*)?$", re.MULTILINE)


def commands() -> list[tuple[str, list[str]]]:
    found = []
    for page in PAGES:
        text = re.sub(r"\\\n\s+", " ", page.read_text())
        found += [(page.name, shlex.split(match)) for match in SHOWN.findall(text)]
    return found


@pytest.mark.parametrize(("page", "arguments"), commands(), ids=lambda value: value if isinstance(value, str) else "")
def test_shown_command_resolves(page: str, arguments: list[str]) -> None:
    known, rest = build_parser().parse_known_args(arguments)
    if known.command == "train" and known.resume is None:
        assert run_config(known.recipe, parse_overrides(rest), known.algorithm)
    elif known.command == "sft" and known.resume is None:
        assert sft_config(known.recipe, parse_overrides(rest))
    else:
        assert rest == [] or known.command == "stress", f"{page}: {rest}"


def test_there_are_commands_to_check() -> None:
    assert len(commands()) >= 10


def test_the_tour_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The tour of README in small: sample with a trace, eval, train, evaluate the result."""
    monkeypatch.chdir(tmp_path)
    model = "maskgrad:base_sudoku_tiny"
    assert main(["sample", "--model", model, "--task", "sudoku", "--count", "2", "--trace", "trace.json"]) == 0
    assert main(["eval", "--model", model, "--task", "sudoku", "--limit", "8"]) == 0
    small = ["--train.max_updates", "1", "--eval.count", "4", "--rollout.prompts_per_batch", "2"]
    assert main(["train", "quickstart", "--algorithm", "egspo", "--seed", "1", "--out", "runs/tour", *small]) == 0
    assert main(["eval", "--model", "runs/tour/final", "--task", "sudoku", "--limit", "4", "--json", "tour.json"]) == 0
    assert (tmp_path / "trace.json").is_file() and (tmp_path / "tour.json").is_file()
    assert "accuracy" in capsys.readouterr().out
