"""Families of diffusion language models. A family is a value: what a checkpoint format means, and nothing more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn
from transformers import LlamaModel, PreTrainedConfig, PreTrainedTokenizerFast, Qwen2Model, Qwen3Model

from maskgrad.errors import UserError, nearest
from maskgrad.models import decoder, dream, llada, sdar
from maskgrad.models.layout import NameMap, SpecialIds, Traits


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

FAMILIES: tuple[Family, ...] = (LLADA, DREAM, SDAR)


def family_of(config: Mapping[str, Any]) -> Family:
    """The family whose checkpoints have this config.json."""
    model_type = config.get("model_type")
    for family in FAMILIES:
        if model_type in family.model_types:
            return family
    known = [name for family in FAMILIES for name in family.model_types]
    raise UserError(
        f"model_type {model_type!r} in config.json is of no known family; {nearest(str(model_type), known)}"
    )


def special_ids(
    family: Family, config: Mapping[str, Any], tokenizer: PreTrainedTokenizerFast | None, rows: int
) -> SpecialIds:
    """Token ids with a role: from config.json, else from the tokenizer, else as published.

    A mask id that the tokenizer contradicts, or any id outside the `rows` of the embedding, is a `UserError`.
    """
    vocabulary = {} if tokenizer is None else tokenizer.get_vocab()
    named_mask = vocabulary.get(family.mask_token)
    named_eos = None if tokenizer is None else tokenizer.eos_token_id
    named_pad = None if tokenizer is None else tokenizer.pad_token_id
    mask = _pick("mask_token_id", config, named_mask, family.ids.mask, rows)
    if named_mask is not None and named_mask != mask:
        raise UserError(
            f"mask_token_id is {mask} in config.json, but {family.mask_token} is {named_mask} in the tokenizer; "
            "correct the one that is wrong"
        )
    eos = _pick("eos_token_id", config, named_eos, family.ids.eos, rows)
    pad = _pick("pad_token_id", config, eos if named_pad is None else named_pad, eos, rows)
    if mask in (eos, pad):
        raise UserError(f"mask_token_id {mask} is also the end-of-text or padding id; the three may not share the mask")
    extra = tuple(vocabulary[token] for token in family.stop_tokens if token in vocabulary)
    if tokenizer is None and eos == family.ids.eos:
        extra = family.ids.stops
    stops = tuple(dict.fromkeys((eos, *extra)))
    return SpecialIds(mask=mask, pad=pad, eos=eos, stops=stops)


def _pick(key: str, config: Mapping[str, Any], named: int | None, published: int, rows: int) -> int:
    stated = config.get(key)
    value = next(number for number in (stated, named, published) if number is not None)
    if not isinstance(value, int) or not 0 <= value < rows:
        origin = "in config.json" if stated is not None else "by default, as config.json names none"
        raise UserError(f"{key} is {value!r} {origin}, outside the {rows} rows of the vocabulary; set {key} there")
    return value
