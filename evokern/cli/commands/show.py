"""`evokern show [STUDY]`: what a study found, or everything about one trial."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evokern.cli._command import command
from evokern.cli._options import DEFAULT_DB, DbOption, StudyArgument, TrialOption
from evokern.cli._output import Output
from evokern.cli._text import show_line, table
from evokern.cli.commands._trial import show_trial
from evokern.errors import UsageError, nearest
from evokern.wording import (
    changed,
    duration,
    limit,
    mean_of,
    microseconds,
    outcome_counts,
    proved,
    several,
    speedup,
    warm_start_text,
)
from evokern.wording import command as command_line

if TYPE_CHECKING:
    from evokern.store import Reader, StudyRecord
    from evokern.study.trial import Trial

FEW = 30
"""Times below which silence about a gene says nothing of it."""


@command(
    "show",
    examples="""
    evokern show
    evokern show attention-s512 --top 20 --db runs.db
    evokern show --trial 42
    evokern show --genes
    evokern show --json
    evokern show --db runs
    """,
)
def show(
    output: Output,
    study: StudyArgument = None,
    top: Annotated[int, typer.Option("--top", metavar="N", min=1, help="How many of the fastest trials to list.")] = 10,
    trial: TrialOption = None,
    genes: Annotated[
        bool, typer.Option("--genes", help="Show what the search learned: decisive, locked and dead genes.")
    ] = False,
    db: DbOption = DEFAULT_DB,
) -> None:
    """Show what a study found: outcomes, rejections, baseline, the fastest trials, or everything about one trial.

    Without STUDY the one searched last. Works on any machine, also while a search writes, and needs no kernel folder.
    Where --db is the folder of a sweep, its studies are listed, or STUDY is taken from there.
    """
    from evokern.analysis.wrong_trials import hints
    from evokern.store import open_readonly

    if db.is_dir():
        if study is None:
            _folder(output, db)
            return
        if not (db / f"{study}.db").is_file():
            known = [path.stem for path in sorted(db.glob("*.db"))]
            raise UsageError(
                f"{db} is a folder; name a file with --db, or a study there: {nearest(study, known) or 'none'}"
            )
        db = db / f"{study}.db"
    with open_readonly(db) as reader:
        record = reader.study(study)
        if trial is not None and genes:
            raise UsageError("--genes is about the whole study; leave --trial away")
        if trial is not None:
            show_trial(output, reader, record, reader.trial(record, trial))
        elif genes:
            _genes(output, reader, record)
        elif output.json:
            output.emit({**reader.summary(record), "hints": hints(record.kernel, record.genes, reader.trials(record))})
        else:
            for line in _overview(reader, record, top, db):
                show_line(line)


def _folder(output: Output, folder: Path) -> None:
    """List the studies of a folder's databases; one that cannot be read is told, and keeps none of the others."""
    from evokern.results.overview import standing
    from evokern.store import open_readonly

    rows, unreadable = [], {}
    for db in sorted(folder.glob("*.db")):
        try:
            with open_readonly(db) as reader:
                found = [(record, reader.summary(record)) for record in reader.studies()]
        except UsageError as error:
            unreadable[str(db)] = str(error)
            continue
        rows += [{**summary, "db": str(db), "standing": standing(summary)} for _, summary in found]
    if not rows and not unreadable:
        raise UsageError(f"{folder} is a folder; name a file with --db, or the folder of a sweep: it holds no database")
    if output.json:
        output.emit({"folder": str(folder), "studies": rows, "unreadable": unreadable})
        return
    for row in rows:
        show_line(f"{row['study']}: {row['standing']}{', verified' if row['verified'] else ''}")
    for why in unreadable.values():
        output.complain(why)


