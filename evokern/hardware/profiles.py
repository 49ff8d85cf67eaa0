"""Profiles of chips: resource limits for the feasibility check and peak rates for the roofline bound, with sources.

Limits per compute capability are from the CUDA C++ Programming Guide, section "Compute Capabilities", tables "Feature
Support" and "Technical Specifications per Compute Capability". Rates are from the vendor papers named in `sources`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from evokern.errors import DeviceError, suggestion


@dataclass(frozen=True)
class Profile:
    """Limits and peak rates of one chip. Rates are per SM and clock cycle, independent of the clock frequency."""

    name: str
    """Short name used in `sim:NAME`."""
    model: str
    """Full name, as the driver reports it."""
    compute_capability: tuple[int, int]
    """Compute capability as (major, minor)."""
    sms: int
    """Number of streaming multiprocessors."""
    clock_mhz: float
    """Boost clock in MHz."""
    shared_bytes_per_block: int
    """Maximum shared memory per block after opt-in (static plus dynamic), in bytes."""
    shared_bytes_per_sm: int
    """Shared memory per SM in bytes; each resident block also needs `shared_bytes_reserved`."""
    registers_per_sm: int
    """Number of 32-bit registers per SM."""
    threads_per_sm: int
    """Maximum number of resident threads per SM."""
    blocks_per_sm: int
    """Maximum number of resident blocks per SM."""
    l2_bytes: int
    """L2 cache in bytes."""
    dram_bytes_per_s: float
    """Peak DRAM bandwidth, bytes per second."""
    l2_bytes_per_clock_per_sm: float
    """L2 to SM bandwidth, bytes per clock and SM."""
    fp32_flops_per_clock: float
    """FP32 operations per clock and SM (an FMA counts as two)."""
    sfu_per_clock: float
    """Special-function results per clock and SM."""
    int32_per_clock: float
    """32-bit integer results per clock and SM."""
    tensor_flops_per_clock: Mapping[str, float]
    """Dense tensor-core operations per clock and SM with `mma.sync`, by `INPUT->ACCUMULATOR` (an FMA counts as two)."""
    tensor_peak_flops_per_clock: float
    """Dense fp16 tensor operations per clock and SM with any instruction, including wgmma: an upper bound."""
    sustained_flops: Mapping[str, float] = field(default_factory=dict)
    """Operations per second of long matrix products, which the power limit reduces: `f16` on the tensor cores, `f32` on
    the fp32 pipe. A missing entry means that the limit does not matter."""
    power_delay_us: float = 30_000.0
    """Time of uninterrupted work after which the power limit takes effect, µs."""
    clusters: Mapping[int, int] = field(default_factory=dict)
    """Blocks of a cluster → clusters that run at once with one block per SM. They are fewer than the SMs allow, because
    a cluster runs in one GPC."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Field → source of its value."""
    shared_bytes_static: int = 48 * 1024
    """Maximum static shared memory per block in bytes."""
    shared_bytes_reserved: int = 1024
    """Shared memory in bytes that the system reserves for each resident block."""
    fp64_flops_per_clock: float = 256.0
    """FP64 operations per clock and SM (an FMA counts as two), including the tensor cores."""
    threads_per_block: int = 1024
    """Maximum number of threads per block."""
    registers_per_thread: int = 255
    """Maximum number of registers per thread."""
    grid_limit: tuple[int, int, int] = (2**31 - 1, 65535, 65535)
    """Maximum number of blocks along x, y, z."""
    block_limit: tuple[int, int, int] = (1024, 1024, 64)
    """Maximum number of threads along x, y, z."""

    @property
    def architecture(self) -> str:
        """Architecture name for the compiler, for example `sm_89`."""
        return f"sm_{self.compute_capability[0]}{self.compute_capability[1]}"

    def clusters_at_once(self, ranks: int, resident: int) -> int:
        """Return the maximum number of clusters that run at once, at least one.

        Args:
            ranks: blocks of a cluster.
            resident: blocks that an SM holds at once.
        """
        return max(resident * self.clusters.get(ranks, self.sms // ranks), 1)

    def limited(self, other: Profile | None = None, **overrides: int) -> Profile:
        """Return this chip with its limits lowered to the limits of another chip, or to given values.

        Raises:
            DeviceError: a limit is unknown, or higher than the chip's own.
        """
        changes: dict[str, Any] = {}
        if other is not None:
            changes = {name: min(getattr(self, name), getattr(other, name)) for name in LIMITS}
        for name, value in overrides.items():
            if name not in LIMITS:
                raise DeviceError(f"there is no limit {name!r}: {suggestion(name, LIMITS)}")
            if not 0 < value <= getattr(self, name):
                raise DeviceError(
                    f"limit {name} = {value} is out of range; use 1 to {getattr(self, name)} for {self.model}"
                )
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
MIN_CLUSTER_CAPABILITY = (9, 0)
"""Minimum compute capability for thread-block clusters (PTX ISA, ".reqnctapercluster")."""
PORTABLE_CLUSTER_BLOCKS = 8
"""Maximum cluster size on every chip with clusters (CUDA Programming Guide, "Thread Block Clusters")."""
MAX_CLUSTER_BLOCKS = 16
"""Maximum cluster size on any current chip, with the attribute for non-portable sizes (Hopper Tuning Guide, "Thread
Block Clusters")."""

_GUIDE = 'CUDA Programming Guide, "Compute Capabilities", technical specifications per compute capability'
_THROUGHPUT = 'CUDA Programming Guide, "Arithmetic Instructions", throughput table per compute capability'
_ADA = "NVIDIA Ada GPU Architecture white paper v2.01, appendices A and C"
_L4 = "NVIDIA L4 Tensor Core GPU data sheet"
_AMPERE = "NVIDIA A100 Tensor Core GPU Architecture white paper, table 4"
_HOPPER = "NVIDIA H100 Tensor Core GPU Architecture white paper, tables 1 to 3"
_H200 = "NVIDIA H200 Tensor Core GPU data sheet"
_DISSECTED = "Luo et al., Benchmarking and Dissecting the NVIDIA Hopper GPU Architecture (arXiv 2402.13499)"

_LIMITED = "8192³ in the head-to-head comparisons of docs/results.md, 700 W"

_SM_80: dict[str, Any] = {
    "compute_capability": (8, 0),
    "shared_bytes_per_block": 166_912,
    "shared_bytes_per_sm": 167_936,
    "registers_per_sm": 65_536,
    "threads_per_sm": 2048,
    "blocks_per_sm": 32,
    "fp32_flops_per_clock": 128.0,
    "fp64_flops_per_clock": 128.0,
    "sfu_per_clock": 16.0,
    "int32_per_clock": 64.0,
}
_SM_89: dict[str, Any] = _SM_80 | {
    "compute_capability": (8, 9),
    "shared_bytes_per_block": 101_376,
    "shared_bytes_per_sm": 102_400,
    "threads_per_sm": 1536,
    "blocks_per_sm": 24,
    "fp32_flops_per_clock": 256.0,
    "fp64_flops_per_clock": 4.0,
}
_SM_90: dict[str, Any] = _SM_80 | {
    "compute_capability": (9, 0),
    "shared_bytes_per_block": 232_448,
    "shared_bytes_per_sm": 233_472,
    "fp32_flops_per_clock": 256.0,
    "fp64_flops_per_clock": 256.0,
}
_LIMIT_SOURCES = dict.fromkeys(
    ("shared_bytes_per_block", "shared_bytes_per_sm", "registers_per_sm", "threads_per_sm", "blocks_per_sm"), _GUIDE
) | dict.fromkeys(("fp32_flops_per_clock", "fp64_flops_per_clock", "sfu_per_clock", "int32_per_clock"), _THROUGHPUT)

# fp32 accumulation does not halve the tensor rate of an L4: 121 TFLOP/s (dense, data sheet) on 58 SMs at 2,040 MHz is
# 1,024 operations per clock and SM. The white paper lists this rate for fp16 accumulation on AD102 (330.3 TFLOP/s on
# the RTX 4090). Only GeForce cards halve it with fp32 accumulation (165.2 TFLOP/s).
_ADA_FULL = {"f16->f16": 1024.0, "f16->f32": 1024.0, "bf16->f32": 1024.0, "tf32->f32": 512.0, "s8->s32": 2048.0}
_HOPPER_CLUSTERS = {2: 66, 3: 39, 4: 30, 6: 17, 8: 15}
_OCCUPANCY = "cuOccupancyMaxActiveClusters on an H200"
_HOPPER_SYNC = 0.63
"""Share of the fp16 peak that `mma.sync` reaches on sm_90; only wgmma reaches the peak (mma rates in `_DISSECTED`)."""
_HOPPER_RATES = {
    "f16->f16": 4096.0 * _HOPPER_SYNC,
    "f16->f32": 4096.0 * _HOPPER_SYNC,
    "bf16->f32": 4096.0 * _HOPPER_SYNC,
    "tf32->f32": 2048.0 * _HOPPER_SYNC,
    "s8->s32": 8192.0 * _HOPPER_SYNC,
    # sm_90 emulates mma.sync on E4M3: it converts the operands and uses the fp16 pipe.
    "e4m3->f32": 2048.0 * _HOPPER_SYNC,
}

CHIPS: Mapping[str, Profile] = {
    "l4": Profile(
        name="l4", model="NVIDIA L4", sms=58, clock_mhz=2040, l2_bytes=48 * 2**20, dram_bytes_per_s=300e9,
        l2_bytes_per_clock_per_sm=32.0, tensor_flops_per_clock=_ADA_FULL | {"e4m3->f32": 2048.0},
        tensor_peak_flops_per_clock=1024.0, **_SM_89, sustained_flops={"f16": 54.9e12, "f32": 11.4e12},
        power_delay_us=5_000.0,
        sources=_LIMIT_SOURCES | {"sms": _ADA, "clock_mhz": _L4,
                                  "sustained_flops": "geometric mean of torch's fp16 and bf16 (fp32) products of "
                                                     "4096³, 8192³ and 10240³, 72 W: torch-performance-test-data #120",
                                  "power_delay_us": "fitted to the same source: 36 products of 2048³ take 9 ms",
                                  "l2_bytes": _ADA, "dram_bytes_per_s": _L4,
                                  "tensor_flops_per_clock": f"{_L4}: 121 TFLOP/s dense; {_ADA}",
                                  "l2_bytes_per_clock_per_sm": "half of a 64-byte port, as measured on AD102"},
    ),
    "rtx4090": Profile(
        name="rtx4090", model="NVIDIA GeForce RTX 4090", sms=128, clock_mhz=2520, l2_bytes=72 * 2**20,
        dram_bytes_per_s=1008e9, l2_bytes_per_clock_per_sm=32.0,
        tensor_flops_per_clock=_ADA_FULL | {"f16->f32": 512.0, "bf16->f32": 512.0, "tf32->f32": 256.0,
                                            "e4m3->f32": 1024.0},
        tensor_peak_flops_per_clock=1024.0, **_SM_89,
        sources=_LIMIT_SOURCES | {"sms": _ADA, "clock_mhz": _ADA, "l2_bytes": _ADA, "dram_bytes_per_s": _ADA,
                                  "tensor_flops_per_clock": f"{_ADA}: 330.3 and 165.2 TFLOP/s",
                                  "l2_bytes_per_clock_per_sm": "half of a 64-byte port, as measured on AD102"},
    ),
    "a100": Profile(
        name="a100", model="NVIDIA A100-SXM4-80GB", sms=108, clock_mhz=1410, l2_bytes=40 * 2**20,
        dram_bytes_per_s=2039e9, l2_bytes_per_clock_per_sm=47.4,
        tensor_flops_per_clock={"f16->f16": 2048.0, "f16->f32": 2048.0, "bf16->f32": 2048.0, "tf32->f32": 1024.0,
                                "s8->s32": 4096.0},
        tensor_peak_flops_per_clock=2048.0, **_SM_80, sustained_flops={"f16": 257e12},
        sources=_LIMIT_SOURCES | {"sms": _AMPERE, "clock_mhz": _AMPERE, "l2_bytes": _AMPERE,
                                  "sustained_flops": "8192³, 400 W: thonking.ai/p/strangely-matrix-multiplications",
                                  "dram_bytes_per_s": "NVIDIA A100 80GB data sheet",
                                  "tensor_flops_per_clock": f"{_AMPERE}: 312 TFLOP/s",
                                  "fp64_flops_per_clock": f"{_AMPERE}: 19.5 TFLOP/s on the tensor cores",
                                  "l2_bytes_per_clock_per_sm": f"{_AMPERE}: 5,120 bytes a clock over 108 SMs"},
    ),
    "h100": Profile(
        name="h100", model="NVIDIA H100 80GB HBM3", sms=132, clock_mhz=1980, l2_bytes=50 * 2**20,
        dram_bytes_per_s=3350e9, l2_bytes_per_clock_per_sm=42.0, tensor_flops_per_clock=_HOPPER_RATES,
        tensor_peak_flops_per_clock=4096.0, **_SM_90, sustained_flops={"f16": 664e12}, clusters=_HOPPER_CLUSTERS,
        sources=_LIMIT_SOURCES | {"sms": _HOPPER, "clock_mhz": "driver's maximum SM clock", "l2_bytes": _HOPPER,
                                  "sustained_flops": _LIMITED, "power_delay_us": "docs/lab/2026-11-27-timing.md",
                                  "fp64_flops_per_clock": f"{_HOPPER}: 66.9 TFLOP/s on the tensor cores",
                                  "dram_bytes_per_s": _HOPPER, "tensor_flops_per_clock": _DISSECTED,
                                  "l2_bytes_per_clock_per_sm": _DISSECTED,
                                  "clusters": _OCCUPANCY},
    ),
    "h200": Profile(
        name="h200", model="NVIDIA H200", sms=132, clock_mhz=1980, l2_bytes=60 * 2**20, dram_bytes_per_s=4800e9,
        l2_bytes_per_clock_per_sm=42.0, tensor_flops_per_clock=_HOPPER_RATES, tensor_peak_flops_per_clock=4096.0,
        **_SM_90, sustained_flops={"f16": 664e12}, clusters=_HOPPER_CLUSTERS,
        sources=_LIMIT_SOURCES | {"sms": _HOPPER, "clock_mhz": "driver's maximum SM clock",
                                  "sustained_flops": f"as on the H100: {_LIMITED}",
                                  "l2_bytes": "driver's attribute l2CacheSize", "dram_bytes_per_s": _H200,
                                  "fp64_flops_per_clock": f"{_H200}: 67 TFLOP/s on the tensor cores",
                                  "tensor_flops_per_clock": _DISSECTED, "l2_bytes_per_clock_per_sm": _DISSECTED,
                                  "clusters": _OCCUPANCY},
    ),
}  # fmt: skip
"""Chips by short name."""


def chip(name: str) -> Profile:
    """Return a chip by its short name.

    Raises:
        DeviceError: there is no such chip.
    """
    key = name.strip().lower().replace("-", "").replace("_", "").replace(" ", "").removeprefix("nvidia")
    if key in CHIPS:
        return CHIPS[key]
    raise DeviceError(f"there is no chip {name!r}: {suggestion(key, CHIPS)}")


def limits_for(base: Profile, limits: Mapping[str, int | str]) -> Profile:
    """Return a chip with a study's `[limits]` applied: `chip = "l4"` and single limits, each at most the chip's own.

    Raises:
        DeviceError: a chip or limit is unknown, or a limit is not a whole number in range.
    """
    other = chip(str(limits["chip"])) if "chip" in limits else None
    single: dict[str, int] = {}
    for name, value in limits.items():
        if name == "chip":
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise DeviceError(f"limits.{name} = {value!r} is not a whole number")
        single[name] = value
    return base.limited(other, **single)
