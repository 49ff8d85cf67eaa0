"""Exact proof of a candidate at small problems, and at problems at which its loops repeat."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from evokern.analysis.sanitize.candidate import few_rounds_remarks
from evokern.analysis.sanitize.repeats import RepeatSearch
from evokern.declaration.feasibility import check
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem
from evokern.device.sim.algebra import EQUAL, SAME, ExactProof, Prover
from evokern.device.sim.full_size_runs import OwnProblemRuns
from evokern.errors import UsageError
from evokern.gate import RunFailed
from evokern.gate.comparison import tolerances
from evokern.hardware.profiles import Profile
from evokern.simt import NO_PATHS
from evokern.study.settings import SimulationSettings


@dataclass(frozen=True)
class ProofReport:
    """Comparisons of a candidate with the default candidate at several problems."""

    name: str
    """Name of the kernel."""
    proofs: tuple[ExactProof, ...]
    """Comparisons, one for each problem."""
    remarks: tuple[str, ...]
    """Loops that did not repeat, so that the runs say little about them."""

    @property
    def proved(self) -> bool:
        """Whether every output is the same everywhere."""
        return all(one.verdict in (SAME, EQUAL) for proof in self.proofs for one in proof.verdicts)

    def as_dict(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        proofs = [{"title": f"{self.name} at {one.problem}", **one.as_dict()} for one in self.proofs]
        return {"proved": self.proved, "proofs": proofs, "remarks": list(self.remarks)}


def prove_candidate(
    kernel: Kernel,
    config: Config,
    problems: Sequence[Problem],
    chip: Profile,
    seconds: float,
    *,
    grow: bool = True,
    note: Callable[[str], None] = lambda text: None,
) -> ProofReport:
    """Compare a candidate with the default candidate.

    Args:
        kernel: the kernel.
        config: the candidate.
        problems: small problems.
        chip: chip with the resource limits.
        seconds: time limit.
        grow: whether to add problems at which loops repeat that do not repeat at the small problems.
        note: receives progress.

    Raises:
        UsageError: the candidate cannot run at one of the problems.
    """
    for problem in problems:
        if violation := check(kernel, config, [problem], chip, essential=True):
            raise UsageError(
                f"this candidate of {kernel.name} cannot run at {problem} on {chip.model}: {violation}; choose another "
                "problem with --problem"
            )
    prover, end, remarks = Prover(kernel, chip, note), time.monotonic() + seconds, []
    proofs = [prover.at(config, problem, end) for problem in problems]
    paths = NO_PATHS.merged(*(one.paths for one in proofs))
    if grow and few_rounds_remarks(paths, kernel.source):
        note(f"{kernel.name}: looking for a problem at which every loop repeats")
        runs = OwnProblemRuns(kernel, chip, SimulationSettings(), tolerances(kernel, None, None), 0)
        try:
            found = RepeatSearch(kernel, config, runs, compare=False).run(problems, (), paths)
            proofs += [prover.at(config, problem, end) for problem in dict.fromkeys(found.grown)]
        except RunFailed as failed:
            remarks.append(f"the sanitizer found a defect at another problem: {failed.message or failed}")
    paths = NO_PATHS.merged(*(one.paths for one in proofs))
    return ProofReport(kernel.name, tuple(proofs), (*remarks, *few_rounds_remarks(paths, kernel.source)))
