"""Exact arithmetic on the PTX machine: a candidate against the default candidate, and that against the reference."""

from evokern.device.sim.algebra.comparison import (
    DIFFERENT,
    EQUAL,
    FAULT,
    NOT_COMPARABLE,
    NOT_FINISHED,
    SAME,
    ExactProof,
    OutputComparison,
    algebra_facts,
    algebra_fault,
)
from evokern.device.sim.algebra.proof import Prover

__all__ = [
    "DIFFERENT", "EQUAL", "FAULT", "NOT_COMPARABLE", "NOT_FINISHED", "SAME", "ExactProof", "OutputComparison",
    "Prover", "algebra_facts", "algebra_fault",
]  # fmt: skip
