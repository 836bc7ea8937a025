from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from maskgrad.errors import UserError
from maskgrad.models import LLADA, build_character_tokenizer, family_of, load_policy, new_policy, save_policy
from maskgrad.models import files as model_files

INDEX = "model.safetensors.index.json"


def stored(folder: Path) -> dict[str, torch.Tensor]:
    return {k: v for file in sorted(folder.glob("*.safetensors")) for k, v in load_file(file).items()}


def assert_same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert set(one) == set(other)
    for name in one:
        assert one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]), name


@pytest.mark.parametrize("max_shard_bytes", [10**9, 10_000])
def test_round_trip(variant: dict[str, Any], tmp_path: Path, max_shard_bytes: int) -> None:
    config = variant | {"a_key_of_tomorrow": [1, {"x": None}]}
    policy = new_policy(LLADA, config, None, seed=1)
    save_policy(policy, tmp_path / "a", max_shard_bytes=max_shard_bytes)
    again = load_policy(tmp_path / "a")
    save_policy(again, tmp_path / "b", max_shard_bytes=max_shard_bytes)
    assert again.special == policy.special
    assert_same_bits(dict(policy.named_parameters()), dict(again.named_parameters()))
    assert_same_bits(stored(tmp_path / "a"), stored(tmp_path / "b"))
    texts = [(tmp_path / name / "config.json").read_text() for name in "ab"]
    assert texts[0] == texts[1] and json.loads(texts[0])["a_key_of_tomorrow"] == [1, {"x": None}]
    ids = torch.arange(12)[None]
    with torch.no_grad():
        assert torch.equal(policy.logits(policy.hidden(ids)), again.logits(again.hidden(ids)))
    sharded = (tmp_path / "a" / INDEX).is_file()
    assert sharded == (max_shard_bytes == 10_000) == (not (tmp_path / "a" / "model.safetensors").exists())
    if sharded:
        index = json.loads((tmp_path / "a" / INDEX).read_text())
        assert set(index["weight_map"]) == set(stored(tmp_path / "a"))
        assert index["metadata"]["total_size"] == 4 * policy.num_parameters()


def test_golden_checkpoints_are_written_back_as_they_were(shared: Path, tmp_path: Path) -> None:
    folders = [file.parent for file in (shared / "golden" / "models" / "llada_tiny").glob("*/config.json")]
    if not folders:
        pytest.skip("golden data not beside the repository")
    for folder in folders:
        target = tmp_path / folder.name
        save_policy(load_policy(folder), target)
        assert_same_bits(load_file(target / "model.safetensors"), load_file(folder / "model.safetensors"))
        assert json.loads((target / "config.json").read_text()) == json.loads((folder / "config.json").read_text())
        with safe_open(target / "model.safetensors", "pt") as file:
            assert file.metadata() == {"format": "pt"}


def test_dtypes(sizes: dict[str, Any], tmp_path: Path) -> None:
    policy = new_policy(LLADA, sizes, None, seed=1)
    save_policy(policy, tmp_path / "half", dtype="float16")
    assert json.loads((tmp_path / "half" / "config.json").read_text())["torch_dtype"] == "float16"
    wide, narrow = load_policy(tmp_path / "half"), load_policy(tmp_path / "half", dtype="float16")
    assert wide.dtype == torch.float32 and narrow.dtype == torch.float16
    assert torch.equal(wide.head.weight.half(), narrow.head.weight)
    assert narrow.backbone.rotary_emb.inv_freq.dtype == torch.float32
    save_policy(narrow, tmp_path / "again")
    assert_same_bits(stored(tmp_path / "half"), stored(tmp_path / "again"))
    save_policy(wide, tmp_path / "wide")
    assert json.loads((tmp_path / "wide" / "config.json").read_text())["torch_dtype"] == "float32"
    assert_same_bits(dict(load_policy(tmp_path / "wide").named_parameters()), dict(wide.named_parameters()))


def test_saving_over_the_own_folder_leaves_nothing_old(sizes: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = build_character_tokenizer("0123456789", tmp_path)
    small = {k: v for k, v in sizes.items() if not k.endswith("_id") and k != "vocab_size"}
    save_policy(new_policy(LLADA, small, tokenizer, seed=1), tmp_path, max_shard_bytes=10_000)
    policy = load_policy(tmp_path)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(1.0)
    save_policy(policy, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert_same_bits(dict(load_policy(tmp_path).named_parameters()), dict(policy.named_parameters()))


def test_new_policy_takes_its_ids_from_the_tokenizer(sizes: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = build_character_tokenizer("0123456789+", tmp_path / "tokenizer")
    config = {k: v for k, v in sizes.items() if not k.endswith("_id") and k != "vocab_size"}
    policy = new_policy(LLADA, config | {"embedding_size": 24}, tokenizer, seed=1)
    assert (policy.special.mask, policy.special.eos, policy.special.pad, policy.special.stops) == (0, 1, 1, (1, 2))
    assert policy.forbidden.nonzero().flatten().tolist() == [0, *range(16, 24)]
    save_policy(policy, tmp_path / "model")
    again = load_policy(tmp_path / "model")
    assert again.special == policy.special and torch.equal(again.forbidden, policy.forbidden)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "model" / name).read_bytes() == (tmp_path / "tokenizer" / name).read_bytes()


def test_nothing_global_changes(sizes: dict[str, Any], tmp_path: Path) -> None:
    save_policy(new_policy(LLADA, sizes, None, seed=1), tmp_path)
    before = torch.get_rng_state()
    load_policy(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def _config(**changes: Any) -> Callable[[Path], object]:
    def edit(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | changes))

    return edit


def _weights(edit: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], object]:
    def apply(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        edit(tensors)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})

    return apply


