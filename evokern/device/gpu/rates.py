"""How fast this GPU really copies and multiplies: two workloads that its vendor's own library runs.

Both take the best of a few repetitions, since they stand for what can be reached, and take tens of milliseconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch

from evokern.device.gpu.cuda import finish, new_event
from evokern.measurement.roofline import Rates

COPY_BYTES = 512 * 2**20
"""Bytes copied: read once and written once, in all 1 GiB, far more than any L2 holds."""
MATRIX = 8192
"""Rows and columns of the fp16 matrices that are multiplied (cuBLAS): large enough to fill every chip."""
REPETITIONS = 5
"""Times each is run; the best counts."""
LIMIT_S = 30.0
"""Seconds after which a GPU is given up that cannot even copy."""


def measure_rates() -> Rates:
    """Measure on the current GPU and stream.

    Raises:
        RunFailed: the GPU does not answer.
    """
    rates = Rates(_matrix_rate(), _copy_rate())
    torch.cuda.empty_cache()
    return rates


def _copy_rate() -> float:
    """Return the bytes a second that a copy within device memory reads and writes."""
    free, _ = torch.cuda.mem_get_info()
    source = torch.zeros(min(COPY_BYTES, free // 4), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2.0 * source.numel() / _best_s(lambda: target.copy_(source))


def _matrix_rate() -> float:
    """Return the operations a second of a product of two square fp16 matrices."""
    free, _ = torch.cuda.mem_get_info()
    side = MATRIX
    while 6 * side * side > free // 2:
        side //= 2
    # Random values: a product of zeros draws less power, and its clock is higher than any real product's.
    left, right = (torch.randn((side, side), dtype=torch.float16, device="cuda") for _ in range(2))
    product = torch.empty_like(left)
    return 2.0 * side**3 / _best_s(lambda: torch.mm(left, right, out=product))


def _best_s(step: Callable[[], object]) -> float:
    """Return the shortest time of a step in seconds, after a run that loads what it needs."""
    step()
    marks = [new_event(timing=True) for _ in range(REPETITIONS + 1)]
    marks[0].record()
    for mark in marks[1:]:
        step()
        mark.record()
    finish(LIMIT_S)
    spans_ms: list[float] = [first.elapsed_time(second) for first, second in itertools.pairwise(marks)]
    return min(spans_ms) / 1000.0
