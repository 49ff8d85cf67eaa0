"""A study: which kernel, on which problems and device, searched how. One validated record, which `study_file` reads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from evokern.declaration.genes import Value
from evokern.errors import MOST_NUMBER, StudyError, UsageError, nearest

MOST_RUNS = 1000
"""Most runs on one input set, and most input sets that timing rotates through."""
MOST_SAMPLES = 1_000_000
"""Most samples of a candidate."""
MOST_GUARD_BYTES = 2**30
"""Largest guard zone, bytes."""
MOST_PRICE = 1e12
"""Highest price of an hour."""
CONTROLS = ("none", "random")
"""What may search beside the sampler: nothing, or random draws."""

SAMPLERS = ("evo", "tpe", "nsga2", "gp", "random", "grid")
"""Who may propose (`evokern.samplers` has them)."""

InputSet = Literal["normal", "large", "equal_rows", "denormal", "edges"]
"""Kinds of input the gate draws: normal; large magnitude; each row one value; subnormal numbers; zeros, one-hot rows,
and where the kernel says what becomes of them infinities and NaN."""


@dataclass(frozen=True)
class GateSettings:
    """How strictly candidates are checked."""

    input_sets: tuple[InputSet, ...] = ("normal", "large", "equal_rows", "denormal", "edges")
    """Input sets of every candidate, drawn anew from a private seed: all of them, or of a large problem its slices."""
    atol: float | None = None
    """Absolute tolerance instead of the kernel's."""
    rtol: float | None = None
    """Relative tolerance instead of the kernel's."""
    guard_bytes: int = 4096
    """Guard zone before and after every buffer, bytes; a multiple of 256."""
    runs: int = 2
    """Runs on the same inputs that must agree bit by bit (unless the kernel is declared not deterministic); those after
    the first one are of the first two input sets."""
    renew_every: int = 8
    """Candidates after which an input set of a large problem is renewed whole where no slices of it can be: the float64
    references of six sets then cost each candidate less than one whole reference."""

    def __post_init__(self) -> None:
        if not self.input_sets:
            raise StudyError("gate.input_sets is empty; name at least one of " + ", ".join(get_args(InputSet)))
        for name in self.input_sets:
            if name not in get_args(InputSet):
                raise StudyError(f"gate.input_sets names {name!r}: {nearest(name, get_args(InputSet))}")
        for label, tolerance in (("atol", self.atol), ("rtol", self.rtol)):
            if tolerance is not None and not (math.isfinite(tolerance) and tolerance >= 0):
                raise StudyError(f"gate.{label} = {tolerance} is no tolerance; give a finite number of at least 0")
        if not 256 <= self.guard_bytes <= MOST_GUARD_BYTES or self.guard_bytes % 256:
            raise StudyError(f"gate.guard_bytes = {self.guard_bytes} is no multiple of 256 up to {MOST_GUARD_BYTES}")
        if not 1 <= self.runs <= MOST_RUNS:
            raise StudyError(f"gate.runs = {self.runs}; give 1 to {MOST_RUNS}")
        if not 1 <= self.renew_every <= MOST_RUNS:
            raise StudyError(f"gate.renew_every = {self.renew_every}; give 1 to {MOST_RUNS}")


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
    """Stop a candidate once its lower bound is above this multiple of the elite's time; 0 switches racing off.

    A simulated device adds 2, for a predicted time is a bound only within the model's error."""
    hang_s: float = 3.0
    """Seconds after which one launch sequence counts as hung."""

    def __post_init__(self) -> None:
        if self.cache not in ("rotate", "flush"):
            raise StudyError(f"timing.cache = {self.cache!r}: {nearest(self.cache, ('rotate', 'flush'))}")
        if not 3 <= self.min_samples <= self.max_samples <= MOST_SAMPLES:
            raise StudyError(
                f"timing.min_samples = {self.min_samples}, max_samples = {self.max_samples}; need 3 <= min <= max "
                f"<= {MOST_SAMPLES}"
            )
        for name, most in (("sample_us", 1e9), ("ci_width", 1e9), ("hang_s", 1e6)):
            if not 0 < getattr(self, name) <= most:
                raise StudyError(f"timing.{name} = {getattr(self, name)}; give a number above 0, up to {most:g}")
        if not 0 <= self.warmup_us <= 1e9:
            raise StudyError(f"timing.warmup_us = {self.warmup_us}; give a number from 0 to 1e9")
        if self.race and not 1 <= self.race <= 1e9:
            raise StudyError(f"timing.race = {self.race}; give 0 (off) or at least 1")
        if not 1 <= self.rotate_sets <= MOST_RUNS:
            raise StudyError(f"timing.rotate_sets = {self.rotate_sets}; give 1 to {MOST_RUNS}")


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
    """A name of `SAMPLERS`."""
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
    """Most trials in flight: proposal n sees the results up to n minus those in flight. None takes the device's."""
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
            raise StudyError(f'study {self.name} has no problem; add for example problems = ["B=2 S=512"]')
        check_trials(self.trials)
        check_seed(self.seed)
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


def check_trials(trials: int | None) -> None:
    """Refuse a number of trials that cannot be reached or kept.

    Raises:
        StudyError: it is less than 1, or beyond what a database holds.
    """
    if trials is not None and not 1 <= trials <= MOST_NUMBER:
        raise StudyError(f"trials = {trials}; give at least 1" + (" and at most 2^63 - 1" if trials > 1 else ""))


def check_seed(seed: int | None) -> None:
    """Refuse a seed that a database cannot keep.

    Raises:
        StudyError: it is beyond 63 bits.
    """
    if seed is not None and abs(seed) > MOST_NUMBER:
        raise StudyError(f"seed = {seed} does not fit a database's 64 bits; give one from -2^63 + 1 to 2^63 - 1")


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
        StudyError: it is negative, not finite, or beyond all prices.
    """
    if per_hour is not None and not 0 <= per_hour <= MOST_PRICE:
        raise StudyError(f"cost_per_hour = {per_hour}; give the price of an hour, a number of at least 0 such as 2.5")
