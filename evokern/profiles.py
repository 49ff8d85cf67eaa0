"""Chips: limits that decide feasibility and peak rates that bound time, each number with its source.

Limits per compute capability are from the CUDA C++ Programming Guide, section "Compute Capabilities", tables "Feature
Support" and "Technical Specifications per Compute Capability". Rates are from the vendor's papers named in `sources`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from evokern.errors import DeviceError, nearest


@dataclass(frozen=True)
class Profile:
    """One chip. Rates are per SM and clock, so that they hold at any clock."""

    name: str
    """Short name used in `sim:NAME`."""
    model: str
    """Full name, as the driver reports it."""
    compute_capability: tuple[int, int]
    """Major and minor."""
    sms: int
    """Streaming multiprocessors."""
    clock_mhz: float
    """Boost clock, MHz."""
    shared_bytes_per_block: int
    """Opt-in limit of shared memory of a block (static plus dynamic), bytes."""
    shared_bytes_per_sm: int
    """Shared memory of an SM, bytes (each resident block also takes `shared_bytes_reserved`)."""
    registers_per_sm: int
    """32-bit registers of an SM."""
    threads_per_sm: int
    """Resident threads of an SM."""
    blocks_per_sm: int
    """Resident blocks of an SM."""
    l2_bytes: int
    """L2 cache, bytes."""
    dram_bytes_per_s: float
    """Peak DRAM bandwidth, bytes a second."""
    l2_bytes_per_clock_per_sm: float
    """L2 to SM bandwidth, bytes a clock and SM."""
    fp32_flops_per_clock: float
    """FP32 operations a clock and SM (an FMA counts two)."""
    sfu_per_clock: float
    """Special-function results a clock and SM."""
    int32_per_clock: float
    """32-bit integer results a clock and SM."""
    tensor_flops_per_clock: Mapping[str, float]
    """Dense tensor-core operations a clock and SM through `mma.sync`, by `INPUT->ACCUMULATOR` (an FMA counts two)."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Field → where its number comes from."""
    shared_bytes_static: int = 48 * 1024
    """Limit of static shared memory of a block, bytes."""
    shared_bytes_reserved: int = 1024
    """Shared memory the system takes for each resident block, bytes."""
    threads_per_block: int = 1024
    """Threads of a block."""
    registers_per_thread: int = 255
    """Registers of a thread."""
    grid_limit: tuple[int, int, int] = (2**31 - 1, 65535, 65535)
    """Blocks along x, y, z."""
    block_limit: tuple[int, int, int] = (1024, 1024, 64)
    """Threads along x, y, z."""

    @property
    def architecture(self) -> str:
        """Name for the compiler, for example `sm_89`."""
        return f"sm_{self.compute_capability[0]}{self.compute_capability[1]}"

    def limited(self, other: Profile | None = None, **overrides: int) -> Profile:
        """Return this chip with the limits of another, or with single limits lowered.

        Raises:
            DeviceError: a limit is unknown, or larger than the chip has.
        """
        changes: dict[str, Any] = {}
        if other is not None:
            changes = {name: min(getattr(self, name), getattr(other, name)) for name in LIMITS}
        for name, value in overrides.items():
            if name not in LIMITS:
                raise DeviceError(f"there is no limit {name!r}: {nearest(name, LIMITS)}")
            if not 0 < value <= getattr(self, name):
                raise DeviceError(f"limit {name} = {value} is not between 1 and {self.model}'s {getattr(self, name)}")
            changes[name] = value
        return replace(self, **changes) if changes else self


LIMITS: tuple[str, ...] = (
    "shared_bytes_per_block",
    "shared_bytes_per_sm",
    "registers_per_sm",
    "threads_per_sm",
    "blocks_per_sm",
    "threads_per_block",
    "registers_per_thread",
)
"""Fields that a study's `limits` may lower."""
