"""Methods: each file is one choice of views, bounds, advantages and surrogate."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from maskgrad.algorithms.base import Algorithm
from maskgrad.algorithms.diffu_grpo import DiffuGRPO
from maskgrad.algorithms.egspo import EGSPO, EGSPOSA
from maskgrad.algorithms.stabledrl import StableDRL

ALGORITHMS: dict[str, type[Algorithm]] = {
    "diffu_grpo": DiffuGRPO,
    "stabledrl": StableDRL,
    "egspo": EGSPO,
    "egspo_sa": EGSPOSA,
}

AlgorithmConfig = Annotated[DiffuGRPO | StableDRL | EGSPO | EGSPOSA, Field(discriminator="name")]

__all__ = ["ALGORITHMS", "EGSPO", "EGSPOSA", "Algorithm", "AlgorithmConfig", "DiffuGRPO", "StableDRL"]
