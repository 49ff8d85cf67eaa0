"""Tensor maps: 128 bytes that describe a tensor in global memory to the copy engine of a Hopper GPU.

`TensorMap.refusals` states the rules of ``cuTensorMapEncodeTiled`` without a driver. They are in the CUDA driver API,
"Tensor Map Object Management", and in ``cuda.h``. A driver's encoding is opaque. The simulated device has its own
encoding (`packed`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from evokern.errors import UsageError

BYTES = 128
"""Size of a tensor map."""
DTYPE_BYTES = {
    "u8": 1, "u16": 2, "u32": 4, "s32": 4, "u64": 8, "s64": 8, "f16": 2, "f32": 4, "f64": 8, "bf16": 2, "f32_ftz": 4,
    "tf32": 4, "tf32_ftz": 4,
}  # fmt: skip
"""Element type → bytes, in the order of ``CUtensorMapDataType``."""
SWIZZLES = {"none": 0, "32B": 32, "64B": 64, "128B": 128}
"""Swizzle → span in bytes within which chunks of 16 bytes change places, in the order of ``CUtensorMapSwizzle``."""
FILLS = ("zeros", "nan")
"""Values of elements outside the tensor, in the order of ``CUtensorMapFloatOOBfill``."""
MOST_DIMENSIONS, MOST_BOX, MOST_STEP, MOST_SIZE, MOST_STRIDE = 5, 256, 8, 1 << 32, 1 << 40
MOST_TILE = (1 << 18) - 1
"""Maximum bytes of a tile; no document states it, but the driver rejects 2^18 bytes and accepts 3/4 of that."""
_MAGIC = b"EVOKMAP1"
_LAYOUT = struct.Struct("<8s4B4xQ5Q4Q5H5B")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMap:
    """Tensor in global memory and the box that one copy moves; the first dimension is the one without a stride."""

    dtype: str
    """Element type, one of `DTYPE_BYTES`."""
    shape: tuple[int, ...]
    """Elements along each dimension."""
    strides: tuple[int, ...]
    """Bytes between neighbours along each dimension but the first."""
    box: tuple[int, ...]
    """Elements of the tensor that a copy spans along each dimension."""
    steps: tuple[int, ...] = ()
    """Every how many elements are copied along each dimension; empty for all. The first value has no effect."""
    swizzle: str = "none"
    """One of `SWIZZLES`."""
    fill: str = "zeros"
    """One of `FILLS`."""

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return DTYPE_BYTES[self.dtype]

    @property
    def tile(self) -> tuple[int, ...]:
        """Elements that a copy moves along each dimension."""
        steps = (1, *self.steps[1:], *[1] * self.rank)
        return tuple(-(-along // step) for along, step in zip(self.box, steps, strict=False))

    @property
    def tile_bytes(self) -> int:
        """Bytes that a copy moves, with those outside the tensor."""
        size = self.element_bytes
        for along in self.tile:
            size *= along
        return size

    def refusals(self, address: int = 0) -> list[str]:
        """Return the rules of the driver that the map breaks, each as one sentence with the value."""
        if self.dtype not in DTYPE_BYTES or self.swizzle not in SWIZZLES or self.fill not in FILLS:
            known = f"{', '.join(DTYPE_BYTES)}; {', '.join(SWIZZLES)}; {', '.join(FILLS)}"
            return [f"dtype {self.dtype!r}, swizzle {self.swizzle!r} or fill {self.fill!r} is not one of {known}"]
        rank = self.rank
        if not 1 <= rank <= MOST_DIMENSIONS:
            return [f"a tensor map has 1 to {MOST_DIMENSIONS} dimensions, not {rank}"]
        if (len(self.strides), len(self.box), len(self.steps) or rank) != (rank - 1, rank, rank):
            return [f"{rank} dimensions need {rank - 1} strides, {rank} box sizes and {rank} or no steps"]
        found = [f"the address {address:#x} is not a multiple of 16"] if address % 16 else []
        for name, values, least, most in (
            ("size", self.shape, 1, MOST_SIZE), ("box size", self.box, 1, MOST_BOX), ("step", self.steps, 1, MOST_STEP),
            ("stride", self.strides, 0, MOST_STRIDE - 1),
        ):  # fmt: skip
            found += [
                f"the {name} {one} is not between {least} and {most}" for one in values if not least <= one <= most
            ]
        found += [f"the stride {one} is not a multiple of 16 bytes" for one in self.strides if one % 16]
        inner, span = self.box[0] * self.element_bytes, SWIZZLES[self.swizzle]
        if inner % 16:
            found.append(f"a row of the box has {inner} bytes, not a multiple of 16")
        if span and inner > span:
            found.append(f"a row of the box has {inner} bytes, but swizzle {self.swizzle} allows at most {span}")
        if self.tile_bytes > MOST_TILE:
            found.append(f"the tile has {self.tile_bytes} bytes, more than {MOST_TILE}")
        if self.fill == "nan" and self.dtype[0] in "us":
            found.append(f"fill 'nan' needs a floating-point type, not {self.dtype}")
        return found

    def packed(self, address: int) -> bytes:
        """Return the bytes that a kernel gets on the simulated device for a tensor at this address.

        Raises:
            UsageError: the driver would refuse the map.
        """
        if found := self.refusals(address):
            raise UsageError(f"tensor map of {self.dtype} {list(self.shape)}: {'; '.join(found)}")
        kinds = list(DTYPE_BYTES).index(self.dtype), list(SWIZZLES).index(self.swizzle), FILLS.index(self.fill)
        ones = [1] * self.rank
        return _LAYOUT.pack(
            _MAGIC, self.rank, *kinds, address, *_five(self.shape), *_five(self.strides)[:4], *_five(self.box),
            *_five(self.steps or ones),
        ).ljust(BYTES, b"\0")  # fmt: skip


def _five(values: tuple[int, ...] | list[int]) -> list[int]:
    return [*values, *[0] * (MOST_DIMENSIONS - len(values))]


def unpacked(data: bytes) -> tuple[TensorMap, int] | None:
    """Return the tensor map and the address that these bytes contain; None if they contain no map."""
    magic, rank, dtype, swizzle, fill, address, *rest = _LAYOUT.unpack(data[: _LAYOUT.size])
    if magic != _MAGIC:
        return None
    shape, strides, box, steps = rest[:5], rest[5:9], rest[9:14], rest[14:19]
    found = TensorMap(
        dtype=list(DTYPE_BYTES)[dtype], shape=tuple(shape[:rank]), strides=tuple(strides[: rank - 1]),
        box=tuple(box[:rank]), steps=tuple(steps[:rank]), swizzle=list(SWIZZLES)[swizzle], fill=FILLS[fill],
    )  # fmt: skip
    return found, address