def _genes(output: Output, reader: Reader, record: StudyRecord) -> None:
    from evokern.analysis.genes.gene_report import genes_report

    found = genes_report(reader, record)
    if output.json:
        output.emit(found.as_dict())
        return
    kind = "predicted" if found.predicted else "measured"
    known = "" if found.explained is None else f"; the model explains {100 * max(found.explained, 0):.0f} % of them"
    known += "" if found.explained is None or found.trusted else ", too little to name genes by it"
    slow = f" ({found.slow} of slow trials)" if found.slow else ""
    show_line(f"{found.study}: {found.trials} trials, {found.timed} {kind} times{slow}{known}")
    titles = (
        ("decisive", "decisive genes"),
        ("locked", "locked genes"),
        ("barred", "barred values"),
        ("dead", "dead genes"),
    )
    for key, title in titles:
        for index, finding in enumerate(found.having(key)):  # type: ignore[arg-type]
            if not index:
                show_line(title)
            share = found.share(finding.gene) if key == "decisive" else ""
            show_line(f"  {finding.text}{'; ' if share else ''}{share}")
    for index, failing in enumerate(found.combinations):
        if not index:
            show_line("barred combinations")
        show_line(f"  {failing.text}")
    if found.quiet and found.timed < FEW:
        show_line(f"too few {kind} trials to tell what the other genes do: {found.timed} of about {FEW} that it takes")
    elif found.quiet:
        show_line(f"nothing stands out: {', '.join(found.quiet)}")
    if found.single:
        show_line(f"one value in this study: {', '.join(found.single)}")


def _overview(reader: Reader, record: StudyRecord, top: int, db: Path) -> list[str]:
    from evokern.analysis.control_verdict import control_verdict, price

    summary = reader.summary(record)
    unit = "µs predicted" if record.predicted else "µs"
    spent = duration(summary["elapsed_s"]) + (f" of {duration(record.budget_s)}" if record.budget_s else "")
    lines = [
        f"{record.name}: kernel {record.kernel} at {record.problems_in_words()} on {record.device}",
        f"{several(summary['trials'], 'trial')} in {spent}, sampler {record.sampler}, seed {record.seed}",
        f"outcomes: {outcome_counts(summary)}",
    ]
    if summary["warm_start"]:
        lines.append(f"warm start: {warm_start_text(summary['warm_start'])}")
    if record.timing_rule is not None:
        lines.append(f"times: rule {record.timing_rule} (docs/evaluating.md says what is timed)")
    if summary["remeasured"]:
        lines.append(_remeasured(summary["remeasured"], summary["best"]))
    if summary["cost"]:
        lines.append(f"cost: {price(summary['cost'])}")
    baseline, best, mean = summary["baseline"], summary["best"], mean_of(len(record.problems))
    if baseline:
        lines.append(f"baseline: {baseline['name']}, {microseconds(baseline['time_us'])} {unit}{mean}")
    else:
        lines.append("baseline: none was measured, so no speedup is known")
    if best is None:
        none = "no trial has been measured yet"
        if summary["outcomes"]["measured"]:
            none = "every measured trial that was verified is refuted (`show --trial N` tells more of one)"
        lines.append(f"best: {none}")
        return lines + _refuted(reader, record) + _rejected(summary) + _failures(reader, record, most=8)
    interval = None if record.predicted else best["ci95_us"]
    inside = f" (95 % interval {microseconds(interval[0])} to {microseconds(interval[1])})" if interval else ""
    times = f", {speedup(best)} the baseline" if best["speedup"] else ""
    lines.append(f"best: trial {best['trial']}, {microseconds(best['time_us'])} {unit}{mean}{inside}{times}")
    lines.append(proved(summary))
    lines += _refuted(reader, record)
    if summary["limit"]:
        lines.append(limit(summary["limit"], unit))
    if best["speedup"] is not None and best["speedup"] <= 1:
        lines.append("nothing beat the baseline")
    if summary["control"]:
        lines += [
            f"control: {control_verdict(summary['control'], unit, microseconds)}",
            "",
            *_arms(summary["control"], unit),
        ]
    lines += ["", *_fastest(reader, record, top, baseline["time_us"] if baseline else None)]
    lines += _rejected(summary)
    lines += _failures(reader, record, each=3)
    lines += [
        "",
        f"{command_line('export', record.name, '--db', db, '-o', 'best.cu')}   writes the best as a program of its own",
    ]
    return lines


def _refuted(reader: Reader, record: StudyRecord) -> list[str]:
    """Return a line for each trial that its verification refuted: it is no champion, however fast."""
    numbers = sorted(reader.refuted(record))
    told = [(number, reader.verification(record, reader.trial(record, number).trial).reason) for number in numbers]
    return [f"refuted: trial {number}, {reason}" for number, reason in told]


