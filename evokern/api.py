"""Python interface: `evokern.tune(...)`, `evokern.search(...)`, `evokern.resume(...)` and `evokern.evaluate(...)`.

This module connects layers that must not import each other: it passes the diagnosis and verification workers to a
search.
"""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, overload

from evokern.analysis.evaluate import Evaluator, OnResult, Source, SourceResult
from evokern.declaration.foreign import Extent, ForeignSource
from evokern.declaration.genes import Value
from evokern.declaration.kernel import Kernel
from evokern.device import Device
from evokern.errors import StudyError
from evokern.results import SearchResult, StudyResults, given_path, load_study, stored_name
from evokern.search import (
    OnProgress,
    Progress,
    SessionPart,
    SessionRequest,
    SessionResult,
    WorkerFactories,
    resume_study,
    search_study,
)
from evokern.search.request import ResumeRequest
from evokern.study.options import called_with, checked_function, option, python_words, required
from evokern.study.settings import Study
from evokern.study.trial import Trial
from evokern.tuning.options import KernelTunerArguments, TuneOptions

FACTORIES = WorkerFactories(
    diagnoser="evokern.analysis.sanitize.diagnose:DiagnosisWorker",
    verifier="evokern.analysis.verify.stages:ChampionWorker",
)
"""Workers that diagnose crashes and hangs and that verify champions; only worker processes import them."""


TrialCallback = Callable[[StudyResults, Trial], object]
"""Function that a search calls with the study and each trial, after the trial is recorded."""

_DB = "Database that stores the results."
_PROGRESS = (
    "Function that is called with a `Progress` at every event, in the thread that searches. In a notebook, a panel "
    "below the cell also shows the progress."
)
_CALLBACKS = (
    "Functions that are called with the study and the trial after each recorded trial. An exception of a function "
    "ends the search; all results are saved."
)


@dataclass(frozen=True)
class _SearchCall(SessionRequest):
    study: str | Path | Study = required("Name of a study, path to its TOML file, or an `evokern.Study`.")
    _: KW_ONLY
    db: str | Path = option(_DB, "evokern.db")
    callbacks: Sequence[TrialCallback] = option(_CALLBACKS, ())
    on_progress: OnProgress | None = option(_PROGRESS)


@dataclass(frozen=True)
class _ResumeCall(ResumeRequest):
    study: str | None = option("Name of the study. Default: the study searched last.")
    _: KW_ONLY
    db: str | Path = option(_DB, "evokern.db")
    callbacks: Sequence[TrialCallback] = option(_CALLBACKS, ())
    on_progress: OnProgress | None = option(_PROGRESS)


@dataclass(frozen=True, kw_only=True)
class _TuneCall(TuneOptions):
    budget: str | float | None = option("Total time over all calls, such as 10m. A number means seconds.")
    trials: int | None = option("Total number of evaluated trials over all calls.")
    seed: int | None = option("Random seed of the sampler.")
    fresh: bool = option("Start over; the old study is kept as NAME.1, or with the next free number.", False)
    verify: bool = option("Verify the champion at the end, within the budget. Default: True.", True)
    db: str | Path = option(_DB, "evokern.db")
    callbacks: Sequence[TrialCallback] = option(_CALLBACKS, ())
    on_progress: OnProgress | None = option(_PROGRESS)


@called_with(_TuneCall)
def tune(call: _TuneCall) -> SearchResult:
    """Search for the fastest correct variant of a kernel: from its source, example arguments and a reference.

    The same call resumes the study. `evokern show`, `report` and `export` need only the database. `evokern resume` and
    `verify` also need `--reference module:function`. A call with another source, reference or argument list is refused
    unless `fresh` is set.

    Returns:
        The result, as for `search`. If no candidate is right, a `UserWarning` gives the reasons.

    Raises:
        UsageError: an argument cannot be used, or the study was started with others; the message gives the remedy.
        KeyboardInterrupt: Ctrl-C or SIGTERM stopped the search; all results are recorded, and the same call continues.
    """
    from evokern.tuning.reference import end_import

    end_import()
    return _tuned(call, None)


