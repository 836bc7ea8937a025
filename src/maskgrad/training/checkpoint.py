"""Checkpoints that appear whole or not at all, and exact resume.

A checkpoint holds weights (authors' format), optimiser, counters, and the rollout buffer with its old log-probs. No
generator state: every draw of the library is named (see randomness.py), so counters are enough.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from maskgrad.diffusion.schedule import SAMPLER_FILE, SamplerConfig
from maskgrad.errors import UserError
from maskgrad.models.adapters import save_adapter
from maskgrad.models.fingerprint import weights_hash as weights_hash
from maskgrad.models.policy import Policy
from maskgrad.models.save import save_policy
from maskgrad.reporting.journal import FILE_NAME, Journal
from maskgrad.training.update import Prepared


@dataclass
class Progress:
    """Counters of a run. `buffer_index` is the next update of the current rollout batch."""

    step: int = 0  # optimiser steps done
    batches: int = 0  # rollout batches collected
    cursor: int = 0  # next training example
    buffer_index: int = 0
    skipped_in_row: int = 0
    skipped: int = 0
    flat_in_row: int = 0  # batches without a difference between the rewards of any group
    task: str = ""  # hash of the task the run was started with
    reference: str = ""  # hash of the weights a KL term refers to, if there is one


def write_atomic(folder: Path, fill: Any) -> None:
    """Create `folder` with what `fill(temporary_folder)` writes; an interruption leaves no half-written folder."""
    temporary = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    fill(temporary)
    for file in temporary.rglob("*"):
        if file.is_file():
            with open(file, "rb") as handle:
                os.fsync(handle.fileno())
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.rename(folder, old)
    os.rename(temporary, folder)
    shutil.rmtree(old, ignore_errors=True)


def save(
    folder: Path,
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    buffer: Prepared | None,
    journal: int,
) -> None:
    """Write `folder` (checkpoints/step-NNNNNN). `journal` is the size in bytes of the journal at this moment."""

    def fill(target: Path) -> None:
        _save_trained(policy, target / "model")
        torch.save(optimizer.state_dict(), target / "optimizer.pt")
        torch.save(buffer, target / "buffer.pt")
        state = {**asdict(progress), "journal_bytes": journal}
        (target / "state.json").write_text(json.dumps(state, indent=1))

    write_atomic(folder, fill)


def _save_trained(policy: Policy, folder: Path, dtype: str | None = None) -> None:
    """What training changed: the adapter where there is one, else the whole model."""
    if policy.adapter is None:
        save_policy(policy, folder, dtype=dtype)
    else:
        save_adapter(policy, folder)


def save_final(
    folder: Path, policy: Policy, sampler: SamplerConfig, dtype: str | None = None, card: str | None = None
) -> None:
    """The finished model in the authors' format, with the sampler settings it was evaluated with beside it.

    Of a LoRA run it is the adapter, as a PEFT folder. `card` is the text of its README.md.
    """

    def fill(target: Path) -> None:
        _save_trained(policy, target, dtype)
        (target / SAMPLER_FILE).write_text(sampler.model_dump_json(indent=1) + "\n")
        if card is not None:
            (target / "README.md").write_text(card, "utf-8")

    write_atomic(folder, fill)


def steps(run: Path) -> list[tuple[int, Path]]:
    """Complete checkpoints of a run, oldest first, sorted by step number."""
    found = [(int(p.name.removeprefix("step-")), p) for p in (run / "checkpoints").glob("step-*") if p.is_dir()]
    return sorted(found)


def prune(run: Path, keep: int) -> None:
    for _, folder in steps(run)[:-keep]:
        shutil.rmtree(folder)


def load_state(folder: Path, optimizer: torch.optim.Optimizer) -> tuple[Progress, Prepared | None, int]:
    """Counters, rollout buffer and journal size; the optimiser is restored in place."""
    try:
        state = json.loads((folder / "state.json").read_text())
        optimizer.load_state_dict(torch.load(folder / "optimizer.pt", weights_only=True))
        # The buffer holds our own frozen records; a checkpoint is as trusted as the code that wrote it.
        buffer = torch.load(folder / "buffer.pt", weights_only=False)
        journal = state.pop("journal_bytes")
        return Progress(**state), buffer, journal
    except (OSError, EOFError, KeyError, TypeError, ValueError, RuntimeError, pickle.UnpicklingError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"checkpoint {folder} cannot be read ({type(error).__name__}: {reason:.120}): "
            "delete it to resume from the one before"
        ) from error


def rewind_journal(run: Path, size: int) -> None:
    """Cut the journal to what it was when the checkpoint was written."""
    with Journal(run / FILE_NAME) as journal:
        if journal.size() < size:
            raise UserError(
                f"{run / FILE_NAME} has {journal.size()} bytes, fewer than the {size} that the checkpoint knows: "
                "restore it, or start a new run"
            )
        journal.truncate(size)


def claim(run: Path) -> None:
    """Make the folder of a new run; refuse one that already holds a run, and one that cannot be written."""
    if any((run / name).exists() for name in ("config.yaml", FILE_NAME, "final")) or steps(run):
        raise UserError(f"{run} already holds a run: continue it with --resume {run}, or choose another --out")
    if run.is_file():
        raise UserError(f"{run} is a file: choose a folder as --out")
    try:
        (run / "checkpoints").mkdir(parents=True, exist_ok=True)
        probe = run / ".writable"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise UserError(f"cannot write to {run} ({error.strerror}): choose another --out") from None
