"""Roofline bound: the least time in which a chip can execute a workload.

It has two parts: the operations at the rate of the fastest pipe, and the bytes at the bandwidth of the memory that
delivers them. The rates are of two kinds:

- *Peak* rates come from data sheets (`profiles.Profile`), and no program can exceed them. The lower bound at peak rates
  is intentionally low, because a shorter time proves an error. It assumes the fastest number format for the inputs and
  the highest clock on every SM. As much of the working set as fits is in L2.
- *Measured* rates are those of a copy and a matrix product on the current GPU. The distance to them shows the possible
  gain.

The roofline bound shown to users is tighter than the lower bound: operations count at the rate of the workload's own
number format, so a kernel in fp32 is not compared with the tensor cores. A shorter time is possible and proves nothing.
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
"""Maximum bytes per clock that one SM can read from L2: the width of its port (`Profile.sources`, "64-byte port")."""
EIGHT_BIT_GAIN = 2.0
"""Ratio of 8-bit to 16-bit tensor instruction rates (white papers of Ampere, Ada and Hopper)."""
PLAIN: tuple[str, ...] = ("tf32", "f32", "f64")
"""Number formats without a measured rate; only 16-bit matrix products are measured."""


@dataclass(frozen=True)
class Work:
    """Minimum work of one call."""

    flops: float
    """Number of operations declared by the workload."""
    bytes: float
    """Minimum bytes through device memory declared by the workload."""
    dram_bytes: float
    """Part of `bytes` that L2 cannot keep from the previous call."""
    gain: float = 1.0
    """Ratio of the tensor core rate on the narrowest inputs to the rate on 16-bit inputs."""
    arithmetic: Arithmetic = "f16"
    """Number format of the operations. It affects the roofline bound, but not the lower bound, because candidates may
    use another format."""


@dataclass(frozen=True)
class Rates:
    """Compute and memory rates of a chip."""

    matrix_flops_per_s: float
    """16-bit matrix operations per second."""
    dram_bytes_per_s: float
    """Bytes per second through device memory, reads and writes together."""


@dataclass(frozen=True)
class LowerBound:
    """Lower bound on the time of one call, and the resource that determines it."""

    time_us: float
    """Lower bound in µs."""
    bound: str
    """Limiting resource: `operations`, `dram` or `l2`."""
    parts_us: Mapping[str, float]
    """Time of each resource alone, in µs."""
    arithmetic_us: float = 0.0
    """Time of the operations alone at the data sheet's rate of their own number format, in µs."""

    @property
    def limit_parts_us(self) -> Mapping[str, float]:
        """Parts of the roofline bound in µs: `parts_us`, with the operations at the rate of their own number format."""
        return {**self.parts_us, "operations": max(self.parts_us["operations"], self.arithmetic_us)}

    def share(self, time_us: float) -> float:
        """Return the ratio of the lower bound to a time; 1 is the fastest possible."""
        return self.time_us / time_us


def work(
    kernel: Kernel, problem: Problem, tensors: Mapping[str, Tensor], timing: TimingSettings, chip: Profile
) -> Work:
    """Return the minimum work of one call.

    Args:
        kernel: kernel whose workload declares operations and bytes.
        problem: the problem.
        tensors: buffers of the workload.
        timing: timing settings, which determine the contents of L2 before a call.
        chip: chip with the L2.
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
    """Return the number format of a workload's operations: as declared, or the narrowest input or output format."""
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
    """Return the maximum operations per second of a chip in a number format."""
    rates: Mapping[Arithmetic, float] = {
        "f8": EIGHT_BIT_GAIN * chip.tensor_peak_flops_per_clock,
        "f16": chip.tensor_peak_flops_per_clock,
        "tf32": chip.tensor_peak_flops_per_clock / 2,
        "f32": chip.fp32_flops_per_clock,
        "f64": chip.fp64_flops_per_clock,
    }
    return rates[arithmetic] * chip.sms * chip.clock_mhz * 1e6


