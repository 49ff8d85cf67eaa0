"""What the database keeps, as frozen records, and how they become rows and come back."""

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
# Without what `json.loads` asks of its options first: 20,000 times for a page of 5,000 trials.
_decoded = json.JSONDecoder().decode


@dataclass(frozen=True)
class StudyRecord:
    """A study as the database keeps it: readable without its kernel folder or its study file."""

    uuid: str
    """Identity; Optuna's own number is handed out again after a delete."""
    name: str
    """Its name, and that of Optuna's study."""
    kernel: str
    """The kernel's name."""
    kernel_digest: str
    """SHA-256 over the kernel's files, as last searched."""
    genes: tuple[Gene, ...]
    """The genes as searched, narrowed ones narrowed."""
    problems: tuple[str, ...]
    """The keys of the problems; people read `in_words`."""
    device: str
    """Model of the device."""
    predicted: bool
    """Whether times are predicted, not measured."""
    settings: Mapping[str, Any]
    """What the study file says beside budgets: two sessions must agree on it."""
    sampler: str
    """Name of the sampler."""
    sampler_options: Mapping[str, Any]
    """Its options."""
    seed: int
    """Seed of the proposals."""
    window: int
    """Most trials in flight: proposal n sees the results up to n minus those in flight with it."""
    budget_s: float | None = None
    """Total time over all sessions, seconds."""
    trials_limit: int | None = None
    """Total number of evaluated trials."""
    control: str = "none"
    """`random` where every second trial is drawn at random, beside the sampler; else `none`."""
    cost_per_hour: float | None = None
    """Price of an hour of the device."""
    cost_unit: str = ""
    """Currency of that price."""
    secret: int = 0
    """Draws what candidates must not know beforehand: derived from the seed where one was given, else at random."""
    timing_rule: int | None = None
    """How its times came about (`evokern.measurement.timing.TIMING_RULE`); None where no clock gave them, and for 1 in
    studies from before there was a number."""
    created: str = ""
    """When, in ISO 8601."""
    evokern_version: str = ""
    """Version that began it."""
    sampler_version: int = 1
    """Version of the sampler's rules."""
    ramp: tuple[int, int] | None = None
    """Trials in flight at first, and one in how many of the trials before is later; None: the window throughout."""
    fields: tuple[ProblemField, ...] = ()
    """The fields of the kernel's problems; none in studies from before they were kept, and of recordings."""

    def in_words(self, problem: str, *, every: bool = False) -> str:
        """Return what people read of a problem, `B=2 S=512`; its key where the fields are not known.

        Args:
            problem: its key.
            every: with the fields at their default.
        """
        return words_of(self.fields, problem, every=every)

    def meanings(self, problem: str) -> tuple[tuple[str, Value, str], ...]:
        """Return name, value and meaning of each field of a problem; none where the fields are not known."""
        return meanings_of(self.fields, problem)

    def place_of(self, text: str) -> int:
        """Return which of the study's problems a text names, counted from 0: its place, its words or its key.

        Raises:
            StudyError: it names none of them; the message lists them.
        """
        if text in self.problems:
            return self.problems.index(text)
        if text.isdecimal() and int(text) < len(self.problems):
            return int(text)
        if self.fields and not text.isdecimal():
            key = key_of(self.kernel, self.fields, text)
            if key in self.problems:
                return self.problems.index(key)
        known = ", ".join(f"{place} is {self.in_words(one)}" for place, one in enumerate(self.problems))
        raise StudyError(f"study {self.name} has no problem {text}: {known}")

    def problems_in_words(self, *, every: bool = False) -> str:
        """Return what people read of the study's problems, in a line."""
        return " and ".join(self.in_words(problem, every=every) for problem in self.problems)

    def row(self) -> dict[str, Any]:
        """Return the record as a row of `evokern_studies`."""
        return {
            "uuid": self.uuid,
            "name": self.name,
            "kernel": self.kernel,
            "kernel_digest": self.kernel_digest,
            "genes": dumps([gene_table(gene) for gene in self.genes]),
            "problems": dumps(self.problems),
            "device": self.device,
            "predicted": int(self.predicted),
            "settings": dumps(self.settings),
            "sampler": dumps(self._sampler()),
            "seed": self.seed,
            "window": self.window,
            "budget_s": self.budget_s,
            "trials_limit": self.trials_limit,
            "control": self.control,
            "cost_per_hour": self.cost_per_hour,
            "cost_unit": self.cost_unit,
            "secret": self.secret,
            "timing_rule": self.timing_rule,
            "created": self.created,
            "evokern_version": self.evokern_version,
            "problem_fields": dumps([vars(entry) for entry in self.fields]) if self.fields else None,
        }

    def _sampler(self) -> dict[str, Any]:
        found: dict[str, Any] = {"name": self.sampler, "options": self.sampler_options}
        if self.sampler_version != 1:
            found["version"] = self.sampler_version
        return found if self.ramp is None else {**found, "ramp": self.ramp}

    def cost(self, elapsed_s: float) -> dict[str, Any] | None:
        """Return what so many seconds of the study's device cost, as JSON values; None where no price is known."""
        if self.cost_per_hour is None:
            return None
        total = self.cost_per_hour * elapsed_s / 3600
        return {"total": total, "per_hour": self.cost_per_hour, "unit": self.cost_unit}

    @classmethod
    def of(cls, row: Row) -> StudyRecord:
        """Return the record that a row holds."""
        sampler = json.loads(row["sampler"])
        values = {name: row[name] for name in _PLAIN}
        return cls(
            **values,
            predicted=bool(row["predicted"]),
            genes=tuple(_gene_of(table) for table in json.loads(row["genes"])),
            problems=tuple(json.loads(row["problems"])),
            settings=json.loads(row["settings"]),
            sampler=sampler["name"],
            sampler_options=sampler["options"],
            # Studies from before these keys do not have them.
            sampler_version=sampler.get("version", 1),
            ramp=tuple(sampler["ramp"]) if "ramp" in sampler else None,
            # Files from before these columns, opened for reading, do not have them.
            control=row.get("control") or "none",
            cost_per_hour=row.get("cost_per_hour"),
            cost_unit=row.get("cost_unit") or "",
            secret=row.get("secret") or 0,
            timing_rule=row.get("timing_rule"),
            fields=tuple(_field_of(table) for table in _parsed(row.get("problem_fields"), list)),
        )


