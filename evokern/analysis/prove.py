"""Exact proof of a candidate at small problems, and at problems at which its loops repeat."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from typing import Any

from evokern.analysis.candidates import TrialUnderTest, chip_of, trial_under_test
from evokern.analysis.check.folder import known_problems
from evokern.analysis.sanitize.candidate import chip_for_architecture, few_rounds_remarks
from evokern.analysis.sanitize.repeats import RepeatSearch, of_several_blocks, small_or_given
from evokern.declaration.feasibility import check
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem
from evokern.declaration.small_problems import edge_problems, gate_problems, is_fixed, runnable_small_problems
from evokern.device.sim.algebra import DIFFERENT, EQUAL, NOT_FINISHED, SAME, ExactProof, Prover, algebra_facts
from evokern.device.sim.full_size_check import OwnProblemCheck
from evokern.device.sim.full_size_runs import OwnProblemRuns
from evokern.errors import KernelError, StudyError, UsageError
from evokern.files import is_file
from evokern.gate import RunFailed
from evokern.gate.comparison import tolerances
from evokern.hardware.profiles import Profile, limits_for
from evokern.simt import NO_PATHS, ROUNDS, Paths, few_rounds
from evokern.store import ALGEBRA, add_proof, algebra_text, open_readonly
from evokern.study.discovery import find_kernel, study_files
from evokern.study.settings import SimulationSettings
from evokern.wording import changed_genes_text, command

FEWER_SHARE = 0.2
"""Share of the time for runs with fewer blocks."""
OWN_SHARE = 0.5
"""Share of the time that is left which a comparison at the study's problem is expected to take."""


@dataclass(frozen=True)
class ProofRequest:
    """Candidate to prove, as the user requested it."""

    name: str | None
    """Name of a stored study, or name or folder of a kernel; None selects the study searched last."""
    db: Path
    """Database of the study."""
    trial: int | None = None
    """Number of a trial; None selects the champion."""
    changes: Mapping[str, str] | None = None
    """Gene values that replace those of the default candidate; they make the name that of a kernel."""
    problem: str | None = None
    """Problem to run; None for the small problems."""
    arch: str | None = None
    """Target architecture of a kernel; a study has a chip."""
    trust: bool = False
    """Whether to trust the kernel's code, which may be the copy in the database."""


@dataclass(frozen=True)
class ProofSubject:
    """A candidate to prove."""

    title: str
    """Description of the candidate."""
    kernel: Kernel
    """The kernel."""
    config: Config
    """The candidate."""
    problems: tuple[Problem, ...]
    """Problems to run."""
    chip: Profile
    """Chip with the resource limits."""
    own: Problem | None = None
    """Problem of the study, or of the kernel's first study."""
    stored: TrialUnderTest | None = None
    """The trial, if the candidate is one."""
    remarks: tuple[str, ...] = ()
    """Genes without an effect."""


@contextmanager
def proof_subject(request: ProofRequest) -> Iterator[ProofSubject]:
    """Return the requested candidate; the kernel folder may be a copy that exists only within the context.

    Raises:
        UsageError: the study, kernel, trial, gene or problem does not exist.
    """
    if request.trial is not None and request.changes:
        raise UsageError("--trial and --set both choose a candidate; omit one of the two options")
    if not _is_stored(request):
        yield _declared(request)
        return
    if request.arch is not None:
        raise UsageError(f"--arch {request.arch} applies only to a kernel; a study has a chip, so omit --arch")
    with (
        open_readonly(request.db) as reader,
        trial_under_test(reader, request.name, request.trial, elites=1, trust=request.trust) as found,
    ):
        chip = limits_for(chip_of(found.record.device, reader.sessions(found.record)), found.study.limits)
        kernel, config = found.kernel, kernel_config(found)
        if request.problem is None:
            problems = gate_problems(kernel, config, found.problems, chip) or (
                found.problems if is_fixed(kernel) else ()
            )
        else:
            problems = (kernel.problem(request.problem),)
        if not problems:
            raise UsageError(
                f"trial {found.trial.number} of {found.record.name} cannot run any small problem of {kernel.name}; set "
                "one with --problem"
            )
        title = f"trial {found.trial.number} of {found.record.name}{' (the champion)' * (request.trial is None)}"
        yield ProofSubject(title, kernel, config, problems, chip, found.problems[0], found)


