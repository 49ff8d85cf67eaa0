"""Decide whether a study in the database can be resumed: its device, kernel, genes and settings must be the same."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from evokern.declaration.as_data.changes import declaration_changes
from evokern.declaration.as_data.words import is_call
from evokern.declaration.feasibility import Violation, check
from evokern.declaration.genes import Config, Gene, Value
from evokern.declaration.kernel import Kernel, Problem
from evokern.declaration.kernel_files import OUTSIDE, stored_outside
from evokern.declaration.problem import parse_problems
from evokern.declaration.space import Space
from evokern.device.contract import Device
from evokern.device.recorded.table import Table
from evokern.errors import DeviceError, KernelError, SpaceError, StoreError, StudyError
from evokern.hardware.profiles import Profile, limits_for
from evokern.measurement.timing import FIRST_TIMING_RULE, TIMING_RULE
from evokern.samplers import VERSIONS
from evokern.samplers.contract import ramp_for
from evokern.search.request import SessionRequest
from evokern.store import Store, StudyRecord
from evokern.study.settings import GateSettings, SamplerSettings, SimulationSettings, Study, TimingSettings
from evokern.study.trial import Proposal
from evokern.version import __version__
from evokern.wording import unreadable_text

AdviceFunction = Callable[[], str]
"""Function that returns the advice for starting a study over (`fresh_advice`)."""
IN_COLUMNS = ("name", "budget_s", "trials", "cost_per_hour", "cost_unit")
"""Fields of a study that the record stores in their own columns, not among the settings."""
NOT_COMPARED = ("device", "path", "control")
"""Settings that are stored for `resume` but may change between sessions; a changed control has its own message."""


@dataclass(frozen=True)
class SearchTarget:
    """A study with its kernel, problems, search space and device, as loaded for this session."""

    study: Study
    """Settings from the study file."""
    kernel: Kernel
    """Loaded kernel."""
    problems: tuple[Problem, ...]
    """Problems of the study."""
    space: Space
    """Search space: the genes and the feasibility check."""
    device: Device
    """Device that evaluates candidates."""
    table: Table | None = None
    """Recording, if the device replays one."""

    def digest(self) -> str:
        """Return the digest of the kernel's code, or of the recording."""
        return self.table.digest() if self.table else self.kernel.digest()

    @cached_property
    def limits(self) -> Profile:
        """Chip profile with the study's resource limits applied."""
        return limits_for(self.device.profile, self.study.limits)

    def violation(self, config: Config) -> Violation | None:
        """Return the constraint that a configuration violates; None if it is feasible."""
        if self.table is not None:
            return self.table.violation(config)
        # The space caches feasibility; only rejected configurations are checked again for the reason.
        if self.space.feasible(config):
            return None
        return check(self.kernel, config, self.problems, self.limits)

    def sources(self) -> dict[str, str]:
        """Return the kernel's texts to store, by name, and the digests of headers outside its folder."""
        if self.table:
            return {}
        return (self.kernel.content or self.kernel.read_content()).stored(self.kernel.folder)

    def changed_files(self) -> list[str]:
        """Return the names of the kernel's files that changed on disk since the kernel was loaded."""
        if self.table or self.kernel.content is None:
            return []
        try:
            now = self.kernel.read_content()
        except (KernelError, OSError):
            return [str(self.kernel.folder)]
        return _differing(*(one.stored(self.kernel.folder) for one in (self.kernel.content, now)))

    def record(self, request: SessionRequest) -> StudyRecord:
        """Return the record of a new study; the store adds the UUID and the date."""
        study = self.study
        sampler = request.sampler or study.sampler.name
        control = study.control if request.control is None else request.control
        most = request.max_in_flight or study.window
        least, ramp = ramp_for(1 if most else self.device.at_once)  # a given maximum has the same ramp on every machine
        return StudyRecord(
            uuid="",
            name=study.name,
            kernel=self.kernel.name,
            kernel_digest=self.digest(),
            genes=self.space.genes,
            problems=tuple(problem.key for problem in self.problems),
            device=self.device.identity,
            predicted=self.device.predicted,
            settings=settings_of(study),
            sampler=sampler,
            # The file's options are for the sampler that it names.
            sampler_options=dict(study.sampler.options) if sampler == study.sampler.name else {},
            seed=study.seed if request.seed is None else request.seed,
            window=most or self.device.window,
            budget_s=study.budget_s,
            trials_limit=study.trials,
            control=control,
            cost_per_hour=study.cost_per_hour,
            cost_unit=study.cost_unit,
            secret=secret_of(request.seed),
            timing_rule=TIMING_RULE if self.device.verifiable and not self.device.predicted else None,
            evokern_version=__version__,
            sampler_version=VERSIONS.get(sampler, 1),
            # Random sampling does not depend on results. With a control, the sampler keeps the ramp it has alone.
            ramp=None if sampler == "random" else (least * (1 if control == "none" else 2), ramp),
            fields=self.kernel.fields if self.table is None else (),
        )


