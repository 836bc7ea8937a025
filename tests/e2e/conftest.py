from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from maskgrad.config import RunConfig, merge, run_config
from maskgrad.training import loop


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One thread where the settings leave the number open, and at the end the number there was."""
    before, real = torch.get_num_threads(), loop.set_threads
    monkeypatch.setattr(loop, "set_threads", lambda threads: real(threads or 1))
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def smoke() -> Callable[..., RunConfig]:
    """The recipe `smoke`, lighter, and with a reward that gives every update a gradient: smoke(algorithm, settings)."""
    light = {"eval": {"count": 4}, "rollout": {"prompts_per_batch": 2}, "task": {"reward": "cells"}}

    def build(algorithm: str | None = None, settings: Mapping[str, Any] | None = None) -> RunConfig:
        return run_config("smoke", merge(light, settings or {}), algorithm)

    return build


@pytest.fixture(scope="session")
def python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """python(*arguments) in a process of its own."""

    def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, env=environment, cwd=cwd, timeout=300
        )

    return run


@pytest.fixture
def model_copy(tmp_path: Path) -> Path:
    """A folder of its own with the Sudoku model of the package."""
    import maskgrad

    source = Path(maskgrad.__file__).parent / "assets" / "base_sudoku_tiny"
    return Path(shutil.copytree(source, tmp_path / "model"))
