"""LoRA by `peft`: adapters put into the backbone, and PEFT folders read and written under the authors' names.

PEFT adapts whatever modules match its list and says nothing about the rest, so modules are counted here. The base is
frozen and never merged with: the reference policy is the same network with the adapter switched off.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from maskgrad.errors import UserError, nearest
from maskgrad.models.files import read_json, write_json
from maskgrad.models.layout import adapts
from maskgrad.models.policy import Policy
from maskgrad.randomness import generator

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX, _SLOT = "base_model.model.", ".default."
# keys of adapter_config.json under any other value of which the adapter is more than two matrices per module
_PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "use_dora": (False, None),
    "lora_bias": (False, None),
    "fan_in_fan_out": (False, None),
    "modules_to_save": (None, []),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "layer_replication": (None,),
    "trainable_token_indices": (None,),
}


@dataclass(frozen=True)
class Adapter:
    """Settings of the adapter in a policy. `modules` are paths inside the backbone."""

    rank: int
    alpha: float
    modules: tuple[str, ...]
    rank_stabilised: bool = False  # scale alpha / sqrt(rank) instead of alpha / rank


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds a PEFT adapter and no model."""
    return (folder / CONFIG).is_file() and not (folder / "config.json").is_file()


def base_of(folder: Path) -> str:
    """The model that the adapter in `folder` was made for, as its adapter_config.json names it."""
    base = read_json(folder / CONFIG).get("base_model_name_or_path")
    if not base:
        raise UserError(f"{folder / CONFIG} names no base model; load the base and give this folder as its adapter")
    return str(base)


def add_adapter(
    policy: Policy, rank: int, alpha: float, targets: Sequence[str] | None = None, *, seed: int = 0
) -> None:
    """Put a new adapter into `policy`: B zero, so that nothing changes, A uniform in (-1, 1)/sqrt(inputs).

    `targets` are module names of a backbone layer, by default all of the family's. Only the adapter is trainable after.
    """
    wanted = tuple(policy.family.lora_targets if targets is None else targets)
    known = policy.family.lora_targets
    for target in wanted:
        if target not in known:
            raise UserError(f"LoRA target {target!r} is no layer of {policy.family.name}: {nearest(target, known)}")
    linear = [name for name, module in policy.backbone.named_modules() if isinstance(module, torch.nn.Linear)]
    modules = tuple(name for name in linear if name.rsplit(".", 1)[-1] in wanted)
    if not wanted or len(modules) != len(wanted) * len(policy.backbone.layers):
        raise UserError(
            f"the LoRA targets {list(wanted)} match {len(modules)} modules in {len(policy.backbone.layers)} layers, "
            f"not {len(wanted)} per layer: choose among {', '.join(known)}"
        )
    _inject(policy, Adapter(rank, alpha, modules))
    draws = generator(seed, "lora")
    for name, tensor in _tensors(policy).items():
        values = torch.zeros(tensor.shape)
        if ".lora_A." in name:
            values.uniform_(-1, 1, generator=draws).div_(math.sqrt(tensor.shape[1]))
        _set(policy, name, values)


def load_adapter(policy: Policy, folder: Path) -> None:
    """Put the adapter of a PEFT folder into `policy`; its modules are those with weights in the file.

    The list of targets in adapter_config.json may name modules that the network lacks (released d1 adapters do).
    """
    settings = read_json(folder / CONFIG)
    for key, plain in _PLAIN.items():
        if settings.get(key, plain[0]) not in plain:
            raise UserError(f"{folder / CONFIG} has {key} = {settings[key]!r}; only {plain[0]!r} is supported")
    tensors = {_ours(policy, name, folder): tensor for name, tensor in _read(folder / WEIGHTS).items()}
    modules = sorted({name.partition(".lora_")[0] for name in tensors})
    inside = dict(policy.named_modules())
    for module in modules:
        if not isinstance(inside.get(module), torch.nn.Linear):
            raise UserError(f"{folder / WEIGHTS} adapts {policy.family.names.theirs(module)}, which is no linear layer")
    if not modules:
        raise UserError(f"{folder / WEIGHTS} holds no adapter weights; was it saved before training ended?")
    paths = tuple(module.removeprefix("backbone.") for module in modules)
    _inject(policy, Adapter(settings["r"], settings["lora_alpha"], paths, bool(settings.get("use_rslora"))))
    wanted = _tensors(policy)
    if missing := sorted(set(wanted) - set(tensors)):
        raise UserError(f"{folder / WEIGHTS} lacks {len(missing)} tensors, among them {_theirs(policy, missing[0])}")
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            shapes = f"{tuple(tensor.shape)}, not {tuple(wanted[name].shape)}"
            raise UserError(f"{_theirs(policy, name)} in {folder / WEIGHTS} has shape {shapes}; load its own base")
        _set(policy, name, tensor)


