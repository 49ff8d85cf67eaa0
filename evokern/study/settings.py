"""Settings of a study: kernel, problems, device and search options."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from evokern.declaration.genes import Value
from evokern.errors import MAX_INTEGER, StudyError, UsageError, suggestion
from evokern.escaping import repr_of

MOST_RUNS = 1000
"""Maximum number of runs on one input set, and maximum number of input sets for timing."""
MOST_SAMPLES = 1_000_000
"""Maximum number of samples of a candidate."""
MOST_GUARD_BYTES = 2**30
"""Maximum size of a guard zone in bytes."""
MOST_PRICE = 1e12
"""Maximum price of a device hour."""
CONTROLS = ("none", "random")
"""Valid controls: `none`, or `random` for a random sampler that proposes every second trial."""

SAMPLERS = ("evo", "tpe", "nsga2", "gp", "random", "grid")
"""Valid samplers, implemented in `evokern.samplers`."""

InputSet = Literal["normal", "large", "equal_rows", "denormal", "edges", "exact"]
"""Kinds of generated inputs: normal, large values, equal values within each row, subnormal numbers, edge cases, and
inputs on which the arithmetic is exact.

Exact inputs are small integers and zeros, added for outputs whose bound supports them. Edge cases are zeros and one-hot
rows, and infinities and NaN if the kernel defines their results.
"""


@dataclass(frozen=True)
class GateSettings:
    """Settings of the correctness check."""

    input_sets: tuple[InputSet, ...] = ("normal", "large", "equal_rows", "denormal", "edges")
    """Input sets for each candidate, generated from a secret seed; for a large problem, only slices of them change."""
    atol: float | None = None
    """Absolute tolerance; None means the kernel's own tolerance."""
    rtol: float | None = None
    """Relative tolerance; None means the kernel's own tolerance."""
    guard_bytes: int = 4096
    """Size in bytes of the guard zones before and after every buffer; a multiple of 256."""
    runs: int = 2
    """Number of runs on the same inputs, whose results must be identical bit by bit, unless the kernel is declared
    nondeterministic. Only the first run uses all input sets; later runs use the first two."""
    renew_every: int = 8
    """Number of candidates after which a whole input set of a large problem is regenerated, if slices of it cannot be.
    The float64 references of six input sets then cost less per candidate than one whole reference."""
    precision: Literal["declared", "f32"] = "declared"
    """`declared`: each candidate is judged by the bound of its own arithmetic; `f32`: every candidate is judged by the
    bound of float32 arithmetic, so that less precise ones are wrong."""
    inputs: Literal["study", "normal"] = "study"
    """`normal`: the search and the verification use only normal inputs; every result says so."""

    def __post_init__(self) -> None:
        check_setting_types(self, "gate.")
        if self.inputs not in ("study", "normal"):
            raise StudyError(f"gate.inputs = {self.inputs!r}: {suggestion(self.inputs, ('study', 'normal'))}")
        if self.precision not in ("declared", "f32"):
            raise StudyError(f"gate.precision = {self.precision!r}: {suggestion(self.precision, ('declared', 'f32'))}")
        if self.precision == "f32" and (self.atol is not None or self.rtol is not None):
            raise StudyError('gate.precision = "f32" selects bounds, which gate.atol and gate.rtol replace; remove one')
        if self.inputs == "normal":
            object.__setattr__(self, "input_sets", ("normal",))  # the dataclass is frozen
        if not self.input_sets:
            raise StudyError("gate.input_sets is empty; use at least one of " + ", ".join(get_args(InputSet)))
        for name in self.input_sets:
            if name not in get_args(InputSet):
                raise StudyError(f"gate.input_sets contains {name!r}: {suggestion(name, get_args(InputSet))}")
        for label, tolerance in (("atol", self.atol), ("rtol", self.rtol)):
            if tolerance is not None and not (math.isfinite(tolerance) and tolerance >= 0):
                raise StudyError(f"gate.{label} = {tolerance} is not a tolerance; use a finite number of at least 0")
        if not 256 <= self.guard_bytes <= MOST_GUARD_BYTES or self.guard_bytes % 256:
            raise StudyError(f"gate.guard_bytes = {self.guard_bytes}; use a multiple of 256 up to {MOST_GUARD_BYTES}")
        if not 1 <= self.runs <= MOST_RUNS:
            raise StudyError(f"gate.runs = {self.runs}; use 1 to {MOST_RUNS}")
        if not 1 <= self.renew_every <= MOST_RUNS:
            raise StudyError(f"gate.renew_every = {self.renew_every}; use 1 to {MOST_RUNS}")


