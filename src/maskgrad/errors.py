"""The one exception type that means "the user can fix this"."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake in what the user passed. The message is one sentence: what, which value, what to do.

    The command line prints it without a traceback and exits with code 2.
    """


class BrokenModel(RuntimeError):
    """The network's outputs are NaN or infinite: its weights are broken, and no method can help."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """Sentence fragment naming the closest valid name, or all of them when none is close."""
    names = sorted(set(valid))
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"valid: {', '.join(names)}"
