"""Records of the database, and their conversion to and from rows."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import geometric_mean
from typing import Any

from evokern.declaration.genes import Config, Gene, Value
from evokern.declaration.problem import ProblemField, key_of, meanings_of, words_of
from evokern.device.contract import BaselineResult
from evokern.errors import StudyError
from evokern.samplers import DISTANT
from evokern.study.trial import Evaluation, Outcome, Proposal, Resources, Span, Timing, Trial

Row = Mapping[str, Any]
# A decoder without the option checks of `json.loads`; a page of 5,000 trials decodes 20,000 texts.
_decoded = json.JSONDecoder().decode


@dataclass(frozen=True)
class StudyRecord:
    """A study in the database, which can be read without its kernel folder and study file."""

    uuid: str
    """Identity of the study; not Optuna's id, which Optuna reuses after a study is deleted."""
    name: str
    """Name of the study, also in Optuna's tables."""
    kernel: str
    """Name of the kernel."""
    kernel_digest: str
    """SHA-256 digest of the kernel files in the latest search."""
    genes: tuple[Gene, ...]
    """The genes, with the values that are searched."""
    problems: tuple[str, ...]
    """Keys of the problems; use `in_words` to print them."""
    device: str
    """Model of the device."""
    predicted: bool
    """Whether times are predicted, not measured."""
    settings: Mapping[str, Any]
    """Settings from the study file, without budgets; they must be the same in every session."""
    sampler: str
    """Name of the sampler."""
    sampler_options: Mapping[str, Any]
    """Options of the sampler."""
    seed: int
    """Seed of the proposals."""
    window: int
    """Maximum number of concurrent trials; a proposal uses the results of all earlier trials that are not in flight."""
    budget_s: float | None = None
    """Time budget over all sessions, in seconds."""
    trials_limit: int | None = None
    """Maximum number of evaluated trials."""
    control: str = "none"
    """`random` if a random control proposes every second trial, else `none`."""
    cost_per_hour: float | None = None
    """Price of one device hour."""
    cost_unit: str = ""
    """Currency of the price."""
    secret: int = 0
    """Seed of choices that candidates must not predict; derived from the user's seed if there is one, else random."""
    timing_rule: int | None = None
    """Version of the timing rule (`evokern.measurement.timing.TIMING_RULE`); None for times that no clock measured, and
    for version 1 in older studies."""
    created: str = ""
    """Time of creation in ISO 8601."""
    evokern_version: str = ""
    """Version of evokern that created the study."""
    sampler_version: int = 1
    """Version of the sampler's rules."""
    ramp: tuple[int, int] | None = None
    """Initial number of concurrent trials, and the divisor for the later number (earlier trials ÷ divisor). None: the
    number is always `window`."""
    fields: tuple[ProblemField, ...] = ()
    """Fields of the kernel's problems; empty for recordings and older studies."""

    @property
    def field_names(self) -> tuple[str, ...]:
        """Names of the fields of the kernel's problems."""
        return tuple(field.name for field in self.fields)

    def in_words(self, problem: str, *, every: bool = False) -> str:
        """Return a problem in readable form, such as `B=2 S=512`, or its key if the fields are unknown.

        Args:
            problem: key of the problem.
            every: whether to include fields that have their default value.
        """
        return words_of(self.fields, problem, every=every)

    def meanings(self, problem: str) -> tuple[tuple[str, Value, str], ...]:
        """Return the name, value and description of each field of a problem; empty if the fields are unknown."""
        return meanings_of(self.fields, problem)

    def problem_index(self, text: str) -> int:
        """Return the index of the problem that a text names by its index, its words or its key.

        Raises:
            StudyError: if the study has no such problem; the message lists its problems.
        """
        if text in self.problems:
            return self.problems.index(text)
        if text.isdecimal() and int(text) < len(self.problems):
            return int(text)
        if self.fields and not text.isdecimal():
            key = key_of(self.kernel, self.fields, text)
            if key in self.problems:
                return self.problems.index(key)
        known = ", ".join(f"{place} ({self.in_words(one)})" for place, one in enumerate(self.problems))
        raise StudyError(f"study {self.name} has no problem {text}; choose one of: {known}")

    def problems_in_words(self, *, every: bool = False) -> str:
        """Return all problems of the study in readable form, on one line."""
        return " and ".join(self.in_words(problem, every=every) for problem in self.problems)

    def row(self) -> dict[str, Any]:
        """Return the record as a row of `evokern_studies`."""
        return {
            **{name: getattr(self, name) for name in (*_PLAIN, *_LATER)},
            "genes": dumps([gene_table(gene) for gene in self.genes]),
            "problems": dumps(self.problems),
            "predicted": int(self.predicted),
            "settings": dumps(self.settings),
            "sampler": dumps(self._sampler()),
            "problem_fields": dumps([vars(entry) for entry in self.fields]) if self.fields else None,
        }

    def _sampler(self) -> dict[str, Any]:
        found: dict[str, Any] = {"name": self.sampler, "options": self.sampler_options}
        if self.sampler_version != 1:
            found["version"] = self.sampler_version
        return found if self.ramp is None else {**found, "ramp": self.ramp}

    def cost(self, elapsed_s: float) -> dict[str, Any] | None:
        """Return the cost of the given device seconds as JSON values, or None if the study has no price."""
        if self.cost_per_hour is None:
            return None
        total = self.cost_per_hour * elapsed_s / 3600
        return {"total": total, "per_hour": self.cost_per_hour, "unit": self.cost_unit}

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> StudyRecord:
        """Create the record from a row."""
        sampler = json.loads(row["sampler"])
        values = {name: row[name] for name in _PLAIN}
        # Older files, opened for reading, do not have these columns.
        values |= {name: default if row.get(name) is None else row[name] for name, default in _LATER.items()}
        return cls(
            **values,
            predicted=bool(row["predicted"]),
            genes=tuple(_gene_of(table) for table in json.loads(row["genes"])),
            problems=tuple(json.loads(row["problems"])),
            settings=json.loads(row["settings"]),
            sampler=sampler["name"],
            sampler_options=sampler["options"],
            # Older studies do not have these keys.
            sampler_version=sampler.get("version", 1),
            ramp=tuple(sampler["ramp"]) if "ramp" in sampler else None,
            fields=tuple(_field_of(table) for table in _parsed(row.get("problem_fields"), list)),
        )


