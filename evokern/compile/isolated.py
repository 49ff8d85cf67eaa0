"""Compilation in a child process, because NVRTC crashes on some sources, which ends its process.

A worker calls the compiler directly, because its parent survives a crash. Any other process starts one child at its
first compile and keeps it. If the compiler crashes, the result is a `CompileFailure` that names the file and the entry
points.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evokern.compile import nvrtc
from evokern.compile.records import CompileFailure, Program
from evokern.errors import EvokernError
from evokern.events import step
from evokern.workers.pool import JobResult, OwnServerPool, WorkerSpec, wait
from evokern.workers.role import is_worker

DEADLINE_S = 120.0
"""Time limit of a compile in seconds, as in a search; the largest known kernels take half a minute."""


@dataclass(frozen=True)
class _Compile:
    """Arguments of one call to `evokern.compile.nvrtc.compile_program`."""

    source: str
    name: str
    headers: Mapping[str, str]
    options: tuple[str, ...]
    entries: tuple[str, ...]
    architecture: str
    line_info: bool

    def run(self) -> Program | CompileFailure:
        return nvrtc.compile_program(
            self.source, self.name, self.headers, self.options, self.entries, self.architecture, self.line_info
        )


class CompilerProcess:
    """Child process that runs one compile after another."""

    def __init__(self, _: None) -> None:
        pass

    def handle(self, job: _Compile) -> Program | CompileFailure:
        """Compile one translation unit."""
        return job.run()


class _Child:
    """Compiler process of the current process, restarted when it dies."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._lock = threading.Lock()
        spec = WorkerSpec("evokern.compile.isolated:CompilerProcess", None, {"CUDA_CACHE_DISABLE": "1"})
        self._pool = OwnServerPool(spec, ("evokern.compile.isolated", nvrtc.PRELOAD))

    def run(self, job: _Compile) -> JobResult:
        """Run a job in the child; safe to call from several threads."""
        with self._lock:
            self._pool.submit(0, job, DEADLINE_S)
            while True:
                for result in wait([self._pool], 60.0):
                    return result

    def close(self) -> None:
        """Stop the child unless this process inherited it through a fork."""
        if self.owner == os.getpid():
            self._pool.close()


_starting = threading.Lock()
_child: _Child | None = None


def compile_program(
    source: str,
    name: str,
    headers: Mapping[str, str],
    options: Sequence[str],
    entries: Sequence[str],
    architecture: str,
    line_info: bool = False,
) -> Program | CompileFailure:
    """Compile one translation unit as `evokern.compile.nvrtc.compile_program` does, but survive compiler crashes.

    Returns:
        The program, or the failure: the compiler rejected the source, crashed, or exceeded `DEADLINE_S`.

    Raises:
        DeviceError: the compiler cannot be loaded, or an external signal killed its process.
    """
    job = _Compile(source, name, dict(headers), tuple(options), tuple(entries), architecture, line_info)
    if is_worker():
        return job.run()
    with step(f"compiling {name} for {architecture}"):
        result = _own_child().run(job)
    if result.status == "done":
        program: Program | CompileFailure = result.value
        return program
    if result.status == "raised":
        error: EvokernError = result.value
        raise error
    if result.status == "lost":
        raise result.lost_error(f"the compile of {name}")
    return _crash_failure(job, result)


def compile_ptx(
    source: str,
    name: str,
    headers: Mapping[str, str],
    options: Sequence[str],
    entries: Sequence[str],
    compute_capability: tuple[int, int],
    line_info: bool = True,
    *,
    suffix: str = "",
) -> Program | CompileFailure:
    """Compile to PTX only, by default with line information; the arguments are those of `compile_program`.

    ``suffix`` is `a` to allow instructions that only this architecture has.
    """
    architecture = nvrtc.virtual_architecture(compute_capability, suffix)
    return compile_program(source, name, headers, options, entries, architecture, line_info)


def _own_child() -> _Child:
    """Return the child of this process; start a new one if the current one was inherited through a fork."""
    global _child
    with _starting:
        if _child is None or _child.owner != os.getpid():
            _child = _Child()
            atexit.register(_child.close)
        return _child


def _crash_failure(job: _Compile, result: JobResult) -> CompileFailure:
    entries = f", entry {', '.join(job.entries)}" if job.entries else ""
    how = str(result.value).replace("killed by", "with") if result.status == "died" else ""
    what = f"died ({how})" if how and not how.startswith("with") else f"died {how}"
    if result.status == "overran":
        what = f"did not finish within {result.value:g} s"
    message = (
        f"the compiler itself (NVRTC) {what} on {job.name}{entries}, without an error message; "
        "compile the file with nvcc to find an error, or remove parts of the file"
    )
    return CompileFailure(result.log or message, message, seconds=result.seconds)
