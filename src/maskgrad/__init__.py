"""maskgrad: reinforcement learning for masked-diffusion language models."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

# OpenMP threads that spin while they wait make two threads on a busy small machine many times slower than one.
# It counts only if it is set before torch is loaded; a value of the user's own is kept.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.1.0"

if TYPE_CHECKING:
    from maskgrad.models.load import load_policy
    from maskgrad.trainer import Trainer

__all__ = ["Trainer", "__version__", "load_policy"]


def __getattr__(name: str) -> Any:
    """Heavy imports happen when a name is first used, so that `import maskgrad` is instant."""
    if name == "Trainer":
        from maskgrad.trainer import Trainer

        return Trainer
    if name == "load_policy":
        from maskgrad.models.load import load_policy

        return load_policy
    raise AttributeError(f"module 'maskgrad' has no attribute {name!r}")
