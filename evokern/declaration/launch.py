"""Declaration of one kernel launch: geometry, attributes, and arguments (tensors, numbers, tensor maps).

A slice is a part of the inputs and the outputs that depend on this part; the gate can renew it separately.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from evokern.declaration.field_types import COUNT, TEXT, Kind, entries, is_whole, one_of, optional, require, whole
from evokern.declaration.problem import Problem
from evokern.declaration.tensor import TileMap
from evokern.errors import KernelError, suggestion

if TYPE_CHECKING:
    import torch

SCALAR_BYTES: Mapping[str, int] = {
    "i32": 4, "u32": 4, "i64": 8, "u64": 8, "f32": 4, "f64": 8, "f16": 2, "bf16": 2, "bool": 1,
}  # fmt: skip
"""Bytes of an argument passed by value, by dtype name."""


@dataclass(frozen=True)
class Scalar:
    """A kernel argument passed by value."""

    dtype: Literal["i32", "u32", "i64", "u64", "f32", "f64", "f16", "bf16", "bool"]
    """C type of the argument: a key of `SCALAR_BYTES`."""
    value: int | float
    """Value; rounded to nearest for `f16` and `bf16`, and True or False for `bool`."""

    def __post_init__(self) -> None:
        if self.dtype not in SCALAR_BYTES:
            raise KernelError(f"unknown scalar dtype {self.dtype!r}: {suggestion(self.dtype, SCALAR_BYTES)}")
        if self.dtype == "bool" and self.value not in (0, 1):
            raise KernelError(f"a bool argument must be True or False, not {self.value!r}")


def bfloat16_bits(value: float) -> int:
    """Return the bits of a number rounded to bfloat16, ties to even (IEEE 754, 4.3.1)."""
    bits = int.from_bytes(struct.pack("<f", value), "little")
    if bits & 0x7FFFFFFF > 0x7F800000:  # NaN keeps a bit of its payload
        return bits >> 16 | 0x40
    return bits + 0x7FFF + (bits >> 16 & 1) >> 16


def i32(value: int) -> Scalar:
    """Return an `int` argument.

    Raises:
        KernelError: the value is not a whole number or does not fit.
    """
    return Scalar("i32", _checked_integer(value, "i32", 31))


def i64(value: int) -> Scalar:
    """Return a `long long` argument.

    Raises:
        KernelError: the value is not a whole number or does not fit.
    """
    return Scalar("i64", _checked_integer(value, "i64", 63))


def _checked_integer(value: int | float, dtype: str, bits: int) -> int:
    if isinstance(value, float) and not value.is_integer():
        raise KernelError(f"{dtype}({value}) is not a whole number; use a // b to round down, or f32(x) for a float")
    number = whole(value)
    # A traced number (`evokern.export.trace`) would record the comparison as a condition on the shape.
    if type(number) is int and not -(1 << bits) <= number < 1 << bits:
        raise KernelError(f"{dtype}({number}) does not fit in {dtype}{'; use i64' if bits == 31 else ''}")
    return number


def f32(value: float) -> Scalar:
    """Return a `float` argument."""
    return Scalar("f32", float(value))


@dataclass(frozen=True)
class L2Window:
    """A request to keep one tensor in L2 while the launch runs (CUDA access-policy window)."""

    tensor: str
    """Name of the tensor that should persist."""
    hit_ratio: float = 1.0
    """Share of the tensor's cache lines that get the persisting property, 0 to 1."""


@dataclass(frozen=True)
class Launch:
    """One kernel launch: geometry, arguments, attributes."""

    entry: str
    """Name of the `__global__` function (extern "C", or a template instantiation such as `k<512,64>`)."""
    grid: tuple[int, int, int]
    """Blocks along x, y, z."""
    block: tuple[int, int, int]
    """Threads along x, y, z."""
    args: tuple[str | Scalar | TileMap, ...]
    """Arguments in the entry's order: the name of a tensor, whose address is passed, a `Scalar`, or a `TileMap`."""
    shared_bytes: int = 0
    """Dynamic shared memory per block, in bytes."""
    static_shared_bytes: int = 0
    """Static shared memory per block, in bytes, if it is known before compilation."""
    min_blocks: int = 1
    """Minimum resident blocks per SM, as in `__launch_bounds__`; it limits the registers per thread."""
    cluster: tuple[int, int, int] | None = None
    """Blocks of a thread-block cluster along x, y, z (compute capability 9.0 or later); None or one block means no
    cluster."""
    l2_window: L2Window | None = None
    """Tensor that should persist in L2."""

    def __post_init__(self) -> None:
        require("a launch", self, {"entry": TEXT})
        owner = f"the launch of {self.entry}"
        require(owner, self, dict.fromkeys(("shared_bytes", "static_shared_bytes", "min_blocks"), COUNT))
        require(owner, self, {"l2_window": optional(one_of(L2Window, 'an L2Window("TENSOR")'))})
        if isinstance(self.args, str):
            raise KernelError(f"{owner}: args is the string {self.args!r}; use a tuple, one entry per parameter")
        object.__setattr__(self, "grid", _triple(self.grid))
        object.__setattr__(self, "block", _triple(self.block))
        if self.cluster is not None:
            object.__setattr__(self, "cluster", _triple(self.cluster))
            if min(self.cluster) < 1:
                raise KernelError(f"a cluster of {self.cluster} has no blocks; use at least 1 along each axis")
        object.__setattr__(self, "args", tuple(self.args))
        for position, argument in enumerate(self.args):
            if not isinstance(argument, (str, Scalar, TileMap)):
                raise KernelError(f"argument {position + 1} of {self.entry} is {_argument_problem(argument)}")

    @property
    def clustered(self) -> tuple[int, int, int] | None:
        """Number of blocks in a cluster along x, y, z; None if the cluster is a single block."""
        return self.cluster if self.cluster and self.cluster[0] * self.cluster[1] * self.cluster[2] > 1 else None

    @property
    def maps(self) -> tuple[TileMap, ...]:
        """Tensor maps among the arguments."""
        return tuple(argument for argument in self.args if isinstance(argument, TileMap))

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """Tensors that the launch gets as an argument, by address or by a tensor map."""
        named = (one.tensor if isinstance(one, TileMap) else one for one in self.args)
        return tuple(name for name in named if isinstance(name, str))

    @property
    def threads(self) -> int:
        """Number of threads in a block."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def blocks(self) -> int:
        """Number of blocks in the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]


