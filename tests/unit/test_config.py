"""Configuration: recipes resolve for every method, a resolved one is sufficient to re-run, and mistakes are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from maskgrad.algorithms import ALGORITHMS
from maskgrad.config import (
    RunConfig,
    SftConfig,
    dump,
    merge,
    parse_overrides,
    read_recipe,
    recipe_names,
    run_config,
    sft_config,
)
from maskgrad.errors import UserError, nearest
from maskgrad.settings import parse
from maskgrad.tasks.registry import build_task, make_task

TRAIN = [name for name in recipe_names() if "rollout" in read_recipe(name)]
SFT = [name for name in recipe_names() if "stages" in read_recipe(name)]


def test_every_recipe_is_of_one_kind() -> None:
    assert sorted(TRAIN + SFT) == recipe_names()
    assert {"smoke", "quickstart"} <= set(TRAIN) and "base_sudoku_tiny" in SFT


@pytest.mark.parametrize("algorithm", [None, *ALGORITHMS])
@pytest.mark.parametrize("name", TRAIN)
def test_every_recipe_resolves_for_every_method(name: str, algorithm: str | None) -> None:
    config = run_config(name, algorithm=algorithm)
    assert config.recipe == name
    if algorithm is not None:
        assert config.algorithm.name == algorithm
        assert type(config.algorithm) is ALGORITHMS[algorithm]
    config.algorithm.check(config.rollout.sampler, config.rollout.group_size)
    make_task(config.task)
    assert parse(RunConfig, yaml.safe_load(dump(config))) == config


@pytest.mark.parametrize("name", SFT)
def test_every_supervised_recipe_resolves(name: str) -> None:
    config = sft_config(name)
    assert config.recipe == name and make_task(config.task).has_gold
    assert parse(SftConfig, yaml.safe_load(dump(config))) == config


@pytest.mark.parametrize("name", TRAIN)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_variant_wins_over_the_recipe_and_overrides_win_over_both(name: str, algorithm: str) -> None:
    values = read_recipe(name)
    variant = values.get("variants", {}).get(algorithm, {})
    config = run_config(name, algorithm=algorithm).model_dump()

    def leaves(tree: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
        if not isinstance(tree, dict):
            return [(path, tree)]
        return [leaf for key, value in tree.items() for leaf in leaves(value, (*path, key))]

    def at(path: tuple[str, ...]) -> Any:
        value: Any = config
        for key in path:
            value = value[key]
        return value

    for path, value in leaves(variant):
        assert at(path) == value
    untouched = {path for path, _ in leaves(values["optim"], ("optim",))} - {path for path, _ in leaves(variant)}
    for path in untouched:
        expected: Any = values
        for key in path:
            expected = expected[key]
        assert at(path) == (tuple(expected) if isinstance(expected, list) else expected)
    assert run_config(name, {"optim": {"lr": 0.123}}, algorithm).optim.lr == 0.123


RECIPE: dict[str, Any] = {
    "model": {"path": "maskgrad:base_sudoku_tiny"},
    "task": {"name": "sudoku"},
    "rollout": {"sampler": {"gen_length": 16, "temperature": 1.0}},
    "optim": {"lr": 0.001},
    "train": {"max_updates": 1},
    "variants": {"egspo": {"algorithm": {"steps": 2}, "optim": {"lr": 0.5}}, "stabledrl": {"algorithm": {"draws": 9}}},
}


def write(folder: Path, **values: Any) -> str:
    file = folder / "mine.yaml"
    file.write_text(yaml.safe_dump({**RECIPE, **values}))
    return str(file)


def test_ways_to_choose_the_method(tmp_path: Path) -> None:
    """All of them take the variant of the method that is finally run."""
    file = write(tmp_path, algorithm={"name": "egspo", "epochs": 3})
    own = run_config(file)
    assert own.recipe == "mine"
    assert (own.algorithm.name, own.algorithm.epochs, own.algorithm.steps, own.optim.lr) == ("egspo", 3, 2, 0.5)  # type: ignore[union-attr]
    assert run_config(file, algorithm="egspo") == own, "naming the recipe's own method changes nothing"
    for overrides, argument in (
        ({}, "stabledrl"),
        ({"algorithm": "stabledrl"}, None),
        ({"algorithm": {"name": "stabledrl"}}, None),
    ):
        other = run_config(file, overrides, argument)
        assert other.algorithm.name == "stabledrl" and other.algorithm.draws == 9  # type: ignore[union-attr]
        assert other.optim.lr == 0.001 and other.algorithm.epochs == ALGORITHMS["stabledrl"]().epochs  # type: ignore[call-arg]
    assert run_config(write(tmp_path, algorithm="egspo")).algorithm.steps == 2  # type: ignore[union-attr]
    assert run_config(file, {"algorithm": {"steps": 1}}).algorithm.steps == 1  # type: ignore[union-attr]


def test_released_behaviour_fills_only_what_was_left_out() -> None:
    config = run_config("smoke", {"algorithm": {"compat": "released", "beta": 0.1}}, "egspo").algorithm.model_dump()
    assert config["score"] == "revealed_untempered" and config["centring"] == "rank_mean"
    assert config["beta"] == 0.1 and config["minibatches"] == 3


@pytest.mark.parametrize("value", ["1.0e-6", "0.0003", "1e-4", "3E-4"])
def test_small_numbers_survive_the_round_trip(value: str) -> None:
    """YAML 1.1 reads 3e-4 as text."""
    config = run_config("smoke", parse_overrides(["--optim.lr", value]))
    assert config.optim.lr == float(value)
    assert parse(RunConfig, yaml.safe_load(dump(config))).optim.lr == float(value)


@settings(max_examples=60, deadline=None)
@given(
    st.floats(1e-8, 1.0), st.integers(0, 2**31), st.integers(1, 30), st.sampled_from(sorted(ALGORITHMS)), st.booleans()
)
def test_any_resolved_configuration_survives_the_round_trip(
    lr: float, seed: int, updates: int, algorithm: str, threshold: bool
) -> None:
    sampler = {"threshold": lr, "steps": None} if threshold else {"steps": 4, "block_length": 4}
    over = {"optim": {"lr": lr, "eps": lr}, "seed": seed, "train": {"max_updates": updates}}
    config = run_config("smoke", {**over, "rollout": {"sampler": sampler}}, algorithm)
    assert parse(RunConfig, yaml.safe_load(dump(config))) == config


def test_infinite_clip_bounds_survive_the_round_trip() -> None:
    config = run_config("smoke", {"algorithm": {"clip_high": float("inf")}}, "egspo")
    assert parse(RunConfig, yaml.safe_load(dump(config))) == config


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--seed", "3"], {"seed": 3}),
        (["--optim.lr", "1e-4"], {"optim": {"lr": 1e-4}}),
        (["--optim.lr=1e-4"], {"optim": {"lr": 1e-4}}),
        (["--optim.lr", "-1"], {"optim": {"lr": -1}}),
        (["--optim.betas", "[0.9, 0.95]"], {"optim": {"betas": [0.9, 0.95]}}),
        (["--a.b", "1", "--a.c", "x", "--d", "true"], {"a": {"b": 1, "c": "x"}, "d": True}),
        (["--a.b", "1", "--a.b", "2"], {"a": {"b": 2}}),
        (["--rollout.group-size", "4"], {"rollout": {"group_size": 4}}),
        (["--a", "null"], {"a": None}),
        (["--a", "x=y"], {"a": "x=y"}),
        (["--a=x=y"], {"a": "x=y"}),
        (["--model.path", "maskgrad:base"], {"model": {"path": "maskgrad:base"}}),
        (["--a", "{b: 1}"], {"a": {"b": 1}}),
        (["--a", "[unclosed"], {"a": "[unclosed"}),
        ([], {}),
    ],
)
def test_overrides(arguments: list[str], expected: dict[str, Any]) -> None:
    assert parse_overrides(arguments) == expected


@pytest.mark.parametrize("arguments", [["x"], ["--"], ["-a", "1"], ["--a"], ["--a", "1", "2"]])
def test_malformed_overrides(arguments: list[str]) -> None:
    with pytest.raises(UserError):
        parse_overrides(arguments)


def test_merge_is_recursive_and_leaves_its_arguments_alone() -> None:
    base, over = {"a": {"b": 1, "c": 2}, "d": [1]}, {"a": {"b": 3}, "d": [2], "e": {}}
    assert merge(base, over) == {"a": {"b": 3, "c": 2}, "d": [2], "e": {}}
    assert base == {"a": {"b": 1, "c": 2}, "d": [1]} and over == {"a": {"b": 3}, "d": [2], "e": {}}
    assert merge({"a": 1}, {"a": {"b": 2}}) == {"a": {"b": 2}} and merge({"a": {"b": 2}}, {"a": 1}) == {"a": 1}


@pytest.mark.parametrize(
    ("over", "key", "hint"),
    [
        ({"optm": {}}, "optm", "optim"),
        ({"train": {"max_update": 1}}, "train.max_update", "max_updates"),
        ({"rollout": {"sampler": {"tempperature": 1}}}, "rollout.sampler.tempperature", "temperature"),
        ({"algorithm": {"stepwise_wait": 1}}, "algorithm.stepwise_wait", "stepwise_weight"),
        ({"eval": {"counts": 1}}, "eval.counts", "count"),
        ({"model": {"pth": "x"}}, "model.pth", "path"),
    ],
)
def test_an_unknown_key_names_the_nearest(over: dict[str, Any], key: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        run_config("smoke", over)
    assert f"unknown key {key!r}" in str(caught.value) and f"did you mean {hint!r}" in str(caught.value)


def test_an_unknown_key_of_a_stage() -> None:
    with pytest.raises(UserError, match=r"unknown key 'stages\.1\.wrong_shar'.*did you mean 'wrong_share'"):
        sft_config("base_sudoku_tiny", {"stages": [{"updates": 1, "lr": 1}, {"updates": 1, "lr": 1, "wrong_shar": 1}]})


def test_nearest_falls_back_to_all_names() -> None:
    assert nearest("stepz", ["steps", "lr"]) == "did you mean 'steps'?"
    assert all(name in nearest("qqq", ["steps", "lr"]) for name in ("steps", "lr"))


def test_a_configuration_is_frozen() -> None:
    config = run_config("smoke")
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 3  # type: ignore[misc]
    with pytest.raises(ValueError, match="frozen"):
        config.optim.lr = 3  # type: ignore[misc]


def test_the_evaluation_changes_only_what_it_names() -> None:
    config = run_config("smoke", {"rollout": {"sampler": {"block_length": 4}}, "eval": {"steps": 4}})
    sampler, held_out = config.rollout.sampler.model_dump(), config.eval_sampler().model_dump()
    assert {k for k in sampler if sampler[k] != held_out[k]} == {"temperature", "steps"}
    assert held_out["temperature"] == 0.0 and held_out["steps"] == 4
    threshold = run_config("smoke", {"rollout": {"sampler": {"threshold": 0.9, "steps": None}}, "eval": {"steps": 4}})
    assert threshold.eval_sampler().threshold is None and threshold.eval_sampler().steps == 4
    assert sft_config("base_sudoku_tiny", {"eval": {"steps": 4}}).eval_sampler().steps == 4


@pytest.mark.parametrize("file", sorted((Path(__file__).parents[2] / "examples").glob("*.yaml")), ids=lambda f: f.stem)
def test_recipes_among_the_examples_resolve(file: Path) -> None:
    """Only a machine with a large model can run them; their settings and task are checked here."""
    config = run_config(str(file))
    config.algorithm.check(config.rollout.sampler, config.rollout.group_size)
    build_task(config.task)
