"""Checks on task settings. Each returns the accepted value or raises a UserError naming task, setting and value."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from maskgrad.errors import UserError, nearest


def choice(task: str, key: str, value: object, valid: Sequence[str]) -> str:
    """One of a few names."""
    if value not in valid:
        raise UserError(f"task {task}: {key} cannot be {value!r}; {nearest(str(value), valid)}")
    return str(value)


def whole(task: str, key: str, value: object, low: int, high: int | None = None) -> int:
    """A whole number from `low` to `high`; booleans and floats are refused."""
    bounds = f"from {low} up" if high is None else f"from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        raise UserError(f"task {task}: {key} must be a whole number {bounds}, not {value!r}")
    return value


def span(task: str, key: str, value: object, low: int, high: int) -> tuple[int, int]:
    """Two whole numbers in rising order, both inside [low, high]; a list from YAML is accepted."""
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise UserError(f"task {task}: {key} must be two whole numbers [low, high], not {value!r}")
    first, last = (whole(task, key, item, low, high) for item in value)
    if first > last:
        raise UserError(f"task {task}: {key} must rise, not fall from {first} to {last}")
    return first, last


def share(task: str, key: str, value: object) -> float:
    """A number in [0, 1)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value < 1.0:
        raise UserError(f"task {task}: {key} must be a number in [0, 1), not {value!r}")
    return float(value)


def layout_weight(task: str, value: object, protocol: str, tagged: Sequence[str], reward: str = "") -> float:
    """Weight of the format part: a number in [0, 1), above 0 only for protocols that ask for the tags, and for rewards
    that have no format part of their own.
    """
    weight = share(task, "format_weight", value)
    if weight and reward.startswith("compat"):
        raise UserError(f"task {task}: format_weight {weight} does not go with {reward}, which has its own parts")
    if weight and protocol not in tagged:
        raise UserError(
            f"task {task}: format_weight {weight} pays for tags that the prompt {protocol!r} does not ask for; "
            f"use prompt {' or '.join(tagged)}"
        )
    return weight


def switch(task: str, key: str, value: object) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise UserError(f"task {task}: {key} must be true or false, not {value!r}")
    return value


def optional_path(task: str, key: str, value: object) -> Path | None:
    """A path given as text or Path, or nothing."""
    if value is None or isinstance(value, Path):
        return value
    if not isinstance(value, str) or not value:
        raise UserError(f"task {task}: {key} must be a path or left out, not {value!r}")
    return Path(value)
