"""Number of simulations that fit into host memory: each worker holds a whole problem."""

from __future__ import annotations

from collections.abc import Sequence

from evokern.compile.build import tensors_of
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem
from evokern.errors import DeviceError
from evokern.simt import MEMORY_LIMIT
from evokern.workers.host_memory import available_bytes

COPIES = 3
"""Copies of a problem's buffers in a worker at its peak: generated, in the PTX machine, and while its memory grows."""


def workers_that_fit(
    kernel: Kernel,
    config: Config,
    problems: Sequence[Problem],
    cores: int = 1,
    memory_bytes: int | None = None,
    remedy: str = "use a smaller problem of the same kind, or a GPU (--device cuda)",
) -> int:
    """Return how many workers can hold a study's largest problem concurrently, at most one per core.

    Args:
        kernel: kernel of the study.
        config: its first candidate.
        problems: its problems.
        cores: maximum number of workers.
        memory_bytes: memory of the machine; None for the available memory of this machine.
        remedy: advice in the error message.

    Raises:
        DeviceError: the memory does not suffice for one worker.
    """
    sizes = {p: sum(tensor.bytes for tensor in tensors_of(kernel, config, p).values()) for p in problems}
    problem = max(sizes, key=sizes.__getitem__)
    needed, room = sizes[problem], available_bytes() if memory_bytes is None else memory_bytes
    if needed > MEMORY_LIMIT:
        raise DeviceError(
            f"the buffers of {kernel.name} at {problem} need {_gib(needed)}, but the simulator supports at most "
            f"{_gib(MEMORY_LIMIT)}; {remedy}"
        )
    fit = cores if room is None else min(cores, room // (COPIES * needed))
    if fit < 1:
        raise DeviceError(
            f"simulating {kernel.name} at {problem} needs {_gib(COPIES * needed)} of memory, but "
            f"{'this machine' if memory_bytes is None else 'a host'} has only {_gib(room or 0)} available; {remedy}"
        )
    return fit


def _gib(size: int) -> str:
    return f"{size / 2**30:.3g} GiB"
