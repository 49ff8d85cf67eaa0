"""Tensor map as an argument of a launch: the tensor, the box of one copy, and the order of bytes in shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from evokern.declaration.field_types import whole
from evokern.declaration.tensor import Tensor
from evokern.errors import KernelError, suggestion
from evokern.hardware.tensor_map import DTYPE_BYTES, SWIZZLES, TensorMap

_MAP_DTYPES: Mapping[str, str] = {
    "f64": "f64", "f32": "f32", "f16": "f16", "bf16": "bf16", "e4m3": "u8", "e5m2": "u8",
    "i64": "s64", "i32": "s32", "i16": "u16", "i8": "u8", "u8": "u8", "u32": "u32", "u64": "u64",
}  # fmt: skip
"""Element type of a tensor → that of its tensor map; a copy moves bytes, so the sign has no effect."""


@dataclass(frozen=True)
class TileMap:
    """A tensor map as a kernel argument, passed by value: ``const __grid_constant__ CUtensorMap``.

    The host makes the map for the tensor's address before a launch. All lists are in the order of the tensor's shape,
    so the last axis is contiguous; coordinates in PTX have the reverse order.
    """

    tensor: str
    """Name of the tensor."""
    box: tuple[int, ...]
    """Elements along each axis that one copy moves."""
    swizzle: Literal["none", "32B", "64B", "128B"] = "none"
    """Span in bytes within which chunks of 16 bytes change places in shared memory."""
    shape: tuple[int, ...] = ()
    """Extents, if the map sees the tensor with other axes than the tensor's own; empty for the tensor's shape."""
    strides: tuple[int, ...] = ()
    """Elements between neighbours along each axis but the last; empty if `shape` is contiguous."""
    dtype: str = ""
    """Element type; evokern fills it in from the tensor."""

    def __post_init__(self) -> None:
        for name in ("box", "shape", "strides"):
            object.__setattr__(self, name, tuple(map(whole, getattr(self, name))))
        if self.swizzle not in SWIZZLES:
            raise KernelError(f"unknown swizzle {self.swizzle!r} of a tensor map: {suggestion(self.swizzle, SWIZZLES)}")

    def of(self, tensor: Tensor) -> TileMap:
        """Return the argument with the axes and the element type of its tensor.

        Raises:
            KernelError: the map has more or fewer elements than the tensor, or contradictory numbers of axes.
        """
        shape = self.shape or tensor.shape
        strides = self.strides or tuple(prod(shape[axis:]) for axis in range(1, len(shape)))
        if len(self.box) != len(shape) or len(strides) != len(shape) - 1:
            raise KernelError(
                f"the tensor map of {self.tensor!r} has {len(shape)} axes, {len(self.box)} box sizes and "
                f"{len(strides)} strides; use one box size for each axis, and one stride for each axis but the last"
            )
        last = sum((extent - 1) * stride for extent, stride in zip(shape, (*strides, 1), strict=True))
        # A traced number (`evokern.export.trace`) would record the comparison as a condition on the shape.
        if type(last) is int and last >= tensor.elements:
            raise KernelError(f"the tensor map of {self.tensor!r} ends after its last element, {tensor.elements - 1}")
        return replace(self, shape=shape, strides=strides, dtype=tensor.dtype)

    @property
    def described(self) -> TensorMap:
        """The map in the order of the driver API, of a map that `of` returned."""
        dtype = _MAP_DTYPES[self.dtype]
        size = DTYPE_BYTES[dtype]
        return TensorMap(
            dtype=dtype, shape=self.shape[::-1], strides=tuple(size * stride for stride in self.strides[::-1]),
            box=self.box[::-1], swizzle=self.swizzle,
        )  # fmt: skip
