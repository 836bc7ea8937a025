"""From a checkpoint, or from nothing, to a `Policy`. The format is the authors' own; no remote code is run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from maskgrad.errors import UserError, nearest
from maskgrad.models.adapters import base_of, is_adapter, load_adapter
from maskgrad.models.families import Family, family_of, special_ids
from maskgrad.models.files import INDEX, WEIGHTS, find_folder, read_json
from maskgrad.models.policy import Policy
from maskgrad.models.selftest import check_reading
from maskgrad.models.tokenizer import add_mask_token, load_tokenizer
from maskgrad.randomness import generator

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def load_policy(
    path: str | Path,
    *,
    adapter: str | Path | None = None,
    dtype: str = "float32",
    device: str | torch.device = "cpu",
    attn: str = "sdpa",
    mask_token: str | None = None,
    block: int | None = None,
    logit_shift: int | None = None,
    self_test: bool = True,
) -> Policy:
    """Load a checkpoint: a local folder, a hub id `org/name`, or `maskgrad:NAME` for one inside the package.

    `dtype` is what the weights are held and computed in, whatever they are stored in. `adapter` is a PEFT folder with a
    LoRA adapter for the model; if `path` itself is such a folder, the base it names is loaded and adapted.
    `mask_token`, `block` and `logit_shift` declare what the config.json of a plain decoder leaves open (a mask token
    that the tokenizer lacks is added where the tables have room); where it states them they must agree.
    `self_test` runs a few short forwards that find a wrong reading of the checkpoint (selftest.py).
    """
    target = dtype_named(dtype)
    place = _place(device, attn)
    folder = find_folder(str(path))
    if is_adapter(folder):
        if adapter is not None:
            raise UserError(f"{folder} is an adapter itself, so adapter {str(adapter)!r} has no model to go on")
        path, adapter = base_of(folder), folder
        folder = find_folder(path)
    config, tokenizer = read_json(folder / "config.json"), load_tokenizer(folder)
    config = declared(config, tokenizer, mask_token, block, logit_shift)
    policy = _skeleton(family_of(config), config, tokenizer, attn)
    policy.fill(_read_weights(folder, policy, target, place))
    policy.source = str(path) if str(path).startswith("maskgrad:") or not Path(path).is_dir() else str(folder.resolve())
    if adapter is not None:
        load_adapter(policy, find_folder(str(adapter)))
    if self_test:
        check_reading(policy)
    return policy


def _place(device: str | torch.device, attn: str) -> torch.device:
    place = torch.device(device)
    if place.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device {str(device)!r} was asked for, but no CUDA device is visible; use device 'cpu'")
    if attn == "flex" and place.type != "cuda":
        raise UserError(f"attn 'flex' needs a CUDA device, and device is {str(device)!r}: use attn 'sdpa'")
    return place


def declared(
    config: dict[str, Any],
    tokenizer: PreTrainedTokenizerFast | None,
    mask_token: str | None = None,
    block: int | None = None,
    logit_shift: int | None = None,
) -> dict[str, Any]:
    """The config with what the caller declares written into it; a contradiction is a `UserError`."""
    family = family_of(config)
    if mask_token is not None:
        if tokenizer is None:
            raise UserError(f"mask_token {mask_token!r} needs a tokenizer, and the checkpoint has none")
        add_mask_token(tokenizer, mask_token, family.to_backbone(config).vocab_size)
        identity = tokenizer.get_vocab()[mask_token]
        config = _agreed(config, "mask_token_id", identity, config.get("mask_token_id"))
    if block is not None:
        if family.visibility == "full" and family.name != "generic":
            raise UserError(f"block {block} was given, but {family.name} models see everything; leave it out")
        config = _agreed(config, "block_size", block, config.get("block_size"))
    if logit_shift is not None:
        stated = config.get("logit_shift") if family.name == "generic" else family.logit_shift
        config = _agreed(config, "logit_shift", logit_shift, stated)
    return config


def _agreed(config: dict[str, Any], key: str, given: int, stated: int | None) -> dict[str, Any]:
    if stated is None:
        return {**config, key: given}
    if stated != given:
        raise UserError(f"{key} {given} was given, but the checkpoint says {stated}; leave it out, or use its value")
    return config


def new_policy(
    family: Family,
    config: Mapping[str, Any],
    tokenizer: PreTrainedTokenizerFast | None,
    seed: int,
    *,
    dtype: str = "float32",
) -> Policy:
    """A randomly initialised model, drawn in fp32 and cast to `dtype`. `config` needs the sizes only.

    The rest of the settings is as in the published checkpoints.

    Matrices are normal with std fan_in^-1/2, those that write into the residual stream smaller by (2 layers)^1/2,
    an untied head 0.02; norms are 1, biases 0.
    """
    known = {} if tokenizer is None else {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    config = {**family.defaults, **known, **config}
    policy = _skeleton(family, config, tokenizer, "sdpa")
    ids = policy.special
    policy.config |= {"mask_token_id": ids.mask, "eos_token_id": ids.eos, "pad_token_id": ids.pad}
    draws, layers = generator(seed, "init"), len(policy.backbone.layers)
    target = dtype_named(dtype)
    tensors = {name: _draw(name, p.shape, layers, draws).to(target) for name, p in policy.named_parameters()}
    return policy.fill(tensors)


def _draw(name: str, shape: torch.Size, layers: int, draws: torch.Generator) -> Tensor:
    if len(shape) == 1:
        return torch.zeros(shape) if name.endswith(".bias") else torch.ones(shape)
    std = 0.02 if name == "head.weight" else shape[-1] ** -0.5
    if name.endswith(("o_proj.weight", "down_proj.weight", "experts.down_proj")):
        std /= (2 * layers) ** 0.5
    return torch.empty(shape).normal_(0.0, std, generator=draws)


def dtype_named(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise UserError(f"dtype is {name!r}; {nearest(name, DTYPES)}")
    return DTYPES[name]


def _skeleton(
    family: Family, config: Mapping[str, Any], tokenizer: PreTrainedTokenizerFast | None, attn: str
) -> Policy:
    rows = family.to_backbone(config).vocab_size
    if tokenizer is not None and max(tokenizer.get_vocab().values()) >= rows:
        raise UserError(
            f"the tokenizer has ids up to {max(tokenizer.get_vocab().values())}, "
            f"but the vocabulary has {rows} rows; use the tokenizer of this model"
        )
    return Policy(family, config, special_ids(family, config, tokenizer, rows), tokenizer, attn)


def _read_weights(folder: Path, policy: Policy, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    wanted = {name: tuple(tensor.shape) for name, tensor in policy.weights().items()}
    if (folder / INDEX).is_file():
        shards = sorted(set(read_json(folder / INDEX)["weight_map"].values()))
    elif (folder / WEIGHTS).is_file():
        shards = [WEIGHTS]
    else:
        raise UserError(f"{folder} has neither {WEIGHTS} nor {INDEX}; only weights in safetensors files are read")
    names, twin = policy.family.names, {}
    if policy.traits.tied:  # some programs write the table a second time, as the head
        twin = {str(names.theirs("head.weight")): wanted[str(names.theirs("backbone.embed_tokens.weight"))]}
    found: dict[str, Tensor] = {}
    for shard in shards:
        found |= _read_shard(folder / shard, wanted | twin, dtype, device)
    for name in twin.keys() & found.keys():
        _check_twin(folder, name, found.pop(name), found.get(str(names.theirs("backbone.embed_tokens.weight"))))
    if missing := sorted(set(wanted) - set(found)):
        raise UserError(f"{folder} lacks {len(missing)} tensors, among them {_few(missing)}; is the download complete?")
    return {name: _assemble(policy.family, name, p, found) for name, p in policy.named_parameters()}


def _check_twin(folder: Path, name: str, head: Tensor, table: Tensor | None) -> None:
    """A head stored beside the table it is tied to must be that table."""
    if table is not None and not torch.equal(head, table):
        raise UserError(
            f"config.json of {folder} ties the head to the embedding, but the weights hold another {name}; "
            "correct the tying in config.json"
        )


def _assemble(family: Family, name: str, parameter: Tensor, found: dict[str, Tensor]) -> Tensor:
    """A tensor of `Policy` from the checkpoint's, which are taken out of `found`."""
    if list(family.parts(name, parameter)) == [name]:
        return found.pop(str(family.names.theirs(name)))
    first = found[next(iter(family.stored(name, parameter)))]
    whole = torch.empty(parameter.shape, dtype=first.dtype, device=first.device)
    for part, view in family.stored(name, whole).items():
        view.copy_(found.pop(part))
    return whole


def _read_shard(
    file: Path, wanted: Mapping[str, tuple[int, ...]], dtype: torch.dtype, device: torch.device
) -> dict[str, Tensor]:
    if not file.is_file():
        raise UserError(f"{file.parent} lacks {file.name}, which {INDEX} names; complete the download")
    try:
        with safe_open(file, "pt", device=str(device)) as shard:
            names = list(shard.keys())
            if foreign := [name for name in names if name not in wanted]:
                raise UserError(
                    f"{file} has {len(foreign)} tensors that config.json has no place for, among them {_few(foreign)}; "
                    "use the config.json of these weights"
                )
            for name in names:
                if (shape := tuple(shard.get_slice(name).get_shape())) != wanted[name]:
                    raise UserError(
                        f"{name} in {file} has shape {shape}, but config.json makes it {wanted[name]}; "
                        "use the config.json of these weights"
                    )
            return {name: shard.get_tensor(name).to(dtype) for name in names}
    except SafetensorError as error:
        raise UserError(f"{file} cannot be read ({error}); download it again") from error


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
