"""Speed of light: the least time in which a chip could possibly do a workload.

Two bounds: the operations at the fastest pipe's rate, and the bytes at the bandwidth of the memory that must deliver
them. They are computed at two kinds of rate. *Peak* rates come from data sheets (`profiles.Profile`), and no program
can exceed them; the floor at peak rates is generous on purpose, since a time below it is not a win but proof of a
fault: the fastest number format the inputs allow, every SM at its highest clock, as much of the working set in L2 as
fits. The *limit* that a user is told is nearer: operations at the rate of the number format that the workload computes
in, for a kernel in fp32 arithmetic is not held against the tensor cores. *Measured* rates are what a copy and a matrix
product reach on the GPU at hand: how near to them a kernel comes tells how much is left to gain. A time may pass the
limit, and proves nothing by it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evokern.declaration.kernel import Arithmetic, Kernel, Problem, Tensor
from evokern.hardware.profiles import Profile
from evokern.measurement.statistics import geometric_mean
from evokern.study.settings import TimingSettings

L2_BYTES_PER_CLOCK = 64.0
"""Bytes a clock that one SM can take from L2 at most: the width of its port (`Profile.sources`, "64-byte port")."""
EIGHT_BIT_GAIN = 2.0
"""Rate of 8-bit tensor instructions over 16-bit ones (white papers of Ampere, Ada and Hopper)."""
PLAIN: tuple[str, ...] = ("tf32", "f32", "f64")
"""Number formats whose rate is not measured on a GPU, where only 16-bit matrices are multiplied."""


@dataclass(frozen=True)
class Work:
    """What one call must do at least."""

    flops: float
    """Operations, as the workload declares them."""
    bytes: float
    """Fewest bytes through device memory, as the workload declares them."""
    dram_bytes: float
    """Those of them that L2 cannot have kept from the call before."""
    gain: float = 1.0
    """Rate of the tensor cores on the narrowest inputs over that on 16-bit ones."""
    arithmetic: Arithmetic = "f16"
    """Number format of the operations, which decides the limit (not the floor: a candidate may use another one)."""


@dataclass(frozen=True)
class Rates:
    """How fast a chip computes and moves."""

    matrix_flops_per_s: float
    """16-bit matrix operations a second."""
    dram_bytes_per_s: float
    """Bytes a second through device memory, reads and writes together."""


@dataclass(frozen=True)
class Floor:
    """The least time of one call, and what sets it."""

    time_us: float
    """µs."""
    bound: str
    """`operations`, `dram` or `l2`."""
    parts_us: Mapping[str, float]
    """Each bound alone, µs."""
    arithmetic_us: float = 0.0
    """The operations alone at the data sheet's rate of their own number format, µs."""

    @property
    def limit_parts_us(self) -> Mapping[str, float]:
        """Each bound of the limit alone, µs: as `parts_us`, the operations in their own number format."""
        return {**self.parts_us, "operations": max(self.parts_us["operations"], self.arithmetic_us)}

    def share(self, time_us: float) -> float:
        """Return how much of the limit a time reaches: 1 is the speed of light."""
        return self.time_us / time_us


def work(
    kernel: Kernel, problem: Problem, tensors: Mapping[str, Tensor], timing: TimingSettings, chip: Profile
) -> Work:
    """Return what one call must do at least.

    Args:
        kernel: whose workload says operations and bytes.
        problem: at which problem.
        tensors: the workload's buffers.
        timing: how calls are timed: what L2 can still hold from the call before.
        chip: whose L2.
    """
    moved = kernel.workload.bytes(problem)
    narrow = any(tensor.dtype in ("e4m3", "e5m2", "i8", "u8") for tensor in tensors.values())
    return Work(
        kernel.workload.flops(problem),
        moved,
        _from_dram(moved, tensors, timing, chip),
        EIGHT_BIT_GAIN if narrow else 1.0,
        arithmetic_of(kernel, tensors),
    )


