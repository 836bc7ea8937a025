from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from maskgrad.errors import UserError
from maskgrad.models import (
    build_character_tokenizer,
    check_prompt_length,
    decode_completion,
    encode_prompt,
    left_pad,
    load_tokenizer,
)
from maskgrad.models.tokenizer import save_tokenizer

CHARACTERS = "0123456789+-*/()=, \nabcxyz"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    return build_character_tokenizer(CHARACTERS, tmp_path_factory.mktemp("tokenizer"))


@given(text=st.text(alphabet=CHARACTERS))
def test_every_text_comes_back(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text) and (not ids or min(ids) >= 5)
    assert decode_completion(tokenizer, ids, (1, 2)) == text


def test_ids_and_roles(tokenizer: PreTrainedTokenizerFast) -> None:
    vocabulary = tokenizer.get_vocab()
    names = ["<|mdm_mask|>", "<|endoftext|>", "<|eot_id|>", "<|sep|>", "<unk>", "0"]
    assert [vocabulary[name] for name in names] == [0, 1, 2, 3, 4, 5]
    assert len(tokenizer) == 5 + len(CHARACTERS)
    roles = (tokenizer.mask_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id)
    assert roles == (0, 1, 1, 4)


def test_prompt_through_the_template(tokenizer: PreTrainedTokenizerFast) -> None:
    plain = tokenizer("1+1\n=")["input_ids"]
    assert encode_prompt(tokenizer, "1+1\n=") == [*plain, 3]
    assert encode_prompt(tokenizer, [{"role": "user", "content": "1+1\n="}]) == [*plain, 3]


def test_unknown_character_is_named(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(UserError, match="'é'"):
        encode_prompt(tokenizer, "1+é")


def test_prompt_length_is_checked_not_cut(tokenizer: PreTrainedTokenizerFast) -> None:
    assert len(encode_prompt(tokenizer, "123", max_prompt_length=4)) == 4
    with pytest.raises(UserError, match=r"4 tokens.*max_prompt_length 3"):
        encode_prompt(tokenizer, "123", max_prompt_length=3)
    with pytest.raises(UserError, match=r"2 tokens.*1"):
        check_prompt_length([5, 6], 1)


def test_without_template(tmp_path: Path) -> None:
    tokenizer = build_character_tokenizer("01", tmp_path)
    tokenizer.chat_template = None
    assert encode_prompt(tokenizer, "01") == [5, 6]
    with pytest.raises(UserError, match="chat template"):
        encode_prompt(tokenizer, [{"role": "user", "content": "0"}])


def test_template_may_write_one_beginning_only(tmp_path: Path) -> None:
    tokenizer = build_character_tokenizer("01", tmp_path)
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    first = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 7)])
    tokenizer.backend_tokenizer.post_processor = first
    tokenizer.chat_template = None
    assert encode_prompt(tokenizer, "01") == [7, 5, 6]
    tokenizer.chat_template = "{{ bos_token }}{{ messages[0]['content'] }}"
    assert encode_prompt(tokenizer, "01") == [7, 5, 6]
    with pytest.raises(UserError, match="<s> more than once"):
        encode_prompt(tokenizer, "<s>01")


def test_completion_ends_at_the_first_stop_and_loses_special_ids(tokenizer: PreTrainedTokenizerFast) -> None:
    one, two = tokenizer("12")["input_ids"]
    assert decode_completion(tokenizer, [one, 3, 0, two, 2, one, 1], (1, 2)) == "12"
    assert decode_completion(tokenizer, torch.tensor([one, 1, two]).tolist(), (1,)) == "1"
    assert decode_completion(tokenizer, [1, one], (1,)) == ""


def test_spelling_of_a_special_token_is_not_removed(tmp_path: Path) -> None:
    tokenizer = build_character_tokenizer("<|sep>1", tmp_path)
    ids = [tokenizer.get_vocab()[c] for c in "<|sep|>"]
    assert decode_completion(tokenizer, ids, (1,)) == "<|sep|>"


def test_left_pad() -> None:
    ids, real = left_pad([[5, 6, 7], [8]], pad=1)
    assert ids.tolist() == [[5, 6, 7], [1, 1, 8]] and ids.dtype == torch.int64
    assert real.tolist() == [[True] * 3, [False, False, True]] and real.dtype == torch.bool
    with pytest.raises(UserError, match="prompt 1"):
        left_pad([[5], []], pad=1)


def test_template_file_wins_over_the_setting(tmp_path: Path) -> None:
    build_character_tokenizer("01", tmp_path)
    (tmp_path / "chat_template.jinja").write_text("1{{ messages[0]['content'] }}")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer is not None and encode_prompt(tokenizer, "0") == [6, 5]
    assert load_tokenizer(tmp_path / "nowhere") is None


def test_a_tokenizer_outlives_its_folder(tmp_path: Path) -> None:
    tokenizer = build_character_tokenizer("01+", tmp_path / "a")
    shutil.rmtree(tmp_path / "a")
    (tmp_path / "b").mkdir()
    save_tokenizer(tokenizer, tmp_path / "b")
    again = load_tokenizer(tmp_path / "b")
    assert again is not None and again.get_vocab() == tokenizer.get_vocab()
    assert encode_prompt(again, "0+1") == encode_prompt(tokenizer, "0+1")
    assert (again.mask_token_id, again.eos_token_id, again.pad_token_id) == (0, 1, 1)


@pytest.mark.parametrize("characters", ["", "011"])
def test_bad_characters(tmp_path: Path, characters: str) -> None:
    with pytest.raises(UserError, match="repeated"):
        build_character_tokenizer(characters, tmp_path)
