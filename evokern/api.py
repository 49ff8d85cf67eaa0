"""Python interface: `evokern.search(...)`, `evokern.resume(...)` and `evokern.evaluate(...)`.

This module connects layers that must not import each other: it passes the diagnosis and verification workers to a
search.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, overload

from evokern.analysis.evaluate import Evaluator, OnResult, Source, SourceResult
from evokern.cluster import RayRequest
from evokern.declaration.foreign import ForeignSource
from evokern.results import SearchResult, database_path
from evokern.search import (
    OnProgress,
    Progress,
    SessionRequest,
    SessionResult,
    WorkerFactories,
    resume_study,
    search_study,
)

if TYPE_CHECKING:
    from evokern.declaration.foreign import Extent
    from evokern.declaration.genes import Value
    from evokern.declaration.kernel import Kernel
    from evokern.device import Device
    from evokern.study.settings import Study

FACTORIES = WorkerFactories(
    diagnoser="evokern.analysis.sanitize.diagnose:DiagnosisWorker",
    verifier="evokern.analysis.verify.champion:ChampionWorker",
)
"""Workers that diagnose crashes and hangs and that verify champions; only worker processes import them."""


_T = TypeVar("_T")


def search(
    study: str | Path | Study,
    *,
    db: str | Path = "evokern.db",
    device: str | Device | None = None,
    kernel: Kernel | None = None,
    budget: str | float | None = None,
    extend: str | float | None = None,
    trials: int | None = None,
    sampler: str | None = None,
    seed: int | None = None,
    max_in_flight: int | None = None,
    control: str | None = None,
    warm_start: str | None = None,
    cost_per_hour: float | None = None,
    cluster: RayRequest | None = None,
    fresh: bool = False,
    inputs: str | None = None,
    keep_going: bool = False,
    allow_changes: bool = False,
    trust: bool = False,
    verify: bool = True,
    on_progress: OnProgress | None = None,
    go_on: bool | None = None,
    window: int | None = None,
) -> SearchResult:
    """Search a study, or resume it if the database already contains it.

    For an existing study, an argument of None keeps the stored value. For a new study, it selects the value from the
    study file.

    Args:
        study: name of a study, path to its TOML file, or a `Study`.
        db: database that stores the results.
        device: `auto`, `cuda[:N]`, `sim:CHIP`, `replay:FILE`, or a device object.
        kernel: the kernel, if it cannot be found by the name that the study gives.
        budget: total time over all sessions, for example `2h`; a number means seconds.
        extend: time to add to the study's budget.
        trials: total number of evaluated trials.
        sampler: name of the sampler, one of `evokern.study.settings.SAMPLERS`.
        seed: random seed of the sampler.
        max_in_flight: maximum number of concurrent trials. A search starts with 4 and increases the number to a fifth
            of the trials so far.
        control: `random`: every second trial of a new study comes from random search and is hidden from the sampler.
            `none`: no control, even if the study file has one.
        warm_start: earlier results that seed a new study. `auto` or None: studies of the same kernel in the database,
            nearest problem first. `none`: no earlier results. `sim`: results of a search on a simulation of this GPU.
            Any other value: another study (`runs.db:attention-s128`) or a recording. The results that are used are
            stored with the study.
        cost_per_hour: price of one device hour, from which the cost of the search is computed.
        cluster: Ray cluster whose hosts compile candidates and run them on simulated chips; None for this machine.
        fresh: rename the earlier study with this name, and start over.
        inputs: `normal`: check candidates on normal inputs only; every result says so. None: the inputs of the study.
        keep_going: continue even if no candidate is right. Otherwise, a search stops after 350 evaluated trials if
            none is right. If all fail for one reason that depends on no gene, it stops after 40.
        allow_changes: continue even if the study file or the kernel code has changed.
        trust: trust the kernel folder: allow its code to run, now and later.
        verify: verify the champion at the end, within the budget.
        on_progress: called with a `Progress` at every event, in the thread that searches. In a notebook, a panel below
            the cell also shows the progress.
        go_on: deprecated name of `allow_changes`.
        window: deprecated name of `max_in_flight`.

    Returns:
        The champion and a summary. After Ctrl-C or SIGTERM, the search ends as if its budget were used up, and
        `interrupted` is set.

    Raises:
        UsageError: the study, kernel, device, database or an argument cannot be used; the message gives the remedy.
    """
    request = SessionRequest(
        device=device,
        kernel=kernel,
        budget=budget,
        extend=extend,
        trials=trials,
        sampler=sampler,
        seed=seed,
        max_in_flight=_renamed("max_in_flight", max_in_flight, "window", window),
        control=control,
        warm_start=warm_start,
        cost_per_hour=cost_per_hour,
        cluster=cluster,
        fresh=fresh,
        inputs=inputs,
        keep_going=keep_going,
        allow_changes=_renamed("allow_changes", allow_changes, "go_on", go_on),
        trust=trust,
        verify=verify,
    )
    path = database_path(db)
    return _result(search_study(study, request, db=path, on_progress=_watchers(on_progress), factories=FACTORIES))


def _result(session: SessionResult) -> SearchResult:
    return SearchResult(session.db, session.record, session)


def _renamed(name: str, value: _T, old_name: str, old_value: _T | None) -> _T:
    """Return the value of a keyword, or that of its deprecated name with a DeprecationWarning at the caller's line."""
    if old_value is None:
        return value
    warnings.warn(f"{old_name} is deprecated; use {name}", DeprecationWarning, stacklevel=3)
    return old_value


