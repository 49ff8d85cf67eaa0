"""Details of one trial, as text and as JSON: configuration, outcome and reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from evokern.cli._output import Output
from evokern.cli._text import show_line
from evokern.wording import distinguishing_digits, duration, mean_suffix, microseconds

if TYPE_CHECKING:
    from evokern.store import Reader, StudyRecord, TrialRecord

_PROBLEMS = ("problem", "finding_problem", "own_problem")
"""Names of facts that are a problem key, or a table whose keys are problems."""
_COVERED_BY_FINDING = ("diagnosis", "message")
"""Evidence that only summarises the sanitizer finding; it is omitted if the finding is shown."""
STORED_RESTART = "excursion "
"""Stored name of a niche restart (`evokern.samplers.evo`). Stored names never change."""


def show_trial(output: Output, reader: Reader, record: StudyRecord, found: TrialRecord) -> None:
    """Print all facts about one trial."""
    from evokern.study.trial import Outcome

    facts = _facts(reader, record, found)
    if output.json:
        output.print_json(facts)
        return
    evaluation = found.trial.evaluation
    drawn = " (control)" if found.trial.control else ""
    guessed = " predicted" if record.predicted and evaluation.outcome is Outcome.MEASURED else ""
    mean = mean_suffix(len(record.problems)) if evaluation.outcome is Outcome.MEASURED else ""
    result = f"{facts['outcome']}, {facts['reason']}{guessed}{mean}"
    show_line(f"trial {found.trial.number}{drawn} of {record.name} on {record.device}: {result}")
    show_line("configuration (* marks a change from the default candidate)")
    for gene in record.genes:
        value = found.trial.config.get(gene.name)
        show_line(f"  {'*' if value != gene.default else ' '} {gene.name:<24}{value}")
    for problem, timing in zip(record.problems, evaluation.timings, strict=False):
        low, high = timing.ci95_us
        word = "predicted" if timing.predicted else f"{len(timing.samples_us)} samples"
        clock = f", SM clock {timing.clock_mhz:.0f} MHz" if timing.clock_mhz else ""
        heat = f", {timing.temperature_c:.0f} °C" if timing.temperature_c is not None else ""
        limited = f", throttled: {timing.throttle}" if timing.throttle else ""
        show_line(f"time on {record.in_words(problem, every=True)}: {microseconds(timing.median_us)} µs", end="")
        interval = "" if timing.predicted else f"95 % interval {microseconds(low)} to {microseconds(high)}, "
        show_line(f" ({interval}{word}{clock}{heat}{limited})")
    for used in evaluation.resources:
        show_line(
            f"launch: {used.registers} registers, {used.spill_bytes} bytes spilled, {used.static_shared_bytes} static "
            f"and {used.dynamic_shared_bytes} dynamic bytes of shared memory, occupancy {100 * used.occupancy:.0f} %"
        )
    finding = facts["evidence"].get("finding")
    if finding:
        show_line("finding")
        for line in finding_lines(finding, _named(reader, record, found)):
            show_line(f"  {line}")
    covered = ("finding", *_COVERED_BY_FINDING) if finding else ()
    evidence = {key: value for key, value in facts["evidence"].items() if key not in covered}
    if {"got", "expected"} <= set(evidence):
        evidence |= dict(
            zip(
                ("got", "expected"),
                distinguishing_digits(float(evidence["got"]), float(evidence["expected"])),
                strict=True,
            )
        )
    _section("evidence", _in_words(record, evidence))
    for line in gate_lines({record.in_words(key, every=True): report for key, report in facts["gate"].items()}):
        show_line(line)
    _section("proposal", proposal_words(facts["proposal"]))
    _section("rejections", facts["rejections"])
    if facts["profile"]:
        about = {key: facts["profile"][key] for key in ("source", "device", "problem", "created")}
        _section("profile", _in_words(record, about))
        _section(facts["profile"]["bound"], {"evidence": "\n".join(facts["profile"]["evidence"])})
    show_line(f"compile time {evaluation.compile_s:.2f} s, device time {evaluation.device_s:.2f} s", end="")
    show_line(f", recorded at {duration(found.trial.seconds)} of study time; kernel digest {found.kernel_digest[:12]}")


def _in_words(record: StudyRecord, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts with problem keys replaced by readable problems, both in values and in table keys."""
    told = dict(facts)
    for name in _PROBLEMS:
        if isinstance(told.get(name), str):
            told[name] = record.in_words(told[name])
        elif isinstance(told.get(name), Mapping):
            told[name] = {record.in_words(problem): found for problem, found in told[name].items()}
    return told


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
        "proposal": dict(found.trial.proposal.info),
        "rejections": dict(found.trial.proposal.rejections),
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