_PLAIN = (
    *("uuid", "name", "kernel", "kernel_digest", "device", "seed", "window"),
    *("budget_s", "trials_limit", "created", "evokern_version"),
)
"""Columns with the value of a field."""
_LATER = {"control": "none", "cost_per_hour": None, "cost_unit": "", "secret": 0, "timing_rule": None}
"""Such columns that older files lack, with the value there."""


def gene_table(gene: Gene) -> dict[str, Any]:
    """Return a gene as JSON values."""
    return {
        "name": gene.name,
        "values": gene.values,
        "default": gene.default,
        "doc": gene.doc,
        "layer": gene.layer,
        "when": {name: list(values) for name, values in gene.when.items()},
    }


def _gene_of(table: Mapping[str, Any]) -> Gene:
    when = {name: tuple(values) for name, values in table["when"].items()}
    return Gene(table["name"], tuple(table["values"]), table["default"], table["doc"], when, {}, table["layer"])


def _field_of(table: Mapping[str, Any]) -> ProblemField:
    return ProblemField(**{**table, "choices": tuple(table["choices"])})


@dataclass(frozen=True)
class SessionRecord:
    """One session of a search."""

    uuid: str
    """Identity of the session."""
    study: str
    """UUID of the study."""
    started: str
    """Time of the start in ISO 8601."""
    elapsed_s: float
    """Duration in seconds, as of the last write."""
    ended: str | None = None
    """Time of the end in ISO 8601; None if the session is still running or was killed."""
    end_reason: str | None = None
    """Reason for the end: budget, trials, exhausted, interrupted, paused or failed."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """Driver, compiler, clocks and library versions."""
    baselines: tuple[BaselineResult, ...] = ()
    """Baselines as measured in this session."""
    notes: tuple[str, ...] = ()
    """Notes for the user, for example about other processes on the GPU or a missing profiler."""

    @classmethod
    def of(cls, row: Row) -> SessionRecord:
        """Create the record from a row."""
        plain = ("uuid", "study", "started", "elapsed_s", "ended", "end_reason")
        return cls(
            **{name: row[name] for name in plain},
            environment=json.loads(row["environment"] or "{}"),
            baselines=tuple(_baseline_of(table) for table in json.loads(row["baselines"] or "[]")),
            notes=tuple(json.loads(row["notes"] or "[]")),
        )


def _baseline_of(table: Mapping[str, Any]) -> BaselineResult:
    return BaselineResult(
        table["name"], tuple(_timing_of(t, t["samples_us"]) for t in table["timings"]), table["error"]
    )


def baseline_times(baselines: tuple[BaselineResult, ...]) -> dict[str, float]:
    """Return correct baseline → time in µs (geometric mean over the problems), fastest first."""
    times = []
    for baseline in baselines:
        medians = [timing.median_us for timing in baseline.timings]
        if medians and not baseline.error:
            times.append((medians[0] if len(medians) == 1 else geometric_mean(medians), baseline.name))
    return {name: time_us for time_us, name in sorted(times)}


def fastest_baseline(baselines: tuple[BaselineResult, ...]) -> tuple[str, float] | None:
    """Return the name and time in µs of the fastest correct baseline."""
    return next(iter(baseline_times(baselines).items()), None)


@dataclass(frozen=True)
class TrialRecord:
    """A trial with its database identity."""

    trial: Trial
    """Candidate, outcome and evidence."""
    uuid: str
    """UUID of the trial."""
    kernel_digest: str
    """SHA-256 digest of the kernel files at the time of the proposal."""


def dumps(value: Any) -> str:
    """Return compact strict JSON; mappings become objects, and NaN and infinities become `"nan"`, `"inf"`, `"-inf"`."""
    try:
        return json.dumps(value, separators=(",", ":"), default=_plain, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), separators=(",", ":"), default=_plain, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence | set | frozenset):
        return list(value)
    return value.item() if hasattr(value, "item") else str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value


def evaluation_row(evaluation: Evaluation) -> dict[str, Any]:
    """Return an evaluation as columns of `evokern_trials`, without samples (see `sample_rows`)."""
    first = evaluation.timings[0] if evaluation.timings else None
    interval = interval_us(evaluation)
    heaviest = max(evaluation.resources, key=lambda r: r.registers, default=None)
    shared = [r.static_shared_bytes + r.dynamic_shared_bytes for r in evaluation.resources]
    # Not `asdict`, which would copy every sample.
    timings = [{k: v for k, v in vars(t).items() if k != "samples_us"} for t in evaluation.timings]
    return {
        "outcome": evaluation.outcome.value,
        "time_us": evaluation.time_us,
        "ci95_low_us": interval[0] if interval else None,
        "ci95_high_us": interval[1] if interval else None,
        "reason": evaluation.reason,
        "fingerprint": evaluation.fingerprint,
        "registers": heaviest.registers if heaviest else None,
        "spill_bytes": sum(r.spill_bytes for r in evaluation.resources) if heaviest else None,
        "shared_bytes": max(shared, default=None),
        "occupancy": min((r.occupancy for r in evaluation.resources), default=None),
        "timings": dumps(timings),
        "resources": dumps([vars(r) for r in evaluation.resources]),
        "evidence": dumps(evaluation.evidence),
        "gate": dumps(evaluation.gate),
        "compile_s": evaluation.compile_s,
        "device_s": evaluation.device_s,
        "clock_mhz": first.clock_mhz if first else None,
        "spans": dumps([_span_row(span) for span in evaluation.spans]) if evaluation.spans else None,
    }


def interval_us(evaluation: Evaluation) -> tuple[float, float] | None:
    """Return the 95 % interval of `time_us` in µs; several problems are combined by the mean log of relative bounds."""
    timings = evaluation.timings
    if evaluation.time_us is None or not timings or any(t.ci95_us[0] <= 0 for t in timings):
        return None
    low, high = (sum(math.log(t.ci95_us[end] / t.median_us) for t in timings) / len(timings) for end in (0, 1))
    return evaluation.time_us * math.exp(low), evaluation.time_us * math.exp(high)


def sample_rows(trial: str, evaluation: Evaluation) -> list[tuple[str, int, str]]:
    """Return rows of `evokern_samples`: UUID of the trial, index of the problem, samples."""
    return [(trial, index, dumps(t.samples_us)) for index, t in enumerate(evaluation.timings) if t.samples_us]


def evaluation_of(row: Row, samples: Mapping[int, Sequence[float]] | None = None) -> Evaluation:
    """Create an evaluation from a row.

    Args:
        row: row of `evokern_trials` with an outcome.
        samples: samples in µs by index of the problem; with None, the timings have no samples.
    """
    timings = _parsed(row["timings"], list)
    return Evaluation(
        outcome=Outcome(row["outcome"]),
        time_us=row["time_us"],
        timings=tuple(_timing_of(t, (samples or {}).get(index, ())) for index, t in enumerate(timings)),
        resources=tuple(Resources(**r) for r in _parsed(row["resources"], list)),
        fingerprint=row["fingerprint"],
        evidence=_parsed(row["evidence"], dict),
        gate=_parsed(row["gate"], dict),
        compile_s=row["compile_s"] or 0.0,
        device_s=row["device_s"] or 0.0,
        # Older files, opened for reading, do not have this column.
        spans=tuple(Span(*values) for values in _parsed(row.get("spans"), list)),
    )


def _parsed(text: str | None, empty: type) -> Any:
    """Parse stored JSON and check that it has the type of `empty`; skip the parser for common empty values."""
    if not text or text in ("{}", "[]"):
        return empty()
    value = _decoded(text)
    if not isinstance(value, empty):
        raise ValueError(f"expected a {empty.__name__}, found a {type(value).__name__}")
    return value


def _span_row(span: Span) -> tuple[str, float, float, str]:
    return span.phase, round(span.began_s, 6), round(span.seconds, 6), span.worker


def _timing_of(table: Mapping[str, Any], samples: Sequence[float]) -> Timing:
    low, high = table["ci95_us"]
    return Timing(**{**table, "ci95_us": (low, high), "samples_us": tuple(samples)})


def proposal_of(row: Row) -> Proposal:
    """Create a proposal from a row of `evokern_trials`."""
    return Proposal(
        config=Config(_decoded(row["config"])),
        info=_parsed(row["proposal"], dict),
        rejections=_parsed(row.get("rejections"), dict),
        sampler_state=_parsed(row.get("leavings"), dict),
        control=bool(row.get("control")),
    )


def trial_of(row: Row, samples: Mapping[int, Sequence[float]] | None = None) -> Trial:
    """Create a trial from a row of `evokern_trials` with an outcome; for `samples`, see `evaluation_of`."""
    return Trial(row["number"], proposal_of(row), evaluation_of(row, samples), row["seconds"] or 0.0)


def stored_entries(text: str) -> list[tuple[int, float, list[Any]]]:
    """Parse the stored entries of a warm start.

    Returns:
        A tuple for each source study: its number (0 for the nearest), the distance of its problem, and its candidates.
        A candidate is a list of value indices, one for each gene, and log(time).
    """
    stored = json.loads(text)
    if stored and isinstance(stored[0][0], list):  # format of earlier versions, with a single source study
        return [(0, DISTANT, [entry for entry in stored if entry[1] is not None])]
    return [(number, distance, entries) for number, (distance, entries) in enumerate(stored)]
