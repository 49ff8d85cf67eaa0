"""The correctness gate, one for every device that executes: nothing is timed that has not been proved right."""

from evokern.gate.check import Call, Gate, Runner, Verdict
from evokern.gate.power import prove_power

__all__ = ["Call", "Gate", "Runner", "Verdict", "prove_power"]
