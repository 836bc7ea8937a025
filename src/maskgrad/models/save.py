"""From a `Policy` to a folder in the authors' format, which their code and `load_policy` both read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from maskgrad.models.files import INDEX, WEIGHTS, write_json
from maskgrad.models.load import DTYPES, dtype_named
from maskgrad.models.policy import Policy
from maskgrad.models.tokenizer import save_tokenizer


def save_policy(
    policy: Policy, folder: str | Path, *, dtype: str | None = None, max_shard_bytes: int = 5_000_000_000
) -> None:
    """Write config.json, weights and tokenizer into `folder`, which is made if need be.

    `dtype` None stores the weights as they are, so that loading them again gives the same bits. Nothing here makes
    the folder appear at once: a caller that may be interrupted writes to a temporary name and renames it.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    target = policy.dtype if dtype is None else dtype_named(dtype)
    _write_weights(policy.weights(), folder, target, max_shard_bytes)
    write_json(stored_config(policy.config, target), folder / "config.json")
    if policy.tokenizer is not None:
        save_tokenizer(policy.tokenizer, folder)


def stored_config(config: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """The config with its dtype made true, under the name it had, and everything else as it was."""
    name = next(name for name, value in DTYPES.items() if value == dtype)
    return {key: name if key in ("torch_dtype", "dtype") else value for key, value in config.items()}


def _write_weights(weights: dict[str, Tensor], folder: Path, dtype: torch.dtype, max_shard_bytes: int) -> None:
    shards = _shards(weights, dtype, max_shard_bytes)
    for stale in [*folder.glob("model-*-of-*.safetensors"), folder / INDEX, folder / WEIGHTS]:
        # what an earlier model left in the folder would be read together with this one
        stale.unlink(missing_ok=True)
    count = len(shards)
    names = [WEIGHTS] if count == 1 else [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]
    for name, shard in zip(names, shards, strict=True):
        ready = {key: weights[key].detach().to("cpu", dtype).contiguous() for key in shard}
        save_file(ready, folder / name, {"format": "pt"})
    if count > 1:
        weight_map = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
        total = sum(tensor.numel() for tensor in weights.values()) * dtype.itemsize
        write_json({"metadata": {"total_size": total}, "weight_map": weight_map}, folder / INDEX)


def _shards(weights: dict[str, Tensor], dtype: torch.dtype, max_bytes: int) -> list[list[str]]:
    """Names in files of at most `max_bytes` each; a larger tensor has a file to itself."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, tensor in weights.items():
        size = tensor.numel() * dtype.itemsize
        if shards[-1] and filled + size > max_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards
