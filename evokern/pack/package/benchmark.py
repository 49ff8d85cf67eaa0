"""Times of this package's operator next to its baselines: `python -m PACKAGE.benchmark`. It needs a GPU.

The inputs of successive calls differ, so that they do not stay in the L2 cache. Times on the GPU are those of a CUDA
graph with many calls; times of the host are those of one call, without waiting for the GPU.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

MOST_SETS = 16
"""Largest number of different inputs."""


def rows(test: Any) -> Iterator[str]:
    """Yield a table: for each variant of this GPU at its study's shape, the operator and each baseline.

    Args:
        test: the checks of the package (`selftest.SelfTest`), which generate inputs.
    """
    yield "| Variant | Problem | Code | GPU, µs | Ratio | Host, µs |"
    yield "|---|---|---|---|---|---|"
    for number in test.here():
        shape = test.shape(number)
        sets = _sets(test, shape)
        problem = test.operator.problem_of(shape)
        codes: dict[str, list[Callable[[], Any]]] = {
            "operator": [partial(test.function, *inputs, **arguments) for inputs, arguments in sets]
        }
        for name, run in test.baselines.BASELINES:
            named = [dict(zip(test.rules.DECLARED, inputs, strict=True)) for inputs, _ in sets]
            codes[name] = [partial(_copied, test.operator, run, problem, one) for one in named]
        words = " ".join(f"{name}={value}" for name, value in problem.items())
        own = None
        with torch.no_grad():
            for name, calls in codes.items():
                try:
                    gpu, host = gpu_us(calls), host_us(calls)
                except RuntimeError as error:
                    yield f"| {number} | {words} | {name} | {str(error).splitlines()[0]} | | |"
                    continue
                own = gpu if own is None else own
                yield f"| {number} | {words} | {name} | {gpu:.2f} | {gpu / own:.2f} | {host:.2f} |"


def _copied(operator: Any, run: Callable[..., Any], problem: Any, inputs: dict[str, torch.Tensor]) -> Any:
    """Run a baseline; copy views of its inputs, because the operator writes its outputs to memory."""
    return operator.without_views(run(problem, inputs).values(), inputs.values())


def _sets(test: Any, shape: Any) -> list[tuple[list[torch.Tensor], dict[str, int]]]:
    """Return inputs that together need twice the L2 cache, at most `MOST_SETS`."""
    first = test.inputs(shape)
    size = sum(one.numel() * one.element_size() for one in first[0])
    wanted = 2 * torch.cuda.get_device_properties(test.device).L2_cache_size
    return [first, *(test.inputs(shape) for _ in range(min(MOST_SETS, wanted // max(size, 1) + 1) - 1))]


def gpu_us(calls: Sequence[Callable[[], Any]], least: int = 20, rounds: int = 15) -> float:
    """Return the median time of a call in µs, in a replayed CUDA graph."""
    for call in calls[:3]:
        call()
    torch.cuda.synchronize()
    graph, count = torch.cuda.CUDAGraph(), max(least, len(calls))
    with torch.cuda.graph(graph):
        for place in range(count):
            calls[place % len(calls)]()
    times = []
    for _ in range(rounds):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        began.record()
        graph.replay()
        ended.record()
        torch.cuda.synchronize()
        times.append(1000 * float(began.elapsed_time(ended)) / count)
    return sorted(times)[rounds // 2]


def host_us(calls: Sequence[Callable[[], Any]], count: int = 200, rounds: int = 9) -> float:
    """Return the median time in µs that the host needs for a call, without waiting for the GPU."""
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for place in range(count):
            calls[place % len(calls)]()
        times.append(1e6 * (time.perf_counter() - began) / count)
    torch.cuda.synchronize()
    return sorted(times)[rounds // 2]


def main() -> int:
    """Print the table."""
    from importlib import import_module

    test = import_module(f"{__package__}.selftest").SelfTest(sys.modules[str(__package__)])
    if test.device.type != "cuda":
        print("there is no GPU, so there is nothing to measure")
        return 1
    print(f"{test.operator.title} on {torch.cuda.get_device_name()}, torch {torch.__version__}: {test.operator.launch}")
    for row in rows(test):
        print(row, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