def save_adapter(policy: Policy, folder: Path, base: str | None = None) -> None:
    """Write the adapter as a PEFT folder under the authors' module names. `base` is the model it belongs to."""
    assert policy.adapter is not None, "no adapter to save"
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: tensor.detach().cpu().contiguous() for name, tensor in adapter_weights(policy).items()},
        folder / WEIGHTS,
        {"format": "pt"},
    )
    settings = LoraConfig(
        r=policy.adapter.rank,
        lora_alpha=policy.adapter.alpha,
        use_rslora=policy.adapter.rank_stabilised,
        inference_mode=True,
        base_model_name_or_path=base or policy.source,
        target_modules=_written_targets(policy),
    ).to_dict()
    write_json({key: _plain(value) for key, value in settings.items()}, folder / CONFIG)


def adapted_modules(policy: Policy) -> int | None:
    """How many modules the adapter is in; None without an adapter."""
    return None if policy.adapter is None else len(policy.adapter.modules)


def adapter_weights(policy: Policy) -> dict[str, Tensor]:
    """The adapter's matrices under the names PEFT gives them around the authors' modules: A [r,in], B [out,r]."""
    return {_theirs(policy, name): tensor for name, tensor in _tensors(policy).items()}


@contextmanager
def adapter_off(policy: Policy) -> Iterator[Policy]:
    """The base policy, as long as the context lasts. Nothing is merged or copied."""
    layers = [module for module in policy.modules() if isinstance(module, BaseTunerLayer)]
    trained = {name: p.requires_grad for name, p in policy.named_parameters()}
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield policy
    finally:
        for layer in layers:
            layer.enable_adapters(True)
        for name, parameter in policy.named_parameters():
            parameter.requires_grad_(trained[name])


def as_reference(reference: Policy, policy: Policy) -> AbstractContextManager[Policy]:
    """Run `reference` as what `policy` is compared to: of one network, the base under its adapter."""
    return adapter_off(policy) if reference is policy else nullcontext(reference)


def _inject(policy: Policy, adapter: Adapter) -> None:
    if policy.adapter is not None:
        raise UserError("the model has an adapter already; load the base and give it one adapter")
    settings = LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,  # type: ignore[arg-type]  # peft divides it by the rank, whatever its type
        use_rslora=adapter.rank_stabilised,
        lora_dropout=0.0,  # the likelihoods that form a ratio come from one deterministic network
        target_modules="|".join(re.escape(module) for module in adapter.modules),
    )
    policy.requires_grad_(False)
    # on the meta device peft draws nothing from the global generator; the caller brings the values
    inject_adapter_in_model(settings, policy.backbone, low_cpu_mem_usage=True)
    adapted = [module for module in policy.backbone.modules() if isinstance(module, BaseTunerLayer)]
    if len(adapted) != len(adapter.modules):
        raise UserError(
            f"{len(adapted)} of {len(adapter.modules)} modules were adapted; use the tested version of peft"
        )
    policy.adapter = adapter
    policy.eval()


def _tensors(policy: Policy) -> dict[str, Tensor]:
    """The adapter's parameters by policy name, without PEFT's name of the slot."""
    return {name.replace(_SLOT, "."): p for name, p in policy.named_parameters() if adapts(name)}


def _set(policy: Policy, name: str, values: Tensor) -> None:
    """Bring in one matrix: in fp32 over a low-precision base, else in the dtype of the base."""
    dtype = torch.float32 if policy.dtype.itemsize == 2 else policy.dtype
    path, _, last = name.rpartition(".")
    slot = policy.get_submodule(path + _SLOT.rstrip("."))
    setattr(slot, last, torch.nn.Parameter(values.to(policy.device, dtype)))


def _ours(policy: Policy, name: str, folder: Path) -> str:
    ours = policy.family.names.ours(name.removeprefix(_PREFIX)) if name.startswith(_PREFIX) else None
    if ours is None or not re.search(r"\.lora_[AB]\.weight$", ours):
        raise UserError(f"{folder / WEIGHTS} has a tensor {name}, which {policy.family.name} has no place for")
    return ours


def _theirs(policy: Policy, name: str) -> str:
    return f"{_PREFIX}{policy.family.names.theirs(name)}"


def _written_targets(policy: Policy) -> list[str] | str:
    """Target names for the authors' code: last parts of the paths, or a pattern where those would hit the head too."""
    names = policy.family.names
    paths = [str(names.theirs("backbone." + module)) for module in policy.adapter.modules]
    last = sorted({path.rpartition(".")[2] for path in paths})
    everywhere = {module.rpartition(".")[2] for module in policy.adapter.modules}
    complete = len(paths) == len(everywhere) * len(policy.backbone.layers)
    if complete and str(names.theirs("head")).rpartition(".")[2] not in last:
        return last
    patterns = sorted({re.sub(r"\\\.\d+\\\.", r"\\.\\d+\\.", re.escape(path)) for path in paths})
    return "|".join(patterns) if complete else "|".join(re.escape(path) for path in paths)


def _plain(value: Any) -> Any:
    """A value of PEFT's settings as JSON has it."""
    if isinstance(value, set):
        return sorted(value)
    return str(value.value) if hasattr(value, "value") else value


def _read(file: Path) -> Mapping[str, Tensor]:
    if not file.is_file():
        raise UserError(f"{file.parent} has no {file.name}; only adapter weights in safetensors files are read")
    try:
        return load_file(file)
    except SafetensorError as error:
        raise UserError(f"{file} cannot be read ({error}); copy it again") from error
