"""The correctness gate: every device applies it, and only candidates that pass it count as measured."""

from evokern.gate.check import Call, Gate, RunFailed, Runner, prove_power
from evokern.gate.verdict import Verdict

__all__ = ["Call", "Gate", "RunFailed", "Runner", "Verdict", "prove_power"]
