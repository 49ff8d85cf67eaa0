"""Export of a trial from a database: choice of the candidate, kernel code and provenance."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from evokern.analysis.candidates import chip_of, chosen_trial, declared_config
from evokern.errors import RefutedError, StudyError
from evokern.export.banner import Provenance
from evokern.export.checked import ExportChecks, Report, checked_program
from evokern.export.golden import Golden, golden_of, has_cpp_reference
from evokern.export.standalone import standalone_program
from evokern.search.stored_kernel import stored_kernel
from evokern.store import Reader, SessionRecord, StudyRecord, TrialRecord, Verification, db_option, interval_us
from evokern.study.trial import Evaluation, Outcome
from evokern.version import __version__
from evokern.wording import command, count_noun, mean_suffix, missing_baseline_text, verification_text


@dataclass(frozen=True)
class Exported:
    """An exported program with its facts."""

    text: str
    """Text of the `.cu` file."""
    trial: int
    """Number of the exported trial."""
    time_us: float
    """Time per call in µs on the problem that the program is compiled for; see `is_mean`."""
    is_mean: bool
    """Whether `time_us` is the geometric mean over the study's problems, because single times are not stored."""
    problem: str
    """The problem that the program is compiled for, in readable form."""
    problems: int
    """Number of problems in the study."""
    predicted: bool
    """Whether the time is predicted."""
    proof: Verification
    """Verification of the trial."""
    checks: ExportChecks
    """Checks that the program passed before it was handed over."""
    golden: Golden | None = None
    """File that the program needs next to it for its check."""
    unchecked: str = ""
    """Reason why the program has no check; empty if it has one."""


def export_trial(
    reader: Reader,
    study: str | None,
    trial: int | None,
    *,
    problem: int = 0,
    file_name: str = "best.cu",
    trust: bool = False,
    force: bool = False,
    alone: bool = False,
    report: Report = lambda text: None,
) -> Exported:
    """Export a trial of a study as a standalone program, after compiling it.

    Args:
        reader: the open database.
        study: name of the study; None for the latest study.
        trial: number of the trial; None for the champion.
        problem: index of the study's problem that the program is compiled for.
        file_name: name of the file, for the build line.
        force: whether to export a trial that is refuted or whose program fails its check on a GPU.
        alone: whether only the program can be written, without a golden file next to it.
        trust: whether to load the kernel's declaration from the database if the folder is missing or changed.
        report: prints a line before a step that may take several seconds.

    Raises:
        InternalError: the program does not compile, which is a bug in evokern.
        StudyError: the study, trial or problem does not exist, the trial was not measured, or its program fails.
        RefutedError: trials failed verification, and the best of the others is not verified.
        KernelError: the kernel's code differs from the trial's code, and is not trusted.
    """
    from evokern.gate.comparison import tolerances  # needs torch, which reading of results does not

    record, found, proof = exportable_trial(reader, study, trial, problem=problem, force=force)
    evaluation = found.trial.evaluation
    with tempfile.TemporaryDirectory(prefix="evokern-export-") as scratch:
        kernel = stored_kernel(reader, record, found.kernel_digest, Path(scratch), trust=trust)
        sessions = reader.sessions(record)
        timing, gate = record.settings.get("timing", {}), record.settings.get("gate", {})
        config, at = declared_config(kernel, record, found.trial), kernel.problem(record.problems[problem])
        limits = tolerances(kernel, gate.get("atol"), gate.get("rtol"))
        golden: Golden | None = None
        unchecked = ""
        if alone and not has_cpp_reference(kernel):
            unchecked = "the program was written without its golden file; export it to a file with -o"
        elif not has_cpp_reference(kernel):
            report("computing golden outputs")
            golden, unchecked = golden_of(kernel, config, at, limits, file_name)
        make = partial(
            standalone_program,
            kernel,
            config,
            at,
            chip_of(record.device, sessions),
            Provenance(_facts(reader, record, found, sessions, problem), record.predicted),
            tolerance=limits,
            sets=int(timing.get("rotate_sets", 4)),
            sample_us=float(timing.get("sample_us", 500)),
            file_name=file_name,
            golden=golden,
            unchecked=unchecked,
        )
        name = f"trial {found.trial.number} of {record.name}"
        text, checks = checked_program(lambda code: make(code=code), name, report, force=force)
    time_us, _ = _time_at(record, evaluation, problem)
    return Exported(
        text=text,
        trial=found.trial.number,
        time_us=time_us,
        is_mean=_means(record, evaluation),
        problem=record.in_words(record.problems[problem]),
        problems=len(record.problems),
        predicted=record.predicted,
        proof=proof,
        checks=checks + ExportChecks(omitted=(f"the program has no check: {unchecked}",) if unchecked else ()),
        golden=golden,
        unchecked=unchecked,
    )