@called_with(KernelTunerArguments)
def tune_kernel(call: KernelTunerArguments) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Search with the arguments of Kernel Tuner's `tune_kernel`; an unsupported one is refused.

    Inputs are those of `arguments`, and outputs are compared with `answer`, or computed by `reference`. If both are
    missing, candidates are compared with the default candidate, and a `UserWarning` says so.

    Returns:
        The results, one dictionary for each trial, with `time` in ms or the name of an error; and an environment with
        `device_name`, `best_config` and `study`, the result of `evokern.tune`.

    Raises:
        UsageError: an argument is not supported or cannot be used.
    """
    from evokern.tuning.kernel_tuner import results_of, translated
    from evokern.tuning.reference import end_import

    end_import()
    made = translated(call)
    if made.note:
        warnings.warn(made.note, UserWarning, stacklevel=3)
    limits = call.strategy_options or {}
    own = _TuneCall(
        **made.options, name=call.name, db=call.db, seed=call.seed, fresh=call.fresh, device=call.device_name,
        trials=limits.get("max_fevals", call.trials), budget=limits.get("time_limit", call.budget),
    )  # fmt: skip
    result = _tuned(own, made.sampler, call.iterations)
    results = results_of(result.trials, call.metrics)
    measured = [one for one in results if "__error__" not in one]
    best = min(measured, key=lambda one: float(one["time"]), default=None)
    if call.verbose and not call.quiet:
        for one in results:
            print(", ".join(f"{name}={value}" for name, value in one.items() if name != "times"))
    return results, {"device_name": result.summary["device"], "best_config": best, "study": result}


def _tuned(call: _TuneCall, sampler: str | None, iterations: int | None = None) -> SearchResult:
    """Search the kernel that a call declares."""
    db = given_path("db", call.db)
    watch = _watchers(call, db, terminal=True)
    request = SessionRequest(
        budget=call.budget, trials=call.trials, seed=call.seed, fresh=call.fresh, verify=call.verify
    )
    # Imported late: reading the source and tracing need much of the package.
    from evokern.tuning.call import tuned_kernel

    tuned = tuned_kernel(call, None if call.fresh else _stored_texts(db, call.study))
    for note in tuned.notes:
        warnings.warn(note, UserWarning, stacklevel=4)
    study = Study(name=call.study, kernel=tuned.kernel.name, problems=({},), device=tuned.device or "auto")
    if sampler is not None:
        study = replace(study, sampler=replace(study.sampler, name=sampler))
    if iterations is not None:
        study = replace(study, timing=replace(study.timing, min_samples=iterations))
    advice = "pass fresh=True (keeps the old study under another name), or name= for a new study"
    request = replace(request, kernel=tuned.kernel, device=tuned.device)
    part = SessionPart(fresh_advice=advice, notes=(tuned.ranges,) if tuned.ranges else ())
    session = search_study(study, request, db=db, on_progress=watch, factories=FACTORIES, part=part)
    if session.interrupted:
        raise KeyboardInterrupt(f"the search of {call.study} was interrupted; the same call continues it ({db})")
    if session.best is None:
        warnings.warn(_failures(session), UserWarning, stacklevel=4)
    return _result(session)


def _failures(session: SessionResult) -> str:
    """Return why a search has no champion: the most common reasons and what the failures have in common."""
    from evokern.analysis.no_success import hints_of
    from evokern.report.trial_counts import reason_lines
    from evokern.store import open_readonly

    with open_readonly(session.db) as reader:
        record = reader.study(session.study)
        trials = list(reader.trials(record))
        advice = hints_of(record, trials)
    what = "; ".join(reason_lines(trials, most=3)) or "no trial ended; use a longer budget or more trials"
    return ". ".join(
        [f"no candidate of {session.study} is right ({what})", *(one[0].upper() + one[1:] for one in advice)]
    )


def _stored_texts(db: Path, study: str) -> Mapping[str, str] | None:
    """Return the texts of a study's kernel in the database; None if there is no such study."""
    from evokern.store import open_readonly

    if not db.exists():
        return None
    with open_readonly(db) as reader:
        record = next((one for one in reader.studies() if one.name == study), None)
        return reader.source(record.kernel_digest) if record else None


@called_with(_SearchCall)
def search(call: _SearchCall) -> SearchResult:
    """Search a study, or resume it if the database already contains it.

    For an existing study, an argument of None keeps the stored value. For a new study, it selects the value from the
    study file.

    Returns:
        The result. After Ctrl-C or SIGTERM, the search ends as if its budget were used up, and `interrupted` is set.

    Raises:
        UsageError: the study, kernel, device, database or an argument cannot be used; the message gives the remedy.
    """
    study, db = call.study, given_path("db", call.db)
    if isinstance(study, StudyResults):
        raise StudyError(f"study is a stored study; use evokern.resume({study.name!r}, db={str(study.db)!r})")
    if not isinstance(study, (str, Path, Study)):
        raise StudyError(
            f"study = {reprlib.repr(study)}; use the name of a study, the path of its TOML file, or an evokern.Study"
        )
    watch = _watchers(call, db)
    return _result(search_study(study, SessionRequest.of(call), db=db, on_progress=watch, factories=FACTORIES))


@called_with(_ResumeCall)
def resume(call: _ResumeCall) -> SearchResult:
    """Resume a study from the database alone; its TOML file is not read.

    Returns:
        The result, as for `search`.

    Raises:
        UsageError: as for `search`.
    """
    db, watch = given_path("db", call.db), _watchers(call, given_path("db", call.db))
    name, request = stored_name(call.study), SessionRequest.of(call)
    return _result(resume_study(name, request, db=db, on_progress=watch, factories=FACTORIES))


