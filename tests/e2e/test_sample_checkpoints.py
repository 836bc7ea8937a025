"""`maskgrad sample` on checkpoints of every family, with prompts as token ids, and training with a cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from maskgrad.cli import main
from maskgrad.config import run_config, sft_config
from maskgrad.errors import UserError
from maskgrad.models import build_character_tokenizer, family_of, load_policy, new_policy, save_policy
from maskgrad.training.loop import TrainingRun
from maskgrad.training.sft import SupervisedRun

MODELS = Path(__file__).parents[2].parent / "shared" / "golden" / "models"
PROMPTS = ["--prompt-ids", "5,6,7", "--prompt-ids", "8, 9,10,11,12"]
here = pytest.mark.skipif(not MODELS.is_dir(), reason="golden data (../shared/golden) is not here")


def run(*arguments: object) -> int:
    return main([str(a) for a in arguments])


def sampled(tmp_path: Path, *arguments: object) -> dict[str, Any]:
    file = tmp_path / "out.json"
    assert run("sample", *arguments, "--json", file) == 0
    return json.loads(file.read_text())


def checkpoints() -> list[Path]:
    return sorted(file.parent for file in MODELS.glob("*/*/config.json"))


@here
@pytest.mark.parametrize("model", checkpoints(), ids=lambda p: f"{p.parent.name}/{p.name}")
def test_every_golden_checkpoint_is_sampled_from_token_ids(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = sampled(tmp_path, "--model", model, *PROMPTS, "--gen-length", 8, "--trace", tmp_path / "trace.json")
    text = capsys.readouterr().out
    for row in result["samples"]:
        assert len(row["tokens"]) == 8 and row["completion"] is None
        assert f"{row['prompt']}\n  -> {row['tokens']}\n" in text
    assert [row["prompt"] for row in result["samples"]] == [[5, 6, 7], [8, 9, 10, 11, 12]]
    assert len(json.loads((tmp_path / "trace.json").read_text())["rows"]) == 2


@here
def test_a_block_model_is_sampled_the_same_with_and_without_its_cache(tmp_path: Path) -> None:
    model = MODELS / "sdar_tiny" / "base"
    common = ("--model", model, *PROMPTS, "--gen-length", 12, "--steps-per-block", 2)
    found = [sampled(tmp_path, *common, "--cache", cache) for cache in ("none", "exact")]
    assert found[0]["samples"] == found[1]["samples"]
    assert found[0]["sampler"]["block_length"] == 4, "the block length of the checkpoint"


@here
@pytest.mark.parametrize("cache", ["prefix", "dual"])
@pytest.mark.parametrize("name", ["llada_tiny", "dream_tiny"])
def test_an_approximate_cache_says_how_far_off_it_is(
    name: str, cache: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ("--model", MODELS / name / "base", *PROMPTS, "--gen-length", 16, "--block-length", 8)
    result = sampled(tmp_path, *common, "--cache", cache, "--steps", 8)
    assert result["sampler_gap"] > 1e-3, "an approximation on random weights is not close"
    assert f"cache {cache}: log-probs are" in capsys.readouterr().out
    # with one pass per block every pass is fresh, and nothing is approximate
    assert sampled(tmp_path, *common, "--cache", cache, "--steps", 2)["sampler_gap"] < 1e-4


@here
@pytest.mark.parametrize(
    ("model", "arguments", "words"),
    [
        ("sdar_tiny/base", ["--block-length", "8"], ["block_length 8", "set block_length 4"]),
        ("sdar_tiny/base", ["--cache", "dual"], ["'dual'", "use 'exact'"]),
        ("llada_tiny/base", ["--cache", "exact"], ["'exact' needs a block-causal model"]),
        ("llada_tiny/base", ["--prompt-ids", "1,x"], ["'1,x' is not a list of token ids"]),
        ("llada_tiny/base", ["--prompt-ids", "600"], ["token id 600", "512"]),
        ("llada_tiny/base", ["--steps", "4", "--steps-per-block", "2"], ["steps 4", "steps_per_block 2"]),
    ],
)
def test_mistakes_are_sentences(
    model: str, arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("sample", "--model", MODELS / model, "--prompt-ids", "1,2", "--gen-length", "8", *arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and all(word in error for word in words), error


@pytest.fixture
def undeclared(tmp_path: Path) -> Path:
    """A plain Llama decoder whose files say nothing of diffusion."""
    folder = tmp_path / "plain"
    tokenizer = build_character_tokenizer("0123456789+-*/()=, \n", folder, mask_token="<|unused|>")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = {**sizes, "model_type": "llama", "mask_token_id": 0}
    save_policy(new_policy(family_of(config), config, tokenizer, 0), folder)
    for name, key in (("config.json", "mask_token_id"), ("tokenizer_config.json", "mask_token")):
        stored = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({k: v for k, v in stored.items() if k != key}))
    return folder


def test_a_plain_decoder_is_declared_on_the_command_line(
    undeclared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ("--model", undeclared, "--prompt", "1+2=", "--prompt", "3", "--gen-length", 8)
    assert run("sample", *common) == 2
    assert "name it when loading (mask_token)" in capsys.readouterr().err
    declared = ("--mask-token", "<|unused|>", "--logit-shift", 1)
    full = sampled(tmp_path, *common, *declared)
    blocks = sampled(tmp_path, *common, *declared, "--block", 4)
    assert full["sampler"]["block_length"] is None and blocks["sampler"]["block_length"] == 4
    assert all(0 not in row["tokens"] for row in full["samples"] + blocks["samples"]), "MASK was written"
    options = ("--task", "sudoku:prompt=compact", "--limit", 2, "--gen-length", 16, *declared)
    assert run("eval", "--model", undeclared, *options, "--attn", "eager") == 0
    kept = ("--outputs", tmp_path / "o.jsonl", "--block-length", 4)
    assert run("eval", "--model", undeclared, *options, *kept) == 0
    capsys.readouterr()
    assert run("eval", "--model", undeclared, *options, *kept, "--block", 4) == 2, "the same weights are another model"
    assert "was sampled with other settings" in capsys.readouterr().err
    assert run("sample", *common, *declared, "--attn", "flex") == 2
    assert "attn 'flex' needs a CUDA device" in capsys.readouterr().err


def test_a_plain_decoder_is_fine_tuned_and_says_what_it_is(undeclared: Path, tmp_path: Path) -> None:
    given = {"path": str(undeclared), "architecture": None, "characters": None}
    given |= {"mask_token": "<|unused|>", "block": 4, "save_dtype": None}
    light = {"stages": [{"updates": 2, "lr": 0.001}], "batch": 4, "eval": {"count": 2}}
    config = sft_config("base_sudoku_block_tiny", {"model": given, **light})
    SupervisedRun.new(config, tmp_path / "run").train()
    final = load_policy(tmp_path / "run" / "final")
    assert (final.block, final.family.logit_shift, final.special.mask) == (4, 0, 0)
    with pytest.raises(UserError, match=r"model\.block is for a checkpoint"):
        sft_config("base_sudoku_block_tiny", {"model": {"block": 4}})


@pytest.mark.parametrize("cache", ["none", "prefix", "dual"])
def test_a_run_journals_the_distance_of_an_approximate_cache(cache: str, tmp_path: Path) -> None:
    sampler = {"cache": cache, "block_length": 8, "steps": 8}
    light = {"train": {"max_updates": 1}, "eval": {"count": 4}, "rollout": {"prompts_per_batch": 2, "sampler": sampler}}
    config = run_config("smoke", {**light, "algorithm": {"steps": 2}}, "egspo")
    result = TrainingRun.new(config, tmp_path / "run").start()
    lines = [json.loads(line) for line in (tmp_path / "run" / "journal.jsonl").read_text().splitlines()]
    rollouts = [line for line in lines if line["event"] == "rollout"]
    assert len(rollouts) == 1 and rollouts[0]["stop_position"] is None, "an answer fills the canvas"
    assert ("sampler_gap" in result) == (cache != "none")
    low, high = (0, 1e-5) if cache == "none" else (1e-5, 5)
    assert low <= rollouts[0]["sampler_gap"] < high