def secret_of(seed: int | None) -> int:
    """Return a new study's 62-bit secret: derived from the seed if one is given (reproducible runs), else random."""
    if seed is None:
        return random.SystemRandom().randrange(1, 1 << 62)
    return int.from_bytes(hashlib.sha256(f"judged blocks of seed {seed}".encode()).digest()[:8], "big") >> 2


def settings_of(study: Study) -> dict[str, Any]:
    """Return a study's settings as JSON values, without budgets and the price."""
    values = {field.name: getattr(study, field.name) for field in fields(study) if field.name not in IN_COLUMNS}
    return values | {
        "problems": [problem if isinstance(problem, str) else dict(problem) for problem in study.problems],
        "limits": dict(study.limits),
        "genes": {name: list(values) for name, values in study.genes.items()},
        "sampler": {"name": study.sampler.name, **study.sampler.options},
        "gate": {**asdict(study.gate), "input_sets": list(study.gate.input_sets)},
        "timing": asdict(study.timing),
        "simulation": asdict(study.simulation),
        "path": str(study.path.resolve()) if study.path else None,
    }


def study_of(record: StudyRecord) -> Study:
    """Return the study as its file described it when the study was started.

    Raises:
        StoreError: the stored settings cannot be read.
    """
    try:
        return _study_of(record)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, StudyError) as error:
        raise StoreError(
            f"the stored settings of study {record.name!r} are damaged ({unreadable_text(error)}); "
            "resume with the study's own file: `evokern search FILE.toml`"
        ) from error


def _study_of(record: StudyRecord) -> Study:
    values = dict(record.settings)
    sampler, gate = dict(values["sampler"]), values["gate"]
    values |= {
        "problems": tuple(values["problems"]),
        "genes": {name: tuple(allowed) for name, allowed in values["genes"].items()},
        "sampler": SamplerSettings(sampler.pop("name"), sampler),
        "gate": GateSettings(**{**gate, "input_sets": tuple(gate["input_sets"])}),
        "timing": TimingSettings(**values["timing"]),
        "simulation": SimulationSettings(**values["simulation"]),
        "path": Path(values["path"]) if values["path"] else None,
    }
    return Study(
        name=record.name,
        budget_s=record.budget_s,
        trials=record.trials_limit,
        cost_per_hour=record.cost_per_hour,
        cost_unit=record.cost_unit,
        **values,
    )


def problems_of(study: Study, kernel: Kernel) -> tuple[Problem, ...]:
    """Return a study's problems, with the study's dtype if the kernel has a field of that name.

    Raises:
        KernelError: the kernel rejects a problem, or has no field for the dtype.
    """
    return parse_problems(kernel.name, kernel.fields, study.problems, study.dtype)


def fresh_advice(store: Store, name: str) -> str:
    """Return the advice for starting a study over, with the new name of the old study."""
    return f"use `--fresh` (keeps the old study as {store.next_free_name(name)})"