@dataclass(frozen=True)
class TimingSettings:
    """Settings for timing candidates and baselines."""

    cache: Literal["rotate", "flush"] = "rotate"
    """`rotate`: launches alternate between input sets; `flush`: L2 is overwritten between launches."""
    rotate_sets: int = 4
    """Number of input sets for `rotate`."""
    sample_us: float = 500.0
    """Target duration of one sample (one graph replay) in µs."""
    min_samples: int = 7
    """Minimum number of samples."""
    max_samples: int = 60
    """Maximum number of samples."""
    ci_width: float = 0.01
    """Sampling stops when the 95 % confidence interval of the median is narrower than this fraction of the median."""
    warmup_us: float = 1000.0
    """Duration of the replays before sampling, in µs."""
    race: float = 1.10
    """Race threshold: a candidate stops once its lower bound exceeds this multiple of the elite's time; 0 disables it.

    A simulated device adds 2, because the time model's predictions have errors."""
    hang_s: float = 3.0
    """Seconds after which a sequence of launches counts as hung."""

    def __post_init__(self) -> None:
        check_setting_types(self, "timing.")
        if self.cache not in ("rotate", "flush"):
            raise StudyError(f"timing.cache = {self.cache!r}: {suggestion(self.cache, ('rotate', 'flush'))}")
        if not 3 <= self.min_samples <= self.max_samples <= MOST_SAMPLES:
            raise StudyError(
                f"timing.min_samples = {self.min_samples}, max_samples = {self.max_samples}; need 3 <= min <= max "
                f"<= {MOST_SAMPLES}"
            )
        for name, most in (("sample_us", 1e9), ("ci_width", 1e9), ("hang_s", 1e6)):
            if not 0 < getattr(self, name) <= most:
                raise StudyError(f"timing.{name} = {getattr(self, name)}; use a number above 0, up to {most:g}")
        if not 0 <= self.warmup_us <= 1e9:
            raise StudyError(f"timing.warmup_us = {self.warmup_us}; use a number from 0 to 1e9")
        if self.race and not 1 <= self.race <= 1e9:
            raise StudyError(f"timing.race = {self.race}; use 0 (off) or at least 1")
        if not 1 <= self.rotate_sets <= MOST_RUNS:
            raise StudyError(f"timing.rotate_sets = {self.rotate_sets}; use 1 to {MOST_RUNS}")


LONG_LIMIT_RATIO = 5
"""Ratio of the two instruction limits of a simulated device."""


@dataclass(frozen=True)
class SimulationSettings:
    """Settings of a simulated device."""

    instruction_limit: int = 20_000_000
    """Instruction limit: warp instructions after which a launch on the PTX machine is stopped."""
    blocks: int = 6
    """Number of blocks of the full-size problem that are simulated for the predicted time."""

    def __post_init__(self) -> None:
        check_setting_types(self, "simulation.")
        if self.instruction_limit < 1 or self.blocks < 1:
            raise StudyError("simulation.instruction_limit and simulation.blocks must be at least 1")

    @property
    def long_limit(self) -> int:
        """Instruction limit for a few blocks of the full-size problem, used if a candidate exceeds the normal limit."""
        return LONG_LIMIT_RATIO * self.instruction_limit


@dataclass(frozen=True)
class SamplerSettings:
    """Sampler of a study with its options."""

    name: str = "evo"
    """Name from `SAMPLERS`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the sampler, checked when it is created."""

    def __post_init__(self) -> None:
        if self.name not in SAMPLERS:
            raise StudyError(f"there is no sampler {self.name!r}: {suggestion(self.name, SAMPLERS)}")


