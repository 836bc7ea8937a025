"""Text to token ids and back. No remote code: a tokenizer is its files, read by classes of `transformers`.

The files are tokenizer.json, or vocab.json with merges.txt (Dream, SDAR), and a few settings beside them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen2Tokenizer

from maskgrad.errors import UserError
from maskgrad.models.files import read_json, write_json

FILES = (
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_CHARACTER_SPECIALS = ("<|endoftext|>", "<|eot_id|>", "<|sep|>", "<unk>")
_CHARACTER_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|sep|>' }}{% endif %}"
)


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast | None:
    """The tokenizer of a checkpoint folder, None when the folder has none."""
    settings_file = folder / "tokenizer_config.json"
    settings = read_json(settings_file) if settings_file.is_file() else {}
    if not settings and any((folder / name).is_file() for name in ("tokenizer.json", "vocab.json")):
        raise UserError(
            f"{folder} has a tokenizer but no tokenizer_config.json, which names its special tokens and template; "
            "add it from the original model"
        )
    if (folder / "tokenizer.json").is_file():
        tokenizer = _from_one_file(folder, settings)
    elif (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        tokenizer = _from_byte_pairs(folder)
    elif settings:
        raise UserError(
            f"{folder} has tokenizer_config.json but neither tokenizer.json nor vocab.json with merges.txt; "
            "add them from the original model"
        )
    else:
        return None
    template_file = folder / "chat_template.jinja"
    template = template_file.read_text("utf-8") if template_file.is_file() else settings.get("chat_template")
    if template is not None:
        tokenizer.chat_template = template
    return tokenizer


def _from_one_file(folder: Path, settings: dict[str, Any]) -> PreTrainedTokenizerFast:
    file = folder / "tokenizer.json"
    roles = {role: _content(settings[role]) for role in _ROLES if settings.get(role) is not None}
    try:
        core = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower for a file it cannot read
        raise UserError(f"{file} cannot be read ({error}); restore it from the original model") from error
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        clean_up_tokenization_spaces=False,  # it would rewrite " ." and the like in decoded answers
        name_or_path=str(folder),
        **roles,
    )


def _from_byte_pairs(folder: Path) -> PreTrainedTokenizerFast:
    """Qwen's byte-pair tokenizer, which Dream and SDAR use under names of their own that ask for remote code."""
    try:
        # the class is named, so the checkpoint's own entry for a tokenizer class is not looked at
        tokenizer = Qwen2Tokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # the library raises nothing narrower for files it cannot read
        reason = " ".join(str(error).split())
        raise UserError(
            f"vocab.json and merges.txt of {folder} cannot be read ({reason:.120}); restore them from the original"
        ) from error
    tokenizer.clean_up_tokenization_spaces = False
    return tokenizer


def _content(token: str | dict[str, Any]) -> str:
    return token if isinstance(token, str) else token["content"]


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the tokenizer's files: the ones it was loaded from where they still exist, else its own export."""
    source = Path(tokenizer.name_or_path)
    if tokenizer.name_or_path and any((source / name).is_file() for name in ("tokenizer.json", "vocab.json")):
        for name in FILES:
            if (source / name).is_file() and source.resolve() != folder.resolve():
                shutil.copyfile(source / name, folder / name)
        return
    tokenizer.save_pretrained(folder)


def add_mask_token(tokenizer: PreTrainedTokenizerFast, token: str, rows: int) -> None:
    """Make `token` the mask token, under the first free id if the tokenizer has no such token.

    `rows` of the embedding must have room for it: the tables are never resized.
    """
    free = max(tokenizer.get_vocab().values()) + 1
    if token not in tokenizer.get_vocab() and free >= rows:
        raise UserError(
            f"the tokenizer has no {token!r} and the {rows} rows of the embedding are all taken; "
            "name a token that is there, for example a reserved one, as mask_token"
        )
    if tokenizer.mask_token != token or token not in tokenizer.get_vocab():
        tokenizer.add_special_tokens({"mask_token": token})
        tokenizer.name_or_path = ""  # its files no longer say what it is: it is exported when saved


