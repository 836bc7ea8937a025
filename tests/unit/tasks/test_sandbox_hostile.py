"""No hostile program passes, gets out, or leaves anything running or on disk."""

from __future__ import annotations

import os
import runpy
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from maskgrad.tasks.sandbox import Limits
from maskgrad.tasks.sandbox_run import ProgramTests, Verdict, run_program

EVERYWHERE, RIGHT = (
    runpy.run_path(str(Path(__file__).with_name("hostile_programs.py")))[n] for n in ("EVERYWHERE", "RIGHT")
)

LIMITS = Limits(test_seconds=0.4, total_seconds=1.0, patience=2.0, memory=2**28, file_size=2**20, output=2**14)
TESTS = ProgramTests(names=("add",), tests=("assert add(1, 2) == 3", "assert add(40, 2) == 42"))
MARK = f"maskgrad-mark-{os.getpid()}"

#: What "rlimit" promises to stop without root's help; the rest it stops too when root starts it.
RLIMIT_ALONE = sorted(set(EVERYWHERE) - {"deletes", "shadow_file", "many_files", "huge_file"})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that temporary files go to, with a victim beside it; both must be as before afterwards."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("MASKGRAD_SECRET", "42")
    (tmp_path / "temporary").mkdir()
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "file").write_text("kept")
    yield tmp_path
    assert list((tmp_path / "temporary").iterdir()) == [], "temporary files are left"
    assert [p.name for p in (tmp_path / "victim").iterdir()] == ["file"], "the folder outside was changed"
    assert running(str(tmp_path)) == [], "processes are left"
    assert not any(MARK in name for name in os.listdir("/tmp")), "files are left in /tmp"


def running(text: str) -> list[str]:
    """Processes whose command line or environment holds a text."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for part in ("cmdline", "environ"):
            try:
                content = Path(f"/proc/{pid}/{part}").read_bytes()
            except OSError:  # ended meanwhile, or another user's
                continue
            if int(pid) != os.getpid() and text.encode() in content:
                found.append(f"{pid} {content[-200:]!r}")
    return found


def attempt(name: str, kind: str, folder: Path) -> Verdict:
    program = EVERYWHERE[name].replace("FOLDER", str(folder / "victim")).replace("MARK", MARK)
    return run_program(program, TESTS, kind, LIMITS)


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
@pytest.mark.parametrize("name", sorted(EVERYWHERE))
def test_bubblewrap(name: str, folder: Path) -> None:
    verdict = attempt(name, "bwrap", folder)
    assert verdict.outcome in ("wrong", "timeout", "crash"), verdict
    assert verdict.passed < 1.0


@pytest.mark.parametrize("name", sorted(EVERYWHERE) if os.getuid() == 0 else RLIMIT_ALONE)
def test_rlimit(name: str, folder: Path) -> None:
    verdict = attempt(name, "rlimit", folder)
    assert verdict.outcome in ("wrong", "timeout", "crash"), verdict
    assert verdict.passed < 1.0


def test_the_checks_see_what_they_look_for(folder: Path) -> None:
    """Control: a right program passes under the same limits, and a process with the mark would be seen."""
    assert run_program(RIGHT, TESTS, "rlimit", LIMITS).outcome == "ok"
    assert running(sys.executable), "this very interpreter's relatives are invisible: the check for survivors is blind"