def _remeasured(found: Mapping[int, Mapping[str, Any]], best: Mapping[str, Any] | None) -> str:
    """Return how many trials another GPU measured again, and what the best took there."""
    count = several(len(found), "trial")
    told = f"{count} measured again by another GPU: {next(iter(found.values()))['because']}"
    again = found.get(best["trial"]) if best else None
    if best is None or again is None:
        return told
    took = f"took {microseconds(again['time_us'])} µs" if again["time_us"] else f"was {again['outcome']}"
    return f"{told}; the best, trial {best['trial']}, {took} on {again['gpu']}"


def _rejected(summary: Mapping[str, Any]) -> list[str]:
    """Return a table of the constraints that turned proposals away before a compile, most first."""
    rejections = summary["rejections"]
    if not rejections:
        return []
    total = sum(rejections.values())
    ordered = sorted(rejections.items(), key=lambda pair: (-pair[1], pair[0]))
    rows = [(f"{count:,}", f"{100 * count / total:.0f} %", name) for name, count in ordered]
    told = f"{several(total, 'proposal')} turned away before a compile"
    return ["", told, *table(("proposals", "share", "constraint"), rows)]


def _failures(reader: Reader, record: StudyRecord, *, most: int | None = None, each: int | None = None) -> list[str]:
    """Return a table of the commonest reasons of failure: the `most` of all, and of each outcome `each`."""
    from evokern.analysis.wrong_trials import hints
    from evokern.report.trial_counts import reasons

    trials = list(reader.trials(record))
    shown_per_outcome, rows = Counter[str](), []
    for one in reasons(trials, most=most):
        shown_per_outcome[one.outcome] += 1
        if each is None or shown_per_outcome[one.outcome] <= each:
            rows.append((str(one.count), one.outcome, str(one.trial), one.example))
    head = ("trials", "outcome", "trial", "reason")
    listed = ["", "commonest reasons, each as one trial has it", *table(head, rows)] if rows else []
    found = hints(record.kernel, record.genes, trials)
    return [*listed, *(["", *found] if found else [])]


def _arms(control: dict[str, Any], unit: str) -> list[str]:
    rows = []
    for arm in control["arms"]:
        after, matched = arm["best_after"], arm["matched_after"]
        rows.append(
            (
                f"{arm['sampler']}{' (control)' if arm['control'] else ''}",
                str(arm["trials"]),
                str(arm["evaluated"]),
                microseconds(arm["best_us"]),
                _reached(after),
                "with its own best" if matched and matched == after else _reached(matched),
            )
        )
    return table(("arm", "trials", "evaluated", f"best {unit}", "reached its best", "reached the other's best"), rows)


def _reached(reached: dict[str, Any] | None) -> str:
    if reached is None:
        return "never"
    return f"after {reached['evaluated']} evaluated, {duration(reached['elapsed_s'])} (trial {reached['trial']})"


def _fastest(reader: Reader, record: StudyRecord, top: int, baseline_us: float | None) -> list[str]:
    from evokern.study.trial import Outcome

    refuted = reader.refuted(record)
    measured = [t for t in reader.trials(record) if t.outcome is Outcome.MEASURED]
    measured.sort(key=lambda t: (t.evaluation.time_us or 0.0, t.number))
    # A prediction has no interval, and without a baseline there is no speedup: a column of nothing is left out.
    columns: list[tuple[str, Callable[[Trial], str]]] = [
        ("trial", lambda t: f"{t.number}{' control' if t.control else ''}"),
        ("predicted µs" if record.predicted else "µs", lambda t: microseconds(t.evaluation.time_us)),
        *([] if record.predicted else [("95 % interval", _interval)]),
        *(
            [("speedup", lambda t: f"{(baseline_us or 0.0) / (t.evaluation.time_us or 1.0):.2f}×")]
            if baseline_us
            else []
        ),
        ("registers", lambda t: _most(r.registers for r in t.evaluation.resources)),
        ("shared", lambda t: _most(r.static_shared_bytes + r.dynamic_shared_bytes for r in t.evaluation.resources)),
        ("changed genes", lambda t: changed(t.config, record.genes) + (" (refuted)" if t.number in refuted else "")),
    ]
    return table([name for name, _ in columns], [[cell(t) for _, cell in columns] for t in measured[:top]])


def _interval(trial: Trial) -> str:
    from evokern.store import interval_us

    interval = interval_us(trial.evaluation)
    return f"{microseconds(interval[0])} to {microseconds(interval[1])}" if interval else "-"


def _most(used: Iterable[int]) -> str:
    most = max(used, default=None)
    return "-" if most is None else str(most)
