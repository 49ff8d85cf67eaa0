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
    StoredTrustOption,
    StudyArgument,
    TrustOption,
)
from evokern.cli._output import Output
from evokern.cli.panel import Watcher
from evokern.study.settings import CONTROLS, SAMPLERS
from evokern.study.trial import Outcome
from evokern.wording import command as command_line
from evokern.wording import duration, limit, mean_of, microseconds, outcome_counts, proved, several, speedup, uncounted

if TYPE_CHECKING:
    from evokern.search import SearchResult

BudgetOption = Annotated[
    str | None,
    typer.Option("--budget", metavar="TIME", help="Total time over all sessions: 2h, 1h30m, 90m, 45s."),
]
ExtendOption = Annotated[
    str | None, typer.Option("--extend", metavar="TIME", help="Time to add to the study's budget.")
]
TrialsOption = Annotated[
    int | None,
    typer.Option(
        "--trials", metavar="N", min=1, help="Total of evaluated trials; infeasible, duplicate and lost ones apart."
    ),
]
PriceOption = Annotated[
    float | None,
    typer.Option(
        "--cost-per-hour", metavar="PRICE", min=0, help="Price of an hour of the device: show tells the cost."
    ),
]
NoVerifyOption = Annotated[
    bool, typer.Option("--no-verify", help="End without verifying the champion; `evokern verify` does it later.")
]
GoOnOption = Annotated[
    bool, typer.Option("--go-on", help="Continue although the study's file or the kernel's code changed.")
]


def _complete_samplers(incomplete: str) -> list[str]:
    return [name for name in SAMPLERS if name.startswith(incomplete)]


def _complete_controls(incomplete: str) -> list[str]:
    return [name for name in CONTROLS if name.startswith(incomplete)]


@command(
    "search",
    examples="""
    evokern search
    evokern search attention-s512 --budget 2h --seed 7 --db runs.db
    evokern search --trials 200 --sampler tpe --device cuda:0
    evokern search attention-s512 --control random
    evokern search attention-s512 --warm-start runs.db:attention-s128
    evokern search attention-s512 --warm-start none
    evokern search attention-s512 --fresh
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
            help=f"Who proposes: {', '.join(SAMPLERS)}. Default: what the study says.",
            autocompletion=_complete_samplers,
        ),
    ] = None,
    device: DeviceOption = None,
    ray_address: RayAddressOption = None,
    num_cpus: NumCpusOption = None,
    num_gpus: NumGpusOption = None,
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", help="Seed of the proposals.")] = None,
    window: Annotated[
        int | None,
        typer.Option(
            "--max-in-flight",
            "--window",
            metavar="W",
            help="Most trials in flight; fixed per study. At first 4 are, later a fifth of the trials before: "
            "proposal n sees all results but those. Default: as many as keep the device at work.",
        ),
    ] = None,
    control: Annotated[
        str | None,
        typer.Option(
            "--control",
            metavar="random|none",
            help="random: every second trial is drawn at random, so that you see whether the sampler earned its keep.",
            autocompletion=_complete_controls,
        ),
    ] = None,
    warm_start: Annotated[
        str | None,
        typer.Option(
            "--warm-start",
            metavar="auto|none|sim|DB:STUDY|FILE",
            help="What a new study begins with: what the database knows of the same kernel, the nearest problem first "
            "(auto, the default; not beside a control or from a recording), nothing, a search of this GPU, simulated "
            "(sim), another study or a recording.",
        ),
    ] = None,
    cost_per_hour: PriceOption = None,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Begin anew; an earlier study becomes NAME.1, or the next number that is free."),
    ] = False,
    go_on: GoOnOption = False,
    trust: TrustOption = False,
    no_verify: NoVerifyOption = False,
    db: DbOption = DEFAULT_DB,
) -> int:
    """Search for the fastest right variant of a study's kernel, or go on where an earlier search stopped.

    Without STUDY it is attention-s512. Every proposal is on disk before it runs and every result as it arrives: stop it
    with Ctrl-C, lose the machine, and give the same command again. What was in flight runs again.
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
            window=window,
            control=control,
            warm_start=warm_start,
            cost_per_hour=cost_per_hour,
            fresh=fresh,
            go_on=go_on,
            trust=trust,
            verify=not no_verify,
        )
        result = search_study(study or DEFAULT_STUDY, request, db=db, on_progress=watch, factories=FACTORIES)
    return conclude(output, result, extended=extend is not None)