def _argument_problem(argument: object) -> str:
    """Return a clause that describes an invalid argument and its correction."""
    if callable(argument):
        name = getattr(argument, "__name__", "f")
        return f"the function {name} itself; call it with a value, for example {name}(p.N)"
    if isinstance(argument, int):
        return f"the plain number {argument}; add its type: i32({argument})"
    if isinstance(argument, float):
        return f"the plain number {argument}; add its type: f32({argument})"
    return f"{argument!r}; use the name of a tensor, or a number with a type such as i32(p.N)"


def _triple(extent: int | Sequence[int]) -> tuple[int, int, int]:
    parts = tuple(extent) if isinstance(extent, Iterable) else (extent,)
    if not 1 <= len(parts) <= 3:
        raise KernelError(f"a grid, block or cluster must have one to three extents, not {parts}")
    for part in parts:
        if not hasattr(part, "__index__"):
            raise KernelError(
                f"extents of a grid, block or cluster are whole numbers, not {part!r}; use -(-a // b) to round up"
            )
    x, y, z = (*parts, 1, 1)[:3]
    return whole(x), whole(y), whole(z)


_AXIS = Kind(lambda axes: is_whole(axes) or (isinstance(axes, tuple) and all(map(is_whole, axes))),
             "the number of an axis, or a tuple of them")  # fmt: skip


@dataclass(frozen=True)
class Slice:
    """Corresponding parts of inputs and outputs: new inputs in a slice change only outputs in the same slice.

    Example for a matrix product: with `Slice({"a": 0, "c": 0})`, new rows of `a` change only the same rows of `c`. With
    `Slice({"b": 1, "c": 1})`, new columns of `b` change only the same columns of `c`. All inputs named by a slice are
    renewed together.
    """

    axes: Mapping[str, int | tuple[int, ...]]
    """Tensor → the axis, or several axes, along which it is cut.

    Each axis has its own indices, in the same order for every tensor. Tensors that are not named stay whole: such
    inputs are not renewed, and such outputs do not change."""
    fields: tuple[str, ...] = ()
    """Fields of the problem that give the extents of the axes; for the reference they are set to those of the slice."""
    reference: Callable[..., Mapping[str, torch.Tensor]] | None = None
    """Function that returns the float64 outputs of a slice; None applies the workload's reference to the cut inputs.

    It gets the problem, the float64 inputs (named inputs cut, others whole), and one int64 tensor of indices per
    axis."""

    def __post_init__(self) -> None:
        entries("a Slice", "axes", self.axes, _AXIS)
        if not self.axes:
            raise KernelError('a Slice names no tensor; name at least one tensor, for example Slice({"a": 0, "c": 0})')
        cuts = {name: self.cut(name) for name in self.axes}
        counts = {len(axes) for axes in cuts.values()}
        if len(counts) > 1 or counts == {0}:
            raise KernelError(f"a Slice must cut every tensor along the same number of axes: {dict(self.axes)}")
        for name, axes in cuts.items():
            if len(set(axes)) < len(axes) or any(axis < 0 for axis in axes):
                raise KernelError(f"a Slice cuts {name!r} along {axes}; list each axis once, counted from 0")
        if self.fields and len(self.fields) != counts.pop():
            raise KernelError(f"a Slice has fields {self.fields}; name one field for each cut axis, or no fields")

    def cut(self, name: str) -> tuple[int, ...]:
        """Return the axes along which a tensor is cut; empty if it stays whole."""
        axes = self.axes.get(name, ())
        return axes if isinstance(axes, tuple) else (axes,)

    def part(self, problem: Problem, counts: tuple[int, ...]) -> Problem:
        """Return the problem that remains if each axis of the slice keeps only the given number of indices."""
        return problem.changed(dict(zip(self.fields, counts, strict=False))) if self.fields else problem

    def extents(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
        """Return the extents of the axes that are cut.

        Raises:
            KernelError: a tensor is unknown, an axis does not exist, or extents differ.
        """
        found: tuple[int, ...] = ()
        for name in self.axes:
            if name not in shapes:
                raise KernelError(f"a Slice names the unknown tensor {name!r}; use {', '.join(shapes)}")
            axes, shape = self.cut(name), shapes[name]
            if any(axis >= len(shape) for axis in axes):
                raise KernelError(f"a Slice cuts {name!r} along axis {max(axes)}, but its shape is {shape}")
            mine = tuple(shape[axis] for axis in axes)
            if found and mine != found:
                raise KernelError(f"a Slice cuts {name!r} with extents {mine}, but other tensors with extents {found}")
            found = mine
        return found
