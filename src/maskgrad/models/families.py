"""Families of diffusion language models. A family is a value: what a checkpoint format means, and nothing more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor, nn
from transformers import (
    LlamaModel,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Model,
    Qwen3Model,
    Qwen3MoeModel,
)

from maskgrad.errors import UserError, nearest
from maskgrad.models import decoder, dream, generic, llada, sdar
from maskgrad.models.layout import NameMap, SpecialIds, Traits


def whole(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """The parts of a tensor that is stored as it is."""
    return {name: tensor}


@dataclass(frozen=True, kw_only=True)
class Family:
    """How the checkpoints of one family are read, run and written."""

    name: str
    model_types: tuple[str, ...]  # values of `model_type` in config.json that identify the family
    backbone: Callable[[Any], nn.Module]  # decoder without head, with embed_tokens, layers, norm and rotary_emb
    to_backbone: Callable[[Mapping[str, Any]], PreTrainedConfig]
    from_backbone: Callable[[Any], dict[str, Any]]
    traits: Callable[[Mapping[str, Any]], Traits]
    names: NameMap
    defaults: Mapping[str, Any]  # config.json of a new model, to be completed by sizes and token ids
    ids: SpecialIds  # of the published checkpoints; used where config.json and tokenizer are silent
    mask_token: str
    stop_tokens: tuple[str, ...]  # ends of a completion besides the end-of-text token, where the tokenizer has them
    lora_targets: tuple[str, ...]  # module names inside a backbone layer
    logit_shift: int = 0  # the hidden state at k - logit_shift predicts the token at k
    visibility: Literal["full", "block_causal"] = "full"
    # (policy name, tensor) -> views of it by policy name, where the checkpoint stores a tensor in several pieces
    parts: Callable[[str, Tensor], dict[str, Tensor]] = whole

    def stored(self, name: str, tensor: Tensor) -> dict[str, Tensor]:
        """A tensor of `Policy` as the checkpoint stores it: views under the authors' names."""
        return {str(self.names.theirs(part)): view for part, view in self.parts(name, tensor).items()}


LLADA = Family(
    name="llada",
    model_types=("llada",),
    backbone=LlamaModel,
    to_backbone=llada.to_backbone,
    from_backbone=llada.from_backbone,
    traits=llada.traits,
    names=llada.NAMES,
    defaults=llada.DEFAULTS,
    ids=SpecialIds(mask=126336, pad=126081, eos=126081, stops=(126081, 126348)),
    mask_token="<|mdm_mask|>",
    stop_tokens=("<|eot_id|>",),
    lora_targets=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
)

DREAM = Family(
    name="dream",
    model_types=("Dream",),
    backbone=Qwen2Model,
    to_backbone=dream.to_backbone,
    from_backbone=dream.from_backbone,
    traits=dream.traits,
    names=decoder.NAMES,
    defaults=dream.DEFAULTS,
    ids=SpecialIds(mask=151666, pad=151643, eos=151643, stops=(151643, 151645)),
    mask_token="<|mask|>",
    stop_tokens=("<|im_end|>",),
    lora_targets=decoder.LORA_TARGETS,
    logit_shift=1,
)

SDAR = Family(
    name="sdar",
    model_types=("sdar",),
    backbone=Qwen3Model,
    to_backbone=sdar.to_backbone,
    from_backbone=sdar.from_backbone,
    traits=sdar.traits,
    names=decoder.NAMES,
    defaults=sdar.DEFAULTS,
    ids=SpecialIds(mask=151669, pad=151643, eos=151643, stops=(151643, 151645)),
    mask_token="<|MASK|>",
    stop_tokens=("<|im_end|>", "<|endoftext|>"),
    lora_targets=decoder.LORA_TARGETS,
    visibility="block_causal",
)

SDAR_MOE = replace(
    SDAR,
    name="sdar_moe",
    model_types=("sdar_moe",),
    backbone=Qwen3MoeModel,
    to_backbone=sdar.to_moe_backbone,
    from_backbone=sdar.from_moe_backbone,
    defaults=sdar.MOE_DEFAULTS,
    lora_targets=decoder.LORA_TARGETS[:4],  # the experts are stacked tensors, not modules
    parts=sdar.expert_parts,
)

FAMILIES: tuple[Family, ...] = (LLADA, DREAM, SDAR, SDAR_MOE)


# Known by name and not readable, with the reason.
REFUSED: dict[str, str] = {
    "llada2_moe": "transformers has no network with its shared experts and group-limited sigmoid routing",
    "diffusion_gemma": "its encoder-decoder canvas does not fit a decoder whose layers are called one by one",
    "diffusion_gemma_text": "its encoder-decoder canvas does not fit a decoder whose layers are called one by one",
}