@dataclass(frozen=True)
class Study:
    """Settings of a study, usually from a TOML file.

    Lists become tuples. A single problem may be text, and a gene may have a single value. The sampler may be its name.
    The settings of gate, timing and simulation may be mappings.
    """

    name: str
    """Name of the study; for a file, its name without suffix."""
    kernel: str
    """Name or path of a kernel folder."""
    problems: Sequence[str | Mapping[str, Value]]
    """Problems as text (`B=2 S=512` or `2,512`) or mappings."""
    dtype: str | None = None
    """Data type, passed to every problem as `dtype` if the kernel has such a field."""
    device: str = "auto"
    """Device: auto, cuda[:N], sim:CHIP or replay:FILE."""
    limits: Mapping[str, int | str] = field(default_factory=dict)
    """Resource limits: `chip` uses the limits of another chip; other entries lower individual limits."""
    genes: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    """Genes that are restricted to some of their values, with these values."""
    sampler: SamplerSettings = field(default_factory=SamplerSettings)
    """Sampler with its options."""
    budget_s: float | None = None
    """Total time over all sessions, in seconds."""
    trials: int | None = None
    """Maximum number of evaluated trials over all sessions."""
    seed: int = 0
    """Seed of the proposals."""
    window: int | None = None
    """Maximum number of concurrent trials. Proposal n uses the results up to trial n minus this number. None means the
    device's default."""
    gate: GateSettings = field(default_factory=GateSettings)
    """Settings of the correctness check."""
    timing: TimingSettings = field(default_factory=TimingSettings)
    """Timing settings."""
    simulation: SimulationSettings = field(default_factory=SimulationSettings)
    """Settings of a simulated device."""
    control: str = "none"
    """`random`: every second trial is random, for comparison with the sampler; `none`: no control."""
    cost_per_hour: float | None = None
    """Price of one device hour."""
    cost_unit: str = ""
    """Currency of the price, for display."""
    path: Path | None = None
    """Path of the study's file."""

    def __post_init__(self) -> None:
        plain = {
            "problems": _problems(self.problems),
            "genes": {gene: _gene_values(gene, values) for gene, values in _table("genes", self.genes).items()},
            "limits": _table("limits", self.limits),
            "sampler": _sampler(self.sampler),
            "gate": _record("gate", GateSettings, self.gate),
            "timing": _record("timing", TimingSettings, self.timing),
            "simulation": _record("simulation", SimulationSettings, self.simulation),
        }
        for name, value in plain.items():
            object.__setattr__(self, name, value)  # the dataclass is frozen
        check_setting_types(self, skip=(*plain, "path"))
        if self.path is None and (not self.name.isprintable() or not self.name or self.name.endswith(".toml")):
            raise StudyError(f"name = {self.name!r}; use printable text without the suffix .toml")
        if not self.problems:
            fields = f'add problems = ["FIELD=VALUE …"] with the fields of kernel {self.kernel}'
            raise StudyError(f"study {self.name} has no problem; {fields}")
        check_trials(self.trials)
        check_seed(self.seed)
        if self.window is not None and not 1 <= self.window <= 1024:
            raise StudyError(f"window = {self.window}; use 1 to 1024")
        if self.budget_s is not None and not self.budget_s > 0:
            raise StudyError(f"budget = {self.budget_s} s; use a positive time such as 90m")
        check_control(self.control, self.sampler.name)
        check_price(self.cost_per_hour)

    @contextmanager
    def blamed(self, key: str, mistake: type[UsageError] = UsageError) -> Iterator[None]:
        """Add the study's file and a key to the messages of errors raised inside the context.

        Args:
            key: key as written in the file, for example `[genes]`.
            mistake: type of the errors to change; other errors pass unchanged.

        Raises:
            StudyError: the error with the longer message.
        """
        try:
            yield
        except mistake as error:
            raise StudyError(f"{self.path or self.name}: {key}: {error}") from error

    def __repr__(self) -> str:
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        defaults = {name: getattr(Study(self.name, self.kernel, self.problems), name) for name in given}
        required = ("name", "kernel", "problems")
        shown = [name for name in given if name in required or given[name] != defaults[name]]
        return repr_of(*shown)(self)