def exportable_trial(
    reader: Reader, study: str | None, trial: int | None, *, problem: int = 0, force: bool = False
) -> tuple[StudyRecord, TrialRecord, Verification]:
    """Return a trial that may be exported, with its study and verification; the arguments are those of `export_trial`.

    Raises:
        StudyError: the study, trial or problem does not exist, or the trial was not measured or is refuted.
        RefutedError: trials failed verification, and the best of the others is not verified.
    """
    record = reader.study(study)
    if record.device.startswith("replay:"):
        raise StudyError(
            f"study {record.name} was replayed from a recording, which has no source; choose a study with a kernel"
        )
    found = chosen_trial(reader, record, trial)
    evaluation = found.trial.evaluation
    if evaluation.outcome is Outcome.SLOW and not evaluation.passed_gate:
        raise StudyError(
            f"trial {found.trial.number} of {record.name} has the outcome slow ({evaluation.reason}); verify it "
            f"(`{command('verify', record.name, '--trial', found.trial.number, '--db', reader.path)}`), or choose a "
            "measured trial"
        )
    if evaluation.time_us is None or not evaluation.passed_gate:
        raise StudyError(
            f"trial {found.trial.number} of {record.name} has the outcome {evaluation.outcome.value} "
            f"({evaluation.reason}); "
            "only candidates that passed the gate can be exported; choose another trial with --trial"
        )
    proof = reader.verification(record, found.trial)
    refuted = sorted(reader.refuted(record)) if trial is None and proof.verified is not True else []
    if refuted and not force:
        number, where = found.trial.number, db_option(reader.path)
        raise RefutedError(
            f"{count_noun(len(refuted), 'trial')} of {record.name} ({', '.join(map(str, refuted[:5]))}"
            f"{', …' if len(refuted) > 5 else ''}) failed verification, and the next best, trial {number}, is not "
            f"verified; run `{command('verify', record.name, '--trial', number, *where)}`, or choose it without "
            f"verification with `--trial {number}`"
        )
    if proof.verified is False and not force:
        raise StudyError(
            f"trial {found.trial.number} of {record.name} is refuted ({proof.reason}); use --force to export it anyway"
        )
    if not 0 <= problem < len(record.problems):
        known = ", ".join(f"{index} is {record.in_words(one)}" for index, one in enumerate(record.problems))
        raise StudyError(f"study {record.name} has no problem {problem}; choose from: {known}")
    return record, found, proof


def _means(record: StudyRecord, evaluation: Evaluation) -> bool:
    """Return whether only the geometric mean over several problems is stored for a trial."""
    return len(record.problems) > 1 and len(evaluation.timings) != len(record.problems)


def _time_at(record: StudyRecord, evaluation: Evaluation, problem: int) -> tuple[float, tuple[float, float] | None]:
    """Return a trial's time on a problem and its 95 % interval, in µs, or their means over all problems."""
    if len(record.problems) == 1 or _means(record, evaluation):
        assert evaluation.time_us is not None  # `export_trial` rejects trials without a time
        return evaluation.time_us, interval_us(evaluation)
    timing = evaluation.timings[problem]
    return timing.median_us, timing.ci95_us


def _baseline_at(
    record: StudyRecord, baseline: tuple[str, float], sessions: list[SessionRecord], problem: int
) -> float | None:
    """Return the time of the study's fastest baseline on a problem in µs, or None if it is not stored."""
    if len(record.problems) == 1:
        return baseline[1]
    for session in reversed(sessions):
        for one in session.baselines:
            if one.name == baseline[0] and not one.error and len(one.timings) == len(record.problems):
                return one.timings[problem].median_us
    return None


def _facts(
    reader: Reader, record: StudyRecord, found: TrialRecord, sessions: list[SessionRecord], problem: int
) -> dict[str, str]:
    evaluation = found.trial.evaluation
    time_us, interval = _time_at(record, evaluation, problem)
    means = _means(record, evaluation)
    unit = "µs predicted" if record.predicted else "µs"
    time = f"{time_us:.3f} {unit}"
    if interval and not record.predicted:
        time += f", 95 % interval {interval[0]:.3f} to {interval[1]:.3f}"
    over = mean_suffix(len(record.problems))
    if means:
        time += over
    baseline = reader.baseline(record)
    against = missing_baseline_text(reader.rejected_baselines(record))
    if baseline:
        at = None if means else _baseline_at(record, baseline, sessions, problem)
        against = f"{baseline[0]}, {baseline[1]:.3f} {unit}{over}" if at is None else f"{baseline[0]}, {at:.3f} {unit}"
        if means or at is not None:  # both times are means, or both are for the problem
            against += f": {(baseline[1] if at is None else at) / time_us:.2f}× as fast"
    environment = sessions[-1].environment if sessions else {}
    facts = {"study": f"{record.name}, started {record.created}", "trial": str(found.trial.number)}
    facts |= {"device": record.device + (", simulated" if record.predicted else "")}
    if "driver_cuda" in environment:
        facts["driver"] = f"{environment.get('driver') or 'of unknown version'}, for CUDA {environment['driver_cuda']}"
    facts |= {"compiler": str(environment["compiler"])} if "compiler" in environment else {}
    proof = reader.verification(record, found.trial)
    facts |= {"proof": verification_text(proof.as_dict()), "exact arithmetic": proof.algebra}
    facts |= {"time": time, "baseline": against, "kernel": f"{record.kernel}, code {found.kernel_digest[:12]}"}
    return facts | {"evokern": record.evokern_version or __version__}
