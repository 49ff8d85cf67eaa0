"""`evokern search [STUDY]` and `evokern resume [STUDY]`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evokern.cli._command import INTERRUPTED, command
from evokern.cli._options import (
    DEFAULT_DB,
    DEFAULT_STUDY,
    DbOption,
    ReferenceOption,
    StoredStudyArgument,
    StudyArgument,
    requested,
)
from evokern.cli._output import Output
from evokern.cli.panel import Watcher
from evokern.search.request import ResumeRequest, SessionRequest
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
    options=SessionRequest,
)
def search(output: Output, study: StudyArgument = None, *, db: DbOption = DEFAULT_DB, **options: Any) -> int:
    """Search for the fastest correct variant of a kernel, or resume an earlier search.

    Every proposal is written to disk before it runs, and every result as soon as it arrives. To resume after Ctrl-C or
    a crash, run the same command again; trials that were in flight are repeated. If no candidate seems to be
    correct, the search stops early with exit code 1 (see --keep-going).
    """
    from evokern.api import FACTORIES
    from evokern.search import search_study

    with Watcher(output) as watch:
        request = requested(options)
        result = search_study(study or DEFAULT_STUDY, request, db=db, on_progress=watch, factories=FACTORIES)
    return print_result(output, result, extended=request.extend is not None, fresh=request.fresh)


@command(
    "resume",
    examples="""
    evokern resume
    evokern resume attention-s512 --extend 30m --db runs.db
    """,
    options=ResumeRequest,
)
def resume(
    output: Output,
    study: StoredStudyArgument = None,
    *,
    reference: ReferenceOption = None,
    db: DbOption = DEFAULT_DB,
    **options: Any,
) -> int:
    """Resume a study that is stored in the database.

    Unlike `search`, this command needs no study file and never starts a new study.
    """
    from evokern.api import FACTORIES
    from evokern.search import resume_study
    from evokern.tuning.reference import register_reference

    if reference:
        register_reference(reference)
    with Watcher(output) as watch:
        request = requested(options)
        result = resume_study(study, request, db=db, on_progress=watch, factories=FACTORIES)
    return print_result(output, result, extended=request.extend is not None)


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
    from evokern.report.trial_counts import reason_lines
    from evokern.store import open_readonly

    with open_readonly(result.db) as reader:
        return reason_lines(reader.trials(reader.study(result.study)), most=3)


def _hints(result: SessionResult) -> list[str]:
    """Return lines that state what the failed trials have in common."""
    from evokern.analysis.no_success import hints_of
    from evokern.store import open_readonly

    failures = sum(result.summary["outcomes"][one] for one in ("wrong", "crashed", "hung"))
    if not failures and result.summary["best"] is not None:
        return []
    with open_readonly(result.db) as reader:
        record = reader.study(result.study)
        return hints_of(record, reader.trials(record))


def _unverified_after_refuted(result: SessionResult) -> bool:
    """Return whether verification refuted trials, and the champion, the next best one, is not verified."""
    from evokern.store import open_readonly

    if result.summary["best"] is None or result.summary["verified"] is True:
        return False
    with open_readonly(result.db) as reader:
        return bool(reader.refuted(result.record))


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
    """Print the result of a search and return the exit code.

    The code is 1 if no candidate was right, or if verification refuted the best ones and did not verify the next one.

    Args:
        output: output of the command.
        result: result of the search.
        extended: whether `--extend` was given.
        fresh: whether `--fresh` was given.
    """
    from evokern.analysis.control_verdict import control_verdict, cost_text

    unverified = _unverified_after_refuted(result)
    failed = result.summary["best"] is None or unverified
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
    if unverified:
        verify = command_line("verify", result.study, "--trial", best["trial"], *stored[1:])
        output.print_line(f"next: {verify}; {command_line('show', *stored)}")
        return code
    replayed = result.summary["device"].startswith("replay:")
    export = "" if replayed else f"; {command_line('export', *stored, '-o', 'best.cu')}"
    output.print_line(f"next: {command_line('show', *stored)}{export}")
    return code