def refuse_unknown(prefix: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
    """Reject unknown keys of a table.

    Args:
        prefix: the table's name followed by a full stop; empty for the study itself.
        table: table to check.
        known: valid keys.

    Raises:
        StudyError: a key is unknown; the message suggests the nearest known one.
    """
    for key in table:
        if key not in known:
            raise StudyError(f"unknown key {f'{prefix}{key}'!r}: {suggestion(key, known)}")


def _table(key: str, given: object) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise StudyError(f"{key} is {given!r}; it must be a table [{key}]")
    return dict(given)


def _problems(given: object) -> tuple[str | Mapping[str, Value], ...]:
    entries = [given] if isinstance(given, (str, Mapping)) else given
    if not isinstance(entries, (list, tuple)) or not all(isinstance(entry, (str, Mapping)) for entry in entries):
        raise StudyError(f'problems is {given!r}; use problems = ["B=2 S=512"] or [[problems]] tables')
    return tuple(entries)


def _gene_values(gene: str, given: object) -> tuple[Value, ...]:
    single = isinstance(given, (str, Mapping)) or not isinstance(given, Iterable)
    entries: list[Any] = [given] if single else list(given)  # type: ignore[call-overload]
    entries = [entry if isinstance(entry, str) or not hasattr(entry, "__index__") else int(entry) for entry in entries]
    if not entries or not all(isinstance(entry, (int, str)) for entry in entries):
        raise StudyError(f"genes.{gene} is {given!r}; use a value or a list of values")
    return tuple(entries)


def _sampler(given: object) -> SamplerSettings:
    if isinstance(given, SamplerSettings):
        return given
    if isinstance(given, str):
        given = {"name": given}
    if not isinstance(given, Mapping):
        raise StudyError(f'sampler is {given!r}; use sampler = "evo" or a table [sampler] with a name')
    options = dict(given)
    name = options.pop("name", "evo")
    if not isinstance(name, str):
        raise StudyError(f"sampler.name is {name!r}; use a name such as evo")
    try:
        return SamplerSettings(name, options)
    except StudyError as error:
        raise StudyError(f"sampler: {error}") from error


def _record(key: str, record: Any, given: object) -> Any:
    if isinstance(given, record):
        return given
    table = _table(key, given)
    refuse_unknown(f"{key}.", table, [one.name for one in fields(record)])
    return record(**table)


_hints: Any = cache(get_type_hints)  # evaluating annotations takes two thirds of the time for reading a file


def check_setting_types(record: Any, prefix: str = "", skip: Sequence[str] = ()) -> None:
    """Reject settings of a wrong type, and convert lists to tuples.

    Args:
        record: settings.
        prefix: the table's name followed by a full stop; empty for the study itself.
        skip: fields that are not checked.

    Raises:
        StudyError: a field has a wrong type.
    """
    hints = _hints(type(record))
    for one in fields(record):
        value = getattr(record, one.name)
        if one.name in skip or (value is None and one.default is None):
            continue
        wanted, name = _wanted(str(hints[one.name]))
        if wanted is tuple and isinstance(value, list):
            object.__setattr__(record, one.name, value := tuple(value))  # the dataclass is frozen
        sound = isinstance(value, wanted) and not isinstance(value, bool)
        if sound and isinstance(value, tuple):
            sound = all(isinstance(part, str) for part in value)
        if not sound:
            given = list(value) if isinstance(value, tuple) else value
            raise StudyError(f"{prefix}{one.name} is {given!r}; it must be {name}")


def _wanted(hint: str) -> tuple[type | tuple[type, ...], str]:
    """Return the types that an annotation allows, and their description."""
    if hint.startswith("tuple["):
        return tuple, "a list of strings"
    if "Literal" in hint:
        return str, "a string"
    if "float" in hint:
        return (int, float), "a number"
    if "int" in hint:
        return int, "an integer"
    return str, "a string"


def check_trials(trials: int | None) -> None:
    """Reject an invalid number of trials.

    Raises:
        StudyError: the number is less than 1, or too large for the database.
    """
    if trials is not None and not 1 <= trials <= MAX_INTEGER:
        raise StudyError(f"trials = {trials}; use at least 1" + (" and at most 2^63 - 1" if trials > 1 else ""))


def check_seed(seed: int | None) -> None:
    """Reject a seed that the database cannot store.

    Raises:
        StudyError: the seed does not fit in 64 bits.
    """
    if seed is not None and abs(seed) > MAX_INTEGER:
        raise StudyError(f"seed = {seed} does not fit in 64 bits; use -2^63 + 1 to 2^63 - 1")


def check_control(control: str, sampler: str) -> None:
    """Reject a control that is unknown or the same as the sampler.

    Raises:
        StudyError: the control is unknown or the same as the sampler.
    """
    if control not in CONTROLS:
        raise StudyError(f"control = {control!r}: {suggestion(control, CONTROLS)}")
    if control == sampler:
        raise StudyError(f"control and sampler are both {sampler!r}; choose a different one, or omit the control")


def check_price(per_hour: float | None) -> None:
    """Reject an invalid price.

    Raises:
        StudyError: the price is negative, not finite, or too large.
    """
    if per_hour is not None and not 0 <= per_hour <= MOST_PRICE:
        raise StudyError(f"cost_per_hour = {per_hour}; use a price per hour of at least 0, such as 2.5")