def encode_prompt(
    tokenizer: PreTrainedTokenizerFast, prompt: str | list[dict[str, str]], *, max_prompt_length: int | None = None
) -> list[int]:
    """Token ids of a prompt: one user turn (or the given messages) through the chat template, where there is one."""
    if tokenizer.chat_template:
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        text = str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        # the template has written every special token, a second round of them would double the first
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    elif isinstance(prompt, str):
        text = prompt
        ids = tokenizer(text)["input_ids"]
    else:
        raise UserError(
            "the prompt is a list of messages, but the tokenizer has no chat template: pass plain text, or name a "
            "protocol without a system turn (prompt=d1)"
        )
    _check_known(tokenizer, text, ids)
    if tokenizer.bos_token_id is not None and ids.count(tokenizer.bos_token_id) > 1:
        raise UserError(
            f"the prompt holds {tokenizer.bos_token} more than once; remove it from the text: {text[:80]!r}"
        )
    if max_prompt_length is not None:
        check_prompt_length(ids, max_prompt_length)
    return list(ids)


def encode_text(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Token ids of plain text, without template and special tokens (a supervised answer)."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    _check_known(tokenizer, text, ids)
    return list(ids)


def _check_known(tokenizer: PreTrainedTokenizerFast, text: str, ids: Sequence[int]) -> None:
    unknown = tokenizer.unk_token_id
    if unknown is None or unknown not in ids:
        return
    for character in dict.fromkeys(text):
        if unknown in tokenizer(character, add_special_tokens=False)["input_ids"]:
            raise UserError(f"the tokenizer has no token for {character!r} in {text[:80]!r}; rewrite the prompt")
    raise UserError(f"the tokenizer has no token for a part of {text[:80]!r}; rewrite the prompt")


def check_prompt_length(row: Sequence[int], limit: int) -> None:
    """A prompt longer than `limit` tokens is an error: cutting it would ask another question."""
    if len(row) > limit:
        raise UserError(
            f"a prompt has {len(row)} tokens, more than max_prompt_length {limit}; raise the limit or drop it"
        )


def decode_completion(tokenizer: PreTrainedTokenizerFast, ids: Iterable[int], stops: Iterable[int]) -> str:
    """Text of a completion up to its first stop id, special tokens left out by id (never by their spelling)."""
    end, kept = set(stops), []
    special = set(tokenizer.all_special_ids)
    special.update(index for index, token in tokenizer.added_tokens_decoder.items() if token.special)
    for index in ids:
        if index in end:
            break
        if index not in special:
            kept.append(int(index))
    return str(tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def left_pad(rows: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor]:
    """Rows of ids as (ids int64 [B,P], real bool [B,P]) with padding on the left, `real` False on it."""
    if not all(rows):
        raise UserError(f"prompt {[bool(row) for row in rows].index(False)} of the batch is empty; give it some text")
    width = max(len(row) for row in rows)
    ids = torch.full((len(rows), width), pad, dtype=torch.int64)
    real = torch.zeros((len(rows), width), dtype=torch.bool)
    for i, row in enumerate(rows):
        ids[i, width - len(row) :] = torch.tensor(row, dtype=torch.int64)
        real[i, width - len(row) :] = True
    return ids, real


def build_character_tokenizer(
    characters: str, folder: str | Path, mask_token: str = "<|mdm_mask|>"
) -> PreTrainedTokenizerFast:
    """Write a tokenizer with one token per character of `characters` to `folder`, and load it.

    Ids: `mask_token` 0, `<|endoftext|>` 1 (also padding), `<|eot_id|>` 2, `<|sep|>` 3, `<unk>` 4, then the
    characters in order. `decode(encode(x)) == x` for every text over them.
    """
    repeated = [c for i, c in enumerate(characters) if c in characters[:i]]
    if repeated or not characters:
        raise UserError(f"the characters {characters!r} must be some, each once; repeated: {repeated}")
    vocabulary = {token: i for i, token in enumerate((mask_token, *_CHARACTER_SPECIALS, *characters))}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    core.decoder = decoders.Fuse()  # without it tokens are joined by spaces
    core.add_special_tokens([mask_token, *_CHARACTER_SPECIALS])
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "unk_token": "<unk>",
        "mask_token": mask_token,
        "clean_up_tokenization_spaces": False,
        "chat_template": _CHARACTER_TEMPLATE,
    }
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    core.save(str(folder / "tokenizer.json"))
    write_json(settings, folder / "tokenizer_config.json")
    tokenizer = load_tokenizer(folder)
    assert tokenizer is not None
    return tokenizer