@command(
    "resume",
    examples="""
    evokern resume
    evokern resume attention-s512 --extend 30m --db runs.db
    """,
)
def resume(
    output: Output,
    study: StudyArgument = None,
    budget: BudgetOption = None,
    extend: ExtendOption = None,
    trials: TrialsOption = None,
    device: DeviceOption = None,
    ray_address: RayAddressOption = None,
    num_cpus: NumCpusOption = None,
    num_gpus: NumGpusOption = None,
    cost_per_hour: PriceOption = None,
    go_on: GoOnOption = False,
    trust: StoredTrustOption = False,
    no_verify: NoVerifyOption = False,
    db: DbOption = DEFAULT_DB,
) -> int:
    """Go on with a study from what the database keeps of it; without STUDY the one searched last.

    Unlike `search` it needs no study file, and begins nothing new.
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
            go_on=go_on,
            trust=trust,
            verify=not no_verify,
        )
        result = resume_study(study, request, db=db, on_progress=watch, factories=FACTORIES)
    return conclude(output, result, extended=extend is not None)


_ENDS = {
    "budget": "the budget is used up (--extend 30m adds to it)",
    "trials": "the trials are done (--trials N sets a larger total)",
    "exhausted": "every candidate has been tried",
    "interrupted": "interrupted; nothing is lost, the same command or `{resume}` goes on",
    "paused": "paused before its end; `{resume}` goes on",
}


def _counted(result: SearchResult) -> str:
    """Return how many trials there were, those apart that `--trials` does not count."""
    outcomes = result.summary["outcomes"]
    evaluated = sum(count for outcome, count in outcomes.items() if Outcome(outcome).evaluated)
    return several(evaluated, "trial") + " evaluated" + uncounted(outcomes)


def _reasons(result: SearchResult) -> list[str]:
    """Return the commonest reasons of failure as lines."""
    from evokern.report.trial_counts import reasons
    from evokern.store import open_readonly

    with open_readonly(result.db) as reader:
        found = reasons(reader.trials(reader.study(result.study)), most=3)
    return [f"{one.count} {one.outcome.replace('_', ' ')}: {one.example} (trial {one.trial})" for one in found]


def _hints(result: SearchResult) -> list[str]:
    """Return what the wrong trials have in common as lines."""
    from evokern.analysis.wrong_trials import hints
    from evokern.store import open_readonly

    if not result.summary["outcomes"]["wrong"]:
        return []
    with open_readonly(result.db) as reader:
        record = reader.study(result.study)
        return hints(record.kernel, record.genes, reader.trials(record))


def _nothing_ended(result: SearchResult) -> str:
    """Say where the time of a search went in which no candidate ended."""
    from evokern.store import open_readonly

    with open_readonly(result.db) as reader:
        record = reader.study(result.study)
        proposed = reader.proposed_s(record, in_flight=True)
    if not proposed or record.budget_s is None:
        return "what comes before the first candidate took all of it: the start, baselines, a warm start if any"
    first_s = min(proposed.values())
    return (
        f"the start took {duration(first_s)}, and no candidate ended in the {duration(record.budget_s - first_s)} "
        "after it: at this problem one takes longer; give more time, or a smaller problem of the same kind"
    )


def conclude(output: Output, result: SearchResult, *, extended: bool = False) -> int:
    """Say what the search ended with and return the exit code: 1 where every candidate failed.

    Args:
        output: where to say it.
        result: what the search ended with.
        extended: whether time was added to its budget.
    """
    from evokern.analysis.control_verdict import control_verdict, price

    failed = result.summary["best"] is None and result.summary["trials"] > 0
    code = INTERRUPTED if result.interrupted else int(failed)
    if output.json:
        output.emit({**result.summary, "hints": _hints(result), "end": result.end})
        return code
    baseline, best = result.summary["baseline"], result.summary["best"]
    stored = (result.study, "--db", result.db)
    unit = "µs predicted" if result.summary["predicted"] else "µs"
    end = _ENDS[result.end].format(resume=command_line("resume", *stored))
    output.say(f"{result.study}: {_counted(result)}; {end}")
    if extended and result.end == "trials":
        output.say("more time alone does not help: the trials are the limit that is reached, and --trials N raises it")
    if best is None and not result.summary["trials"] and result.end == "budget":
        output.say(_nothing_ended(result))
        return code
    if best is None:
        none = "no candidate was measured"
        if result.summary["outcomes"]["measured"]:
            none = "every measured candidate that was verified is refuted, so there is no champion"
        output.say(f"{none}; `{command_line('show', *stored)}` tells more")
        for line in (*_reasons(result), *_hints(result)):
            output.say(line)
        return code
    output.say(f"outcomes: {outcome_counts(result.summary)}")
    mean = mean_of(len(result.best.evaluation.timings)) if result.best else ""
    output.say(f"best: trial {best['trial']}, {microseconds(best['time_us'])} {unit}{mean}")
    output.say(proved(result.summary))
    if result.summary["limit"]:
        output.say(limit(result.summary["limit"], unit))
    if baseline is None:
        output.say("no baseline was measured, so no speedup is known")
    elif best["speedup"] > 1:
        baseline = best["in_turn"] or baseline
        against = f"{baseline['name']} ({microseconds(baseline['time_us'])} {unit})"
        output.say(f"{speedup(best)} as fast as the best baseline, {against}")
    else:
        against = f"{baseline['name']} takes {microseconds(baseline['time_us'])} {unit}"
        output.say(f"nothing beat the baseline: {against}; {speedup(best)} as fast")
    for line in _hints(result):
        output.say(line)
    if result.summary["control"]:
        output.say(f"control: {control_verdict(result.summary['control'], unit, microseconds)}")
    if result.summary["cost"]:
        output.say(f"cost: {price(result.summary['cost'])}")
    output.say(f"{command_line('show', *stored)}; {command_line('export', *stored, '-o', 'best.cu')}")
    return code
