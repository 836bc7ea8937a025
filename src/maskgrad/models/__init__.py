"""Backbones, checkpoints and tokenizers."""

from maskgrad.models.families import DREAM, FAMILIES, LLADA, SDAR, Family, family_of
from maskgrad.models.layout import SpecialIds
from maskgrad.models.load import load_policy, new_policy
from maskgrad.models.policy import Policy
from maskgrad.models.save import save_policy
from maskgrad.models.tokenizer import (
    build_character_tokenizer,
    check_prompt_length,
    decode_completion,
    encode_prompt,
    left_pad,
    load_tokenizer,
)

__all__ = [
    "DREAM",
    "FAMILIES",
    "LLADA",
    "SDAR",
    "Family",
    "Policy",
    "SpecialIds",
    "build_character_tokenizer",
    "check_prompt_length",
    "decode_completion",
    "encode_prompt",
    "family_of",
    "left_pad",
    "load_policy",
    "load_tokenizer",
    "new_policy",
    "save_policy",
]
