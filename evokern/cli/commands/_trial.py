"""Details of one trial, as text and as JSON: configuration, outcome and reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from evokern.cli._output import Output, show_line
from evokern.declaration.as_data.words import call_words
from evokern.wording import GATE_COUNTS, distinguishing_digits, duration, limit_name, mean_suffix, microseconds

if TYPE_CHECKING:
    from evokern.store import Reader, StudyRecord, TrialRecord

_PROBLEMS = ("problem", "finding_problem")
"""Names of facts that are a problem key."""
_COVERED_BY_FINDING = ("diagnosis", "message")
"""Evidence that only summarises the sanitizer finding; it is omitted if the finding is shown."""
_EVIDENCE = {
    "terms_us": "components of the predicted time in µs",
    "bound": "predicted to be",
    "arithmetic": "number format of the operations",
    "flops": "operations",
    "flops_gain": "rate of 8-bit operations relative to 16-bit",
    "bytes": "bytes read and written",
    "dram_bytes": "bytes through device memory",
    "over": "largest error relative to the tolerance",
    "bad": "wrong elements",
    "launches_us": "times of the first launches in µs",
    "limit_us": "race threshold in µs",
    "elite_us": "time to beat in µs",
}
"""Label of each kind of evidence; others keep their name."""
_COUNTS = ("flops", "bytes", "dram_bytes")
"""Evidence that is a large whole number."""
_BOUNDS = (
    ("least_us", "limit_bound", "lower bound on time"),
    ("floor_us", "floor_bound", "lower bound on time in any number format"),
    ("arithmetic_us", "", "lower bound on time from operations alone"),
    ("floor_l2_us", "", "lower bound on time from L2 traffic alone"),
)
"""Evidence on lower bounds: key of the time, key of the limiting resource, label."""
_RESOURCES = {"dram": "memory (DRAM)", "l2": "L2 cache", "operations": "compute"}
"""Name of each resource that limits a lower bound."""
_PROPOSAL = {
    "operator": "proposed by",
    "parents": "parent trials",
    "predicted_us": "time predicted by the sampler in µs",
}
"""Label of each note of a sampler; others keep their name."""
_OPERATORS = {
    "neighbour": "changing one gene of an elite",
    "mutation": "changing several genes of an elite",
    "crossover": "combining two elites",
    "immigrant": "drawing from the whole space",
    "prior": "warm start",
    "default": "kernel.py (default candidate)",
    "cover": "exploring where the predictions are least certain",
    "starting_point": "kernel.py (starting point)",
}
"""Origin of a proposal in words; the stored names never change."""
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
    _section("evidence", evidence_words(evidence, record.in_words))
    for line in gate_lines({record.in_words(key, every=True): report for key, report in facts["gate"].items()}):
        show_line(line)
    _section("proposal", proposal_words(facts["proposal"], record.field_names))
    _section("proposals rejected before this one, by constraint", facts["rejections"])
    if facts["profile"]:
        about = {key: facts["profile"][key] for key in ("source", "device", "problem", "created")}
        _section("profile", _in_words(record.in_words, about))
        _section(facts["profile"]["bound"], {"evidence": "\n".join(facts["profile"]["evidence"])})
    show_line(f"compile time {evaluation.compile_s:.2f} s, device time {evaluation.device_s:.2f} s", end="")
    show_line(f", recorded at {duration(found.trial.seconds)} of study time; kernel digest {found.kernel_digest[:12]}")


def _in_words(in_words: Callable[[str], str], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts with problem keys replaced by readable problems."""
    return {
        name: in_words(value) if name in _PROBLEMS and isinstance(value, str) else value
        for name, value in facts.items()
    }


