"""One kernel launch as a kernel declares it: geometry, attributes, and arguments that are tensors' names or numbers."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from evokern.errors import KernelError, nearest

SCALAR_BYTES: Mapping[str, int] = {
    "i32": 4, "u32": 4, "i64": 8, "u64": 8, "f32": 4, "f64": 8, "f16": 2, "bf16": 2, "bool": 1,
}  # fmt: skip
"""Bytes of an argument passed by value, by evokern's name of its type."""


def whole(number: int | float) -> int:
    """Return a whole number as it is (a traced one keeps its formula: see `evokern.export.trace`), others as `int`."""
    return number if isinstance(number, int) and not isinstance(number, bool) else int(number)


@dataclass(frozen=True)
class Scalar:
    """A kernel argument passed by value."""

    dtype: Literal["i32", "u32", "i64", "u64", "f32", "f64", "f16", "bf16", "bool"]
    """C type of the argument: a key of `SCALAR_BYTES`."""
    value: int | float
    """Its value; of `f16` and `bf16` rounded to the nearest, of `bool` True or False."""

    def __post_init__(self) -> None:
        if self.dtype not in SCALAR_BYTES:
            raise KernelError(f"scalar dtype {self.dtype!r}: {nearest(self.dtype, SCALAR_BYTES)}")
        if self.dtype == "bool" and self.value not in (0, 1):
            raise KernelError(f"a bool argument is True or False, not {self.value!r}")


def bfloat16_bits(value: float) -> int:
    """Return the bits of a number rounded to bfloat16, ties to even (IEEE 754, 4.3.1)."""
    bits = int.from_bytes(struct.pack("<f", value), "little")
    if bits & 0x7FFFFFFF > 0x7F800000:  # NaN keeps a bit of its payload
        return bits >> 16 | 0x40
    return bits + 0x7FFF + (bits >> 16 & 1) >> 16


def i32(value: int) -> Scalar:
    """Return an `int` argument.

    Raises:
        KernelError: it is no whole number, or does not fit.
    """
    return Scalar("i32", _fitting(value, "i32", 31))


def i64(value: int) -> Scalar:
    """Return a `long long` argument.

    Raises:
        KernelError: it is no whole number, or does not fit.
    """
    return Scalar("i64", _fitting(value, "i64", 63))


def _fitting(value: int | float, dtype: str, bits: int) -> int:
    if isinstance(value, float) and not value.is_integer():
        raise KernelError(f"{dtype}({value}) is no whole number; a // b is a / b rounded down, f32(x) passes a float")
    number = whole(value)
    # A traced number (`evokern.export.trace`) would take the comparison for a condition on the shape.
    if type(number) is int and not -(1 << bits) <= number < 1 << bits:
        raise KernelError(f"{dtype}({number}) does not fit{', i64 would take it' if bits == 31 else ''}")
    return number


def f32(value: float) -> Scalar:
    """Return a `float` argument."""
    return Scalar("f32", float(value))


@dataclass(frozen=True)
class L2Window:
    """A request to keep one tensor in L2 while the launch runs (CUDA's access-policy window)."""

    tensor: str
    """Name of the tensor that should persist."""
    hit_ratio: float = 1.0
    """Share of its lines that get the persisting property, 0 to 1."""


@dataclass(frozen=True)
class Launch:
    """One kernel launch: geometry, arguments, attributes."""

    entry: str
    """Name of the `__global__` function (extern "C", or a template instantiation such as `k<512,64>`)."""
    grid: tuple[int, int, int]
    """Blocks along x, y, z."""
    block: tuple[int, int, int]
    """Threads along x, y, z."""
    args: tuple[str | Scalar, ...]
    """In the entry's order: a tensor's name (its address is passed) or a `Scalar`."""
    shared_bytes: int = 0
    """Dynamic shared memory of a block, in bytes."""
    static_shared_bytes: int = 0
    """Static shared memory of a block where the kernel knows it before the compile, in bytes."""
    min_blocks: int = 1
    """Blocks per SM promised to `__launch_bounds__`; bounds the registers of a thread."""
    cluster: tuple[int, int, int] | None = None
    """Blocks of a thread-block cluster along x, y, z, for compute capability 9.0 and above; None, or one block,
    for no clusters."""
    l2_window: L2Window | None = None
    """Tensor that should persist in L2."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "grid", _triple(self.grid))
        object.__setattr__(self, "block", _triple(self.block))
        if self.cluster is not None:
            object.__setattr__(self, "cluster", _triple(self.cluster))
            if min(self.cluster) < 1:
                raise KernelError(f"a cluster of {self.cluster} has no blocks; use at least 1 along each axis")
        object.__setattr__(self, "args", tuple(self.args))
        for position, argument in enumerate(self.args):
            if not isinstance(argument, (str, Scalar)):
                raise KernelError(f"argument {position + 1} of {self.entry} is {_remedied(argument)}")

    @property
    def clustered(self) -> tuple[int, int, int] | None:
        """Blocks of a cluster along x, y, z, where one has several; else None."""
        return self.cluster if self.cluster and self.cluster[0] * self.cluster[1] * self.cluster[2] > 1 else None

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]


def _remedied(argument: object) -> str:
    """Say what stands where a tensor's name or a `Scalar` belongs, and what to write there."""
    if callable(argument):
        name = getattr(argument, "__name__", "f")
        return f"the function {name} itself; call it with its value: {name}(p.N)"
    if isinstance(argument, int):
        return f"the plain number {argument}; say its type: i32({argument})"
    if isinstance(argument, float):
        return f"the plain number {argument}; say its type: f32({argument})"
    return f"{argument!r}; an argument is a tensor's name, or a number with its type such as i32(p.N)"


def _triple(extent: int | Sequence[int]) -> tuple[int, int, int]:
    parts = tuple(extent) if isinstance(extent, Iterable) else (extent,)
    if not 1 <= len(parts) <= 3:
        raise KernelError(f"a grid, block or cluster has one to three extents, not {parts}")
    for part in parts:
        if not hasattr(part, "__index__"):
            raise KernelError(
                f"a grid, block or cluster has whole extents, not {part!r}; -(-a // b) is a / b, rounded up"
            )
    x, y, z = (*parts, 1, 1)[:3]
    return whole(x), whole(y), whole(z)
