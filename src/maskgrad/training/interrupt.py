"""Ctrl-C, or a scheduler's SIGTERM: finish what must be whole, save, and say how to go on."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(Exception):
    """Ctrl-C or SIGTERM: the run was saved and can be resumed."""


class TrainingStopped(RuntimeError):
    """The run cannot go on by itself: too many non-finite updates in a row, or no usable reward."""


class Interruptible:
    """Defers Ctrl-C inside `whole` blocks; outside them it takes effect at once. A second Ctrl-C always does."""

    def __init__(self) -> None:
        self._asked = False
        self._inside = False

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Counters, weights and journal move together in here; Ctrl-C waits until the block is done."""
        self._inside = True
        try:
            yield
        except KeyboardInterrupt:
            raise  # a second Ctrl-C: the block is not whole, and `guard` must know
        except BaseException:
            self._inside = False
            raise
        self._inside = False
        if self._asked:
            raise KeyboardInterrupt

    @contextmanager
    def guard(self, save: Callable[[], str]) -> Iterator[None]:
        """Handle Ctrl-C around a run: `save` stores the last whole state and returns the sentence to tell."""

        def handle(_number: int, _frame: FrameType | None) -> None:
            if self._asked or not self._inside:
                raise KeyboardInterrupt
            self._asked = True

        stops = (signal.SIGINT, signal.SIGTERM)
        try:
            previous = [signal.signal(number, handle) for number in stops]
        except ValueError:  # not the main thread: the caller owns the signals
            yield
            return
        try:
            yield
        except KeyboardInterrupt:
            if self._inside:
                raise
            for number in stops:
                signal.signal(number, signal.SIG_IGN)
            raise Interrupted(save()) from None
        finally:
            for number, handler in zip(stops, previous, strict=True):
                signal.signal(number, handler)