def evidence_words(evidence: Mapping[str, Any], in_words: Callable[[str], str]) -> dict[str, Any]:
    """Return the evidence for an outcome with readable names and values, without its redundant entries.

    Args:
        evidence: evidence as printed by `show --json`.
        in_words: returns a problem key as a readable problem.
    """
    from evokern.store import algebra_text

    left = _in_words(in_words, evidence)
    labels = dict(_EVIDENCE)
    if left.pop("limit", None) == "bound":
        labels["over"] = "largest error relative to its bound"
    if left.get("check") == "margin":
        labels["expected"] = "elements expected to exceed the tolerance"
    words: dict[str, Any] = {}
    algebra = left.pop("algebra", None)
    if isinstance(algebra, Mapping):
        words["exact arithmetic"] = algebra_text(algebra, in_words)
    own = left.pop("own_problem", None)
    for problem, found in own.items() if isinstance(own, Mapping) else ():
        words[f"full-size problem {in_words(problem)}"] = _full_size_text(found, in_words)
    for key, limiting, label in _BOUNDS:
        times = left.pop(key, None)
        resource = left.pop(limiting, None)
        if times is not None:
            limited = f", limited by {_RESOURCES.get(str(resource), resource)}" if resource else ""
            text = f"{_each(times, microseconds)} µs{limited}"
            if text not in words.values():
                words[label] = text
    gain = left.get("flops_gain")
    if all(one == 1 for one in (gain if isinstance(gain, Sequence) else (gain,))):
        left.pop("flops_gain", None)
    for name, value in left.items():
        shown = _each(value, "{:,.0f}".format) if name in _COUNTS else value
        words[labels.get(name, name.replace("_", " "))] = shown
    return words


def _each(value: Any, text: Callable[[float], str]) -> str:
    """Return a number, or one number for each problem, as text."""
    return ", ".join(map(text, value)) if isinstance(value, Sequence) else text(value)


def _full_size_text(found: Mapping[str, Any], in_words: Callable[[str], str]) -> str:
    """Return the result of running the blocks of a full-size problem on a simulated device."""
    ran = f"{found['blocks']:,} of {found['of']:,} blocks ran"
    if found["blocks"]:
        ran += " with correct results" if found["judged"] else ", results not compared"
    parts = [ran, "every output is covered" if found["covered"] else "could not confirm that every output is covered"]
    if not found["covered"]:
        counted = (
            f"{name}: {one['written']:,} of {one['elements']:,} elements written"
            for name, one in found["coverage"].items()
        )
        parts += counted
    if found.get("scaled"):
        parts.append(f"all blocks ran at the problem scaled down to {in_words(found['scaled'])}")
    return "; ".join(parts)


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


def proposal_words(info: Mapping[str, Any], fields: Iterable[str] = ()) -> dict[str, Any]:
    """Return the sampler's notes on its proposal in words; `fields` are those of the kernel's problems."""
    words = dict(info)
    turn = str(words.get("turn", ""))
    if turn.startswith(STORED_RESTART):
        words["turn"] = f"niche restart {turn.removeprefix(STORED_RESTART)}"
    if "operator" in words:
        words["operator"] = call_words(_OPERATORS.get(words["operator"], words["operator"]), fields)
    return {_PROPOSAL.get(name, name.replace("_", " ")): value for name, value in words.items()}


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
        limit = "its bound" if limit_name(worst) == "bound" else "the tolerance"
        yield f"  RMS error: {used} of {limit}; relative error {_text(report['relative_error'])}"
        at = ", ".join(map(str, worst["index"]))
        got, expected = distinguishing_digits(float(worst["got"]), float(worst["expected"]))
        yield (
            f"  worst element {worst['output']}[{at}]: {got}, expected {expected} "
            f"within {_text(worst['allowed'])} ({worst['input_set']} inputs), {worst['bad']:,} elements wrong"
        )
        left = dict(checks)
        if left.get("of_tolerance"):
            yield f"  largest error relative to {limit}, by input set: {_text(left.pop('of_tolerance'))}"
        if report["runs"] == 1:
            left.pop("differing_bytes", None)  # a single run cannot differ
        yield f"  {_text({GATE_COUNTS.get(name, name.replace('_', ' ')): value for name, value in left.items()})}"


def _text(value: object) -> str:
    """Return a value of the evidence as text: numbers with four digits, tables and lists on one line."""
    match value:
        case bool():
            return "yes" if value else "no"
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
