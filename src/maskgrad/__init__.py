"""maskgrad: reinforcement learning for masked-diffusion language models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
