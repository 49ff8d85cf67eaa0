"""The correctness gate, one for every device that executes: nothing counts as measured that did not pass it."""

from evokern.gate.check import Call, Gate, RunFailed, Runner
from evokern.gate.power import prove_power
from evokern.gate.verdict import Verdict

__all__ = ["Call", "Gate", "RunFailed", "Runner", "Verdict", "prove_power"]