def boosted(chip: Profile, clocks_mhz: Sequence[float | None]) -> Profile:
    """Return a chip with the highest observed clock, because some cards exceed the clock in their data sheet."""
    highest = max((clock for clock in clocks_mhz if clock is not None), default=0.0)
    return replace(chip, clock_mhz=highest) if highest > chip.clock_mhz else chip


def peak_rates(chip: Profile) -> Rates:
    """Return the rates that no program can exceed on a given chip."""
    rate = max(chip.tensor_peak_flops_per_clock, chip.fp32_flops_per_clock)
    return Rates(rate * chip.sms * chip.clock_mhz * 1e6, chip.dram_bytes_per_s)


def floor(task: Work, rates: Rates, chip: Profile) -> LowerBound:
    """Return the lower bound on the time of one call.

    Args:
        task: work of the call.
        rates: peak or measured rates.
        chip: chip with the L2 bandwidth.
    """
    parts = {
        "operations": task.flops / (rates.matrix_flops_per_s * task.gain) * 1e6,
        "l2": task.bytes / (L2_BYTES_PER_CLOCK * chip.sms * chip.clock_mhz),
        "dram": task.dram_bytes / rates.dram_bytes_per_s * 1e6,
    }
    bound = max(parts, key=lambda name: parts[name])
    return LowerBound(parts[bound], bound, parts, task.flops / arithmetic_rate(task.arithmetic, chip) * 1e6)


def recorded(tasks: Sequence[Work], floors: Sequence[LowerBound]) -> dict[str, Any]:
    """Return the evidence about a trial's work and its lower bounds at peak rates, one entry per problem."""
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
class RooflineBound:
    """Distance of a time from the roofline bound of its chip."""

    time_us: float
    """Roofline bound in µs; the geometric mean over several problems."""
    share: float
    """Ratio of the roofline bound to the time; 1 is the fastest possible."""
    bound: str
    """Limiting resource: `operations`, `dram` or `l2`; with several problems, the one with the longest total time."""
    rates: Rates | None
    """Rates measured on the GPU; None if the bound uses peak rates."""
    arithmetic: str = ""
    """Number format of the operations; empty if the trial does not record it."""

    @property
    def setter(self) -> str:
        """Limiting resource in words, for example `compute at the vendor's peak rates`."""
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


def roofline_bound_of(evidence: Mapping[str, Any], time_us: float, rates: Rates | None) -> RooflineBound | None:
    """Return the distance of a recorded trial from the roofline bound of its chip.

    Args:
        evidence: evidence of the trial.
        time_us: time of the trial in µs.
        rates: rates measured on its GPU; None uses the recorded bound at peak rates.

    Returns:
        The distance, or None if the evidence has no work or the work is zero.
    """
    peak = [float(one) for one in evidence.get("least_us", evidence.get("floor_us", ()))]
    arithmetic = str(evidence.get("arithmetic", ""))
    if not peak or min(peak) <= 0:
        return None
    if rates is None or "dram_bytes" not in evidence:
        # Trials of earlier versions do not record the bytes from DRAM.
        mean = geometric_mean(peak)
        return RooflineBound(
            mean, mean / time_us, str(evidence.get("limit_bound", evidence["floor_bound"])), None, arithmetic
        )
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
    return RooflineBound(mean, mean / time_us, bound, rates, arithmetic)


def _from_dram(moved: float, tensors: Mapping[str, Tensor], timing: TimingSettings, chip: Profile) -> float:
    """Return the minimum bytes of a call that L2 cannot hold."""
    written = sum(tensor.bytes for tensor in tensors.values() if tensor.role == "output")
    if timing.cache == "flush":
        # The flush fills L2 with its own data; outputs of the call may stay in L2.
        return max(moved - written, 0.0)
    total = moved * timing.rotate_sets
    return max(total - chip.l2_bytes, 0.0) / timing.rotate_sets


def below(time_us: float, limit: LowerBound) -> str | None:
    """Return the reason why a time is impossible, or None."""
    if not math.isfinite(time_us) or time_us >= limit.time_us:
        return None
    return (
        f"{time_us:.4g} µs is below the lower bound of {limit.time_us:.4g} µs ({limit.bound} at the chip's peak "
        "rate): the kernel skips work, or the workload declares too many flops or bytes"
    )
