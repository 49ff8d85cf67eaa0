"""Recordings as a `Table`: Kernel Tuner cache files, T4 files and evokern's own tables.

| format | recognised by | times |
|---|---|---|
| `evokern-table/1` | `format` | µs |
| Kernel Tuner cache | `tune_params` and `cache` | ms |
| T4 (odgaard/TuningSchema) | `results` | measurements carry their unit, the rest `metadata.timeunit` |

A configuration that is missing from a file, or violates a constraint there, is infeasible and costs nothing. A
configuration that failed to compile, to run or to be correct is a failure that counts.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from evokern.declaration.genes import Config, Gene, Value
from evokern.device.recorded.json_file import load_recording, number_of
from evokern.device.recorded.table import FORMAT, Table, measured, table_of
from evokern.errors import DeviceError, EvokernError, suggestion
from evokern.hardware.profiles import CHIPS, Profile
from evokern.study.trial import Evaluation, Outcome
from evokern.wording import count_noun, unreadable_text

FORMATS = (FORMAT, "Kernel Tuner cache (tune_params, cache)", "T4 (results)")
"""Formats that `read_recording` reads."""
NOT_A_TIME = 1e20
"""Time that old Kernel Tuner caches store for a failed configuration."""
SECONDS = {"s": 1.0, "seconds": 1.0, "ms": 1e-3, "milliseconds": 1e-3, "miliseconds": 1e-3, "us": 1e-6, "µs": 1e-6,
           "microseconds": 1e-6, "ns": 1e-9, "nanoseconds": 1e-9}  # fmt: skip
"""Time unit of a T4 file → seconds."""


def read_recording(path: str | Path) -> Table:
    """Read a recording of any known format, which may be compressed with gzip.

    Raises:
        DeviceError: the file is missing, truncated or of an unknown format. Also raised if it has undeclared genes or
            values, or no measured configuration.
    """
    path = Path(path)
    content = load_recording(path)
    name = path.name.removesuffix(".gz").removesuffix(".json")
    readers: tuple[tuple[tuple[str, ...], Callable[[str, Mapping[str, Any]], Table]], ...] = (
        (("format",), lambda _, content: table_of(content)),
        (("tune_params", "cache"), _from_kernel_tuner),
        (("results",), _from_t4),
    )
    for keys, reader in readers:
        if isinstance(content, dict) and all(key in content for key in keys):
            try:
                found = reader(name, content)
            except EvokernError as error:
                raise DeviceError(f"recording {path}: {error}") from error
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                raise DeviceError(f"recording {path} is malformed: {unreadable_text(error)}") from error
            _note_left_out(path, found)
            if found.optimum_us is None:
                raise DeviceError(f"recording {path} has no measured configuration")
            return found
    found_keys = ", ".join(list(content)[:6]) if isinstance(content, dict) else type(content).__name__
    raise DeviceError(
        f"recording {path} has an unknown format (found: {found_keys}); known formats: {'; '.join(FORMATS)}"
    )


@dataclass
class Rows:
    """Results by configuration, collected while a recording is read."""

    names: tuple[str, ...]
    """Names of the genes."""
    answers: dict[Config, Evaluation] = field(default_factory=dict)
    """Configuration → result; the first record of a configuration counts."""
    seconds: dict[Config, float] = field(default_factory=dict)
    """Configuration → seconds of its evaluation."""
    left_out: list[str] = field(default_factory=list)
    """Configurations whose time is impossible, each with the time."""
    foreign: bool = True
    """Whether contradictory records are an error; evokern's own searches may repeat a configuration."""

    def add(self, where: str, values: Mapping[str, Any], answer: Evaluation) -> None:
        """Add a record.

        Raises:
            DeviceError: a gene is missing, or the record contradicts an earlier one.
        """
        missing = [name for name in self.names if name not in values]
        if missing:
            raise DeviceError(f"{where} lacks the gene {missing[0]!r}")
        config = Config({name: value_of(values[name]) for name in self.names})
        known = self.answers.setdefault(config, answer)
        if known is answer:
            self.seconds[config] = answer.compile_s + answer.device_s
        elif self.foreign and (known.outcome, known.time_us) != (answer.outcome, answer.time_us):
            raise DeviceError(
                f"{where} has the result {_said(answer)} for {dict(config)}, but an earlier record has "
                f"{_said(known)}; keep one of the two records"
            )

    def genes(self, declared: Mapping[str, Sequence[Any]]) -> tuple[Gene, ...]:
        """Return the genes with their recorded values; the default is the middle value, because the best is unknown.

        Raises:
            DeviceError: a record has an undeclared value.
        """
        found = []
        for name in self.names:
            used = {config[name] for config in self.answers}
            values = [value_of(value) for value in declared[name]]
            for value in used:
                if value not in values:
                    raise DeviceError(
                        f"gene {name} has the undeclared value {value!r}; {suggestion(str(value), map(str, values))}"
                    )
            kept = tuple(value for value in dict.fromkeys(values) if value in used)
            if not kept:
                raise DeviceError("no configuration is feasible, so there is nothing to search")
            numbers = all(isinstance(value, int) for value in kept)
            found.append(Gene(name, kept, kept[len(kept) // 2], layer="parameter" if numbers else "mutation"))
        return tuple(found)


def value_of(given: Any) -> Value:
    """Return a gene's value as an integer or a string, the types used in this package."""
    if isinstance(given, str):
        return given
    if isinstance(given, int | float) and float(given).is_integer():
        return int(given)
    return str(given)


def chip_of_model(model: str) -> Profile:
    """Return the chip profile for the model name of a recording.

    An unknown model gets the limits of the chip with the most similar name. They do not affect the search, because
    every result is recorded.
    """
    kind, _, rest = model.partition(":")
    if kind == "sim" and rest in CHIPS:
        return CHIPS[rest]
    words = set(model.lower().replace("-", " ").split()) - {"nvidia", "geforce"}
    alike = max(CHIPS.values(), key=lambda chip: len(words & set(chip.model.lower().replace("-", " ").split())))
    return alike if alike.model == model else replace(alike, name=model or "unknown", model=model or "unknown")


def kernel_recorded(kernel: str, device: str) -> str:
    """Return the kernel recorded by an evokern study; empty if the study itself ran on a recording."""
    return "" if device.startswith("replay:") else kernel


def as_first_occurrence(evaluation: Evaluation) -> Evaluation:
    """Return an evaluation without the `duplicate` mark, because a replay visits the programs in another order."""
    evidence = {key: value for key, value in evaluation.evidence.items() if key != "duplicate_of"}
    known = evaluation.outcome is Outcome.DUPLICATE
    return replace(evaluation, outcome=Outcome.MEASURED if known else evaluation.outcome, evidence=evidence, spans=())


def _from_kernel_tuner(name: str, content: Mapping[str, Any]) -> Table:
    declared = content["tune_params"]
    names = tuple(content.get("tune_params_keys") or declared)
    for gene in names:
        if gene not in declared:
            raise DeviceError(f"tune_params_keys names the unknown gene {gene!r}: {suggestion(gene, declared)}")
    rows = Rows(names)
    for key, record in content["cache"].items():
        where = f"configuration {key}"
        if _is_impossible(record["time"]):
            rows.left_out.append(f"{key}: {record['time']!r}")
            continue
        answer = _kernel_tuner_answer(where, record)
        if answer is not None:
            rows.add(where, record, answer)
    chip = chip_of_model(str(content.get("device_name") or ""))
    made = Table(name, rows.genes(declared), rows.answers, chip, None, rows.seconds)
    return replace(made, left_out=tuple(rows.left_out))


def _kernel_tuner_answer(where: str, record: Mapping[str, Any]) -> Evaluation | None:
    """Return the result of a cached configuration; None if it violates a constraint."""
    compile_s = _seconds(f"{where}: compile_time", record.get("compile_time"), 1e-3)
    device_s = _seconds(f"{where}: benchmark_time", record.get("benchmark_time"), 1e-3)
    device_s += _seconds(f"{where}: verification_time", record.get("verification_time"), 1e-3)
    time_ms = record["time"]
    if not isinstance(time_ms, str) and number_of(f"{where}: its time", time_ms, zero=False) < NOT_A_TIME:
        samples = [
            1000.0 * number_of(f"{where}: one of its times", sample, zero=False)
            for sample in record.get("times") or ()
            if not _is_impossible(sample)
        ]
        answer = measured(1000.0 * time_ms, samples_us=samples)
    elif time_ms == "InvalidConfig":
        return None
    else:
        reported = time_ms if isinstance(time_ms, str) else "RuntimeFailedConfig"
        outcome = Outcome.COMPILE_ERROR if reported.startswith("Compilation") else Outcome.CRASHED
        answer = Evaluation(outcome, evidence={"log" if outcome is Outcome.COMPILE_ERROR else "error": reported})
    return replace(answer, compile_s=compile_s, device_s=device_s)


def _seconds(what: str, value: Any, unit: float) -> float:
    """Return a recorded duration in seconds; 0 if it is missing.

    Raises:
        DeviceError: the value is not a duration.
    """
    return 0.0 if value is None or _is_impossible(value) else number_of(what, value) * unit


def _is_impossible(value: Any) -> bool:
    """Return whether a recorded time is a number that no clock measures: zero, negative, infinite or NaN."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and not 0 < value < math.inf


def _said(answer: Evaluation) -> str:
    return answer.outcome.value + ("" if answer.time_us is None else f" in {answer.time_us:g} µs")


_INVALID: Mapping[str, tuple[Outcome, Mapping[str, Any]]] = {
    "timeout": (Outcome.HUNG, {"limit_s": 0.0, "message": "timeout"}),
    "compile": (Outcome.COMPILE_ERROR, {"log": "compile"}),
    "runtime": (Outcome.CRASHED, {"error": "runtime"}),
    "correctness": (Outcome.WRONG, {"check": "correctness"}),
}
"""T4 `invalidity` → outcome and evidence."""


def _from_t4(name: str, content: Mapping[str, Any]) -> Table:
    results, metadata = content["results"], content.get("metadata") or {}
    if not isinstance(results, list) or not results:
        raise DeviceError("the list `results` is empty, so there is nothing to search")
    own = metadata.get("evokern") or {}
    timeunit = str(metadata.get("timeunit", "seconds")).lower()
    if timeunit not in SECONDS:
        raise DeviceError(f"unknown metadata.timeunit {timeunit!r}: {suggestion(timeunit, SECONDS)}")
    names = tuple(gene["name"] for gene in own["genes"]) if own else tuple(results[0]["configuration"])
    rows = Rows(names, foreign=not own)
    for index, result in enumerate(results):
        where = f"result {index}"
        unknown = [gene for gene in result["configuration"] if gene not in names]
        if unknown:
            raise DeviceError(f"{where} has the unknown gene {unknown[0]!r}: {suggestion(unknown[0], names)}")
        impossible = [] if own else _impossible_times(result)
        if impossible:
            rows.left_out.append(f"{where}: {impossible[0]!r}")
            continue
        answer = _t4_answer(where, result, SECONDS[timeunit])
        if answer is not None:
            rows.add(where, result["configuration"], answer)
    used = {gene: dict.fromkeys(value_of(r["configuration"][gene]) for r in results) for gene in names}
    genes = _own_genes(own) if own else rows.genes({gene: _in_order(list(values)) for gene, values in used.items()})
    chip = chip_of_model(str(own.get("device", "")))
    baseline, predicted = own.get("baseline_us"), bool(own.get("predicted"))
    baseline_us = None if baseline is None else number_of("evokern.baseline_us", baseline, zero=False)
    kernel = kernel_recorded(str(own.get("kernel", "")), str(own.get("device", "")))
    found = Table(own.get("study") or name, genes, rows.answers, chip, baseline_us, rows.seconds, predicted, kernel)
    if not own:
        return replace(found, left_out=tuple(rows.left_out))
    visited = {tuple(result["configuration"].items()) for result in results}
    return replace(found, visited=len(visited), searched_by=str(own.get("sampler", "")))


def _impossible_times(result: Mapping[str, Any]) -> list[Any]:
    """Return the impossible times from which a T4 result's time would be computed."""
    if result.get("invalidity") != "correct":
        return []
    named = [m["value"] for m in result.get("measurements") or () if m["name"] == "time"]
    times = named if named and isinstance(named[0], int | float) else (result.get("times") or {}).get("runtimes") or ()
    return [time for time in times if _is_impossible(time)]


def _note_left_out(path: Path, table: Table) -> None:
    """Warn once about the configurations of a recording that were left out."""
    if table.left_out and (path, table.left_out) not in _noted:
        _noted.add((path, table.left_out))
        _LOGGER.warning(
            "recording %s: left out %s whose time is not a positive number (%s)", path,
            count_noun(len(table.left_out), "configuration"),
            ", ".join(table.left_out[:3]) + (", …" if len(table.left_out) > 3 else ""),
        )  # fmt: skip


_LOGGER = logging.getLogger("evokern")
_noted: set[tuple[Path, tuple[str, ...]]] = set()


def _own_genes(own: Mapping[str, Any]) -> tuple[Gene, ...]:
    """Return the genes of an evokern export; T4 itself has no field for them."""
    found = []
    for g in own["genes"]:
        when = {name: tuple(values) for name, values in g["when"].items()}
        found.append(Gene(g["name"], tuple(g["values"]), g["default"], g["doc"], when, {}, g["layer"]))
    return tuple(found)


def _in_order(values: list[Value]) -> list[Value]:
    return sorted(values, key=lambda value: (0, value, "") if isinstance(value, int) else (1, 0, value))


def _t4_answer(where: str, result: Mapping[str, Any], unit_s: float) -> Evaluation | None:
    times = result.get("times") or {}
    spent = times.get("compilation", times.get("compilation_time"))
    compile_s = _seconds(f"{where}: times.compilation", spent, unit_s)
    device_s = _seconds(f"{where}: times.benchmark", times.get("benchmark"), unit_s)
    device_s += _seconds(f"{where}: times.validation", times.get("validation"), unit_s)
    measurements = {m["name"]: m for m in result.get("measurements") or ()}
    invalidity = result["invalidity"]
    if invalidity == "constraints":
        return None
    own = result.get("evokern")
    if own and own.get("outcome") == Outcome.LOST.value:  # its real outcome is unknown
        return None
    if own:
        time_us = _t4_time_us(where, measurements, times, unit_s) or None if invalidity == "correct" else None
        timings = measured(time_us).timings if time_us else ()
        evidence = own.get("evidence") or {}
        for key in ("needed", "available", "limit_s", "elite_us", "limit_us"):
            if evidence.get(key) is not None:
                number_of(f"{where}: evidence.{key}", evidence[key])
        fingerprint, outcome = own.get("fingerprint"), Outcome(own["outcome"])
        answer = as_first_occurrence(Evaluation(outcome, time_us, timings, fingerprint=fingerprint, evidence=evidence))
    elif invalidity == "correct":
        answer = measured(_t4_time_us(where, measurements, times, unit_s))
    elif invalidity in _INVALID:
        outcome, evidence = _INVALID[invalidity]
        answer = Evaluation(outcome, evidence=evidence)
    else:
        raise DeviceError(
            f"{where}: unknown invalidity {invalidity!r}: {suggestion(str(invalidity), (*_INVALID, 'correct'))}"
        )
    return replace(answer, compile_s=compile_s, device_s=device_s)


def _t4_time_us(where: str, measurements: Mapping[str, Any], times: Mapping[str, Any], unit_s: float) -> float:
    """Return the time of a result in µs: the measurement `time`, or the mean of the run times."""
    entry = measurements.get("time")
    if entry is not None and isinstance(entry["value"], int | float):
        unit = str(entry.get("unit") or "ms").lower()
        if unit not in SECONDS:
            raise DeviceError(f"{where}: unknown time unit {unit!r}: {suggestion(unit, SECONDS)}")
        return 1e6 * SECONDS[unit] * number_of(f"{where}: its time", entry["value"], zero=False)
    runs = times.get("runtimes") or ()
    if not runs:
        raise DeviceError(f"{where} is correct but has neither a measurement `time` nor `runtimes`")
    return 1e6 * unit_s * sum(number_of(f"{where}: one of its runtimes", run, zero=False) for run in runs) / len(runs)