def reconcile_record(
    record: StudyRecord,
    target: SearchTarget,
    request: SessionRequest,
    old_sources: Mapping[str, str],
    restart_advice: AdviceFunction,
) -> StudyRecord:
    """Return the updated record of a study to resume; most changes are accepted only with `allow_changes`.

    Args:
        record: the stored study.
        target: the study as loaded now.
        request: options of this session.
        old_sources: the kernel's files when the study was last searched.
        restart_advice: returns the advice for starting over, for messages.

    Raises:
        DeviceError: the device model differs from the study's.
        StudyError: settings, genes or code changed; the message lists the changes and the remedies.
    """
    name, now = record.name, target.record(request)
    if now.device != record.device:
        raise DeviceError(
            f"study {name} was started on {record.device}, but the current device is {now.device}; their times are not "
            f"comparable. Choose that device with --device or another database with --db, or " + restart_advice()
        )
    if not same_genes(now.genes, record.genes):
        what = _gene_changes(record.genes, now.genes)
        raise StudyError(
            f"the genes of study {name} changed since it started ({what}); to start over, " + restart_advice()
        )
    kept = replace(now, uuid=record.uuid, created=record.created, evokern_version=record.evokern_version)
    # A study without a secret gets one now; its measured times stay valid.
    kept = replace(kept, secret=record.secret or now.secret)
    kept = replace(kept, budget_s=record.budget_s, trials_limit=record.trials_limit, ramp=record.ramp)
    kept = replace(kept, **_still_valid(record, now, request))
    kept = replace(kept, sampler_version=VERSIONS.get(kept.sampler, 1))
    if kept.control != record.control:
        began, requested = (_control_text(one) for one in (record.control, kept.control))
        raise StudyError(
            f"study {name} started {began}, which shaped its trials; this session requests a search {requested}; "
            "to start over, " + restart_advice()
        )
    # Equal problems may be written differently.
    same = ("problems",) if record.problems == now.problems else ()
    changes = _differences(_compared(_completed(record.settings), same), _compared(now.settings, same))
    changes += _overridden(record, request)
    if kept.sampler == record.sampler and kept.sampler_version != record.sampler_version:
        rules = f"sampler {record.sampler} was version {record.sampler_version}"
        changes.append(f"{rules} (evokern {record.evokern_version}), is version {kept.sampler_version}")
    if now.kernel_digest != record.kernel_digest:
        called = declaration_changes(old_sources, target.sources())
        if called:
            what = "; ".join(called)
            raise StudyError(f"study {name} was started with another call: {what}; {restart_advice()}")
        if called is None:
            changes.append(_changed_files(old_sources, target.sources()) or "the recording changed")
    if changes and not request.allow_changes:
        what = "; ".join(changes)
        kept_results = "repeat the first call" if is_call(record.field_names) else "use `--allow-changes`"
        raise StudyError(
            f"study {name} or its kernel changed since it started: {what}. To start over, {restart_advice()}; "
            f"to continue with the old results, {kept_results}"
        )
    return kept


def changed_settings(record: StudyRecord, study: Study) -> list[str]:
    """Return a description of each setting that changed since the study was started, such as `seed was 1, is 2`.

    Args:
        record: the stored study.
        study: the study from its current file.
    """
    return _differences(_compared(_completed(record.settings)), _compared(settings_of(study)))


def check_timing_rule(record: StudyRecord, now: StudyRecord, store: Store) -> None:
    """Reject a study with another timing rule, because its times are not comparable with new times.

    Args:
        record: the stored study.
        now: the study as it would be created now.
        store: the database, for the message.

    Raises:
        StudyError: the rules differ; the message shows how to start over from the old results.
    """
    before = FIRST_TIMING_RULE if record.timing_rule is None else record.timing_rule
    if now.timing_rule is not None and now.timing_rule != before:
        name = record.name
        raise StudyError(
            f"study {name} used timing rule {before}, but this evokern uses timing rule {now.timing_rule}; their times "
            f"are not comparable. To start over from its results, use `--fresh --warm-start {store.path}:{name}` "
            f"(keeps the old study as {store.next_free_name(name)})"
        )


