"""Result of evaluating an external source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from evokern.declaration.problem import ProblemField, words_of
from evokern.escaping import repr_of
from evokern.study.trial import Evaluation, Outcome

_RESULT_EVIDENCE = ("file", "line", "finding", "problem", "input_set", "foreign_load", "diagnosis")
"""Evidence that is useful to readers of the result, in addition to `check` and `reason`."""


@dataclass(frozen=True)
class SourceResult:
    """Result of evaluating one external source."""

    source: str
    """Name of the source: a file name, or `source_3.cu` for a text."""
    evaluation: Evaluation
    """The device's evaluation with all evidence."""
    predicted: bool
    """Whether the time is predicted by a simulated device."""
    baseline: tuple[str, float] | None = None
    """Name and time in µs of the fastest correct baseline."""
    duplicate_of: str | None = None
    """Source with the same machine code and launch that was evaluated in place of this one, or None."""
    fields: tuple[ProblemField, ...] = ()
    """Fields of the kernel's problems."""

    __repr__ = repr_of("source", "outcome", "time_us", "reason")

    @property
    def right(self) -> bool:
        """Whether the source passed the feasibility check, the compiler and the gate."""
        return self.evaluation.passed_gate

    @property
    def outcome(self) -> str:
        """Outcome of the source, a value of `evokern.study.trial.Outcome`."""
        return self.evaluation.outcome.value

    @property
    def check(self) -> str | None:
        """The failed check, the violated constraint or the error of a crash; None for other outcomes."""
        evidence = self.evaluation.evidence
        match self.evaluation.outcome:
            case Outcome.WRONG:
                return str(evidence["check"])
            case Outcome.INFEASIBLE | Outcome.OVER_RESOURCES:
                return str(evidence["constraint"])
            case Outcome.CRASHED:
                return str(evidence["error"])
            case _:
                return None

    @property
    def reason(self) -> str:
        """Reason for the outcome, in one line."""
        evidence = self.evaluation.evidence
        if self.evaluation.outcome is Outcome.DUPLICATE:
            return f"same machine code and launch as {self.duplicate_of}"
        reason, why = " ".join(self.evaluation.reason.split()), str(evidence.get("reason") or "")
        beyond = self.evaluation.outcome in (Outcome.INFEASIBLE, Outcome.OVER_RESOURCES)
        return f"{reason} ({why})" if beyond and why not in reason else reason

    @property
    def share(self) -> float | None:
        """Share of the problem's blocks that ran on a simulated device; None on a GPU, which runs all blocks."""
        return self.evaluation.own_problem_share if self.right else None

    @property
    def covered(self) -> bool | None:
        """Whether all output elements of the problem are known to be written; None if `share` is None."""
        return None if self.share is None else all(one["covered"] for one in self._own.values())

    @property
    def _own(self) -> dict[str, Any]:
        return dict(self.evaluation.evidence.get("own_problem") or {})

    @property
    def doubt(self) -> str:
        """Text about the parts of the problem that were not verified; empty if all parts were verified."""
        if self.share is None or (self.share == 1 and self.covered):
            return ""
        scaled = ", ".join(words_of(self.fields, problem) for problem in self.evaluation.scaled_problems)
        text = f"{100 * self.share:.2g} % of its blocks ran"
        text += f", and all blocks ran on the problem scaled down to {scaled}" if scaled else ""
        return text if self.covered else f"{text}; could not confirm that every output is written"

    @property
    def time_us(self) -> float | None:
        """Median time of a call in µs, or None if the source is not correct."""
        return self.evaluation.time_us if self.right else None

    @property
    def ci95_us(self) -> tuple[float, float] | None:
        """95 % confidence interval of the median in µs, or None for predicted times and incorrect sources."""
        if not self.right or self.predicted or not self.evaluation.timings:
            return None
        return self.evaluation.timings[0].ci95_us

    @property
    def speedup(self) -> float | None:
        """Time of the fastest baseline divided by the source's time, or None without a baseline."""
        return self.baseline[1] / self.time_us if self.baseline and self.time_us else None

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a JSON-serialisable dictionary."""
        evidence = self.evaluation.evidence
        return {
            "source": self.source,
            "right": self.right,
            "outcome": self.outcome,
            "check": self.check,
            "reason": self.reason,
            "time_us": self.time_us,
            "ci95_us": None if self.ci95_us is None else list(self.ci95_us),
            "predicted": self.predicted,
            "speedup": self.speedup,
            "share": self.share,
            "covered": self.covered,
            "duplicate_of": self.duplicate_of,
            "evidence": {name: evidence[name] for name in _RESULT_EVIDENCE if name in evidence},
            "log": str(evidence.get("log", "")),
            "compile_s": self.evaluation.compile_s,
            "device_s": self.evaluation.device_s,
        }
