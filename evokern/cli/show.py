"""`evokern show [STUDY]`: what a study found, or everything about one trial."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evokern.cli._command import command
from evokern.cli._options import DEFAULT_DB, DbOption, StudyArgument, TrialOption
from evokern.cli._output import Output
from evokern.cli._text import changed, counts, duration, limit, microseconds, table
from evokern.errors import UsageError

if TYPE_CHECKING:
    from evokern.store import Reader, StudyRecord, TrialRecord
    from evokern.trial import Trial


@command(
    "show",
    examples="""
    evokern show
    evokern show attention-s512 --top 20 --db runs.db
    evokern show --trial 42
    evokern show --genes
    evokern show --json
    """,
)
def show(
    output: Output,
    study: StudyArgument = None,
    top: Annotated[int, typer.Option("--top", metavar="N", min=0, help="How many of the fastest trials to list.")] = 10,
    trial: TrialOption = None,
    genes: Annotated[
        bool, typer.Option("--genes", help="Show what the search learned: decisive, locked and dead genes.")
    ] = False,
    db: DbOption = DEFAULT_DB,
) -> None:
    """Show what a study found: outcomes, rejections, baseline, the fastest trials, or everything about one trial.

    Without STUDY the one searched last. Works on any machine, also while a search writes, and needs no kernel folder.
    """
    from evokern.store import open_readonly

    with open_readonly(db) as reader:
        record = reader.study(study)
        if trial is not None and genes:
            raise UsageError("--genes is about the whole study; leave --trial away")
        if trial is not None:
            _one(output, reader, record, reader.trial(record, trial))
        elif genes:
            _genes(output, reader, record)
        elif output.json:
            output.emit(reader.summary(record))
        else:
            for line in _overview(reader, record, top, db):
                print(line)


def _genes(output: Output, reader: Reader, record: StudyRecord) -> None:
    from evokern.explain.gene_report import genes_report

    found = genes_report(reader, record)
    if output.json:
        output.emit(found.as_dict())
        return
    kind = "predicted" if found.predicted else "measured"
    known = "" if found.explained is None else f"; the model explains {100 * max(found.explained, 0):.0f} % of them"
    print(f"{found.study}: {found.trials} trials, {found.timed} {kind} times{known}")
    titles = (
        ("decisive", "decisive genes"),
        ("locked", "locked genes"),
        ("barred", "barred values"),
        ("dead", "dead genes"),
    )
    for key, title in titles:
        for index, finding in enumerate(found.having(key)):  # type: ignore[arg-type]
            if not index:
                print(title)
            share = found.share(finding.gene) if key == "decisive" else ""
            print(f"  {finding.text}{'; ' if share else ''}{share}")
    for index, failing in enumerate(found.combinations):
        if not index:
            print("barred combinations")
        print(f"  {failing.text}")
    if found.quiet:
        print(f"nothing stands out: {', '.join(found.quiet)}")
    if found.single:
        print(f"one value in this study: {', '.join(found.single)}")


def _overview(reader: Reader, record: StudyRecord, top: int, db: Path) -> list[str]:
    from evokern.explain.worth import price, verdict

    summary = reader.summary(record)
    unit = "µs predicted" if record.predicted else "µs"
    spent = duration(summary["elapsed_s"]) + (f" of {duration(record.budget_s)}" if record.budget_s else "")
    lines = [
        f"{record.name}: kernel {record.kernel} at {' and '.join(record.problems)} on {record.device}",
        f"{summary['trials']} trials in {spent}, sampler {record.sampler}, seed {record.seed}",
        f"outcomes: {counts(summary['outcomes'])}",
    ]
    if summary["cost"]:
        lines.append(f"cost: {price(summary['cost'])}")
    if summary["rejections"]:
        lines.append(f"proposals turned away before a compile: {counts(summary['rejections'])}")
    baseline, best = summary["baseline"], summary["best"]
    if baseline:
        lines.append(f"baseline: {baseline['name']}, {microseconds(baseline['time_us'])} {unit}")
    else:
        lines.append("baseline: none was measured, so no speedup is known")
    if best is None:
        lines.append("best: no trial has been measured yet")
        return lines + _failures(reader, record)
    interval = None if record.predicted else best["ci95_us"]
    inside = f" (95 % interval {microseconds(interval[0])} to {microseconds(interval[1])})" if interval else ""
    times = f", {best['speedup']:.2f}× the baseline" if best["speedup"] else ""
    lines.append(f"best: trial {best['trial']}, {microseconds(best['time_us'])} {unit}{inside}{times}")
    if summary["limit"]:
        lines.append(limit(summary["limit"], unit))
    if best["speedup"] is not None and best["speedup"] <= 1:
        lines.append("nothing beat the baseline")
    if summary["control"]:
        lines += [f"control: {verdict(summary['control'], unit, microseconds)}", "", *_arms(summary["control"], unit)]
    lines += ["", *_fastest(reader, record, top, baseline["time_us"] if baseline else None)]
    lines += ["", f"evokern export {record.name} --db {db} -o best.cu   writes the best as a program of its own"]
    return lines


def _failures(reader: Reader, record: StudyRecord) -> list[str]:
    from evokern.report.facts import reasons

    rows = [(str(count), outcome, reason) for outcome, reason, count in reasons(reader.trials(record), most=8)]
    return ["", "commonest reasons (numbers as #)", *table(("trials", "outcome", "reason"), rows)] if rows else []


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
                _reached(matched),
            )
        )
    return table(("arm", "trials", "evaluated", f"best {unit}", "its best after", "the other's best after"), rows)


def _reached(reached: dict[str, Any] | None) -> str:
    if reached is None:
        return "never"
    return (
        f"{reached['evaluated']} evaluated, {duration(reached['elapsed_s'])} into the study (trial {reached['trial']})"
    )


def _fastest(reader: Reader, record: StudyRecord, top: int, baseline_us: float | None) -> list[str]:
    from evokern.trial import Outcome

    measured = [t for t in reader.trials(record) if t.outcome is Outcome.MEASURED]
    measured.sort(key=lambda t: (t.evaluation.time_us or 0.0, t.number))
    rows = [_row(t, record, baseline_us) for t in measured[:top]]
    unit = "predicted µs" if record.predicted else "µs"
    return table(("trial", unit, "95 % interval", "speedup", "registers", "shared", "changed genes"), rows)


def _row(trial: Trial, record: StudyRecord, baseline_us: float | None) -> tuple[str, ...]:
    from evokern.store import interval_us

    evaluation = trial.evaluation
    interval = interval_us(evaluation)
    used = evaluation.resources
    return (
        f"{trial.number}{' control' if trial.control else ''}",
        microseconds(evaluation.time_us),
        f"{microseconds(interval[0])} to {microseconds(interval[1])}" if interval else "-",
        f"{baseline_us / evaluation.time_us:.2f}×" if baseline_us and evaluation.time_us else "-",
        str(max(r.registers for r in used)) if used else "-",
        str(max(r.static_shared_bytes + r.dynamic_shared_bytes for r in used)) if used else "-",
        changed(trial.config, record.genes),
    )


def _one(output: Output, reader: Reader, record: StudyRecord, found: TrialRecord) -> None:
    facts = _facts(reader, record, found)
    if output.json:
        output.emit(facts)
        return
    evaluation = found.trial.evaluation
    drawn = " drawn by the control" if found.trial.control else ""
    print(
        f"trial {found.trial.number}{drawn} of {record.name} on {record.device}: {facts['outcome']}, {facts['reason']}"
    )
    print("configuration (* differs from the default candidate)")
    for gene in record.genes:
        value = found.trial.config.get(gene.name)
        print(f"  {'*' if value != gene.default else ' '} {gene.name:<24}{value}")
    for problem, timing in zip(record.problems, evaluation.timings, strict=False):
        low, high = timing.ci95_us
        word = "predicted" if timing.predicted else f"{len(timing.samples_us)} samples"
        clock = f", SM clock {timing.clock_mhz:.0f} MHz" if timing.clock_mhz else ""
        heat = f", {timing.temperature_c:.0f} °C" if timing.temperature_c is not None else ""
        limited = f", throttled: {timing.throttle}" if timing.throttle else ""
        print(f"time at {problem}: {microseconds(timing.median_us)} µs", end="")
        print(f" (95 % interval {microseconds(low)} to {microseconds(high)}, {word}{clock}{heat}{limited})")
    for used in evaluation.resources:
        print(
            f"launch: {used.registers} registers, {used.spill_bytes} bytes spilled, {used.static_shared_bytes} static "
            f"and {used.dynamic_shared_bytes} dynamic bytes of shared memory, occupancy {100 * used.occupancy:.0f} %"
        )
    for title in ("evidence", "gate", "proposal", "rejections"):
        _section(title, facts[title])
    if facts["profile"]:
        _section("profile", {key: facts["profile"][key] for key in ("source", "device", "problem", "created")})
        _section(facts["profile"]["bound"], {"evidence": "\n".join(facts["profile"]["evidence"])})
    print(f"compiled in {evaluation.compile_s:.2f} s, on the device for {evaluation.device_s:.2f} s", end="")
    print(f", recorded {duration(found.trial.seconds)} into the study; kernel {found.kernel_digest[:12]}")


def _facts(reader: Reader, record: StudyRecord, found: TrialRecord) -> dict[str, Any]:
    evaluation = found.trial.evaluation
    baseline = reader.baseline(record)
    speedup = baseline[1] / evaluation.time_us if baseline and evaluation.time_us else None
    return {
        "study": record.name,
        "device": record.device,
        "predicted": record.predicted,
        "trial": found.trial.number,
        "control": found.trial.control,
        "outcome": evaluation.outcome.value,
        "reason": evaluation.reason,
        "time_us": evaluation.time_us,
        "speedup": speedup,
        "config": dict(found.trial.config),
        "timings": [asdict(timing) for timing in evaluation.timings],
        "resources": [asdict(used) for used in evaluation.resources],
        "fingerprint": evaluation.fingerprint,
        "evidence": dict(evaluation.evidence),
        "gate": dict(evaluation.gate),
        "proposal": dict(found.trial.proposal),
        "rejections": dict(found.rejections),
        "profile": _profile(reader, record, found.trial.number),
        "compile_s": evaluation.compile_s,
        "device_s": evaluation.device_s,
        "study_s": found.trial.seconds,
        "kernel_digest": found.kernel_digest,
    }


def _profile(reader: Reader, record: StudyRecord, number: int) -> dict[str, Any] | None:
    """Return the latest profile of a trial."""
    known = reader.profiles(record, number)
    if not known:
        return None
    last = known[-1]
    about = {"source": last.source, "device": last.device, "problem": last.problem, "created": last.created}
    return {**about, **last.result["verdict"], "counters": last.result.get("counters")}


def _section(title: str, facts: dict[str, Any]) -> None:
    if not facts:
        return
    print(title)
    for name, value in facts.items():
        lines = str(value).strip().splitlines() or [""]
        print(f"  {name}: {lines[0]}")
        for line in lines[1:]:
            print(f"    {line}")
