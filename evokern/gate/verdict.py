"""Verdict of the gate: the values that each check measured, the most serious fault, and the risk of a marginal pass.

Each check draws new inputs, and so a new sample of the same rounding errors. If the largest error is close to the
tolerance, passing one check is partly luck. The risk is therefore the expected number of elements beyond the tolerance.

Errors above a high threshold are assumed to decrease exponentially, with their mean excess as the scale (peaks over a
threshold: Pickands, Ann. Statist. 3 (1975), 119; Davison and Smith, J. R. Stat. Soc. B 52 (1990), 393).

Errors with an upper bound, such as those of a single rounding, crowd below the bound. Their largest excess is then
small compared with the mean excess, and the risk is 0.

The rule applies to a GPU, which checks every element, and to the simulated device, which checks a sample.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from evokern.declaration.kernel import Problem
from evokern.gate.buffer_set import BufferSet
from evokern.gate.comparison import Findings, Worst
from evokern.wording import distinguishing_digits

SPENT_LIMIT = 0.6
"""Largest accepted root mean square of error / allowed error.

Rounding to nearest uses at most 1/sqrt(3) of a tolerance that just covers it, and other rounding errors use far less.
A candidate above this value exploits the tolerance systematically."""


@dataclass(frozen=True)
class Verdict:
    """Verdict of the gate on one candidate."""

    passed: bool
    """Whether all checks passed."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """Failed check with its message and numbers; empty if the candidate passed."""
    report: Mapping[str, Any] = field(default_factory=dict)
    """Relative Frobenius error, worst element, and the values that each check measured."""
    marginal: bool = False
    """Whether the largest error was so close to a tolerance that fresh inputs decided."""


def judge(bench: BufferSet, findings: Findings, *, deterministic: bool, problem: Problem, when: str = "") -> Verdict:
    """Return the verdict on a candidate; its evidence is the most serious finding.

    Args:
        bench: the buffer set that was compared.
        findings: results of the comparison.
        deterministic: whether two runs must agree bit by bit.
        problem: problem named in messages.
        when: clause for messages, for example `in the timed runs`.
    """
    worst = max(findings.worst, key=lambda w: (w.bad > 0, w.over))
    normal = [w for w in findings.worst if bench.kinds[w.set] == "normal"] or findings.worst
    report = {
        "relative_error": _number(max((w.relative_error for w in normal), key=_nan_last)),
        "tolerance_spent": _number(max((w.spent for w in findings.worst), key=_nan_last)),
        "worst": _element(bench, worst),
        "input_sets": list(dict.fromkeys(bench.kinds)),
        "runs": bench.runs,
        "checks": _measured(bench, findings),
    }
    evidence = _fault(bench, findings, worst, deterministic)
    if evidence is None:
        return Verdict(True, {}, report)
    where = f"{evidence['input_set']} inputs at {problem}" + (f", {when}" if when else "")
    evidence |= {"message": f"{evidence['message']} ({where})", "problem": problem.key}
    return Verdict(False, evidence, report)


def _measured(bench: BufferSet, findings: Findings) -> dict[str, Any]:
    """Return the values that each check measured, including the checks that passed."""
    over: dict[str, float | str] = {}
    for kind in dict.fromkeys(bench.kinds):
        over[kind] = _number(max((w.most for w in findings.worst if bench.kinds[w.set] == kind), key=_nan_last))
    return {
        "guard_bytes": sum(findings.guards_changed),
        "input_words": sum(findings.inputs_changed),
        "bad_elements": sum(w.bad for w in findings.worst),
        "of_tolerance": over,
        "differing_bytes": sum(sum(counts) for counts in findings.differing.values()),
    }


def _fault(bench: BufferSet, findings: Findings, worst: Worst, deterministic: bool) -> dict[str, Any] | None:
    for call, count in enumerate(findings.guards_changed):
        if count:
            kind = bench.kinds[bench.calls[call][1]]
            return {"check": "guard", "input_set": kind, "bytes": count, "message": bench.guard_violation(call)}
    for index, count in enumerate(findings.inputs_changed):
        if count:
            return {"check": "inputs_unchanged", "input_set": bench.kinds[index], "message": bench.changed_input(index)}
    if worst.bad:
        element = _element(bench, worst)
        name = f"{worst.output}[{', '.join(map(str, worst.index))}]"
        if unwritten := bench.unwritten(worst):
            message = f"{name} {unwritten}; {worst.bad} elements are wrong"
        else:
            got, expected = distinguishing_digits(worst.got, worst.expected)
            message = (
                f"{name} is {got}, expected {expected} within {worst.allowed:.3g}{_parts(bench, worst)}; "
                f"{worst.bad} of {bench.results[worst.output].elements} elements are wrong"
            )
        failed = list(dict.fromkeys(bench.kinds[w.set] for w in findings.worst if w.bad))
        kind = bench.kinds[worst.set]
        return {"check": "tolerance", "input_set": kind, "failed_sets": failed, "message": message, **element}
    tolerated = [w for w in findings.worst if bench.rule(w.output).tolerance.bound is None]
    wasteful = max(tolerated, key=lambda w: w.spent, default=None)
    if wasteful is not None and wasteful.spent > SPENT_LIMIT:
        message = (
            f"the root mean square error of {wasteful.output!r} is {wasteful.spent:.2f} of the tolerance; rounding "
            f"errors stay below {SPENT_LIMIT:g}, so the kernel uses up the tolerance systematically"
        )
        kind = bench.kinds[wasteful.set]
        return {"check": "tolerance_spent", "input_set": kind, "spent": wasteful.spent, "message": message}
    if deterministic:
        for name, counts in findings.differing.items():
            for position, count in enumerate(counts):
                if count:
                    message = f"two runs on the same inputs differ in {count} bytes of {name!r}"
                    kind = bench.kinds[bench.calls[bench.sets + position][1]]
                    return {"check": "deterministic", "input_set": kind, "bytes": count, "message": message}
    return None


def _parts(bench: BufferSet, worst: Worst) -> str:
    """Return the error and the parts of a bound, the larger one first: rounding of the output, and the arithmetic."""
    tolerance = bench.rule(worst.output).tolerance
    if tolerance.bound is None:
        return ""
    rounding = tolerance.atol + tolerance.rtol * abs(worst.expected)
    dtype = bench.tensors[worst.output].dtype
    arithmetic = max(0.0, worst.allowed - rounding)
    parts = [f"{arithmetic:.3g} for the arithmetic", f"{rounding:.3g} for rounding to {dtype}"]
    first, second = parts if arithmetic >= rounding else reversed(parts)
    return f" (error {abs(worst.got - worst.expected):.3g}; mostly {first}, and {second})"


def _element(bench: BufferSet, worst: Worst) -> dict[str, Any]:
    bounded = bench.rule(worst.output).tolerance.bound is not None
    return ({"limit": "bound"} if bounded else {}) | {
        "output": worst.output,
        "dtype": bench.tensors[worst.output].dtype,
        "index": list(worst.index),
        "got": _number(worst.got),
        "expected": _number(worst.expected),
        "allowed": worst.allowed,
        "over": _number(worst.over),
        "bad": worst.bad,
        "elements": bench.results[worst.output].elements,
        "input_set": bench.kinds[worst.set],
    }


def _nan_last(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _number(value: float) -> float | str:
    """Return a value that JSON can store: NaN and infinities become strings."""
    return value if math.isfinite(value) else str(value)


MARGINAL = 0.5
"""Error / tolerance from which the risk is estimated, if all elements were checked or the sample is very small."""
CLEAR_RATIO = 0.3
"""Error / tolerance below which a small sample needs no further check."""
LIMIT = 0.05
"""Largest accepted probability of failing on other inputs: a correct candidate passes at least 19 of 20 checks."""
DECIDED_SIGMAS = 2.0
"""Distance in standard errors between an estimate and the limit at which the case is decided (98 % confidence)."""
_FEWEST_UNITS = 64
_FEWEST_PEAKS, _MOST_PEAKS = 8, 64
_SHARE_OF_PEAKS = 32
_DISTINGUISHING_PEAKS = 48
"""Number of peaks needed to distinguish errors with an upper bound from errors that decrease exponentially."""
_END_POINT_PROBABILITY = 0.01
"""Significance level for an upper bound: probability of such a small largest excess under an exponential decrease."""


@dataclass(frozen=True)
class TailRisk:
    """Tail risk of a candidate, estimated from its largest errors."""

    expected: float
    """Expected number of elements (or rows of equal elements) beyond the tolerance in one draw of all inputs."""
    error: float
    """Standard error of the logarithm of `expected`."""
    units: int
    """Number of checked elements or rows."""
    peaks: int
    """Number of checked elements or rows above the threshold."""
    worst: float
    """Largest ratio of error to tolerance."""

    @property
    def chance(self) -> float:
        """Probability that a random set of inputs has an element beyond the tolerance."""
        return -math.expm1(-self.expected)

    @property
    def excessive(self) -> bool:
        """Whether the candidate would fail too often on other inputs."""
        return self.chance > LIMIT and (self.worst > 1 or self.peaks >= _DISTINGUISHING_PEAKS)

    @property
    def decided(self) -> bool:
        """Whether a larger sample would hardly change the result."""
        if not 0 < self.expected < math.inf:
            return True
        beyond = math.log(self.expected / -math.log1p(-LIMIT))
        return abs(beyond) > DECIDED_SIGMAS * self.error and (beyond < 0 or self.excessive)


def undecided(errors: torch.Tensor, of: int) -> bool:
    """Return whether a small sample is inconclusive: checking the whole problem might show a wrong result.

    Args:
        errors: error over tolerance of each checked element or row, flat.
        of: number of elements or rows in the whole problem.
    """
    worst = float(errors.max())
    found = tail_risk(errors, of)
    if found is None or worst < CLEAR_RATIO:
        return worst >= MARGINAL
    return found.excessive or not found.decided


def tail_risk(errors: torch.Tensor, of: int) -> TailRisk | None:
    """Return the tail risk estimated from a sample of errors, or None if the sample is too small.

    Args:
        errors: error over tolerance of each checked element or row, flat.
        of: number of elements or rows in the whole problem.
    """
    count = errors.numel()
    if count < _FEWEST_UNITS:
        return None
    peaks = max(_FEWEST_PEAKS, min(_MOST_PEAKS, count // _SHARE_OF_PEAKS))
    top: list[float] = errors.topk(peaks + 1).values.tolist()
    threshold, above = top[-1], top[:-1]
    if top[0] > 1.0 or math.isnan(top[0]):
        return TailRisk(math.inf, 0.0, count, peaks, top[0])
    scale = math.fsum(value - threshold for value in above) / peaks
    # The largest of k exponential excesses stays below x times their mean with probability (1 - exp(-x))^k.
    end_point_excess = -math.log1p(-(_END_POINT_PROBABILITY ** (1 / peaks)))
    if top[0] - threshold <= end_point_excess * scale:
        return TailRisk(0.0, 0.0, count, peaks, top[0])
    steps = (1.0 - threshold) / scale
    return TailRisk(peaks * (of / count) * math.exp(-steps), steps / math.sqrt(peaks), count, peaks, top[0])


def margin_evidence(found: TailRisk, output: str, kind: str, of: int) -> dict[str, Any]:
    """Return the evidence for rejecting a candidate that passed but has too high a tail risk."""
    evidence: dict[str, Any] = {"check": "margin", "output": output, "input_set": kind, "over": found.worst}
    if found.worst > 1:
        times = distinguishing_digits(found.worst, 1.0)[0]
        message = f"an error of {output!r} is {times} times the tolerance on {kind} inputs"
        return evidence | {"check": "tolerance", "message": message}
    message = (
        f"too close to the tolerance: the largest error of {output!r} on {kind} inputs is {found.worst:.2f} of the "
        f"tolerance, and about {found.expected:.2g} of its {of} elements are expected to exceed it; other inputs "
        f"would fail with probability {found.chance:.2g} (limit {LIMIT:g})"
    )
    return evidence | {"expected": found.expected, "message": message}
