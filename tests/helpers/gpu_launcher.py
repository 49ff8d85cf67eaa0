"""Launches of machine code on the GPU, in a process of their own: under a tool, or where a crash must do no harm.

As a script: ``python gpu_launcher.py JOBS ANSWERS`` runs a pickled list of `Job` and writes a pickled list of `Answer`.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Job:
    """One launch with its buffers."""

    name: str
    cubin: bytes
    symbol: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[Array | np.generic, ...]
    """Arrays become buffers, scalars are passed by value."""
    shared: int = 0
    """Dynamic shared memory, bytes."""
    raw: frozenset[int] = frozenset()
    """Places of buffers that stay as they were allocated."""
    keep: bool = True
    """Whether the buffers come back."""


@dataclass(frozen=True)
class Answer:
    """What came of a job."""

    error: str = ""
    """Name of the CUDA error; empty when all went well."""
    buffers: tuple[Array, ...] = field(default=(), repr=False)
    """Every buffer after the launch, in the arguments' order."""


def command(jobs: Path, answers: Path) -> list[str]:
    """Return the command that runs a file of jobs."""
    return [sys.executable, __file__, str(jobs), str(answers)]


def launch_all(jobs: Sequence[Job], folder: Path, *tool: str, timeout: float = 120) -> tuple[list[Answer], str]:
    """Run jobs in a process of their own, under a tool if one is given; return answers and what was printed.

    Answers are missing where the tool ended the process.
    """
    folder.mkdir(parents=True, exist_ok=True)
    asked, given = folder / "jobs.pickle", folder / "answers.pickle"
    asked.write_bytes(pickle.dumps(list(jobs)))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [*tool, *command(asked, given)], capture_output=True, text=True, timeout=timeout, env=environment
    )
    answers = pickle.loads(given.read_bytes()) if given.exists() else []
    assert answers or tool, ran.stdout + ran.stderr
    return answers, ran.stdout + ran.stderr


def main() -> None:
    """Run the jobs of a file one after the other."""
    jobs = pickle.loads(Path(sys.argv[1]).read_bytes())
    gpu = _Gpu()
    answers = []
    for job in jobs:
        try:
            answers.append(Answer(buffers=tuple(gpu.run(job))))
        except _CudaError as error:
            answers.append(Answer(str(error)))
        Path(sys.argv[2]).write_bytes(pickle.dumps(answers))


class _CudaError(Exception):
    pass


class _Gpu:
    """The first GPU's primary context."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self.driver = driver
        self._ask(driver.cuInit(0))
        device = self._ask(driver.cuDeviceGet(0))
        self._ask(driver.cuCtxSetCurrent(self._ask(driver.cuDevicePrimaryCtxRetain(device))))

    def _ask(self, answer: tuple[Any, ...]) -> Any:
        error, *values = answer
        if error != self.driver.CUresult.CUDA_SUCCESS:
            raise _CudaError(self.driver.cuGetErrorName(error)[1].decode())
        return values[0] if values else None

    def run(self, job: Job) -> list[Array]:
        """Load, allocate, launch, wait, read back."""
        driver, ask = self.driver, self._ask
        module = ask(driver.cuModuleLoadData(job.cubin))
        function = ask(driver.cuModuleGetFunction(module, job.symbol.encode()))
        if job.shared > 48 << 10:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            ask(driver.cuFuncSetAttribute(function, attribute, job.shared))
        values: list[Any] = []
        buffers: list[tuple[Any, Array]] = []
        for place, argument in enumerate(job.arguments):
            if not isinstance(argument, np.ndarray):
                values.append((ctypes.c_ubyte * argument.nbytes).from_buffer_copy(argument.tobytes()))
                continue
            pointer = ask(driver.cuMemAlloc(argument.nbytes))
            if place not in job.raw:
                ask(driver.cuMemcpyHtoD(pointer, np.ascontiguousarray(argument).ctypes.data, argument.nbytes))
            buffers.append((pointer, argument))
            values.append(ctypes.c_void_p(int(pointer)))
        pointers = (ctypes.c_void_p * max(len(values), 1))(*(ctypes.addressof(value) for value in values))
        ask(driver.cuLaunchKernel(function, *job.grid, *job.block, job.shared, 0, ctypes.addressof(pointers), 0))
        ask(driver.cuCtxSynchronize())
        results = []
        for pointer, argument in buffers:
            if job.keep:
                results.append(np.empty_like(argument, order="C"))
                ask(driver.cuMemcpyDtoH(results[-1].ctypes.data, pointer, argument.nbytes))
            ask(driver.cuMemFree(pointer))
        ask(driver.cuModuleUnload(module))
        return results


if __name__ == "__main__":
    import gpu_launcher  # under the name by which jobs were pickled

    gpu_launcher.main()
