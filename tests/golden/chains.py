"""Recorded whole updates: the tiny model before and after its perturbation, the recorded tensors, the comparisons.

Every chain of the recordings ran on the same prompts, completions and seeds, and the index holds its loss and the
gradient norms of all weights. So an entry whose file is not in this copy of the data is still recomputed in full, from
the inputs of `sibling`; only the element-wise gradients need the file.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from maskgrad.algorithms import Algorithm
from maskgrad.likelihood.score import active_views, score_rows
from maskgrad.models.policy import Policy
from maskgrad.records import LossSum, MaskedViews, RolloutBatch, Units

GOLDEN = Path(__file__).parents[2].parent / "shared" / "golden"
FOLDER, LIKELIHOOD = GOLDEN / "losses", GOLDEN / "likelihood"
HERE = FOLDER.is_dir()
INDEX = json.loads((FOLDER / "index.json").read_text()) if HERE else {}
PROXIES = json.loads((LIKELIHOOD / "index.json").read_text()) if HERE else {}
BASE = GOLDEN / "models" / "llada_tiny" / "base"
GRADIENT = {"rtol": 1e-3, "atol": 1e-4}


def entries(prefix: str) -> list:
    """Chains of the index whose name starts with `prefix`, their files here or not."""
    return [pytest.param(n, id=n.split("/")[-1]) for n in INDEX if n.startswith(f"chain/{prefix}")]


def recorded(name: str, sibling: str) -> dict[str, Tensor]:
    """The recorded tensors of a chain; if the file is not here, the sibling's inputs alone."""
    path = FOLDER / f"{name}.safetensors"
    if path.is_file():
        return load_file(path)
    file = load_file(FOLDER / "chain" / f"{sibling}.safetensors")
    outputs = ("advantages", "loss", "grad.")
    return {key: value for key, value in file.items() if not key.startswith(outputs)}


def rollouts(file: dict[str, Tensor], **changes: Tensor) -> RolloutBatch:
    """The rollouts of a file, two prompts with three completions each."""
    tokens = torch.cat([file["prompt_ids"], file["completion_ids"]], 1)
    live = file["completion_mask"].bool()
    real = torch.cat([file["prompt_mask"].bool(), torch.ones_like(live)], 1)
    index = torch.arange(len(tokens))
    batch = {"tokens": tokens, "attend": real, "live": live, "group": index // 3, "sample": index}
    return RolloutBatch(**{**batch, "reward": file["rewards"], **changes})


def scored(policy: Policy, algorithm: Algorithm, batch: RolloutBatch, seen: MaskedViews) -> Units:
    """Units of the policy on the views, with gradient."""
    row, view = active_views(seen)
    values = score_rows(policy, batch, seen, row, view)
    return algorithm.units(torch.zeros(seen.scored.shape).index_put((row, view), values), seen, batch)


def check_loss(loss: LossSum, wanted: float) -> None:
    assert float(loss.total.detach()) == pytest.approx(wanted, rel=1e-4, abs=1e-4)


def check_advantage(found: Tensor, file: dict[str, Tensor], key: str = "advantages") -> None:
    if key in file:
        torch.testing.assert_close(found, file[key], rtol=1e-4, atol=1e-6)


def check_gradients(policy: Policy, loss: LossSum, file: dict[str, Tensor], norms: dict[str, float]) -> None:
    """Four recorded gradients element by element, and the norms of all."""
    policy.zero_grad()
    loss.total.backward()
    weights = policy.weights()
    keys = [key for key in file if key.startswith("grad.")]
    assert bool(keys) == any(key.startswith("loss") for key in file)  # both, or neither where the file is not here
    for key in keys:
        torch.testing.assert_close(weights[key.removeprefix("grad.")].grad, file[key], **GRADIENT)
    assert len(norms) == len(weights)
    for name, norm in norms.items():
        assert float(weights[name].grad.norm()) == pytest.approx(norm, rel=1e-3, abs=1e-4), name
