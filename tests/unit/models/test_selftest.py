"""The probes at load: each fails for its cause, in one sentence, and for nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from maskgrad.errors import UserError
from maskgrad.models import Policy, build_character_tokenizer, family_of, load_policy, new_policy, save_policy, selftest

LETTERS = "".join(sorted(set(selftest.TEXT)))


def tiny(tmp_path: Path, model_type: str, **settings: Any) -> Policy:
    """A random model whose tokenizer can write the probe's text."""
    tokenizer = build_character_tokenizer(LETTERS, tmp_path / "tokenizer")
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = {**sizes, "max_position_embeddings": 512, "model_type": model_type, **settings}
    return new_policy(family_of(config), config, tokenizer, seed=0)


class Oracle(nn.Module):
    """Stands for a trained network: at position k its state is the embedding of the token at k + `shift`."""

    def __init__(self, policy: Policy, answer: Tensor, shift: int) -> None:
        super().__init__()
        self.rows = torch.randn(policy.vocab_rows, 32, generator=torch.Generator().manual_seed(0))
        policy.head.weight = nn.Parameter(self.rows)
        self.states = self.rows[answer.roll(-shift)][None]


def test_the_other_shift_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for declared in (0, 1):
        policy = tiny(tmp_path, "llama", logit_shift=declared)
        ids = selftest._text(policy)
        assert ids is not None
        for true in (0, 1):
            oracle = Oracle(policy, ids, true)
            monkeypatch.setattr(policy, "hidden", lambda tokens, attend=None, oracle=oracle: oracle.states)
            if true == declared:
                selftest._check_shift(policy)
            else:
                with pytest.raises(UserError, match=f"with logit_shift {true} than with {declared}"):
                    selftest._check_shift(policy)


def test_random_networks_pass(tmp_path: Path) -> None:
    for seed, model_type in enumerate(("llama", "Dream", "sdar") * 3):
        policy = tiny(tmp_path, model_type)
        draws = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            policy.head.weight.normal_(0.0, 1.0, generator=draws)  # sharp: logits of size 5
        selftest.check_reading(policy)


def under(monkeypatch: pytest.MonkeyPatch, change: Callable[[Tensor], Tensor | None]) -> None:
    """Run every network with `change(mask)` in place of its mask."""
    real = Policy.states

    def states(self: Policy, tokens: Tensor, mask: Tensor | None, place: Tensor, cache: Any = None) -> Tensor:
        return real(self, tokens, None if mask is None else change(mask), place, cache)

    monkeypatch.setattr(Policy, "states", states)


@pytest.mark.parametrize("model_type", ["llama", "Dream", "sdar"])
def test_visible_padding_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_type: str) -> None:
    save_policy(tiny(tmp_path, model_type), tmp_path / "model")
    load_policy(tmp_path / "model")
    under(monkeypatch, torch.ones_like)
    with pytest.raises(UserError, match=r"padding moves the hidden states"):
        load_policy(tmp_path / "model")
    load_policy(tmp_path / "model", self_test=False)


def test_blocks_counted_from_the_padding_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_policy(tiny(tmp_path, "sdar"), tmp_path / "model")

    def by_column(mask: Tensor) -> Tensor:
        block = torch.arange(mask.shape[-1]) // 3
        return mask & (block[None] <= block[:, None])

    under(monkeypatch, by_column)
    with pytest.raises(UserError, match="padding moves"):
        load_policy(tmp_path / "model")


def test_a_tokenizer_without_the_mask_token_is_a_sentence(tmp_path: Path) -> None:
    save_policy(tiny(tmp_path, "sdar"), tmp_path / "model")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        path = tmp_path / "model" / file
        path.write_text(path.read_text().replace("<|mdm_mask|>", "Q"))
    settings = json.loads((tmp_path / "model" / "tokenizer_config.json").read_text())
    settings.pop("mask_token")
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(settings))
    core = json.loads((tmp_path / "model" / "tokenizer.json").read_text())
    core["added_tokens"] = [token for token in core["added_tokens"] if token["content"] != "Q"]
    (tmp_path / "model" / "tokenizer.json").write_text(json.dumps(core))
    with pytest.raises(UserError, match=r"the tokenizer has no mask token"):
        load_policy(tmp_path / "model")


def test_a_plain_decoder_is_declared_when_loaded(tmp_path: Path) -> None:
    policy = tiny(tmp_path, "qwen2", vocab_size=64)
    folder = tmp_path / "model"
    save_policy(policy, folder)
    config = json.loads((folder / "config.json").read_text())
    config.pop("mask_token_id")
    (folder / "config.json").write_text(json.dumps(config))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("mask_token")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match="names its mask_token; name it when loading"):
        load_policy(folder)
    free = len(build_character_tokenizer(LETTERS, tmp_path / "other"))
    loaded = load_policy(folder, mask_token="<|new|>", block=4, logit_shift=1)
    assert (loaded.special.mask, loaded.traits.block, loaded.family.logit_shift) == (free, 4, 1)
    assert loaded.family.visibility == "block_causal" and loaded.forbidden[free]
    save_policy(loaded, tmp_path / "saved")
    again = load_policy(tmp_path / "saved")
    assert again.special == loaded.special and again.traits == loaded.traits and again.family.logit_shift == 1
    assert again.need_tokenizer().mask_token == "<|new|>"
    for given in ({"block": 8}, {"logit_shift": 0}, {"mask_token": "a"}):
        with pytest.raises(UserError, match="but the checkpoint says"):
            load_policy(tmp_path / "saved", **given)  # type: ignore[arg-type]


def test_a_full_table_has_no_room_for_a_mask_token(tmp_path: Path) -> None:
    save_policy(tiny(tmp_path, "qwen2"), tmp_path / "model")
    with pytest.raises(UserError, match=r"rows of the embedding are all taken"):
        load_policy(tmp_path / "model", mask_token="<|new|>")


def test_block_size_that_disagrees(tmp_path: Path) -> None:
    save_policy(tiny(tmp_path, "sdar", block_size=4), tmp_path / "model")
    assert load_policy(tmp_path / "model", block=4).traits.block == 4
    with pytest.raises(UserError, match=r"block_size 8 was given, but the checkpoint says 4"):
        load_policy(tmp_path / "model", block=8)
    save_policy(tiny(tmp_path, "Dream"), tmp_path / "dream")
    with pytest.raises(UserError, match="dream models see everything"):
        load_policy(tmp_path / "dream", block=4)