_PLAIN = (
    *("uuid", "name", "kernel", "kernel_digest", "device", "seed", "window"),
    *("budget_s", "trials_limit", "created", "evokern_version"),
)


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
    """One run of a search."""

    uuid: str
    """Identity."""
    study: str
    """UUID of its study."""
    started: str
    """When, in ISO 8601."""
    elapsed_s: float
    """Seconds it lasted, up to its last write."""
    ended: str | None = None
    """When it ended; None while it runs or after it was killed."""
    end_reason: str | None = None
    """Why it ended: budget, trials, exhausted, interrupted, paused, failed."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """Driver, compiler, clocks, library versions."""
    baselines: tuple[BaselineResult, ...] = ()
    """What the user would run instead, as measured in this session."""
    notes: tuple[str, ...] = ()
    """What the user should know: a foreign load, a missing profiler."""

    @classmethod
    def of(cls, row: Row) -> SessionRecord:
        """Return the record that a row holds."""
        return cls(
            uuid=row["uuid"],
            study=row["study"],
            started=row["started"],
            elapsed_s=row["elapsed_s"],
            ended=row["ended"],
            end_reason=row["end_reason"],
            environment=json.loads(row["environment"] or "{}"),
            baselines=tuple(_baseline_of(table) for table in json.loads(row["baselines"] or "[]")),
            notes=tuple(json.loads(row["notes"] or "[]")),
        )


def _baseline_of(table: Mapping[str, Any]) -> BaselineResult:
    return BaselineResult(
        table["name"], tuple(_timing_of(t, t["samples_us"]) for t in table["timings"]), table["error"]
    )


def fastest_baseline(baselines: tuple[BaselineResult, ...]) -> tuple[str, float] | None:
    """Return name and time in µs (over several problems the geometric mean) of the fastest baseline that was right."""
    times = []
    for baseline in baselines:
        medians = [timing.median_us for timing in baseline.timings]
        if medians and not baseline.error:
            times.append((medians[0] if len(medians) == 1 else geometric_mean(medians), baseline.name))
    if not times:
        return None
    time_us, name = min(times)
    return name, time_us


@dataclass(frozen=True)
class TrialRecord:
    """A trial with what only the database knows of it."""

    trial: Trial
    """Candidate, outcome, evidence."""
    uuid: str
    """Identity."""
    kernel_digest: str
    """SHA-256 over the kernel's files when it was proposed."""


