"""Signals around a run: saved and told, once, whichever of the two it is."""

from __future__ import annotations

import os
import signal

import pytest

from maskgrad.training.interrupt import Interrupted, Interruptible


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_the_block_and_saves(number: signal.Signals) -> None:
    """Errors caught: SIGTERM not handled; the block broken off; handlers left behind."""
    before = signal.getsignal(number)
    told: list[str] = []
    run, done = Interruptible(), []
    with pytest.raises(Interrupted, match="saved"), run.guard(lambda: told.append("x") or "saved"), run.whole():
        os.kill(os.getpid(), number)
        done.append("the block goes on")
    assert told == ["x"] and done and signal.getsignal(number) == before