def _result(session: SessionResult) -> SearchResult:
    return SearchResult(session.db, session.record, session)


def _watchers(call: _SearchCall | _ResumeCall | _TuneCall, db: Path, *, terminal: bool = False) -> OnProgress:
    """Return a function that passes every event to the callbacks and, in a notebook, to the panel.

    Args:
        call: arguments of the call.
        db: database of the study.
        terminal: whether to show a bar in a terminal.

    Raises:
        StudyError: a callback cannot be called.
    """
    from evokern.progress import notebook_panel, terminal_bar

    if isinstance(call.callbacks, str) or not isinstance(call.callbacks, Iterable):
        raise StudyError(f"callbacks = {call.callbacks!r}; use a list of functions of (study, trial)")
    callbacks = [checked_function(f"callbacks[{n}]", one, ("study", "trial")) for n, one in enumerate(call.callbacks)]
    own = call.on_progress and checked_function("on_progress", call.on_progress, ("progress",))
    panel = notebook_panel() or (terminal_bar() if terminal else None)
    watchers = [watcher for watcher in (panel, own) if watcher is not None]
    study: list[StudyResults] = []

    def notify(progress: Progress) -> None:
        for watcher in watchers:
            watcher(progress)
        if callbacks and progress.event == "trial" and progress.last_trial is not None:
            study.extend([] if study else [load_study(progress.study, db=db)])
            for callback in callbacks:
                callback(study[0], progress.last_trial)

    return notify


@overload
def evaluate(  # type: ignore[overload-overlap]  # a str is an iterable of str too, and means one source here
    kernel: str | Path | Kernel,
    source: str | Path | ForeignSource,
    *,
    problem: str | Mapping[str, Value | bool] | None = None,
    device: str | Device = "auto",
    genes: Mapping[str, Value] | None = None,
    grid: Extent | None = None,
    block: Extent | None = None,
    shared_bytes: int | None = None,
    trust: bool = False,
    on_result: OnResult | None = None,
) -> SourceResult: ...


@overload
def evaluate(
    kernel: str | Path | Kernel,
    source: Iterable[Source],
    *,
    problem: str | Mapping[str, Value | bool] | None = None,
    device: str | Device = "auto",
    genes: Mapping[str, Value] | None = None,
    grid: Extent | None = None,
    block: Extent | None = None,
    shared_bytes: int | None = None,
    trust: bool = False,
    on_result: OnResult | None = None,
) -> list[SourceResult]: ...


def evaluate(
    kernel: str | Path | Kernel,
    source: Source | Iterable[Source],
    *,
    problem: str | Mapping[str, Value | bool] | None = None,
    device: str | Device = "auto",
    genes: Mapping[str, Value] | None = None,
    grid: Extent | None = None,
    block: Extent | None = None,
    shared_bytes: int | None = None,
    trust: bool = False,
    on_result: OnResult | None = None,
) -> SourceResult | list[SourceResult]:
    """Check and time external CUDA sources in place of a kernel's own source.

    A source replaces only the kernel's source file; the rest of the declaration is kept. Sources run in separate
    processes, and nothing is written to a database. For repeated calls, use an `evokern.Evaluator`, which keeps the
    device open between calls.

    Args:
        kernel: name or folder of the kernel whose signature the sources have, or the kernel itself.
        source: a path, the source text (a `str` of several lines), an `evokern.ForeignSource`, or an iterable of these.
            The iterable is read lazily, so a generator can create sources from earlier results.
        problem: shapes and options, such as `2,8,512,64`; None for the problem of the kernel's first study, or for
            its first small problem if it has no study.
        device: `auto`, `cuda:N`, `cuda:0,1`, `cuda:all`, `sim:CHIP`, or a device that is not started yet.
        genes: values of genes by name, for the kernel's macros and `launches`; other genes keep their defaults.
        grid: number of blocks along x, y, z; overrides `launches`.
        block: number of threads of a block along x, y, z; overrides `launches`.
        shared_bytes: dynamic shared memory per block in bytes; overrides `launches`.
        trust: trust the kernel folder: allow its `kernel.py` to run, now and later.
        on_result: called with each result as soon as it arrives.

    Returns:
        One result for a single source; for an iterable, a list of results in the order of the sources.

    Raises:
        UsageError: the kernel, problem, genes, device or a source cannot be used; the message gives the remedy.
    """
    judge = Evaluator(
        kernel, problem=problem, device=device, genes=genes, grid=grid, block=block, shared_bytes=shared_bytes,
        trust=trust,
    )  # fmt: skip
    with python_words(("problem", "device", "trust")), judge:
        if isinstance(source, (str, Path, ForeignSource)):
            return judge.evaluate(source, on_result)
        return judge.evaluate_all(source, on_result)
