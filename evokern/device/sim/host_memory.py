"""How many simulations the host's memory holds: each worker keeps a problem whole, though it runs a part of it."""

from __future__ import annotations

from collections.abc import Sequence

from evokern.compile.build import tensors_of
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem
from evokern.errors import DeviceError
from evokern.simt.memory.buffers import MEMORY_LIMIT
from evokern.workers.host_memory import available_bytes

COPIES = 3
"""A problem's buffers in a worker at its peak: as drawn, in the machine's memory, and while that grows."""


def workers_that_fit(
    kernel: Kernel,
    config: Config,
    problems: Sequence[Problem],
    cores: int = 1,
    memory_bytes: int | None = None,
    remedy: str = "give the study a smaller problem of the same kind, or search it on a GPU (--device cuda)",
) -> int:
    """Return how many workers, at most one a core, can hold a study's largest problem side by side.

    Args:
        kernel: the study's kernel.
        config: its first candidate.
        problems: its problems.
        cores: workers that are wanted.
        memory_bytes: memory of the machine that they run on; None for this one, as much as is left of it.
        remedy: what to do where not even one can.

    Raises:
        DeviceError: not even one can.
    """
    sizes = {p: sum(tensor.bytes for tensor in tensors_of(kernel, config, p).values()) for p in problems}
    problem = max(sizes, key=sizes.__getitem__)
    needed, room = sizes[problem], available_bytes() if memory_bytes is None else memory_bytes
    if needed > MEMORY_LIMIT:
        raise DeviceError(
            f"the buffers of {kernel.name} at {problem} take {_gib(needed)}, and the simulator holds "
            f"{_gib(MEMORY_LIMIT)}; {remedy}"
        )
    fit = cores if room is None else min(cores, room // (COPIES * needed))
    if fit < 1:
        raise DeviceError(
            f"simulating {kernel.name} at {problem} takes {_gib(COPIES * needed)} of memory, and "
            f"{'this machine' if memory_bytes is None else 'a host'} has {_gib(room or 0)} left; {remedy}"
        )
    return fit


def _gib(size: int) -> str:
    return f"{size / 2**30:.3g} GiB"
