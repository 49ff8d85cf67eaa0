"""The correctness gate, one for every device that executes: nothing is timed that has not been proved right."""

from evokern.gate.check import Call, Gate, RunFailed, Runner
from evokern.gate.power import prove_power
from evokern.gate.verdict import Verdict

__all__ = ["Call", "Gate", "RunFailed", "Runner", "Verdict", "prove_power"]
