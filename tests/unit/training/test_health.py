"""Batches without any difference between rewards are counted, and said once when they have lasted."""

from maskgrad.training.checkpoint import Progress
from maskgrad.training.health import PATIENCE, signal


def test_flat_batches_are_said_once_per_streak() -> None:
    """Errors caught: said for every batch; a streak that a batch with signal does not end."""
    progress = Progress()
    flat = {"equal_reward_groups": 4, "groups": 4, "reward": 0.0}
    said = [signal(progress, flat) for _ in range(3 * PATIENCE)]
    assert [bool(s) for s in said] == [i == PATIENCE - 1 for i in range(3 * PATIENCE)]
    assert "mean reward 0)" in str(said[PATIENCE - 1])
    assert signal(progress, {**flat, "equal_reward_groups": 3}) is None and progress.flat_in_row == 0
    again = [signal(progress, flat) for _ in range(PATIENCE)]
    assert again[-1] and not any(again[:-1])