def kernel_config(found: TrialUnderTest) -> Config:
    """Return the candidate of a trial, as its kernel declares it."""
    return found.kernel.space.canonical(found.trial.config)


def _is_stored(request: ProofRequest) -> bool:
    """Return whether the name is that of a stored study, not that of a kernel."""
    if request.name is None or request.trial is not None:
        return True
    if request.changes:
        return False
    if is_file(request.db):
        with open_readonly(request.db) as reader:
            if any(record.name == request.name for record in reader.studies()):
                return True
    if request.name in study_files():
        raise StudyError(
            f"study {request.name} is not in {request.db}; start it with `{command('search', request.name)}`, or name "
            "its kernel"
        )
    return False


def _declared(request: ProofRequest) -> ProofSubject:
    assert request.name is not None  # `_is_stored` treats a missing name as a study
    chip = chip_for_architecture(request.arch or "sm_89")
    try:
        kernel = find_kernel(request.name, trust=request.trust)
    except KernelError as error:
        if str(error).startswith(f"there is no kernel {request.name!r}"):
            raise UsageError(f"{request.db} has no study {request.name!r}, and {error}") from error
        raise
    config = kernel.space.with_changes(kernel.space.default(), request.changes or {})
    remarks = tuple(kernel.space.without_effect(config, request.changes or {}))
    problems = small_or_given(kernel, config, request.problem, chip)
    own = next(iter(known_problems(kernel)), None)
    title = changed_genes_text(config, kernel.genes)
    return ProofSubject(title, kernel, config, problems, chip, own, remarks=remarks)


def store_proof(reader_path: Path, subject: ProofSubject, report: ProofReport) -> None:
    """Store the result for a trial, so that `show` and the report state it."""
    if subject.stored is None:
        return
    facts = algebra_facts(report.proofs)
    detail = algebra_text(facts, subject.stored.record.in_words)
    record, number = subject.stored.record, subject.stored.trial.number
    add_proof(reader_path, record, ALGEBRA, number, {"detail": detail, **facts})


