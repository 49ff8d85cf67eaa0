"""Speed of light: the least time in which a chip could possibly do a workload.

Two bounds, from peak rates that no program can exceed (`profiles.Profile`): the operations at the fastest pipe's rate,
and the bytes at the bandwidth of the memory that must deliver them. Both are generous on purpose, since a time below
them is not a win but proof of a fault: the fastest number format the inputs allow, every SM at its highest clock, as
much of the working set in L2 as fits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from evokern.kernel import Kernel, Problem, Tensor
from evokern.profiles import Profile
from evokern.study import TimingSettings

L2_BYTES_PER_CLOCK = 64.0
"""Bytes a clock that one SM can take from L2 at most: the width of its port (`Profile.sources`, "64-byte port")."""
EIGHT_BIT_GAIN = 2.0
"""Rate of 8-bit tensor instructions over 16-bit ones (white papers of Ampere, Ada and Hopper)."""


@dataclass(frozen=True)
class Floor:
    """The least time of one call, and what sets it."""

    time_us: float
    """µs."""
    bound: str
    """`operations`, `dram` or `l2`."""
    parts_us: Mapping[str, float]
    """Each bound alone, µs."""

    def share(self, time_us: float) -> float:
        """Return how much of the limit a time reaches: 1 is the speed of light."""
        return self.time_us / time_us


def floor(
    kernel: Kernel, problem: Problem, tensors: Mapping[str, Tensor], timing: TimingSettings, chip: Profile
) -> Floor:
    """Return the least time of one call.

    Args:
        kernel: whose workload says operations and bytes.
        problem: at which problem.
        tensors: the workload's buffers.
        timing: how calls are timed: what L2 can still hold from the call before.
        chip: peak rates.
    """
    clock = chip.clock_mhz
    gain = EIGHT_BIT_GAIN if any(t.dtype in ("e4m3", "e5m2", "i8", "u8") for t in tensors.values()) else 1.0
    rate = max(chip.tensor_peak_flops_per_clock * gain, chip.fp32_flops_per_clock)
    moved = kernel.workload.bytes(problem)
    parts = {
        "operations": kernel.workload.flops(problem) / (rate * chip.sms * clock),
        "l2": moved / (L2_BYTES_PER_CLOCK * chip.sms * clock),
        "dram": _from_dram(moved, tensors, timing, chip) / chip.dram_bytes_per_s * 1e6,
    }
    bound = max(parts, key=lambda name: parts[name])
    return Floor(parts[bound], bound, parts)


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