def dumps(value: Any) -> str:
    """Return compact, strict JSON: mappings become objects, NaN and infinities the texts `nan`, `inf`, `-inf`."""
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
    """Return an evaluation as columns of `evokern_trials`; the samples go elsewhere (`sample_rows`)."""
    first = evaluation.timings[0] if evaluation.timings else None
    interval = interval_us(evaluation)
    heaviest = max(evaluation.resources, key=lambda r: r.registers, default=None)
    shared = [r.static_shared_bytes + r.dynamic_shared_bytes for r in evaluation.resources]
    # `asdict` copies every sample first.
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
    """Return the 95 % interval of `time_us`, in µs: over several problems the geometric mean of the relative ends."""
    timings = evaluation.timings
    if evaluation.time_us is None or not timings or any(t.ci95_us[0] <= 0 for t in timings):
        return None
    low, high = (sum(math.log(t.ci95_us[end] / t.median_us) for t in timings) / len(timings) for end in (0, 1))
    return evaluation.time_us * math.exp(low), evaluation.time_us * math.exp(high)


def sample_rows(trial: str, evaluation: Evaluation) -> list[tuple[str, int, str]]:
    """Return the rows of `evokern_samples`: trial's UUID, index of the problem, samples."""
    return [(trial, index, dumps(t.samples_us)) for index, t in enumerate(evaluation.timings) if t.samples_us]


def evaluation_of(row: Row, samples: Mapping[int, Sequence[float]] | None = None) -> Evaluation:
    """Return the evaluation that a row holds.

    Args:
        row: a row of `evokern_trials` with an outcome.
        samples: index of the problem → samples, in µs; without them timings come back with none.
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
        # Files from before that column, opened for reading, do not have it.
        spans=tuple(Span(*values) for values in _parsed(row.get("spans"), list)),
    )


def _parsed(text: str | None, empty: type) -> Any:
    """Return stored JSON of a type; most columns of most trials hold nothing, for which no parser is asked."""
    if not text or text in ("{}", "[]"):
        return empty()
    value = _decoded(text)
    if not isinstance(value, empty):
        raise TypeError(f"{type(value).__name__} where a {empty.__name__} was written")
    return value


def _span_row(span: Span) -> tuple[str, float, float, str]:
    return span.phase, round(span.began_s, 6), round(span.seconds, 6), span.worker


def _timing_of(table: Mapping[str, Any], samples: Sequence[float]) -> Timing:
    low, high = table["ci95_us"]
    return Timing(**{**table, "ci95_us": (low, high), "samples_us": tuple(samples)})


def proposal_of(row: Row) -> Proposal:
    """Return the proposal that a row of `evokern_trials` holds."""
    return Proposal(
        config=Config(_decoded(row["config"])),
        info=_parsed(row["proposal"], dict),
        rejections=_parsed(row.get("rejections"), dict),
        sampler_state=_parsed(row.get("leavings"), dict),
        control=bool(row.get("control")),
    )


def trial_of(row: Row, samples: Mapping[int, Sequence[float]] | None = None) -> Trial:
    """Return the trial that a row with an outcome holds (samples as in `evaluation_of`)."""
    return Trial(row["number"], proposal_of(row), evaluation_of(row, samples), row["seconds"] or 0.0)


def stored_entries(text: str) -> list[tuple[int, float, list[Any]]]:
    """Return what a database holds of a warm start.

    Returns:
        For the nearest study, 0, and for each further one, 1 and so on: its number, how far its problem is, and its
        candidates as lists of the places of their genes' values and of log(time).
    """
    told = json.loads(text)
    if told and isinstance(told[0][0], list):  # written before further studies came with it; those told a fastest one
        return [(0, DISTANT, [entry for entry in told if entry[1] is not None])]
    return [(number, distance, entries) for number, (distance, entries) in enumerate(told)]