def arithmetic_of(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Arithmetic:
    """Return the number format of a workload's operations: as declared, else the narrowest of inputs and outputs."""
    if kernel.workload.arithmetic is not None:
        return kernel.workload.arithmetic
    used = {tensor.dtype for tensor in tensors.values() if tensor.role != "workspace"}
    formats: tuple[tuple[Arithmetic, set[str]], ...] = (
        ("f8", {"e4m3", "e5m2", "i8", "u8"}),
        ("f16", {"f16", "bf16"}),
        ("f32", {"f32"}),
        ("f64", {"f64"}),
    )
    return next((name for name, dtypes in formats if used & dtypes), "f32")


def arithmetic_rate(arithmetic: Arithmetic, chip: Profile) -> float:
    """Return the most operations a second that a chip does in a number format."""
    rates: Mapping[Arithmetic, float] = {
        "f8": EIGHT_BIT_GAIN * chip.tensor_peak_flops_per_clock,
        "f16": chip.tensor_peak_flops_per_clock,
        "tf32": chip.tensor_peak_flops_per_clock / 2,
        "f32": chip.fp32_flops_per_clock,
        "f64": chip.fp64_flops_per_clock,
    }
    return rates[arithmetic] * chip.sms * chip.clock_mhz * 1e6


def boosted(chip: Profile, clocks_mhz: Sequence[float | None]) -> Profile:
    """Return a chip at the highest clock it was seen at: some cards boost beyond the clock of their data sheet."""
    highest = max((clock for clock in clocks_mhz if clock is not None), default=0.0)
    return replace(chip, clock_mhz=highest) if highest > chip.clock_mhz else chip


def peak_rates(chip: Profile) -> Rates:
    """Return the rates that no program can exceed on a chip."""
    rate = max(chip.tensor_peak_flops_per_clock, chip.fp32_flops_per_clock)
    return Rates(rate * chip.sms * chip.clock_mhz * 1e6, chip.dram_bytes_per_s)


def floor(task: Work, rates: Rates, chip: Profile) -> Floor:
    """Return the least time of one call.

    Args:
        task: what it must do.
        rates: how fast, at peak or as measured.
        chip: whose L2 ports deliver what stays on the chip.
    """
    parts = {
        "operations": task.flops / (rates.matrix_flops_per_s * task.gain) * 1e6,
        "l2": task.bytes / (L2_BYTES_PER_CLOCK * chip.sms * chip.clock_mhz),
        "dram": task.dram_bytes / rates.dram_bytes_per_s * 1e6,
    }
    bound = max(parts, key=lambda name: parts[name])
    return Floor(parts[bound], bound, parts, task.flops / arithmetic_rate(task.arithmetic, chip) * 1e6)


def recorded(tasks: Sequence[Work], floors: Sequence[Floor]) -> dict[str, Any]:
    """Return what a trial's evidence keeps of its work and its floors at peak rates, one entry for each problem."""
    limits = [limit.limit_parts_us for limit in floors]
    return {
        "arithmetic": tasks[0].arithmetic,
        "arithmetic_us": [limit.arithmetic_us for limit in floors],
        "least_us": [max(parts.values()) for parts in limits],
        "limit_bound": max(limits[0], key=limits[0].__getitem__),
        "floor_us": [limit.time_us for limit in floors],
        "floor_bound": floors[0].bound,
        "floor_l2_us": [limit.parts_us["l2"] for limit in floors],
        "flops": [task.flops for task in tasks],
        "flops_gain": [task.gain for task in tasks],
        "bytes": [task.bytes for task in tasks],
        "dram_bytes": [task.dram_bytes for task in tasks],
    }


@dataclass(frozen=True)
class Limit:
    """How near a time is to the limit of its chip."""

    time_us: float
    """The limit: over several problems the geometric mean, µs."""
    share: float
    """The limit over the time: 1 is the speed of light."""
    bound: str
    """What sets it: `operations`, `dram` or `l2`; over several problems what takes longest in all."""
    rates: Rates | None
    """Rates measured on the GPU; None where the limit is that of the peak rates."""
    arithmetic: str = ""
    """Number format of the operations, empty where the trial does not tell."""

    @property
    def setter(self) -> str:
        """What sets it, in words: for example `compute at the vendor's peak rates`."""
        kind = f" ({self.arithmetic})" if self.arithmetic else ""
        resource = {"operations": f"compute{kind}", "dram": "memory (DRAM)", "l2": "memory (L2)"}[self.bound]
        if self.rates is None or (self.bound == "operations" and self.arithmetic in PLAIN):
            return f"{resource} at the vendor's peak rates"
        matrix, copied = self.rates.matrix_flops_per_s / 1e12, self.rates.dram_bytes_per_s / 1e12
        return f"{resource} at the rates measured on this GPU ({matrix:.0f} TFLOP/s fp16, {copied:.2f} TB/s)"

    def as_dict(self) -> dict[str, Any]:
        """Return the object that `show --json` prints."""
        rates = self.rates
        return {
            "time_us": self.time_us,
            "share": self.share,
            "bound": "compute" if self.bound == "operations" else "memory",
            "resource": self.bound,
            "setter": self.setter,
            "measured": rates is not None,
            "arithmetic": self.arithmetic or None,
            "matrix_flops_per_s": rates.matrix_flops_per_s if rates else None,
            "copy_bytes_per_s": rates.dram_bytes_per_s if rates else None,
        }


def limit_of(evidence: Mapping[str, Any], time_us: float, rates: Rates | None) -> Limit | None:
    """Return how near a recorded trial is to the limit of its chip.

    Args:
        evidence: the trial's.
        time_us: its time, µs.
        rates: as measured on its GPU; None takes the floor at peak rates that stands in the evidence.

    Returns:
        None where the evidence tells nothing of the work, or that there is none.
    """
    peak = [float(one) for one in evidence.get("least_us", evidence.get("floor_us", ()))]
    arithmetic = str(evidence.get("arithmetic", ""))
    if not peak or min(peak) <= 0:
        return None
    if rates is None or "dram_bytes" not in evidence:
        # Trials of earlier versions do not tell how much had to come from DRAM.
        mean = geometric_mean(peak)
        return Limit(mean, mean / time_us, str(evidence.get("limit_bound", evidence["floor_bound"])), None, arithmetic)
    columns = zip(
        *(evidence[name] for name in ("flops", "flops_gain", "dram_bytes", "floor_l2_us")),
        strict=True,
    )
    parts = [
        {
            "operations": own_us if arithmetic in PLAIN else flops / (rates.matrix_flops_per_s * gain) * 1e6,
            "l2": l2_us,
            "dram": dram_bytes / rates.dram_bytes_per_s * 1e6,
        }
        for (flops, gain, dram_bytes, l2_us), own_us in zip(columns, evidence.get("arithmetic_us", peak), strict=True)
    ]
    mean = geometric_mean([max(part.values()) for part in parts])
    bound = max(parts[0], key=lambda name: sum(part[name] for part in parts))
    return Limit(mean, mean / time_us, bound, rates, arithmetic)


def _from_dram(moved: float, tensors: Mapping[str, Tensor], timing: TimingSettings, chip: Profile) -> float:
    """Return the bytes of a call that L2 cannot have kept, at least."""
    written = sum(tensor.bytes for tensor in tensors.values() if tensor.role == "output")
    if timing.cache == "flush":
        # What the flush left in L2 is its own; what the call writes may stay there.
        return max(moved - written, 0.0)
    total = moved * timing.rotate_sets
    return max(total - chip.l2_bytes, 0.0) / timing.rotate_sets


def below(time_us: float, limit: Floor) -> str | None:
    """Return why a time cannot be true, or None where it can."""
    if not math.isfinite(time_us) or time_us >= limit.time_us:
        return None
    return (
        f"{time_us:.4g} µs is less than the {limit.time_us:.4g} µs that the {limit.bound} of this workload take at the "
        "chip's peak rate: work was left out, or the workload's flops and bytes are too high"
    )
