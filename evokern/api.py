"""evokern from Python: `evokern.search(...)`, `evokern.resume(...)` and `evokern.evaluate(...)`.

They stand above the rooms that they join: a search comes before what explains its failures, and is told here who does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, overload

from evokern.analysis.evaluate import Evaluator, OnResult, Source, SourceResult
from evokern.cluster import RayRequest
from evokern.declaration.foreign import ForeignSource
from evokern.search import (
    OnProgress,
    Progress,
    SearchResult,
    SessionRequest,
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
"""Who says why candidates crash or hang, and who verifies champions: imported by processes of their own alone."""


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
    window: int | None = None,
    control: str | None = None,
    warm_start: str | None = None,
    cost_per_hour: float | None = None,
    cluster: RayRequest | None = None,
    fresh: bool = False,
    go_on: bool = False,
    trust: bool = False,
    verify: bool = True,
    on_progress: OnProgress | None = None,
) -> SearchResult:
    """Search a study, or resume it where it stands in the database.

    A keyword that is None leaves what the study began with, or on a new study what its file says.

    Args:
        study: a study's name, the path to its TOML file, or a study.
        db: database that keeps the results.
        device: what evaluates: `auto`, `cuda[:N]`, `sim:CHIP`, `replay:FILE`, or a device.
        kernel: the kernel, where it is not found by the name that the study gives.
        budget: total time over all sessions, for example `2h`; seconds as a number.
        extend: time to add to the budget that the study has.
        trials: total number of evaluated trials.
        sampler: who proposes, a name of `evokern.study.settings.SAMPLERS`.
        seed: seed of the proposals.
        window: most trials in flight: at first 4 are, later a fifth of the trials before.
        control: `random` gives every second trial of a new study to random search, beside the sampler, which sees
            none of it; `none` overrules a study file that says so.
        warm_start: what a new study begins with: `auto` or None for what the database knows of the same kernel, the
            nearest problem first; `none`; another study (`runs.db:attention-s128`), a recording, or `sim`, the ranking
            of the time model for the GPU. It is kept with the study.
        cost_per_hour: price of an hour of the device, for what the search cost.
        cluster: the Ray cluster whose hosts compile and execute a simulated chip's candidates; None for this machine.
        fresh: rename an earlier study of this name and begin anew.
        go_on: continue although the study's file or the kernel's code changed.
        trust: remember that the kernel folder's code may run.
        verify: verify the champion at the end, within the budget.
        on_progress: called with a `Progress` at every event, from the searching thread. In a notebook a panel below the
            cell shows the progress as well.

    Returns:
        Champion and summary. Ctrl-C and SIGTERM end a search like a budget does, with `interrupted` set.

    Raises:
        UsageError: study, kernel, device, store or an argument is not usable as asked; the message says what to do.
    """
    request = SessionRequest(
        device=device,
        kernel=kernel,
        budget=budget,
        extend=extend,
        trials=trials,
        sampler=sampler,
        seed=seed,
        window=window,
        control=control,
        warm_start=warm_start,
        cost_per_hour=cost_per_hour,
        cluster=cluster,
        fresh=fresh,
        go_on=go_on,
        trust=trust,
        verify=verify,
    )
    return search_study(study, request, db=db, on_progress=_watchers(on_progress), factories=FACTORIES)


def _watchers(on_progress: OnProgress | None) -> OnProgress:
    """Return what is called at every event: the panel of a notebook, where this runs in one, and the caller's own."""
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
    go_on: bool = False,
    trust: bool = False,
    verify: bool = True,
    on_progress: OnProgress | None = None,
) -> SearchResult:
    """Resume a study from what the database keeps of it; its TOML file is not read.

    Args:
        study: its name; None takes the one searched last.
        db: database that keeps the results.
        device: as `search`; None takes the one the study was begun with.
        budget: as `search`.
        extend: as `search`.
        trials: as `search`.
        cost_per_hour: as `search`.
        cluster: as `search`.
        go_on: as `search`.
        trust: run the copy of the kernel that the database keeps, where the folder is gone, changed or not the user's
            own. No folder is trusted by it.
        verify: as `search`.
        on_progress: as `search`.

    Raises:
        UsageError: as `search`.
    """
    request = SessionRequest(
        device=device,
        budget=budget,
        extend=extend,
        trials=trials,
        cost_per_hour=cost_per_hour,
        cluster=cluster,
        go_on=go_on,
        trust=trust,
        verify=verify,
    )
    return resume_study(study, request, db=db, on_progress=_watchers(on_progress), factories=FACTORIES)


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
    """Judge sources from outside in a kernel's place: is each one right, and how fast is it beside the baseline?

    Everything of the kernel's declaration stays but the text of its source file. Nothing that a source does reaches
    this process, and nothing is written to a database. Who asks again and again keeps an `evokern.Evaluator`, whose
    device stays warm.

    Args:
        kernel: name or folder of the kernel whose signature the sources have, or the kernel itself.
        source: a path, the text itself (a `str` of several lines), or an `evokern.ForeignSource`; or an iterable of
            these, which is read as room is there: a generator may write the next one from earlier results.
        problem: shapes and options, as `2,8,512,64`; None for that of the kernel's first study, else its first small
            problem.
        device: `auto`, `cuda:N`, `cuda:0,1`, `cuda:all`, `sim:CHIP`, or a device that was not started.
        genes: gene → value, where the kernel's `launches` and macros are to have another one than the default.
        grid: blocks of the launch along x, y, z, instead of what `launches` says.
        block: threads of a block along x, y, z, instead of what `launches` says.
        shared_bytes: dynamic shared memory of a block, instead of what `launches` says.
        trust: remember that the kernel folder's `kernel.py` may run.
        on_result: called with each result as it comes.

    Returns:
        The result of a single source; of an iterable a list, in the order of the sources.

    Raises:
        UsageError: kernel, problem, genes, device or a source is not usable as asked; the message says what to do.
    """
    judge = Evaluator(
        kernel, problem=problem, device=device, genes=genes, grid=grid, block=block, shared_bytes=shared_bytes,
        trust=trust,
    )  # fmt: skip
    with judge:
        if isinstance(source, (str, Path, ForeignSource)):
            return judge.evaluate(source, on_result)
        return judge.evaluate_all(source, on_result)