def _shard_gone(folder: Path) -> None:
    save_policy(load_policy(folder), folder, max_shard_bytes=10_000)
    next(folder.glob("model-00002-of-*.safetensors")).unlink()


BROKEN: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "no config": (lambda f: (f / "config.json").unlink(), ["config.json"]),
    "config not JSON": (lambda f: (f / "config.json").write_text("{"), ["config.json", "JSON"]),
    "config a list": (lambda f: (f / "config.json").write_text("[]"), ["config.json", "list"]),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), ["model.safetensors"]),
    "cut off": (
        lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:500]),
        ["model.safetensors", "download"],
    ),
    "shard gone": (_shard_gone, ["model-00002-of-", INDEX]),
    "missing": (
        _weights(lambda t: [t.pop(k) for k in list(t) if "ff_norm" in k or "wte" in k]),
        ["3 tensors", "model.transformer.wte.weight"],
    ),
    "unexpected": (_weights(lambda t: t.update({"model.extra": torch.zeros(1)})), ["1 tensors", "model.extra"]),
    "wrong shape": (_config(d_model=64), ["(32,)", "(64,)", "attn_norm"]),
    "another depth": (_config(n_layers=1), ["blocks.1."]),
    "other family": (_config(model_type="gpt2"), ["'gpt2'", "llada"]),
    "mask outside": (_config(mask_token_id=40), ["40", "mask_token_id"]),
    "mask contradicted": (_config(mask_token_id=7), ["7", "<|mdm_mask|>", " 0 "]),
    "tokenizer too large": (
        lambda f: build_character_tokenizer("".join(map(chr, range(97, 150))), f),
        ["57", "40 rows"],
    ),
    "tokenizer broken": (lambda f: (f / "tokenizer.json").write_text("{}"), ["tokenizer.json"]),
    "tokenizer incomplete": (lambda f: (f / "tokenizer.json").unlink(), ["tokenizer.json"]),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_checkpoint_is_one_sentence(sizes: dict[str, Any], tmp_path: Path, case: str) -> None:
    tokenizer = build_character_tokenizer("0123456789", tmp_path)
    save_policy(new_policy(LLADA, sizes | {"mask_token_id": 0}, tokenizer, seed=1), tmp_path)
    load_policy(tmp_path)
    damage, fragments = BROKEN[case]
    damage(tmp_path)
    with pytest.raises(UserError) as error:
        load_policy(tmp_path)
    for fragment in fragments:
        assert fragment in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        ({"path": "/nowhere/at/all"}, ["'/nowhere/at/all'", "folder"]),
        ({"path": "maskgrad:no-such"}, ["'maskgrad:no-such'"]),
        ({"path": ".", "dtype": "fp32"}, ["'fp32'", "float32"]),
        ({"path": ".", "device": "cuda"}, ["'cuda'"]),
        ({"path": ".", "attn": "flex"}, ["'flex'", "CUDA", "'sdpa'"]),
    ],
)
def test_bad_arguments(arguments: dict[str, str], fragments: list[str]) -> None:
    if arguments.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has the device")
    with pytest.raises(UserError) as error:
        load_policy(**arguments)
    for fragment in fragments:
        assert fragment in str(error.value)


def test_hub_failure_says_download(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def offline(name: str, **options: Any) -> str:
        asked.append(name)
        assert "*.py" not in options["allow_patterns"]
        raise ConnectionError("no route")

    monkeypatch.setattr(model_files, "snapshot_download", offline)
    with pytest.raises(UserError, match=r"'org/name'.*download it to a folder"):
        load_policy("org/name")
    assert asked == ["org/name"]


@pytest.mark.parametrize("name", ["llada", "dream", "sdar"])
def test_a_tied_head_may_be_stored_too_if_it_is_the_table(sizes: dict[str, Any], tmp_path: Path, name: str) -> None:
    plain = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    plain |= {"vocab_size": 40, "mask_token_id": 36, "eos_token_id": 31, "tie_word_embeddings": True}
    config = {"llada": sizes | {"weight_tying": True}, "dream": {**plain, "model_type": "Dream"}}
    config["sdar"] = {**plain, "model_type": "sdar", "head_dim": 16}
    family = family_of({"model_type": "llada", **config[name]})
    save_policy(new_policy(family, config[name], None, seed=1), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    head, table = (str(family.names.theirs(f"{m}.weight")) for m in ("head", "backbone.embed_tokens"))
    assert head not in tensors
    save_file({**tensors, head: tensors[table].clone()}, tmp_path / "model.safetensors", {"format": "pt"})
    assert_same_bits(load_policy(tmp_path).weights(), tensors)
    other = tensors[table].clone()
    other[3, 5] += 1
    save_file({**tensors, head: other}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"ties the head to the embedding, but the weights hold another .*correct"):
        load_policy(tmp_path)