def _watchers(on_progress: OnProgress | None) -> OnProgress:
    """Return a function that passes every event to `on_progress` and, in a notebook, to the panel."""
    from evokern.progress import notebook_panel

    watchers = [watcher for watcher in (notebook_panel(), on_progress) if watcher is not None]

    def notify(progress: Progress) -> None:
        for watcher in watchers:
            watcher(progress)

    return notify


def resume(
    study: str | None = None,
    *,
    db: str | Path = "evokern.db",
    device: str | Device | None = None,
    budget: str | float | None = None,
    extend: str | float | None = None,
    trials: int | None = None,
    cost_per_hour: float | None = None,
    cluster: RayRequest | None = None,
    keep_going: bool = False,
    allow_changes: bool = False,
    trust: bool = False,
    verify: bool = True,
    on_progress: OnProgress | None = None,
    go_on: bool | None = None,
) -> SearchResult:
    """Resume a study from the database alone; its TOML file is not read.

    Args:
        study: name of the study; None for the study searched last.
        db: database that stores the results.
        device: as for `search`; None for the device that the study started on.
        budget: as for `search`.
        extend: as for `search`.
        trials: as for `search`.
        cost_per_hour: as for `search`.
        cluster: as for `search`.
        keep_going: as for `search`.
        allow_changes: as for `search`.
        trust: run the database's copy of the kernel if the folder is missing, changed or not trusted. The folder
            itself does not become trusted.
        verify: as for `search`.
        on_progress: as for `search`.
        go_on: deprecated name of `allow_changes`.

    Raises:
        UsageError: as for `search`.
    """
    request = SessionRequest(
        device=device,
        budget=budget,
        extend=extend,
        trials=trials,
        cost_per_hour=cost_per_hour,
        cluster=cluster,
        keep_going=keep_going,
        allow_changes=_renamed("allow_changes", allow_changes, "go_on", go_on),
        trust=trust,
        verify=verify,
    )
    path = database_path(db)
    return _result(resume_study(study, request, db=path, on_progress=_watchers(on_progress), factories=FACTORIES))


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
    with judge:
        if isinstance(source, (str, Path, ForeignSource)):
            return judge.evaluate(source, on_result)
        return judge.evaluate_all(source, on_result)