def _named(reader: Reader, record: StudyRecord, found: TrialRecord) -> str:
    """Return the name of the source file that contains the finding's line, or a description of it."""
    finding = found.trial.evaluation.evidence["finding"]
    for name, text in reader.source(found.kernel_digest, shown=True).items():
        lines = text.splitlines()
        text_there = lines[finding["line"] - 1].strip() if 0 < finding["line"] <= len(lines) else None
        if name.endswith(".cu") and text_there == finding["source"]:
            return name
    return f"{record.kernel}'s source"


def proposal_words(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampler's notes on its proposal, with the stored name of a niche restart made readable."""
    words = dict(info)
    turn = str(words.get("turn", ""))
    if turn.startswith(STORED_RESTART):
        words["turn"] = f"niche restart {turn.removeprefix(STORED_RESTART)}"
    return words


def finding_lines(finding: Mapping[str, Any], file: str) -> Iterator[str]:
    """Yield the lines of a sanitizer finding.

    Args:
        finding: finding as printed by `sanitize --json`.
        file: name of the kernel's source file, for findings outside headers.
    """
    kind = finding["kind"].replace("_", " ")
    yield f"{kind} at {_place(finding.get('file') or file, finding['line'])}"
    if finding["source"]:
        yield f"    {finding['source']}"
    block, thread = (",".join(map(str, finding[key])) for key in ("block", "thread"))
    yield f"first in      block {block}, thread {thread}"
    if finding["allocation"]:
        yield f"memory        {finding['allocation']}, byte {finding['offset']:,} (address {finding['address']:#x})"
    if finding["other_line"]:
        yield f"other access  {_place(finding.get('other_file') or file, finding['other_line'])}"
    for name, line in finding.get("called_from", ()):
        yield f"called from   {_place(name or file, line)}"
    yield f"instruction   {finding['instruction']}"
    yield f"occurrences   {finding['count']:,}"
    yield f"usual cause   {finding['hint']}"


def _place(file: str, line: int) -> str:
    return f"{file}:{line}" if line else f"unknown line of {file}"


def gate_lines(gate: Mapping[str, Any]) -> Iterator[str]:
    """Yield the correctness gate's measurements for each problem.

    Args:
        gate: reports of `evokern.gate.verdict` by readable problem.
    """
    for problem, report in gate.items():
        if not (isinstance(report, Mapping) and {"worst", "checks"} <= set(report)):
            yield f"gate: {problem}: {_text(report)}"
            continue
        worst, checks = report["worst"], report["checks"]
        runs = f"{report['runs']} run{'s' if report['runs'] != 1 else ''}"
        yield f"gate on {problem}: {runs}, inputs {', '.join(map(str, report['input_sets']))}"
        used = _text(report["tolerance_spent"])
        yield f"  relative error {_text(report['relative_error'])}, share of the tolerance used: {used}"
        at = ", ".join(map(str, worst["index"]))
        got, expected = distinguishing_digits(float(worst["got"]), float(worst["expected"]))
        yield (
            f"  worst element {worst['output']}[{at}]: {got}, expected {expected} "
            f"within {_text(worst['allowed'])} ({worst['input_set']} inputs), {worst['bad']:,} elements wrong"
        )
        yield f"  checks: {_text({name.replace('_', ' '): value for name, value in checks.items()})}"


def _text(value: object) -> str:
    """Return a value of the evidence as text: numbers with four digits, tables and lists on one line."""
    match value:
        case float():
            return f"{value:.4g}"
        case Mapping():
            return ", ".join(f"{name} ({_text(v)})" if isinstance(v, Mapping) else f"{name} {_text(v)}"
                             for name, v in value.items())  # fmt: skip
        case str():
            return value
        case Sequence():
            return ", ".join(_text(one) for one in value)
        case _:
            return str(value)


def _section(title: str, facts: Mapping[str, Any]) -> None:
    if not facts:
        return
    show_line(title)
    for name, value in facts.items():
        lines = _text(value).strip().splitlines() or [""]
        show_line(f"  {name}: {lines[0]}")
        for line in lines[1:]:
            show_line(f"    {line}")