@dataclass(frozen=True)
class ProofReport:
    """Comparisons of a candidate with the default candidate at several problems."""

    name: str
    """Name of the kernel."""
    proofs: tuple[ExactProof, ...]
    """Comparisons, one for each problem."""
    remarks: tuple[str, ...]
    """Loops that repeat only with fewer blocks, or not at all, so that the runs say little about them."""
    given: int
    """Number of the first comparisons, those at the given problems."""

    @property
    def proved(self) -> bool:
        """Whether every output is the same, and none of the default candidate's differs from the reference.

        Comparisons at further problems need not be finished.
        """
        further = (SAME, EQUAL, NOT_FINISHED)
        return all(
            one.verdict in (further if number >= self.given else (SAME, EQUAL))
            and (one.verdict == EQUAL or not one.reference.startswith(DIFFERENT))
            for number, proof in enumerate(self.proofs)
            for one in proof.verdicts
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        proofs = [{"title": f"{self.name} at {one.problem}", **one.as_dict()} for one in self.proofs]
        return {"proved": self.proved, "proofs": proofs, "remarks": list(self.remarks)}


def prove_candidate(
    subject: ProofSubject, seconds: float, *, alone: bool = False, note: Callable[[str], None] = lambda text: None
) -> ProofReport:
    """Compare a candidate with the default candidate.

    Args:
        subject: the candidate.
        seconds: time limit.
        alone: whether to run only the given problems, and no others at which loops repeat or that are larger.
        note: receives progress.

    Raises:
        UsageError: the candidate cannot run at one of the problems.
    """
    kernel, config, problems, chip = subject.kernel, subject.config, subject.problems, subject.chip
    for problem in problems:
        if violation := check(kernel, config, [problem], chip, essential=True):
            other_chip = violation.constraint == "compute_capability"
            remedy = "choose an architecture with --arch" if other_chip else "choose another problem with --problem"
            raise UsageError(
                f"this candidate of {kernel.name} cannot run at {problem} on {chip.model}: {violation}; {remedy}, or "
                "other values with --set"
            )
    prover, end, remarks = Prover(kernel, chip, note), time.monotonic() + seconds, list[str]()
    fewer: list[tuple[str, Paths]] = []
    proofs = prover.prove(config, problems, seconds)
    given = len(proofs)
    if not alone:
        others = further_problems(subject)
        proofs += within(prover, subject, others, proofs, OWN_SHARE * (end - time.monotonic()))
        runs = OwnProblemRuns(kernel, chip, SimulationSettings(), tolerances(kernel, None, None), 0)
        fewer = in_fewer_blocks(prover, subject, proofs, time.monotonic() + FEWER_SHARE * seconds)
        grown: list[Problem] = []
        remarks += (where for where, _ in fewer)
        paths = NO_PATHS.merged(*(one.paths for one in proofs), *(taken for _, taken in fewer))
        if few_rounds(paths):
            note(f"{kernel.name}: looking for a problem at which every loop repeats")
            try:
                bases = [one.problem for one in proofs]
                grown = RepeatSearch(kernel, config, runs, compare=False).run(bases, (), paths).grown
            except RunFailed as failed:
                remarks.append(f"the sanitizer found a defect at another problem: {failed.message or failed}")
        more = [one for one in dict.fromkeys(grown) if one not in (*problems, *others)]
        proofs += prover.prove(config, more, end - time.monotonic()) if more else []
        left_s = end - time.monotonic()
        proofs += at_own_problem(prover, subject, runs, [one.problem for one in proofs], left_s)
    paths = NO_PATHS.merged(*(one.paths for one in proofs), *(taken for _, taken in fewer))
    remarks += few_rounds_remarks(paths, kernel.source)
    return ProofReport(kernel.name, tuple(proofs), tuple(remarks), given)


def in_fewer_blocks(
    prover: Prover, subject: ProofSubject, proofs: Sequence[ExactProof], end: float
) -> list[tuple[str, Paths]]:
    """Repeat loops over blocks with fewer blocks; return each such loop and run in words, with the paths of the run."""
    found: list[tuple[str, Paths]] = []
    paths = NO_PATHS.merged(*(one.paths for one in proofs))
    several = [*of_several_blocks(subject.kernel, subject.config, [one.problem for one in proofs], subject.chip)]
    for loop, problem in product(few_rounds(paths), several):
        if paths.loops[loop.place].rounds < ROUNDS and time.monotonic() < end:
            where, taken = prover.with_fewer_blocks(subject.config, problem, loop, end)
            if where:
                name = loop.file or subject.kernel.source
                found.append((f"the loop on line {loop.line} of {name} repeats at {where}, which is the same", taken))
                paths = paths.merged(taken)
    return found


def further_problems(subject: ProofSubject) -> list[Problem]:
    """Return the other declared small problems, and those at the edges of the candidate's tiles."""
    like = subject.own or subject.problems[0]
    small = runnable_small_problems(subject.kernel, subject.config, like, subject.chip)
    edges = edge_problems(subject.kernel, subject.config, subject.problems[0], subject.chip)
    return [one for one in dict.fromkeys(chain(small, edges)) if one not in subject.problems]


def within(
    prover: Prover, subject: ProofSubject, problems: Iterable[Problem], known: Sequence[ExactProof], seconds: float
) -> list[ExactProof]:
    """Compare a candidate at those problems which a comparison is expected to finish in time, smallest first.

    Args:
        prover: the prover.
        subject: the candidate.
        problems: the problems.
        known: comparisons that are there, from which the time is estimated.
        seconds: time for all of them.
    """
    found, end = list[ExactProof](), time.monotonic() + seconds
    flops = subject.kernel.workload.flops
    for problem in sorted(problems, key=flops):
        like = max((one.problem for one in (*known, *found)), key=flops)
        left_s = end - time.monotonic()
        if prover.largest([problem], like, left_s) is not None:
            found += prover.prove(subject.config, [problem], left_s)
    return found


def at_own_problem(
    prover: Prover, subject: ProofSubject, runs: OwnProblemRuns, known: Sequence[Problem], seconds: float
) -> list[ExactProof]:
    """Compare a candidate at the study's problem, scaled down until that is expected to take half of the time.

    Args:
        prover: the prover, which compared the candidate at the largest known problem.
        subject: the candidate; `own` is the study's problem.
        runs: runs of the candidate.
        known: problems at which it was compared.
        seconds: time limit.
    """
    if subject.own is None or not known:
        return []
    smaller = chain([subject.own], OwnProblemCheck(runs).smaller(subject.config, subject.own))
    flops = subject.kernel.workload.flops
    like = max(known, key=flops)
    chosen = prover.largest(smaller, like, OWN_SHARE * seconds)
    if chosen is None or flops(chosen) <= flops(like):
        return []
    return prover.prove(subject.config, [chosen], seconds)
