"""Methods: each file is one choice of views, bounds, advantages and surrogate."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from maskgrad.algorithms.base import Algorithm
from maskgrad.algorithms.composed import Composed
from maskgrad.algorithms.diffu_grpo import DiffuGRPO
from maskgrad.algorithms.dipo import DiPO
from maskgrad.algorithms.egspo import EGSPO
from maskgrad.algorithms.egspo_sa import EGSPOSA
from maskgrad.algorithms.espo import ESPO
from maskgrad.algorithms.grpo_elbo import GRPOElbo
from maskgrad.algorithms.spg import SPG
from maskgrad.algorithms.stabledrl import StableDRL
from maskgrad.algorithms.tracerl import TraceRL
from maskgrad.algorithms.unigrpo import UniGRPO
from maskgrad.algorithms.wd1 import WD1

ALGORITHMS: dict[str, type[Algorithm]] = {
    "diffu_grpo": DiffuGRPO,
    "unigrpo": UniGRPO,
    "grpo_elbo": GRPOElbo,
    "wd1": WD1,
    "spg": SPG,
    "espo": ESPO,
    "tracerl": TraceRL,
    "dipo": DiPO,
    "stabledrl": StableDRL,
    "egspo": EGSPO,
    "egspo_sa": EGSPOSA,
    "composed": Composed,
}

AlgorithmConfig = Annotated[
    DiffuGRPO | UniGRPO | GRPOElbo | WD1 | SPG | ESPO | TraceRL | DiPO | StableDRL | EGSPO | EGSPOSA | Composed,
    Field(discriminator="name"),
]

__all__ = [
    "ALGORITHMS",
    "EGSPO",
    "EGSPOSA",
    "ESPO",
    "SPG",
    "WD1",
    "Algorithm",
    "AlgorithmConfig",
    "Composed",
    "DiPO",
    "DiffuGRPO",
    "GRPOElbo",
    "StableDRL",
    "TraceRL",
    "UniGRPO",
]
