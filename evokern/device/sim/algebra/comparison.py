"""Comparison of the outputs of two runs in exact arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from evokern.device.sim.algebra.runs import ExactRun
from evokern.simt import Array
from evokern.simt.exact import NO_P, NO_Q, REASON_SHIFT, UNWRITTEN, ZERO, Obstacle, Value
from evokern.wording import count_noun

SAME, EQUAL, DIFFERENT = "same", "equal", "different"
NOT_COMPARABLE, NOT_FINISHED, FAULT = "not comparable", "not finished", "fault"
APART = "one program has a logarithm and the other an exponential there, which have no residues in common"
VERDICTS = {SAME: "same as the default", EQUAL: "equal to the reference"}
"""Verdicts in words, if these differ from the stored ones."""


@dataclass(frozen=True, slots=True)
class OutputComparison:
    """Comparison of one output with that of the default candidate and that of the reference."""

    output: str
    verdict: str
    """`same` as the default, `equal` to the reference, `different`, `not comparable`, `not finished` or `fault`."""
    element: int = -1
    """First element that differs or is not comparable."""
    count: int = 0
    """Number of such elements."""
    obstacle: Obstacle | None = None
    """Why it is not comparable."""
    detail: str = ""
    block: int = -1
    """Block that wrote the first element that differs; -1 if unknown."""
    line: str = ""
    """Line that wrote it, if all stores to global memory are on one line."""
    reference: str = ""
    """`equal` if the default candidate equals the reference; otherwise why that is not known."""

    @property
    def reason(self) -> str:
        """Return the place and the reason of the verdict; empty for `same` and `equal`."""
        text = f"{count_noun(self.count, 'element')}, the first is {self.element}" if self.element >= 0 else ""
        text += f", written by block {self.block}" if self.block >= 0 else ""
        text += f" at {self.line}" if self.block >= 0 and self.line else ""
        text = f" ({text})" if text else ""
        if self.obstacle is not None:
            text += f": {_obstacle_text(self.obstacle)}"
        return text + (f": {self.detail}" if self.detail else "")

    def __str__(self) -> str:
        """Return the verdict on one line."""
        text = f"{self.output}: {VERDICTS.get(self.verdict, self.verdict)}{self.reason}"
        if self.verdict != SAME or not self.reference:
            return text
        whole = self.reference == EQUAL
        return text + (", which equals the reference" if whole else f"; compared with the reference: {self.reference}")


def _obstacle_text(one: Obstacle) -> str:
    if not one.instruction:
        return one.reason
    return f"{one.reason} ({one.location.file or 'the source'}:{one.location.line}, {one.instruction})"


def compared(run: ExactRun, other: ExactRun) -> list[OutputComparison]:
    """Compare the outputs of a candidate with those of another candidate on the same inputs."""
    if run.fault:
        return [OutputComparison(name, FAULT, detail=run.fault) for name in (*run.values, *run.bits)]
    found = [compared_output(name, run, other) for name in run.values]
    return found + [verdict_on(name, differing(name, run, other)) for name in run.bits]


def differing(name: str, run: ExactRun, other: ExactRun) -> Array:
    """Return where two runs have another value, and that is known."""
    if name in run.bits:
        return np.asarray((run.bits[name] != other.bits[name]).any(1))
    value, wanted = run.values[name], other.values[name]
    bads = _bads(value, wanted)
    pairs = ((value.p, wanted.p, NO_P), (value.q, wanted.q, NO_Q))
    unlike = [(one != other) & (one != none) & (other != none) for one, other, none in pairs]
    if run.roots or other.roots:  # The signs of the roots of both residues are independent; one is enough.
        unlike[1] &= (value.p == NO_P) | (wanted.p == NO_P)
    wrong = (bads[0] == 0) & (bads[1] == 0) & (unlike[0] | unlike[1])
    # Only an expression whose divisor is zero for all inputs is likely to divide by zero. What was never written is not
    # part of the expression.
    reasons = bads[0] >> REASON_SHIFT
    return np.asarray(wrong | (((reasons == ZERO) | (reasons == UNWRITTEN)) & (bads[1] == 0)))


def _bads(*values: Value) -> list[Array]:
    return [np.zeros_like(one.p) if one.bad is None else one.bad for one in values]


def compared_output(name: str, run: ExactRun, other: ExactRun) -> OutputComparison:
    """Compare one floating-point output with that of another candidate, or of the reference."""
    wrong = differing(name, run, other)
    if wrong.any():
        return verdict_on(name, wrong)
    return obstructed(name, run, other) or OutputComparison(name, SAME)


def obstructed(name: str, run: ExactRun, other: ExactRun) -> OutputComparison | None:
    """Return the comparison of an output with elements that are not comparable; None if it has none."""
    if name in run.bits:
        return None
    value, wanted = run.values[name], other.values[name]
    bads = _bads(value, wanted)
    apart = ((value.p == NO_P) | (wanted.p == NO_P)) & ((value.q == NO_Q) | (wanted.q == NO_Q))
    at = np.flatnonzero((bads[0] != 0) | (bads[1] != 0) | apart)
    if not at.size:
        return None
    found = OutputComparison(name, NOT_COMPARABLE, int(at[0]), at.size, detail=APART)
    for owner, bad in zip((run, other), bads, strict=True):
        if bad[at[0]]:
            return replace(found, obstacle=owner.memory.obstacle(int(bad[at[0]])), detail="")
    return found


def verdict_on(name: str, wrong: Array) -> OutputComparison:
    """Return the comparison of an output that differs at some elements, if at any."""
    places = np.flatnonzero(wrong)
    if not places.size:
        return OutputComparison(name, SAME)
    return OutputComparison(name, DIFFERENT, int(places[0]), int(places.size))
