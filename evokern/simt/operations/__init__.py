"""Operations of the PTX machine; importing this package fills the table of operations."""

from evokern.simt.operations import (  # noqa: F401
    async_ops,
    atomics,
    bulk_ops,
    cluster_ops,
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
)  # fmt: skip
from evokern.simt.operations.table import lookup

__all__ = ["lookup"]
