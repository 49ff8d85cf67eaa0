"""`evokern replay SPACE`: samplers compared on a recorded space."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import typer

from evokern.cli._command import command
from evokern.cli._output import Output, save
from evokern.cli._text import show_line, table
from evokern.errors import UsageError
from evokern.files import is_folder
from evokern.study.settings import SAMPLERS
from evokern.wording import duration, microseconds

if TYPE_CHECKING:
    from evokern.sampler_benchmark import Repeat, ReplayResult, SamplerResult

LINE_EVERY_S = 5.0
"""Time between two lines while a sampler's searches run, seconds."""


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
        typer.Argument(metavar="SPACE", help="A Kernel Tuner cache or T4 file (.json, .json.gz), or DB:STUDY."),
    ],
    samplers: Annotated[
        str, typer.Option("--samplers", metavar="NAMES", help=f"Which to compare: {', '.join(SAMPLERS)}.")
    ] = "evo,tpe,nsga2,random",
    trials: Annotated[
        int, typer.Option("--trials", metavar="N", min=1, max=10**6, help="Evaluations of each search.")
    ] = 200,
    repeats: Annotated[
        int, typer.Option("--repeats", metavar="N", min=1, max=10**5, help="Searches per sampler.")
    ] = 30,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the first repeat.")] = 0,
    window: Annotated[
        int | None,
        typer.Option(
            "--max-in-flight",
            "--window",
            metavar="W",
            min=1,
            max=1024,
            help="Most trials in flight; 1 shows every sampler every result. Default: as on a GPU beside 16 cores.",
        ),
    ] = None,
    oracle: Annotated[
        bool,
        typer.Option("--oracle", help="Hand samplers the list of the recorded configurations, which no GPU has."),
    ] = False,
    budget: Annotated[
        str | None, typer.Option("--budget", metavar="TIME", help="Recorded time of each search: 90m, 45s.")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", min=1, max=1024, help="Searches side by side.")] = 1,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", dir_okay=False, help="Write the curves as one HTML file.")
    ] = None,
) -> None:
    """Search a recorded space many times with several samplers, and compare how good their best is.

    A fraction is the optimum ÷ the best found after so many evaluations. Failed candidates are evaluations; what the
    recording does not have costs nothing. The score is 0 for random search and 1 for the optimum at once.
    """
    from evokern.sampler_benchmark import replay as run

    names = [name.strip() for name in samplers.split(",") if name.strip()]
    if not names:
        raise UsageError(f"--samplers {samplers!r} names none; write for example --samplers evo,tpe")
    if plot is not None and not is_folder(plot.absolute().parent):
        raise UsageError(f"cannot write {plot}: there is no folder {plot.absolute().parent}")

    progress = ReplayProgress(output, repeats)
    result = run(
        space, samplers=names, trials=trials, repeats=repeats, seed=seed, window=window, oracle=oracle, budget=budget,
        jobs=jobs, on_repeat=progress,
    )  # fmt: skip
    if plot is not None:
        from evokern.report.pages.replay_page import replay_page

        save(plot, replay_page(result), "--plot")
    if output.json:
        output.emit(result.as_dict())
        return
    for line in _lines(result):
        show_line(line)
    if plot is not None:
        show_line(f"wrote {plot}")


class ReplayProgress:
    """Prints how far a replay is: a line per sampler, and one every few seconds."""

    def __init__(self, output: Output, repeats: int) -> None:
        self._output, self._repeats = output, repeats
        self._best: dict[str, list[float | None]] = {}
        self._when = time.monotonic()

    def __call__(self, done: int, total: int, repeat: Repeat) -> None:
        """Take one more finished search."""
        own = self._best.setdefault(repeat.sampler, [])
        own.append(repeat.best_us[-1] if repeat.best_us else None)
        if len(own) == self._repeats:
            known = [best for best in own if best is not None]
            found = f"best {microseconds(min(known))} to {microseconds(max(known))} µs" if known else "nothing ran"
            text = f"{done} of {total}: {repeat.sampler} is done, {found}"
        elif time.monotonic() - self._when >= LINE_EVERY_S:
            text = f"{done} of {total}: {repeat.sampler}, {len(own)} of {self._repeats}"
        else:
            return
        self._output.remark(text)
        self._when = time.monotonic()


def _lines(result: ReplayResult) -> list[str]:
    repeats = len(result.samplers[0].curves)
    lines = [
        f"{result.space}: optimum {microseconds(result.optimum_us)} µs; optimum ÷ best after so many evaluations, "
        f"mean of {repeats} with its 95 % interval",
        f"in flight: {result.in_flight}; samplers "
        + ("have the list of the recorded configurations" if result.oracle else "ask whether one is recorded"),
        *result.notes,
    ]
    header = ("score", *(str(n) for n in result.checkpoints), "worst", "recorded time", "sampler")
    rows = [_row(result, sampler) for sampler in sorted(result.samplers, key=lambda s: -s.score)]
    expected = [f"{result.random_curve[n - 1]:.3f}" for n in result.checkpoints]
    rows.append(("0.000", *expected, "-", "-", "random search, expected"))
    return lines + table(header, rows)


def _row(result: ReplayResult, sampler: SamplerResult) -> tuple[str, ...]:
    at = [_mean(sampler.at(n)) for n in result.checkpoints]
    worst = f"{min(sampler.at(result.trials)):.3f}"
    spent = duration(sampler.elapsed_s) if sampler.elapsed_s else "-"
    return f"{sampler.score:.3f}", *at, worst, spent, sampler.sampler


def _mean(values: Sequence[float]) -> str:
    """Return a mean with the half width of its 95 % interval."""
    from evokern.sampler_benchmark.score import half_width

    return f"{fmean(values):.3f}" + (f" ± {half_width(values):.3f}" if len(values) > 1 else "")
