"""Measurement of the GPU's copy and multiplication rates with the vendor's libraries.

Each rate is the best of a few repetitions, because it estimates what is achievable. The measurement takes tens of
milliseconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch

from evokern.device.gpu.cuda import finish, new_event
from evokern.measurement.roofline import Rates

COPY_BYTES = 512 * 2**20
"""Bytes to copy. Reading and writing them moves 1 GiB, far more than any L2 holds."""
MATRIX = 8192
"""Rows and columns of the fp16 matrices for cuBLAS, large enough to fill every chip."""
REPETITIONS = 5
"""Number of repetitions; only the fastest counts."""
LIMIT_S = 30.0
"""Timeout of one measurement, in seconds."""


def measure_rates() -> Rates:
    """Return the rates of the current GPU, measured on the current stream.

    Raises:
        RunFailed: the GPU does not respond.
    """
    rates = Rates(_matrix_rate(), _copy_rate())
    torch.cuda.empty_cache()
    return rates


def _copy_rate() -> float:
    """Return the bytes per second that a copy within device memory reads and writes."""
    free, _ = torch.cuda.mem_get_info()
    source = torch.zeros(min(COPY_BYTES, free // 4), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2.0 * source.numel() / _best_s(lambda: target.copy_(source))


def _matrix_rate() -> float:
    """Return the operations per second of a product of two square fp16 matrices."""
    free, _ = torch.cuda.mem_get_info()
    side = MATRIX
    while 6 * side * side > free // 2:
        side //= 2
    # Random values, because a product of zeros draws less power and runs at a higher clock.
    left, right = (torch.randn((side, side), dtype=torch.float16, device="cuda") for _ in range(2))
    product = torch.empty_like(left)
    return 2.0 * side**3 / _best_s(lambda: torch.mm(left, right, out=product))


def _best_s(step: Callable[[], object]) -> float:
    """Return the shortest time of a step in seconds, after a warm-up run."""
    step()
    marks = [new_event(timing=True) for _ in range(REPETITIONS + 1)]
    marks[0].record()
    for mark in marks[1:]:
        step()
        mark.record()
    finish(LIMIT_S)
    spans_ms: list[float] = [first.elapsed_time(second) for first, second in itertools.pairwise(marks)]
    return min(spans_ms) / 1000.0
