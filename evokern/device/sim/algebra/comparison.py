"""Comparison of the outputs of two runs in exact arithmetic, and its facts to store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from evokern.declaration.kernel import Problem
from evokern.device.sim.algebra.runs import ExactRun
from evokern.simt import NO_PATHS, Array, Paths
from evokern.simt.exact import NO_P, NO_Q, REASON_SHIFT, UNWRITTEN, ZERO, Obstacle, Value
from evokern.wording import count_noun

SAME, EQUAL, DIFFERENT = "same", "equal", "different"
NOT_COMPARABLE, NOT_FINISHED, FAULT = "not comparable", "not finished", "fault"
APART = "one program has a logarithm and the other an exponential there, which have no residues in common"
VERDICTS = {SAME: "same as the default", EQUAL: "equal to the reference"}
"""Verdicts in words, if these differ from the stored ones."""
_ORDER = (DIFFERENT, FAULT, NOT_COMPARABLE, NOT_FINISHED, SAME, EQUAL)
"""Verdicts, worst first."""


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


@dataclass(frozen=True, slots=True)
class ExactProof:
    """Comparison of a candidate with the default candidate at one problem."""

    problem: Problem
    verdicts: tuple[OutputComparison, ...]
    paths: Paths = NO_PATHS
    """Paths of the candidate."""

    def as_dict(self) -> dict[str, Any]:
        """Return the proof as data for JSON."""
        return {
            "problem": self.problem.key,
            "verdicts": [
                {
                    "output": one.output, "verdict": one.verdict, "element": one.element, "count": one.count,
                    "block": one.block, "line": one.line, "reference": one.reference, "detail": one.detail,
                    "obstacle": None if one.obstacle is None else {
                        "reason": one.obstacle.reason, "file": one.obstacle.location.file,
                        "line": one.obstacle.location.line, "instruction": one.obstacle.instruction,
                    },
                }
                for one in self.verdicts
            ],
        }  # fmt: skip


def algebra_facts(proofs: Sequence[ExactProof]) -> dict[str, Any]:
    """Return proofs as facts to store: for each output the worst verdict, with its problem, and the reference.

    Problems at which a comparison was not finished are listed apart, unless there are no others.
    """
    late = [one for one in proofs if any(verdict.verdict == NOT_FINISHED for verdict in one.verdicts)]
    ended = [one for one in proofs if one not in late]
    outputs: dict[str, Any] = {}
    for name in dict.fromkeys(one.output for proof in proofs for one in proof.verdicts):
        found = [(one, proof) for proof in ended or proofs for one in proof.verdicts if one.output == name]
        worst, at = min(found, key=lambda item: _ORDER.index(item[0].verdict))
        reference = next((one.reference for one, _ in found if one.reference != EQUAL), EQUAL)
        outputs[name] = {"verdict": worst.verdict, "reference": reference}
        if worst.reason:
            outputs[name] |= {"problem": at.problem.key, "detail": worst.reason.strip(" :")}
    facts: dict[str, Any] = {"outputs": outputs, "problems": [proof.problem.key for proof in ended or proofs]}
    if late and ended:
        facts["unfinished"] = {proof.problem.key: proof.verdicts[0].detail for proof in late}
    return facts


def algebra_fault(proofs: Sequence[ExactProof]) -> dict[str, Any] | None:
    """Return the evidence of a candidate that computes another expression, or None."""
    for proof in proofs:
        for one in proof.verdicts:
            if one.verdict == DIFFERENT:
                message = f"in exact arithmetic, {one.output} differs from the default candidate's{one.reason}"
                return {
                    "check": "algebra", "message": f"{message}, at {proof.problem}", "problem": proof.problem.key,
                    "output": one.output, "element": one.element, "bad": one.count, "block": one.block,
                    "line": one.line,
                }  # fmt: skip
    return None


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
