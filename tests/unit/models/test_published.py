"""Published checkpoints: every configuration, every tensor name, the real tokenizers and chat templates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from maskgrad.errors import UserError
from maskgrad.models import Policy, decode_completion, encode_prompt, family_of, load_tokenizer
from maskgrad.models.families import special_ids

READ = {
    "LLaDA-8B-Instruct": ("llada", 291),
    "Dream-v0-Instruct-7B": ("dream", 339),
    "SDAR-8B-Chat": ("sdar", 399),
    "SDAR-1dot7B-Chat": ("sdar", None),
    "SDAR-30B-A3B-Chat": ("sdar_moe", 18867),
}
REFUSED = ("LLaDA2.0-mini", "LLaDA2.1-mini")
IDS = {
    "LLaDA-8B-Instruct": (126336, 126081, 126081, (126081, 126348)),
    "Dream-v0-Instruct-7B": (151666, 151643, 151643, (151643, 151645)),
    "SDAR-8B-Chat": (151669, 151643, 151643, (151643, 151645)),
    "SDAR-1dot7B-Chat": (151669, 151643, 151643, (151643, 151645)),
    "SDAR-30B-A3B-Chat": (151669, 151643, 151643, (151643, 151645)),
}


def config_of(folder: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return value


def test_every_configuration_is_recognised_or_refused_by_name(headers: Path) -> None:
    assert {folder.name for folder in headers.iterdir()} == {*READ, *REFUSED}
    for name, (family, _) in READ.items():
        assert family_of(config_of(headers / name)).name == family
    for name in REFUSED:
        with pytest.raises(UserError, match="'llada2_moe' is known but not supported"):
            family_of(config_of(headers / name))


@pytest.mark.parametrize("name", READ)
def test_every_tensor_maps_one_to_one(headers: Path, name: str) -> None:
    config = config_of(headers / name)
    family = family_of(config)
    ids = special_ids(family, config, None, family.to_backbone(config).vocab_size)
    assert (ids.mask, ids.pad, ids.eos, ids.stops) == IDS[name]
    policy = Policy(family, config, ids)
    assert all(parameter.is_meta for parameter in policy.parameters())
    file = headers / name / "model.safetensors.index.json"
    if not file.is_file():
        return
    index = json.loads(file.read_text())
    stored = policy.weights()
    assert set(stored) == set(index["weight_map"]) and len(stored) == READ[name][1]
    assert {family.names.theirs(str(family.names.ours(key))) for key in stored} == set(stored)
    # what the network holds is what the files hold, to the byte
    assert sum(t.numel() for t in stored.values()) == policy.num_parameters()
    assert 2 * policy.num_parameters() == index["metadata"]["total_size"]


def test_lora_targets_exist_in_every_layer(headers: Path) -> None:
    for name in READ:
        config = config_of(headers / name)
        family = family_of(config)
        policy = Policy(family, config, special_ids(family, config, None, family.to_backbone(config).vocab_size))
        for layer in policy.backbone.layers:
            found = [
                path.rpartition(".")[2] for path, module in layer.named_modules() if hasattr(module, "in_features")
            ]
            assert set(family.lora_targets) <= set(found), name


@pytest.mark.parametrize("name", ["Dream-v0-Instruct-7B", "SDAR-8B-Chat"])
def test_real_tokenizer_and_template(headers: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*_: Any) -> str:
        raise AssertionError("a question was asked")

    monkeypatch.setattr("builtins.input", ask)
    tokenizer = load_tokenizer(headers / name)
    assert tokenizer is not None and type(tokenizer).__module__.startswith("transformers.")
    config = config_of(headers / name)
    family = family_of(config)
    ids = special_ids(family, config, tokenizer, config["vocab_size"])
    assert (ids.mask, ids.pad, ids.eos, ids.stops) == IDS[name]
    assert tokenizer.convert_ids_to_tokens(ids.mask) == family.mask_token
    for text in ("Hello  world, it's 12345.\n\n  x = [1, 2]", "é漢字 ∑ \t end ", "a ,b ."):
        row = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert decode_completion(tokenizer, [*row, ids.eos, *row], ids.stops) == text
    row = encode_prompt(tokenizer, "What is 2+2?")
    text = tokenizer.decode(row)
    start, end = 151644, 151645
    assert row.count(start) == row.count(end) + 1 == (3 if "Dream" in name else 2)
    assert text.endswith("<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n")
    with pytest.raises(UserError, match=r"mask_token_id is 7 in config\.json"):
        special_ids(family, {**config, "mask_token_id": 7}, tokenizer, config["vocab_size"])


def test_a_tokenizer_without_its_vocabulary_is_a_sentence(headers: Path) -> None:
    for name in ("SDAR-30B-A3B-Chat", "SDAR-1dot7B-Chat", "LLaDA-8B-Instruct"):
        with pytest.raises(UserError, match=r"neither tokenizer\.json nor vocab\.json with merges\.txt"):
            load_tokenizer(headers / name)
