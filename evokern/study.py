"""A study: which kernel, on which problems and device, searched how. A TOML file, read into one validated record.

Every table and key is listed in `studies/README.md`. Unknown keys are errors that name the nearest known key.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from evokern.errors import StudyError, UsageError, nearest
from evokern.space import Value

CONTROLS = ("none", "random")
"""What may search beside the sampler: nothing, or random draws."""

SAMPLERS = ("evo", "tpe", "nsga2", "gp", "random", "grid")
"""Who may propose (`evokern.samplers` has them)."""

InputSet = Literal["normal", "large", "equal_rows", "denormal"]
"""Kinds of input the gate draws: normal; large magnitude; each row one value; subnormal numbers."""


@dataclass(frozen=True)
class GateSettings:
    """How strictly candidates are checked."""

    input_sets: tuple[InputSet, ...] = ("normal", "large", "equal_rows", "denormal")
    """Input sets of every candidate, each drawn anew from a private seed."""
    atol: float | None = None
    """Absolute tolerance instead of the kernel's."""
    rtol: float | None = None
    """Relative tolerance instead of the kernel's."""
    guard_bytes: int = 4096
    """Guard zone before and after every buffer, bytes; a multiple of 256."""
    runs: int = 2
    """Runs on the same inputs that must agree bit by bit (unless the kernel is declared not deterministic)."""

    def __post_init__(self) -> None:
        if not self.input_sets:
            raise StudyError("gate.input_sets is empty; name at least one of " + ", ".join(get_args(InputSet)))
        for name in self.input_sets:
            if name not in get_args(InputSet):
                raise StudyError(f"gate.input_sets names {name!r}: {nearest(name, get_args(InputSet))}")
        for label, tolerance in (("atol", self.atol), ("rtol", self.rtol)):
            if tolerance is not None and not (math.isfinite(tolerance) and tolerance >= 0):
                raise StudyError(f"gate.{label} = {tolerance} is no tolerance; give a finite number of at least 0")
        if self.guard_bytes < 256 or self.guard_bytes % 256:
            raise StudyError(f"gate.guard_bytes = {self.guard_bytes} is no positive multiple of 256")
        if self.runs < 1:
            raise StudyError(f"gate.runs = {self.runs}; give at least 1")


@dataclass(frozen=True)
class TimingSettings:
    """How candidates and baselines are timed."""

    cache: Literal["rotate", "flush"] = "rotate"
    """`rotate`: launches walk through several input sets; `flush`: L2 is overwritten between launches."""
    rotate_sets: int = 4
    """Input sets that `rotate` walks through."""
    sample_us: float = 500.0
    """Aimed length of one sample (one graph replay), µs."""
    min_samples: int = 7
    """Samples before the stopping rule may stop."""
    max_samples: int = 60
    """Samples at most."""
    ci_width: float = 0.01
    """Stop when the 95 % interval of the median is narrower than this share of the median."""
    warmup_us: float = 1000.0
    """Replays before sampling, µs."""
    race: float = 1.10
    """Stop a candidate once its lower bound is above this multiple of the elite's time; 0 switches racing off."""
    hang_s: float = 3.0
    """Seconds after which one launch sequence counts as hung."""

    def __post_init__(self) -> None:
        if self.cache not in ("rotate", "flush"):
            raise StudyError(f"timing.cache = {self.cache!r}: {nearest(self.cache, ('rotate', 'flush'))}")
        if not 3 <= self.min_samples <= self.max_samples:
            raise StudyError(
                f"timing.min_samples = {self.min_samples}, max_samples = {self.max_samples}; need 3 <= min <= max"
            )
        for name in ("sample_us", "ci_width", "hang_s"):
            if not getattr(self, name) > 0:
                raise StudyError(f"timing.{name} = {getattr(self, name)}; give a number above 0")
        if self.race and self.race < 1:
            raise StudyError(f"timing.race = {self.race}; give 0 (off) or at least 1")
        if self.rotate_sets < 1:
            raise StudyError(f"timing.rotate_sets = {self.rotate_sets}; give at least 1")


@dataclass(frozen=True)
class SimulationSettings:
    """How a simulated device executes candidates."""

    instruction_limit: int = 20_000_000
    """Warp instructions of one launch after which it counts as hung."""
    blocks: int = 6
    """Blocks of the study's own problem that are counted for the predicted time."""

    def __post_init__(self) -> None:
        if self.instruction_limit < 1 or self.blocks < 1:
            raise StudyError("simulation.instruction_limit and simulation.blocks are at least 1")


@dataclass(frozen=True)
class SamplerSettings:
    """Which sampler proposes, and its own settings."""

    name: str = "evo"
    """evo, tpe, nsga2, gp, random or grid."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of that sampler (checked when it is built)."""

    def __post_init__(self) -> None:
        if self.name not in SAMPLERS:
            raise StudyError(f"there is no sampler {self.name!r}: {nearest(self.name, SAMPLERS)}")