def check_candidates(
    record: StudyRecord, space: Space, proposals: Sequence[Proposal], restart_advice: AdviceFunction
) -> None:
    """Reject stored candidates that are not in the search space, because gene values become compiler options.

    Args:
        record: the study.
        space: the kernel's genes and values.
        proposals: the stored candidates.
        restart_advice: returns the advice for starting over, for the message.

    Raises:
        StudyError: a stored value is not a value of the kernel's gene.
    """
    for number, proposal in enumerate(proposals):
        try:
            space.canonical(proposal.config)
        except SpaceError as error:
            raise StudyError(
                f"trial {number} of {record.name} is not a valid candidate of {record.kernel}: {error}; the database "
                f"or the kernel's genes were changed; to start over, {restart_advice()}"
            ) from error


def _control_text(control: str) -> str:
    return "without a control" if control == "none" else f"with a {control} control"


def _still_valid(record: StudyRecord, now: StudyRecord, request: SessionRequest) -> dict[str, Any]:
    """Return the stored fields for which neither the study file nor the command line has a new value."""
    fields = {"sampler": ("sampler", "sampler_options")} | {name: (name,) for name in ("seed", "window", "control")}
    given = {name: getattr(request, name) for name in ("sampler", "seed", "control")}
    given["window"] = request.max_in_flight
    before = {"control": "none", **record.settings}  # older records have no control
    kept = {
        field: getattr(record, field)
        for setting, stored in fields.items()
        if given[setting] is None and before[setting] == now.settings[setting]
        for field in stored
    }
    if now.cost_per_hour is None:
        kept |= {"cost_per_hour": record.cost_per_hour, "cost_unit": record.cost_unit}
    return kept


def _completed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with the defaults of settings that older versions of evokern did not have."""
    defaults = {
        "gate": asdict(GateSettings()),
        "timing": asdict(TimingSettings()),
        "simulation": asdict(SimulationSettings()),
    }
    return {**settings, **{name: {**default, **settings[name]} for name, default in defaults.items()}}


def _compared(settings: Mapping[str, Any], same: tuple[str, ...] = ()) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in (*NOT_COMPARED, *same)}


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    found: list[str] = []
    for key in dict.fromkeys((*old, *new)):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            found += _differences(before, after, f"{prefix}{key}.")
        elif before != after:
            found.append(f"{prefix}{key} was {_value_text(before)}, is {_value_text(after)}")
    return found


def _value_text(value: Any) -> str:
    return "not given" if value is None else repr(value)


def _overridden(record: StudyRecord, request: SessionRequest) -> list[str]:
    given = (("sampler", request.sampler), ("seed", request.seed), ("window", request.max_in_flight))
    return [
        f"{name} was {getattr(record, name)!r}, is {value!r}"
        for name, value in given
        if value is not None and value != getattr(record, name)
    ]


def _changed_files(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    names = _differing(old, new)
    return f"kernel code ({', '.join(names)})" if names else ""


def _differing(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Return the names of files whose content differs; the path of a header outside the kernel does not matter."""
    before, after = (
        {**files, **{OUTSIDE + name: digest for name, (digest, _) in stored_outside(files).items()}}
        for files in (old, new)
    )
    return [name.removeprefix(OUTSIDE) for name in dict.fromkeys((*old, *new)) if before.get(name) != after.get(name)]


def same_genes(one: tuple[Gene, ...], other: tuple[Gene, ...]) -> bool:
    """Return whether two lists of genes define the same space: names, values, defaults, conditions and order."""
    return _gene_identity(one) == _gene_identity(other)


def _gene_identity(genes: tuple[Gene, ...]) -> list[tuple[Any, ...]]:
    return [(g.name, g.values, g.default, {n: list(v) for n, v in g.when.items()}) for g in genes]


def _gene_changes(old: tuple[Gene, ...], new: tuple[Gene, ...]) -> str:
    before: dict[str, tuple[Value, ...]] = {gene.name: gene.values for gene in old}
    after = {gene.name: gene.values for gene in new}
    parts = [f"{name} is gone" for name in before if name not in after]
    parts += [f"{name} is new" for name in after if name not in before]
    parts += [
        f"{name} was {list(before[name])}, is {list(after[name])}"
        for name in before
        if name in after and before[name] != after[name]
    ]
    return "; ".join(parts) or "order, defaults or conditions"
