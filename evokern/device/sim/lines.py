"""Source lines of failures: a failed candidate is compiled with line information and run again.

Candidates are compiled without line information, because duplicates are recognised by equal machine code. A failed
candidate is run again with line information, but only once per pattern. A pattern is the kind of failure with the
values of the outer genes, which select the code. Candidates with the same pattern share the line found first, and their
evidence says so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from evokern.compile.build import compile_to_ptx
from evokern.compile.records import Built, CompileFailure, Program
from evokern.declaration.foreign import ForeignCandidate
from evokern.declaration.genes import Config, Value
from evokern.declaration.kernel import Kernel, Problem
from evokern.declaration.render import render
from evokern.device.sim.failure import described, is_too_large
from evokern.errors import SourceError, UsageError
from evokern.gate import RunFailed
from evokern.hardware.profiles import Profile

SAME_PATTERN = (
    "line of the first candidate with the same outer genes and the same failure; this candidate was not rerun"
)
"""Value of `line_from` in the evidence of a candidate whose line was found for another candidate."""

Result = TypeVar("Result")
_Place = Mapping[str, Any]
_PLACE = ("line", "source", "file", "called_from")
_Outer = tuple[tuple[str, Value | None], ...]
_Pattern = tuple[str, _Outer]


class FailureLines:
    """Finder for source lines of failures, for one kernel and chip."""

    def __init__(self, kernel: Kernel, chip: Profile) -> None:
        self._kernel, self._chip = kernel, chip
        self._known: dict[_Pattern, _Place] = {}
        self._refusals: dict[_Pattern, str] = {}

    def run(self, config: Config, built: Built, problem: Problem, work: Callable[[Built], Result]) -> Result:
        """Run a candidate; if it fails without a source line, add the line.

        Args:
            config: configuration of the candidate.
            built: programs of the candidate.
            problem: problem of the run.
            work: function that runs the given programs.

        Raises:
            RunFailed: the candidate failed; the evidence names the line if it is known.
            SourceError: the candidate uses an unsupported feature; the message names the line.
        """
        try:
            return work(built)
        except RunFailed as failed:
            finding = failed.evidence.get("finding")
            if finding is None or finding["line"] or is_too_large(failed):
                raise
            pattern = finding["kind"], self._outer(config)
            if pattern not in self._known:
                relined = self._with_line_info(config, built, problem, work)
                same = relined is not None and relined.evidence["finding"]["kind"] == finding["kind"]
                found = relined.evidence["finding"] if relined is not None and same else {}
                self._known[pattern] = {key: found[key] for key in _PLACE if key in found}
                raise relined if relined is not None and found else failed from None
            place = self._known[pattern]
            if not place.get("line"):
                raise
            named = {**failed.evidence, "finding": {**finding, **place}, "line_from": SAME_PATTERN}
            raise RunFailed(failed.outcome, described(named)) from None
        except SourceError as refused:
            raise SourceError(self._refused_at(str(refused), config, built, problem, work)) from None

    def _refused_at(
        self, message: str, config: Config, built: Built, problem: Problem, work: Callable[[Built], object]
    ) -> str:
        """Return the reason why the machine rejects a candidate, with the source line instead of the PTX line."""
        where, _, reason = message.partition(": ")
        if not where.startswith("PTX line"):
            return message
        pattern = reason, self._outer(config)
        if pattern not in self._refusals:
            self._refusals[pattern] = message
            program = compile_to_ptx(render(self._kernel, config, problem), self._chip)
            if isinstance(program, Program):
                with contextlib.suppress(RunFailed, UsageError):
                    try:
                        work(built.with_ptx(problem, program))
                    except SourceError as refused:
                        self._refusals[pattern] = str(refused)
        return self._refusals[pattern]

    def _outer(self, config: Config) -> _Outer:
        """Return the values that select the code: outer genes, and the digest of an external source."""
        source = (("foreign source", config.source.digest),) if isinstance(config, ForeignCandidate) else ()
        return (*source, *((g.name, config.get(g.name)) for g in self._kernel.genes if g.layer == "mutation"))

    def _with_line_info(
        self, config: Config, built: Built, problem: Problem, work: Callable[[Built], object]
    ) -> RunFailed | None:
        """Run a candidate with line information; return its failure, or None if it succeeds or does not compile."""
        program = compile_to_ptx(render(self._kernel, config, problem), self._chip)
        if isinstance(program, CompileFailure):
            return None
        try:
            work(built.with_ptx(problem, program))
        except RunFailed as failed:
            return failed if failed.evidence.get("finding") else None
        except UsageError:  # an instruction that only a compile for the chip itself lacks
            return None
        return None