def family_of(config: Mapping[str, Any]) -> Family:
    """The family whose checkpoints have this config.json."""
    model_type = config.get("model_type")
    if model_type in generic.MODEL_TYPES:
        return _generic(config)
    for family in FAMILIES:
        if model_type in family.model_types:
            return family
    if model_type in REFUSED:
        raise UserError(f"model_type {model_type!r} is known but not supported: {REFUSED[model_type]}")
    known = [*(name for family in FAMILIES for name in family.model_types), *generic.MODEL_TYPES]
    raise UserError(
        f"model_type {model_type!r} in config.json is of no known family; {nearest(str(model_type), known)}"
    )


def _generic(config: Mapping[str, Any]) -> Family:
    """The family of a plain decoder: what it does beyond its own library is declared in its config.json."""
    declared = generic.declaration(config)
    kind = generic.MODEL_TYPES[str(config["model_type"])]
    return Family(
        name="generic",
        model_types=tuple(generic.MODEL_TYPES),
        backbone=kind.backbone,
        to_backbone=generic.to_backbone,
        from_backbone=generic.from_backbone,
        traits=generic.traits,
        names=decoder.NAMES,
        defaults=kind.defaults,
        ids=SpecialIds(mask=declared.mask, pad=declared.eos, eos=declared.eos, stops=(declared.eos,)),
        mask_token=generic.MASK_TOKEN,
        stop_tokens=("<|im_end|>", "<|eot_id|>", "<|endoftext|>"),
        lora_targets=decoder.LORA_TARGETS,
        logit_shift=declared.shift,
        visibility="full" if declared.block is None else "block_causal",
    )


def special_ids(
    family: Family, config: Mapping[str, Any], tokenizer: PreTrainedTokenizerFast | None, rows: int
) -> SpecialIds:
    """Token ids with a role: from config.json, else from the tokenizer, else as published.

    A mask id that the tokenizer contradicts or does not know, or any id outside the `rows` of the embedding, is a
    `UserError`.
    """
    vocabulary = {} if tokenizer is None else tokenizer.get_vocab()
    named_mask = _named_mask(family, tokenizer)
    named_eos = None if tokenizer is None else tokenizer.eos_token_id
    named_pad = None if tokenizer is None else tokenizer.pad_token_id
    ends = config.get("eos_token_id")
    ends = tuple(ends) if isinstance(ends, list) and ends else ()
    if ends:  # a list of ends: the first is the end-of-text token
        config = {**config, "eos_token_id": ends[0]}
    mask = _pick("mask_token_id", config, named_mask, family.ids.mask, rows)
    _check_mask(family, tokenizer, mask, named_mask)
    eos = _pick("eos_token_id", config, named_eos, family.ids.eos, rows)
    pad = _pick("pad_token_id", config, eos if named_pad is None else named_pad, eos, rows)
    if mask in (eos, pad):
        raise UserError(f"mask_token_id {mask} is also the end-of-text or padding id; the three may not share the mask")
    extra = tuple(vocabulary[token] for token in family.stop_tokens if token in vocabulary)
    if tokenizer is None and eos == family.ids.eos:
        extra = family.ids.stops
    stops = tuple(dict.fromkeys((eos, *ends, *extra)))
    return SpecialIds(mask=mask, pad=pad, eos=eos, stops=stops)


def _named_mask(family: Family, tokenizer: PreTrainedTokenizerFast | None) -> int | None:
    """Id of the tokenizer's mask token: the one with the family's name for it, else the one it declares."""
    if tokenizer is None:
        return None
    by_name = tokenizer.get_vocab().get(family.mask_token)
    declared: int | None = tokenizer.mask_token_id
    # a plain decoder has no name of its own for the mask, so its tokenizer's word comes first
    return declared if by_name is None or (family.name == "generic" and declared is not None) else by_name


def _check_mask(family: Family, tokenizer: PreTrainedTokenizerFast | None, mask: int, named: int | None) -> None:
    if tokenizer is None:
        return
    if named is not None and named != mask:
        token = tokenizer.convert_ids_to_tokens(named)
        raise UserError(
            f"mask_token_id is {mask} in config.json, but {token} is {named} in the tokenizer; "
            "correct the one that is wrong"
        )
    if named is None and mask not in tokenizer.added_tokens_decoder:
        raise UserError(
            f"the tokenizer has no mask token (no {family.mask_token}, and id {mask} is none of its special tokens); "
            "use the tokenizer of this model"
        )


def _pick(key: str, config: Mapping[str, Any], named: int | None, published: int, rows: int) -> int:
    stated = config.get(key)
    value = next(number for number in (stated, named, published) if number is not None)
    if value == -1 and stated is None:
        raise UserError(
            f"neither config.json nor the tokenizer of this decoder names its {key.removesuffix('_id')}; "
            + ("name it when loading (mask_token)" if key.startswith("mask") else f"set {key} in config.json")
        )
    if not isinstance(value, int) or not 0 <= value < rows:
        origin = "in config.json" if stated is not None else "by default, as config.json names none"
        raise UserError(f"{key} is {value!r} {origin}, outside the {rows} rows of the vocabulary; set {key} there")
    return value
