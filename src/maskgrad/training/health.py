"""Signs of a run that goes on without learning: one sentence each, when they have lasted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from maskgrad.training.checkpoint import Progress

#: Batches in a row without a difference between the rewards of any prompt group before it is said, once per streak.
PATIENCE = 5


def signal(progress: Progress, metrics: Mapping[str, Any]) -> str | None:
    """Count batches whose groups all have equal rewards; the sentence to show when `PATIENCE` came in a row."""
    flat = metrics["equal_reward_groups"] == metrics["groups"]
    progress.flat_in_row = progress.flat_in_row + 1 if flat else 0
    if progress.flat_in_row != PATIENCE:
        return None
    return (
        f"no prompt group of the last {PATIENCE} batches had different rewards (mean reward {metrics['reward']:.3g}), "
        "so nothing was learned from them: look at samples/, check the reward function, or choose prompts that are "
        "solved sometimes"
    )
