"""`evokern replay SPACE`: compare samplers on a recorded search space."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import typer

from evokern.cli._command import command
from evokern.cli._output import Output, save, show_line, table
from evokern.errors import UsageError
from evokern.files import is_folder
from evokern.study.settings import SAMPLERS
from evokern.wording import duration, microseconds

if TYPE_CHECKING:
    from evokern.sampler_benchmark import Repeat, ReplayResult, SamplerResult

LINE_EVERY_S = 3.5
"""Seconds between two progress lines."""


@command(
    "replay",
    examples="""
    evokern replay convolution-a100.json.gz --samplers evo,tpe,nsga2,random --trials 200 --repeats 30
    evokern replay runs.db:attention-s512 --samplers evo,tpe --plot replay.html
    evokern replay study.json --json
    """,
)
def replay(
    output: Output,
    space: Annotated[
        str,
        typer.Argument(
            metavar="SPACE", help="Recorded space: a Kernel Tuner cache or T4 file (.json, .json.gz), or DB:STUDY."
        ),
    ],
    samplers: Annotated[
        str,
        typer.Option(
            "--samplers", metavar="NAMES", help=f"Samplers to compare, separated by commas: {', '.join(SAMPLERS)}."
        ),
    ] = "evo,tpe,nsga2,random",
    trials: Annotated[
        int, typer.Option("--trials", metavar="N", min=1, max=10**6, help="Number of evaluations per search.")
    ] = 200,
    repeats: Annotated[
        int, typer.Option("--repeats", metavar="N", min=1, max=10**5, help="Number of searches per sampler.")
    ] = 30,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Random seed of the first search.")] = 0,
    window: Annotated[
        int | None,
        typer.Option(
            "--max-in-flight",
            metavar="N",
            min=1,
            max=1024,
            help="Maximum number of concurrent trials. With 1, a sampler knows all earlier results when it proposes a "
            "candidate. Default: the number that a machine with one GPU and 16 CPU cores would use.",
        ),
    ] = None,
    oracle: Annotated[
        bool,
        typer.Option(
            "--oracle",
            help="Give samplers the list of recorded configurations, which is not known in a live search.",
        ),
    ] = False,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="TIME",
            help="Time limit of each search, such as 90m, based on the recorded durations. Default: no limit.",
        ),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", min=1, max=1024, help="Number of parallel searches.")] = 1,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", dir_okay=False, help="Write a plot of the curves to FILE as HTML."),
    ] = None,
) -> None:
    """Compare samplers on a recorded search space.

    Each sampler searches the space many times. The table shows, after N evaluations, the optimum divided by the best
    time found. Failed candidates count as evaluations; configurations that are not in the recording do not count. The
    table also shows a score for each sampler: 0 means as good as random search, and 1 means that the first evaluation
    finds the optimum.
    """
    from evokern.sampler_benchmark import replay as run

    names = [name.strip() for name in samplers.split(",") if name.strip()]
    if not names:
        raise UsageError(f"--samplers {samplers!r} names no sampler; use, for example, --samplers evo,tpe")
    if plot is not None and not is_folder(plot.absolute().parent):
        raise UsageError(f"cannot write {plot}: folder {plot.absolute().parent} does not exist")

    progress = ReplayProgress(output, repeats)
    result = run(
        space, samplers=names, trials=trials, repeats=repeats, seed=seed, window=window, oracle=oracle, budget=budget,
        jobs=jobs, on_repeat=progress,
    )  # fmt: skip
    if plot is not None:
        from evokern.report.pages.compare_page import replay_page

        save(plot, replay_page(result), "--plot")
    if output.json:
        output.print_json(result.as_dict())
        return
    for line in _lines(result):
        show_line(line)
    if plot is not None:
        show_line(f"wrote {plot}")


class ReplayProgress:
    """Progress display of a replay: prints a line for each finished sampler, and a line every few seconds."""

    def __init__(self, output: Output, repeats: int) -> None:
        self._output, self._repeats = output, repeats
        self._best: dict[str, list[float | None]] = {}
        self._when = time.monotonic()

    def __call__(self, done: int, total: int, repeat: Repeat) -> None:
        """Record a finished search, and print a progress line if one is due."""
        own = self._best.setdefault(repeat.sampler, [])
        own.append(repeat.best_us[-1] if repeat.best_us else None)
        if len(own) == self._repeats:
            known = [best for best in own if best is not None]
            found = f"best {microseconds(min(known))} to {microseconds(max(known))} µs" if known else "no candidate ran"
            text = f"{done} of {total}: {repeat.sampler} is finished, {found}"
        elif time.monotonic() - self._when >= LINE_EVERY_S:
            text = f"{done} of {total}: {repeat.sampler}, {len(own)} of {self._repeats}"
        else:
            return
        self._output.note(text)
        self._when = time.monotonic()


def _lines(result: ReplayResult) -> list[str]:
    repeats = len(result.samplers[0].curves)
    lines = [
        f"{result.space}: optimum {microseconds(result.optimum_us)} µs",
        f"columns: optimum ÷ best time after N evaluations, mean of {repeats} searches with 95 % interval",
        f"concurrent trials: {result.in_flight}; samplers "
        + (
            "know the list of recorded configurations"
            if result.oracle
            else "do not know which configurations are recorded"
        ),
        *result.notes,
    ]
    header = ("score", *(str(n) for n in result.checkpoints), "worst", "recorded time", "sampler")
    rows = [_row(result, sampler) for sampler in sorted(result.samplers, key=lambda s: -s.score)]
    expected = [f"{result.random_curve[n - 1]:.3f}" for n in result.checkpoints]
    rows.append(("0.000", *expected, "-", "-", "random search (expected value)"))
    return lines + table(header, rows)


def _row(result: ReplayResult, sampler: SamplerResult) -> tuple[str, ...]:
    at = [_mean(sampler.at(n)) for n in result.checkpoints]
    worst = f"{min(sampler.at(result.trials)):.3f}"
    spent = duration(sampler.elapsed_s) if sampler.elapsed_s else "-"
    return f"{sampler.score:.3f}", *at, worst, spent, sampler.sampler


def _mean(values: Sequence[float]) -> str:
    """Return a mean and the half width of its 95 % interval."""
    from evokern.sampler_benchmark.score import half_width

    return f"{fmean(values):.3f}" + (f" ± {half_width(values):.3f}" if len(values) > 1 else "")
