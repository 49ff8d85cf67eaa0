"""`evokern search [STUDY]` and `evokern resume [STUDY]`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from evokern.cli._command import INTERRUPTED, command
from evokern.cli._options import (
    DEFAULT_DB,
    DEFAULT_STUDY,
    DbOption,
    DeviceOption,
    NumCpusOption,
    NumGpusOption,
    RayAddressOption,
    StoredStudyArgument,
    StoredTrustOption,
    StudyArgument,
    TrustOption,
)
from evokern.cli._output import Output
from evokern.cli.panel import Watcher
from evokern.study.settings import CONTROLS, SAMPLERS
from evokern.study.trial import Outcome
from evokern.wording import command as command_line
from evokern.wording import (
    count_noun,
    duration,
    mean_suffix,
    microseconds,
    outcome_counts,
    rejected_baselines_text,
    roofline_text,
    speedup,
    uncounted_trials_text,
    verification_text,
)

if TYPE_CHECKING:
    from evokern.search import SessionResult

BudgetOption = Annotated[
    str | None,
    typer.Option(
        "--budget",
        metavar="TIME",
        help="Total time over all sessions, such as 2h, 1h30m or 45s. Default: the study's budget.",
    ),
]
ExtendOption = Annotated[
    str | None, typer.Option("--extend", metavar="TIME", help="Add TIME, such as 30m, to the study's budget.")
]
TrialsOption = Annotated[
    int | None,
    typer.Option(
        "--trials",
        metavar="N",
        min=1,
        help="Stop after N evaluated trials over all sessions. Infeasible, duplicate and lost trials do not count. "
        "Default: the study's limit, if any.",
    ),
]
PriceOption = Annotated[
    float | None,
    typer.Option(
        "--cost-per-hour", metavar="PRICE", min=0, help="Price of one device hour; `show` reports the total cost."
    ),
]
NoVerifyOption = Annotated[
    bool, typer.Option("--no-verify", help="Skip verification of the champion; you can run `evokern verify` later.")
]
AllowChangesOption = Annotated[
    bool,
    typer.Option("--allow-changes", help="Continue a study even if its study file or kernel code has changed."),
]


InputsOption = Annotated[
    str | None,
    typer.Option(
        "--inputs",
        metavar="normal",
        help="Check candidates on normal inputs only, not on large, subnormal or edge cases; every result says so. "
        "Default: the inputs of the study (`gate.input_sets`).",
    ),
]
KeepGoingOption = Annotated[
    bool,
    typer.Option(
        "--keep-going",
        help="Continue even if no candidate is correct. By default, a search stops after 350 incorrect trials. It "
        "stops after 40 if they all fail for the same reason and no gene affects that reason.",
    ),
]


_SEED = "Random seed of the sampler. Default: from the study file."


def _complete_samplers(incomplete: str) -> list[str]:
    return [name for name in SAMPLERS if name.startswith(incomplete)]


def _complete_controls(incomplete: str) -> list[str]:
    return [name for name in CONTROLS if name.startswith(incomplete)]


@command(
    "search",  # words: the examples are commands
    examples="""
    evokern search
    evokern search attention-s512 --budget 2h --seed 7 --db runs.db
    evokern search --trials 200 --sampler tpe --device cuda:0
    evokern search attention-s512 --control random
    evokern search attention-s512 --warm-start runs.db:attention-s128
    evokern search attention-s512 --warm-start none
    evokern search attention-s512 --fresh
    evokern search attention-s512 --keep-going
    """,
)
def search(
    output: Output,
    study: StudyArgument = None,
    budget: BudgetOption = None,
    extend: ExtendOption = None,
    trials: TrialsOption = None,
    sampler: Annotated[
        str | None,
        typer.Option(
            "--sampler",
            metavar="NAME",
            help=f"Sampler: {', '.join(SAMPLERS)}. Default: from the study file.",
            autocompletion=_complete_samplers,
        ),
    ] = None,
    device: DeviceOption = None,
    ray_address: RayAddressOption = None,
    num_cpus: NumCpusOption = None,
    num_gpus: NumGpusOption = None,
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", help=_SEED)] = None,
    max_in_flight: Annotated[
        int | None,
        typer.Option(
            "--max-in-flight",
            metavar="N",
            help="Maximum number of concurrent trials; fixed once the study has started. The search begins with 4 at a "
            "time and increases to this maximum. Default: enough to keep the device busy.",
        ),
    ] = None,
    control: Annotated[
        str | None,
        typer.Option(
            "--control",
            metavar="random|none",
            help="With random, every second trial is drawn at random, to compare the sampler with random search. "
            "Default: from the study file.",
            autocompletion=_complete_controls,
        ),
    ] = None,
    warm_start: Annotated[
        str | None,
        typer.Option(
            "--warm-start",
            metavar="auto|none|sim|DB:STUDY|FILE",
            help="Earlier results that seed a new study: auto, none, sim, another study (DB:STUDY) or a recording "
            "(FILE). With auto, studies of the same kernel in the database are used, nearest problem first. With "
            "sim, a simulation of this GPU is searched first. Default: auto; none "
            "with a control (--control) or on a recording (replay:FILE).",
        ),
    ] = None,
    cost_per_hour: PriceOption = None,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Start over; the old study is kept as NAME.1, or with the next free number."),
    ] = False,
    inputs: InputsOption = None,
    keep_going: KeepGoingOption = False,
    allow_changes: AllowChangesOption = False,
    trust: TrustOption = False,
    no_verify: NoVerifyOption = False,
    db: DbOption = DEFAULT_DB,
) -> int:
    """Search for the fastest correct variant of a kernel, or resume an earlier search.

    Every proposal is written to disk before it runs, and every result as soon as it arrives. To resume after Ctrl-C or
    a crash, run the same command again; trials that were in flight are repeated. If no candidate seems to be
    correct, the search stops early with exit code 1 (see --keep-going).
    """
    from evokern.api import FACTORIES
    from evokern.cluster.request import ray_request
    from evokern.search import SessionRequest, search_study

    with Watcher(output) as watch:
        request = SessionRequest(
            device=device,
            cluster=ray_request(ray_address, num_cpus, num_gpus),
            budget=budget,
            extend=extend,
            trials=trials,
            sampler=sampler,
            seed=seed,
            max_in_flight=max_in_flight,
            control=control,
            warm_start=warm_start,
            cost_per_hour=cost_per_hour,
            fresh=fresh,
            allow_changes=allow_changes,
            trust=trust,
            inputs=inputs,
            keep_going=keep_going,
            verify=not no_verify,
        )
        result = search_study(study or DEFAULT_STUDY, request, db=db, on_progress=watch, factories=FACTORIES)
    return print_result(output, result, extended=extend is not None, fresh=fresh)


@command(
    "resume",
    examples="""
    evokern resume
    evokern resume attention-s512 --extend 30m --db runs.db
    """,
)
def resume(
    output: Output,
    study: StoredStudyArgument = None,
    budget: BudgetOption = None,
    extend: ExtendOption = None,
    trials: TrialsOption = None,
    device: DeviceOption = None,
    ray_address: RayAddressOption = None,
    num_cpus: NumCpusOption = None,
    num_gpus: NumGpusOption = None,
    cost_per_hour: PriceOption = None,
    keep_going: KeepGoingOption = False,
    allow_changes: AllowChangesOption = False,
    trust: StoredTrustOption = False,
    no_verify: NoVerifyOption = False,
    db: DbOption = DEFAULT_DB,
) -> int:
    """Resume a study that is stored in the database.

    Unlike `search`, this command needs no study file and never starts a new study.
    """
    from evokern.api import FACTORIES
    from evokern.cluster.request import ray_request
    from evokern.search import SessionRequest, resume_study

    with Watcher(output) as watch:
        request = SessionRequest(
            device=device,
            cluster=ray_request(ray_address, num_cpus, num_gpus),
            budget=budget,
            extend=extend,
            trials=trials,
            cost_per_hour=cost_per_hour,
            keep_going=keep_going,
            allow_changes=allow_changes,
            trust=trust,
            verify=not no_verify,
        )
        result = resume_study(study, request, db=db, on_progress=watch, factories=FACTORIES)
    return print_result(output, result, extended=extend is not None)


_ENDS = {
    "budget": "the budget is used up (add time with --extend 30m)",
    "trials": "the trial limit is reached (raise it with --trials N)",
    "exhausted": "every candidate has been tried",
    "interrupted": "interrupted; all results are saved. To resume, repeat the command or run `{resume}`",
    "paused": "paused before the end; to resume, run `{resume}`",
}
_INTERRUPTED_FRESH = "interrupted; all results are saved. To resume, run `{resume}`"
"""Message after `--fresh`, where a repeated command would start over."""


def _counted(result: SessionResult) -> str:
    """Return the number of evaluated trials, followed by the trials that `--trials` does not count."""
    outcomes = result.summary["outcomes"]
    evaluated = sum(count for outcome, count in outcomes.items() if Outcome(outcome).evaluated)
    return count_noun(evaluated, "trial") + " evaluated" + uncounted_trials_text(outcomes)


def _reasons(result: SessionResult) -> list[str]:
    """Return the most common reasons for failures, one line each, most frequent first."""
    from evokern.report.trial_counts import reasons
    from evokern.store import open_readonly

    with open_readonly(result.db) as reader:
        found = reasons(reader.trials(reader.study(result.study)), most=3)
    return [f"{one.count} {one.outcome.replace('_', ' ')}: {one.example} (trial {one.trial})" for one in found]


def _hints(result: SessionResult) -> list[str]:
    """Return lines that state what the failed trials have in common."""
    from evokern.analysis.wrong_trials import hints
    from evokern.store import open_readonly

    if not result.summary["outcomes"]["wrong"] and result.summary["best"] is not None:
        return []
    with open_readonly(result.db) as reader:
        record = reader.study(result.study)
        return hints(record.kernel, record.genes, reader.trials(record))


def _stop(result: SessionResult) -> str:
    """Return why the search stopped early."""
    from evokern.analysis.no_success import stop_text
    from evokern.store import open_readonly

    with open_readonly(result.db) as reader:
        return stop_text(list(reader.trials(reader.study(result.study))))


def _why_nothing_finished(result: SessionResult) -> str:
    """Return a sentence that explains why no candidate finished within the budget."""
    from evokern.store import open_readonly

    with open_readonly(result.db) as reader:
        record = reader.study(result.study)
        proposed = reader.proposed_s(record, in_flight=True)
    if not proposed or record.budget_s is None:
        return "no trial was run: start-up, baselines and any warm start used the whole budget; increase --budget"
    first_s = min(proposed.values())
    return (
        f"start-up took {duration(first_s)}, and no candidate finished in the remaining "
        f"{duration(record.budget_s - first_s)}, because a candidate takes longer at this problem; increase --budget, "
        "or choose a smaller problem of the same kind"
    )


def print_result(output: Output, result: SessionResult, *, extended: bool = False, fresh: bool = False) -> int:
    """Print the result of a search and return the exit code, which is 1 if no candidate was right.

    Args:
        output: output of the command.
        result: result of the search.
        extended: whether `--extend` was given.
        fresh: whether `--fresh` was given.
    """
    from evokern.analysis.control_verdict import control_verdict, cost_text

    failed = result.summary["best"] is None
    code = INTERRUPTED if result.interrupted else int(failed)
    if output.json:
        output.print_json({**result.summary, "hints": _hints(result), "end": result.end})
        return code
    baseline, best = result.summary["baseline"], result.summary["best"]
    stored = (result.study, "--db", result.db)
    unit = "µs predicted" if result.summary["predicted"] else "µs"
    end = _stop(result) if result.end == "no_success" else _ENDS[result.end]
    end = _INTERRUPTED_FRESH if fresh and result.interrupted else end
    end = end.format(resume=command_line("resume", *stored))
    output.print_line(f"{result.study}: {_counted(result)}; {end}")
    if extended and result.end == "trials":
        output.print_line("more time has no effect: the trial limit is reached; raise it with --trials N")
    if best is None and not result.summary["trials"] and result.end == "budget":
        output.print_line(_why_nothing_finished(result))
        return code
    if best is None:
        none = "no candidate was measured"
        if result.summary["outcomes"]["measured"]:
            none = "verification refuted every measured candidate that it checked, so there is no champion"
        output.print_line(f"{none}; for details, run `{command_line('show', *stored)}`")
        for line in (*_reasons(result), *_hints(result)):
            output.print_line(line)
        if result.end == "no_success":
            output.print_line(
                f"to continue all the same, run `{command_line('resume', *stored, '--keep-going')}`; after a change of "
                f"the kernel, run `{command_line('search', result.study, '--fresh', '--db', result.db)}`"
            )
        return code
    output.print_line(f"outcomes: {outcome_counts(result.summary)}")
    mean = mean_suffix(len(result.best.evaluation.timings)) if result.best else ""
    output.print_line(f"best: trial {best['trial']}, {microseconds(best['time_us'])} {unit}{mean}")
    output.print_line(verification_text(result.summary))
    if result.summary["limit"]:
        output.print_line(roofline_text(result.summary["limit"], unit))
    if result.summary["grid"]["note"]:
        output.print_line(f"grid: {result.summary['grid']['note']}")
    if baseline is None:
        rejected = rejected_baselines_text(result.summary["rejected_baselines"])
        unknown = "no baseline was measured, so no speedup is known"
        output.print_line(f"{rejected}, so no speedup is known" if rejected else unknown)
    elif best["speedup"] > 1:
        baseline = best["in_turn"] or baseline
        against = f"{baseline['name']} ({microseconds(baseline['time_us'])} {unit})"
        output.print_line(f"{speedup(best)} as fast as the best baseline, {against}")
    else:
        against = f"{baseline['name']} takes {microseconds(baseline['time_us'])} {unit}"
        output.print_line(f"no candidate beat the baseline: {against}; the best is {speedup(best)} as fast")
    for line in _hints(result):
        output.print_line(line)
    if result.summary["control"]:
        output.print_line(f"control: {control_verdict(result.summary['control'], unit, microseconds)}")
    if result.summary["cost"]:
        output.print_line(f"cost: {cost_text(result.summary['cost'])}")
    replayed = result.summary["device"].startswith("replay:")
    export = "" if replayed else f"; {command_line('export', *stored, '-o', 'best.cu')}"
    output.print_line(f"next: {command_line('show', *stored)}{export}")
    return code
