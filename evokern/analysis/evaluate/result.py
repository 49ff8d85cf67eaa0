"""What came of one foreign source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from evokern.declaration.problem import ProblemField, words_of
from evokern.study.trial import Evaluation, Outcome

_KEPT = ("file", "line", "finding", "problem", "input_set", "foreign_load", "diagnosis")
"""Evidence that a reader of the result can use; the rest is told by `check` and `reason`."""


@dataclass(frozen=True)
class SourceResult:
    """What came of one foreign source."""

    source: str
    """Name of the source: a file's name, or `source_3.cu` of a text that was handed in."""
    evaluation: Evaluation
    """What the device said, with all its evidence."""
    predicted: bool
    """Whether the time is predicted, by a simulated device."""
    baseline: tuple[str, float] | None = None
    """Name and time in µs of the fastest baseline that was right."""
    duplicate_of: str | None = None
    """Another source, an earlier one unless it took long to compile, with the same machine code and launch: it was
    evaluated in this one's place."""
    fields: tuple[ProblemField, ...] = ()
    """The fields of the kernel's problems."""

    @property
    def right(self) -> bool:
        """Whether it passed feasibility, compiler and gate."""
        return self.evaluation.passed_gate

    @property
    def outcome(self) -> str:
        """How it ended: a value of `evokern.study.trial.Outcome`."""
        return self.evaluation.outcome.value

    @property
    def check(self) -> str | None:
        """The check of the gate that it failed, the constraint that it violates, or the error that it crashed with."""
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
        """Why it ended so, in one line."""
        evidence = self.evaluation.evidence
        if self.evaluation.outcome is Outcome.DUPLICATE:
            return f"same machine code and launch as {self.duplicate_of}"
        told, why = " ".join(self.evaluation.reason.split()), str(evidence.get("reason") or "")
        beyond = self.evaluation.outcome in (Outcome.INFEASIBLE, Outcome.OVER_RESOURCES)
        return f"{told} ({why})" if beyond and why not in told else told

    @property
    def share(self) -> float | None:
        """Blocks that ran at the problem ÷ all of its blocks, on a simulated device; None on a GPU, which runs all."""
        return self.evaluation.own_problem_share if self.right else None

    @property
    def covered(self) -> bool | None:
        """Whether every element of the outputs is known to be written at the problem; None where `share` is."""
        return None if self.share is None else all(one["covered"] for one in self._own.values())

    @property
    def _own(self) -> dict[str, Any]:
        return dict(self.evaluation.evidence.get("own_problem") or {})

    @property
    def doubt(self) -> str:
        """What is not known of a right source, in a sentence; empty where it ran whole."""
        if self.share is None or (self.share == 1 and self.covered):
            return ""
        scaled = ", ".join(words_of(self.fields, problem) for problem in self.evaluation.scaled_problems)
        told = f"{100 * self.share:.2g} % of its blocks ran" + (f", and all of them at {scaled}" if scaled else "")
        return told if self.covered else f"{told}; whether every output is written is not known"

    @property
    def time_us(self) -> float | None:
        """Median time of a call in µs; None of what is not right."""
        return self.evaluation.time_us if self.right else None

    @property
    def ci95_us(self) -> tuple[float, float] | None:
        """95 % interval of the median in µs; None where nothing was measured: a predicted time has no noise."""
        if not self.right or self.predicted or not self.evaluation.timings:
            return None
        return self.evaluation.timings[0].ci95_us

    @property
    def speedup(self) -> float | None:
        """Time of the fastest baseline over its own; None where there is none."""
        return self.baseline[1] / self.time_us if self.baseline and self.time_us else None

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values."""
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
            "evidence": {name: evidence[name] for name in _KEPT if name in evidence},
            "log": str(evidence.get("log", "")),
            "compile_s": self.evaluation.compile_s,
            "device_s": self.evaluation.device_s,
        }
