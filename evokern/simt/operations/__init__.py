"""The operations of the machine; importing this package fills the table."""

from evokern.simt.operations import (
    async_ops,
    atomics,
    barrier_objects,
    compare,
    control,
    convert,
    floating,
    integer,
    matrix_ops,
    memory_ops,
    video,
    warp_ops,
    warpgroup,
)

__all__ = [
    "async_ops",
    "atomics",
    "barrier_objects",
    "compare",
    "control",
    "convert",
    "floating",
    "integer",
    "matrix_ops",
    "memory_ops",
    "video",
    "warp_ops",
    "warpgroup",
]