@dataclass(frozen=True)
class Study:
    """A study file."""

    name: str
    """The file's name without its suffix."""
    kernel: str
    """A kernel folder's name or path."""
    problems: tuple[str | Mapping[str, Value], ...]
    """The problems searched for, as text (`2,8,512,64`) or tables."""
    dtype: str | None = None
    """Data type, passed to every problem as `dtype` where the kernel has such a field."""
    device: str = "auto"
    """auto, cuda[:N], sim:CHIP or replay:FILE."""
    limits: Mapping[str, int | str] = field(default_factory=dict)
    """`chip` (another chip's limits) and single limits, lowered."""
    genes: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    """Genes narrowed to some of their values."""
    sampler: SamplerSettings = field(default_factory=SamplerSettings)
    """Who proposes."""
    budget_s: float | None = None
    """Total time over all sessions, seconds."""
    trials: int | None = None
    """Total number of evaluated trials."""
    seed: int = 0
    """Seed of the proposals."""
    window: int | None = None
    """Trials in flight: proposal n sees the results up to n - window. None takes the device's."""
    gate: GateSettings = field(default_factory=GateSettings)
    """How strictly candidates are checked."""
    timing: TimingSettings = field(default_factory=TimingSettings)
    """How they are timed."""
    simulation: SimulationSettings = field(default_factory=SimulationSettings)
    """How a simulated device runs them."""
    control: str = "none"
    """`random`: every second trial is drawn at random, beside the sampler; `none`: no control."""
    cost_per_hour: float | None = None
    """Price of an hour of the device."""
    cost_unit: str = ""
    """Currency of that price, as it is to be shown."""
    path: Path | None = None
    """The file it came from."""

    def __post_init__(self) -> None:
        if not self.problems:
            raise StudyError(f'study {self.name} has no problem; add for example problems = ["2,8,512,64"]')
        if self.trials is not None and self.trials < 1:
            raise StudyError(f"trials = {self.trials}; give at least 1")
        if self.window is not None and not 1 <= self.window <= 1024:
            raise StudyError(f"window = {self.window}; give 1 to 1024")
        if self.budget_s is not None and not self.budget_s > 0:
            raise StudyError(f"budget = {self.budget_s} s; give a positive time such as 90m")
        check_control(self.control, self.sampler.name)
        check_price(self.cost_per_hour)

    @contextmanager
    def blamed(self, key: str, mistake: type[UsageError] = UsageError) -> Iterator[None]:
        """Put the study's file and one of its keys before what is wrong with the values there.

        Args:
            key: as it stands in the file, for example `[genes]`.
            mistake: only errors of this kind are the study's.

        Raises:
            StudyError: the mistake, with its place.
        """
        try:
            yield
        except mistake as error:
            raise StudyError(f"{self.path or self.name}: {key}: {error}") from error


def check_control(control: str, sampler: str) -> None:
    """Refuse a control that does not exist or says nothing.

    Raises:
        StudyError: there is no such control, or it is the sampler itself.
    """
    if control not in CONTROLS:
        raise StudyError(f"control = {control!r}: {nearest(control, CONTROLS)}")
    if control == sampler:
        raise StudyError(f"a {control} control of sampler {sampler} compares it with itself; leave one of them away")


def check_price(per_hour: float | None) -> None:
    """Refuse a price that is none.

    Raises:
        StudyError: it is negative or not finite.
    """
    if per_hour is not None and not (math.isfinite(per_hour) and per_hour >= 0):
        raise StudyError(f"cost_per_hour = {per_hour}; give the price of an hour, a number of at least 0 such as 2.5")


_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def parse_duration(text: str | int | float) -> float:
    """Return seconds from `2h`, `1h30m`, `90m` or `45s`; a number, which only Python can give, is seconds already.

    Raises:
        StudyError: it is no duration, has no unit, or is not longer than nothing.
    """
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return _longer_than_nothing(text, float(text))
    word = str(text).strip().lower().replace(" ", "")
    match = _DURATION.fullmatch(word)
    if match and any(match.groups()):
        hours, minutes, seconds = (float(part) if part else 0.0 for part in match.groups())
        return _longer_than_nothing(text, 3600 * hours + 60 * minutes + seconds)
    if _NUMBER.fullmatch(word):
        _longer_than_nothing(text, float(word))
        raise StudyError(f"{text!r} has no unit; write for example {word}h, {word}m or {word}s")
    raise StudyError(f"{text!r} is no duration; write for example 2h, 90m, 1h30m or 45s")


def _longer_than_nothing(given: str | float, seconds: float) -> float:
    if seconds > 0:
        return seconds
    raise StudyError(f"{given!r} is no time to spend: it must be longer than nothing; write for example 2h, 90m or 45s")


