"""`evokern show [STUDY]`: show the results of a study, or one trial in detail."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evokern.cli._command import command
from evokern.cli._options import DEFAULT_DB, StoredStudyArgument
from evokern.cli._output import Output, show_line, table
from evokern.cli.commands._trial import show_trial
from evokern.declaration.as_data.words import call_words
from evokern.errors import UsageError, suggestion
from evokern.wording import (
    changed_genes_text,
    count_noun,
    duration,
    mean_suffix,
    microseconds,
    outcome_counts,
    rejected_baselines_text,
    roofline_text,
    speedup,
    verification_text,
    warm_start_text,
)
from evokern.wording import command as command_line

if TYPE_CHECKING:
    from evokern.store import Reader, StudyRecord
    from evokern.study.trial import Trial

MIN_TIMED_TRIALS = 30
"""Number of timed trials below which a missing effect of a gene says nothing about the gene."""
_LIMIT_NAMES = ("_per_thread", "_per_block", "_per_sm")
"""Endings of the constraints that are resource limits."""
_REASONS = {
    "block_extent": "extent of a block on the device",
    "cluster": "the cluster must divide the grid",
    "cluster_blocks": "no chip supports a larger cluster",
    "compute_capability": "the device lacks instructions or features",
    "grid_extent": "extent of a grid on the device",
    "launch_bounds": "the block exceeds the kernel's launch bounds",
    "static_shared_memory": "at most 48 KB of static shared memory",
    "vector_alignment": "vector accesses must be aligned",
}
"""Constraint of evokern → its reason."""


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
    study: StoredStudyArgument = None,
    top: Annotated[int, typer.Option("--top", metavar="N", min=1, help="Number of fastest trials to list.")] = 10,
    trial: Annotated[
        int | None,
        typer.Option("--trial", metavar="N", min=0, help="Show trial N in detail instead of the summary."),
    ] = None,
    genes: Annotated[
        bool,
        typer.Option(
            "--genes", help="Show which genes determine the time, have only one value, or have no clear effect."
        ),
    ] = False,
    db: Annotated[
        Path,
        typer.Option(
            "--db",
            metavar="FILE|DIR",
            envvar="EVOKERN_DB",
            help="SQLite database that stores the results, or the folder of a sweep.",
            show_envvar=True,
        ),
    ] = DEFAULT_DB,
) -> None:
    """Show the results of a study.

    The output lists the outcomes, the baseline, the champion, the fastest trials and the most common failures. The
    command works on any machine, even while a search is running, and needs no kernel folder. If --db is the folder of a
    sweep, the command lists the studies of the sweep, or shows STUDY from that folder.
    """
    from evokern.analysis.no_success import hints_of
    from evokern.store import open_readonly

    if db.is_dir():
        if study is None:
            _folder(output, db)
            return
        if not (db / f"{study}.db").is_file():
            known = [path.stem for path in sorted(db.glob("*.db"))]
            raise UsageError(
                f"{db} is a folder without study {study!r}; choose another folder with --db, or a study in this "
                "folder: "
                f"{suggestion(study, known) or 'it contains no study'}"
            )
        db = db / f"{study}.db"
    with open_readonly(db) as reader:
        record = reader.study(study)
        if trial is not None and genes:
            raise UsageError("--genes applies to the whole study; omit --trial")
        if trial is not None:
            show_trial(output, reader, record, reader.trial(record, trial))
        elif genes:
            _genes(output, reader, record)
        elif output.json:
            output.print_json({**reader.summary(record), "hints": hints_of(record, reader.trials(record))})
        else:
            for line in _overview(reader, record, top, db):
                show_line(line)


def _folder(output: Output, folder: Path) -> None:
    """List the studies of all databases in a folder, and report the databases that cannot be read."""
    from evokern.results.overview import summary_line
    from evokern.store import open_readonly

    rows, unreadable = [], {}
    for db in sorted(folder.glob("*.db")):
        try:
            with open_readonly(db) as reader:
                found = [(record, reader.summary(record)) for record in reader.studies()]
        except UsageError as error:
            unreadable[str(db)] = str(error)
            continue
        rows += [{**summary, "db": str(db), "standing": summary_line(summary)} for _, summary in found]
    if not rows and not unreadable:
        raise UsageError(
            f"{folder} is a folder without databases; use --db to choose a database file or the folder of a sweep"
        )
    if output.json:
        output.print_json({"folder": str(folder), "studies": rows, "unreadable": unreadable})
        return
    for row in rows:
        show_line(f"{row['study']}: {row['standing']}{', verified' if row['verified'] else ''}")
    for why in unreadable.values():
        output.print_error(why)


def _genes(output: Output, reader: Reader, record: StudyRecord) -> None:
    from evokern.analysis.genes.gene_report import genes_report

    found = genes_report(reader, record)
    if output.json:
        output.print_json(found.as_dict())
        return
    kind = "predicted" if found.predicted else "measured"
    known = (
        "" if found.explained is None else f"; the model explains {100 * max(found.explained, 0):.0f} % of the variance"
    )
    known += "" if found.explained is None or found.trusted else ", not enough to name decisive genes"
    slow = f" ({found.slow} of slow trials)" if found.slow else ""
    show_line(f"{found.study}: {found.trials} trials, {found.timed} {kind} times{slow}{known}")
    titles = (
        ("decisive", "decisive genes"),
        ("locked", "locked genes"),
        ("barred", "barred values"),
        ("dead", "dead genes"),
    )
    for key, title in titles:
        for index, finding in enumerate(found.findings_of(key)):  # type: ignore[arg-type]
            if not index:
                show_line(title)
            share = found.share(finding.gene) if key == "decisive" else ""
            show_line(f"  {finding.text}{'; ' if share else ''}{share}")
    for index, failing in enumerate(found.combinations):
        if not index:
            show_line("barred combinations")
        show_line(f"  {failing.text}")
    if found.inconclusive and found.timed < MIN_TIMED_TRIALS:
        show_line(f"too few {kind} trials to judge the other genes: {found.timed} of about {MIN_TIMED_TRIALS}")
    elif found.inconclusive:
        show_line(f"no clear effect: {', '.join(found.inconclusive)}")
    if found.single:
        show_line(f"only one value in this study: {', '.join(found.single)}")


def _overview(reader: Reader, record: StudyRecord, top: int, db: Path) -> list[str]:
    from evokern.analysis.control_verdict import control_verdict, cost_text
    from evokern.analysis.no_success import stop_text

    summary = reader.summary(record)
    unit = "µs predicted" if record.predicted else "µs"
    spent = duration(summary["elapsed_s"]) + (f" of {duration(record.budget_s)}" if record.budget_s else "")
    lines = [
        f"{record.name}: kernel {record.kernel} at {record.problems_in_words()} on {record.device}",
        f"{count_noun(summary['trials'], 'trial')} in {spent}, sampler {record.sampler}, seed {record.seed}",
        f"outcomes: {outcome_counts(summary)}",
        *slow_lines(reader.trials(record)),
    ]
    if summary["end"] == "no_success":
        again = command_line("resume", record.name, "--db", db, "--keep-going")
        lines.append(f"{stop_text(list(reader.trials(record)))}; to continue all the same, run `{again}`")
    if summary["warm_start"]:
        lines.append(f"warm start: {warm_start_text(summary['warm_start'])}")
    if record.timing_rule is not None:
        lines.append(f"timing rule: {record.timing_rule} (see docs/evaluating.md)")
    if summary["remeasured"]:
        lines.append(_remeasured(summary["remeasured"], summary["best"]))
    if summary["cost"]:
        lines.append(f"cost: {cost_text(summary['cost'])}")
    baseline, best, mean = summary["baseline"], summary["best"], mean_suffix(len(record.problems))
    if baseline:
        others = [f"{name} {microseconds(us)}" for name, us in summary["baselines"].items() if name != baseline["name"]]
        slower = f"; slower: {', '.join(others)}" if others else ""
        lines.append(f"baseline: {baseline['name']}, {microseconds(baseline['time_us'])} {unit}{mean}{slower}")
    else:
        if not summary["rejected_baselines"]:
            lines.append("baseline: not measured, so the speedup is unknown")
    if summary["rejected_baselines"]:
        lines.append(rejected_baselines_text(summary["rejected_baselines"]))
    if best is None:
        none = "no trial has been measured yet"
        if summary["outcomes"]["measured"]:
            none = "verification refuted every measured trial it checked (for details, use `show --trial N`)"
        lines.append(f"best: {none}")
        rejected = _rejected(reader, record, summary)
        return lines + _refuted(reader, record) + rejected + _failures(reader, record, most=8)
    interval = None if record.predicted else best["ci95_us"]
    inside = f" (95 % interval {microseconds(interval[0])} to {microseconds(interval[1])})" if interval else ""
    times = f", {speedup(best)} as fast as the baseline" if best["speedup"] else ""
    lines.append(f"best: trial {best['trial']}, {microseconds(best['time_us'])} {unit}{mean}{inside}{times}")
    lines.append(verification_text(summary))
    lines.append(f"exact arithmetic: {summary['algebra']}")
    lines += _refuted(reader, record)
    if summary["limit"]:
        lines.append(roofline_text(summary["limit"], unit))
    if summary["grid"]["note"]:
        lines.append(f"grid: {summary['grid']['note']}")
    if best["speedup"] is not None and best["speedup"] <= 1:
        lines.append("no candidate beat the baseline")
    if summary["control"]:
        lines += [
            f"control: {control_verdict(summary['control'], unit, microseconds)}",
            "",
            *_groups(summary["control"], unit),
        ]
    lines += ["", *_fastest(reader, record, top, baseline["time_us"] if baseline else None)]
    lines += _rejected(reader, record, summary)
    lines += _failures(reader, record, each=3)
    if not record.device.startswith("replay:"):
        lines += ["", f"to export the best: {command_line('export', record.name, '--db', db, '-o', 'best.cu')}"]
    return lines


def _refuted(reader: Reader, record: StudyRecord) -> list[str]:
    """Return one line per refuted trial, which explains why the trial cannot become the champion."""
    numbers = sorted(reader.refuted(record))
    reasons = [(number, reader.verification(record, reader.trial(record, number).trial).reason) for number in numbers]
    return [f"refuted: trial {number}, {reason}" for number, reason in reasons]


def _remeasured(found: Mapping[int, Mapping[str, Any]], best: Mapping[str, Any] | None) -> str:
    """Return one line with the number of trials remeasured on another GPU and the time of the best one there."""
    count = count_noun(len(found), "trial")
    text = f"{count} remeasured on another GPU: {next(iter(found.values()))['because']}"
    again = found.get(best["trial"]) if best else None
    if best is None or again is None:
        return text
    took = f"took {microseconds(again['time_us'])} µs" if again["time_us"] else f"was {again['outcome']}"
    return f"{text}; the best, trial {best['trial']}, {took} on {again['gpu']}"


def slow_lines(trials: Iterable[Trial]) -> list[str]:
    """Return a line about the slow trials: the way in which they were stopped, and the time to beat."""
    from evokern.study.trial import Outcome

    found = [trial.evaluation for trial in trials if trial.outcome is Outcome.SLOW]
    if not found:
        return []
    screened = [one for one in found if not one.passed_gate]
    launched = sum(bool(one.evidence.get("unproved")) for one in screened)
    ways = (
        (len(screened) - launched, "screened by predicted time"),
        (launched, "screened by first launches"),
        (len(found) - len(screened), "lost the race after passing the correctness check"),
    )
    times = [float(one.evidence["elite_us"]) for one in found]
    factors = [float(one.evidence["limit_us"]) / time for one, time in zip(found, times, strict=True)
               if float(one.evidence.get("limit_us") or 0) > time]  # fmt: skip
    best = _range(times, microseconds)
    beyond = f"; stopped beyond {_range(factors, '{:.3g}'.format)} × that time" if factors else ""
    counted = ", ".join(f"{count} {how}" for count, how in ways if count)
    return [f"slow: {counted}; time to beat: {best} µs{beyond}"]


def _range(values: list[float], text: Callable[[float], str]) -> str:
    """Return the smallest and largest value as text, or one if their texts are equal."""
    low, high = text(min(values)), text(max(values))
    return low if low == high else f"{low} to {high}"


def _constraint_reasons(reader: Reader, record: StudyRecord) -> dict[str, str]:
    """Return constraint → reason, as far as the stored kernel.py states them as plain text."""
    reasons: dict[str, str] = {}
    text = reader.source(record.kernel_digest, shown=True).get("kernel.py", "")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return reasons
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Constraint"):
            continue
        given = dict(zip(("name", "holds", "reason"), node.args, strict=False))
        given |= {one.arg: one.value for one in node.keywords if one.arg}
        name, reason = (getattr(given.get(key), "value", None) for key in ("name", "reason"))
        if isinstance(name, str) and isinstance(reason, str):
            reasons[name] = reason
    return reasons


def _rejected(reader: Reader, record: StudyRecord, summary: Mapping[str, Any]) -> list[str]:
    """Return a table of the constraints that rejected proposals before compilation, most frequent first."""
    rejections = summary["rejections"]
    if not rejections:
        return []
    total = sum(rejections.values())
    ordered = sorted(rejections.items(), key=lambda pair: (-pair[1], pair[0]))
    reasons = _constraint_reasons(reader, record)
    known = {name: reasons.get(name) or _reason_of(name) for name in rejections}
    rows = [(f"{count:,}", f"{100 * count / total:.0f} %", name, known[name]) for name, count in ordered]
    total_text = f"{total:,} proposal{'' if total == 1 else 's'} rejected before compilation"
    if any(known.values()):
        rows = [(*row[:3], row[3] or call_words("constraint of kernel.py", record.field_names)) for row in rows]
        return ["", total_text, *table(("proposals", "share", "constraint", "reason"), rows)]
    return ["", total_text, *table(("proposals", "share", "constraint"), [row[:3] for row in rows])]


def _reason_of(constraint: str) -> str:
    """Return the reason of a built-in constraint; empty for other constraints."""
    return "resource limit of the device" if constraint.endswith(_LIMIT_NAMES) else _REASONS.get(constraint, "")


def _failures(reader: Reader, record: StudyRecord, *, most: int | None = None, each: int | None = None) -> list[str]:
    """Return a table of the most common reasons for failures: at most `most` in total and `each` per outcome."""
    from evokern.analysis.no_success import hints_of
    from evokern.report.trial_counts import reasons

    trials = list(reader.trials(record))
    shown_per_outcome, rows = Counter[str](), []
    for one in reasons(trials, most=most):
        shown_per_outcome[one.outcome] += 1
        if each is None or shown_per_outcome[one.outcome] <= each:
            rows.append((str(one.count), one.outcome, str(one.trial), one.example))
    head = ("trials", "outcome", "example", "reason in the example")
    listed = ["", "most common reasons for failures", *table(head, rows)] if rows else []
    found = hints_of(record, trials)
    return [*listed, *(["", *found] if found else [])]


def _groups(control: dict[str, Any], unit: str) -> list[str]:
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
                "same trial" if matched and matched == after else _reached(matched),
            )
        )
    return table(("group", "trials", "evaluated", f"best {unit}", "best reached", "other group's best reached"), rows)


def _reached(reached: dict[str, Any] | None) -> str:
    if reached is None:
        return "never"
    return f"after {reached['evaluated']} evaluated, {duration(reached['elapsed_s'])} (trial {reached['trial']})"


def _fastest(reader: Reader, record: StudyRecord, top: int, baseline_us: float | None) -> list[str]:
    from evokern.study.trial import Outcome

    refuted = reader.refuted(record)
    measured = [t for t in reader.trials(record) if t.outcome is Outcome.MEASURED]
    measured.sort(key=lambda t: (t.evaluation.time_us or 0.0, t.number))
    # Predictions have no interval, and without a baseline there is no speedup; omit those columns.
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
        (
            "changed genes",
            lambda t: changed_genes_text(t.config, record.genes) + (" (refuted)" if t.number in refuted else ""),
        ),
    ]
    return table([name for name, _ in columns], [[cell(t) for _, cell in columns] for t in measured[:top]])


def _interval(trial: Trial) -> str:
    from evokern.store import interval_us

    interval = interval_us(trial.evaluation)
    return f"{microseconds(interval[0])} to {microseconds(interval[1])}" if interval else "-"


def _most(used: Iterable[int]) -> str:
    most = max(used, default=None)
    return "-" if most is None else str(most)