def read_study(path: Path) -> Study:
    """Read a study file.

    Raises:
        StudyError: the file is missing, is no TOML, or has a key, type or value that a study cannot have.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise StudyError(f"cannot read study {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise StudyError(f"study {path} is no UTF-8 text: {error}") from error
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise StudyError(f"study {path} is no valid TOML: {error}") from error
    return study_from_table(path.stem, table, path)


def study_from_table(name: str, table: Mapping[str, Any], path: Path | None = None) -> Study:
    """Build a study from the tables of a TOML file.

    Raises:
        StudyError: as `read_study`.
    """
    where = str(path or name)
    known = [f.name for f in fields(Study) if f.name not in ("name", "path", "budget_s")] + ["budget"]
    _refuse_unknown(where, "", table, known)
    for compulsory in ("kernel", "problems"):
        if compulsory not in table:
            raise StudyError(f"{where} lacks the key {compulsory!r}")
    values: dict[str, Any] = dict(table)
    if "budget" in values:
        budget = values.pop("budget")
        if isinstance(budget, (int, float)) and not isinstance(budget, bool):
            raise StudyError(f'{where}: budget = {budget} has no unit; write for example budget = "2h", "90m" or "45s"')
        with _named(f"{where}: budget"):
            values["budget_s"] = parse_duration(budget)
    values["problems"] = _problems(where, values["problems"])
    values["genes"] = {gene: _gene_values(where, gene, v) for gene, v in _table(where, "genes", values).items()}
    values["limits"] = _table(where, "limits", values)
    values["sampler"] = _sampler(where, values.get("sampler", {}))
    for key, record in (("gate", GateSettings), ("timing", TimingSettings), ("simulation", SimulationSettings)):
        values[key] = _record(where, key, record, _table(where, key, values))
    _check_types(where, Study, values, skip=("problems", "genes", "limits", "sampler", "gate", "timing", "simulation"))
    with _named(where):
        return Study(name=name, path=path, **values)


@contextmanager
def _named(where: str) -> Iterator[None]:
    """Put file and key before what is wrong with a value."""
    try:
        yield
    except StudyError as error:
        raise StudyError(f"{where}: {error}") from error


def _refuse_unknown(where: str, prefix: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in table:
        if key not in known:
            raise StudyError(f"{where}: unknown key {prefix + key!r}: {nearest(key, known)}")


def _table(where: str, key: str, values: Mapping[str, Any]) -> dict[str, Any]:
    table = values.get(key, {})
    if not isinstance(table, dict):
        raise StudyError(f"{where}: {key} is {table!r}; it must be a table [{key}]")
    return table


def _problems(where: str, given: object) -> tuple[str | Mapping[str, Value], ...]:
    entries = [given] if isinstance(given, (str, dict)) else given
    if not isinstance(entries, list) or not all(isinstance(entry, (str, dict)) for entry in entries):
        raise StudyError(f'{where}: problems is {given!r}; write problems = ["2,8,512,64"] or [[problems]] tables')
    return tuple(entries)


def _gene_values(where: str, gene: str, given: object) -> tuple[Value, ...]:
    entries: list[Any] = given if isinstance(given, list) else [given]
    if not entries or not all(isinstance(entry, (int, str)) for entry in entries):
        raise StudyError(f"{where}: genes.{gene} is {given!r}; write a value or a list of values")
    return tuple(int(entry) if isinstance(entry, bool) else entry for entry in entries)


def _sampler(where: str, given: object) -> SamplerSettings:
    if isinstance(given, str):
        given = {"name": given}
    if not isinstance(given, dict):
        raise StudyError(f'{where}: sampler is {given!r}; write sampler = "evo" or a table [sampler] with a name')
    options = dict(given)
    name = options.pop("name", "evo")
    if not isinstance(name, str):
        raise StudyError(f"{where}: sampler.name is {name!r}; write a name such as evo")
    with _named(f"{where}: sampler"):
        return SamplerSettings(name, options)


def _record(where: str, key: str, record: Any, table: Mapping[str, Any]) -> Any:
    _refuse_unknown(where, f"{key}.", table, [f.name for f in fields(record)])
    values = {name: tuple(v) if isinstance(v, list) else v for name, v in table.items()}
    _check_types(f"{where}: {key}", record, values)
    with _named(where):
        return record(**values)


def _check_types(where: str, record: Any, values: Mapping[str, Any], skip: Sequence[str] = ()) -> None:
    hints = get_type_hints(record)
    for entry in fields(record):
        if entry.name not in values or entry.name in skip:
            if entry.default is MISSING and entry.default_factory is MISSING and entry.name not in ("name", *skip):
                raise StudyError(f"{where} lacks the key {entry.name!r}")
            continue
        value, text = values[entry.name], str(hints[entry.name])
        wanted: tuple[type, ...] = ()
        if "float" in text:
            wanted = (int, float)
        elif "int" in text and "InputSet" not in text and "Literal" not in text:
            wanted = (int,)
        elif "str" in text:
            wanted = (str,)
        if wanted and (isinstance(value, bool) or not isinstance(value, wanted)) and value is not None:
            name = "a number" if float in wanted else "a whole number" if int in wanted else "text"
            raise StudyError(f"{where}: {entry.name} is {value!r}; it must be {name}")
