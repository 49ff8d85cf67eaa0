"""The compiler called so that its own crash is an answer: NVRTC dies on some sources, and its process with it.

A worker calls it directly, for its parent survives it. Any other process keeps one child for its compiles, started by
the first one; what the compiler did to the child comes back as a `CompileFailure` that names file and entry points.
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
from evokern.workers.pool import JobResult, OwnServerPool, WorkerSpec, wait
from evokern.workers.role import is_worker

DEADLINE_S = 600.0
"""Seconds after which a compile is given up; the largest of known kernels take half a minute."""


@dataclass(frozen=True)
class _Compile:
    """One call of `evokern.compile.nvrtc.compile_program`."""

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
    """What the child does: one compile after the other."""

    def __init__(self, _: None) -> None:
        pass

    def handle(self, job: _Compile) -> Program | CompileFailure:
        """Compile one translation unit."""
        return job.run()


class _Child:
    """The child of one process, replaced when it dies."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._lock = threading.Lock()
        spec = WorkerSpec("evokern.compile.isolated:CompilerProcess", None, {"CUDA_CACHE_DISABLE": "1"})
        self._pool = OwnServerPool(spec, ("evokern.compile.isolated", nvrtc.PRELOAD))

    def run(self, job: _Compile) -> JobResult:
        """Have a job done; safe to call from several threads."""
        with self._lock:
            self._pool.submit(0, job, DEADLINE_S)
            while True:
                for result in wait([self._pool], 60.0):
                    return result

    def close(self) -> None:
        """End it, unless this process only inherited it."""
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
    """Compile one translation unit as `evokern.compile.nvrtc.compile_program` does, whatever becomes of the compiler.

    Returns:
        The program, or why there is none: the compiler refused it, died of it, or did not end.

    Raises:
        DeviceError: the compiler itself cannot be loaded, or its process is killed from outside.
    """
    job = _Compile(source, name, dict(headers), tuple(options), tuple(entries), architecture, line_info)
    if is_worker():
        return job.run()
    result = _own_child().run(job)
    if result.status == "done":
        program: Program | CompileFailure = result.value
        return program
    if result.status == "raised":
        error: EvokernError = result.value
        raise error
    if result.status == "lost":
        raise result.lost_error(f"the compile of {name}")
    return _died(job, result)


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
    """Compile to PTX alone, with line information for whoever reports source lines; arguments as `compile_program`.

    ``suffix`` is `a` for instructions that only this architecture has.
    """
    architecture = nvrtc.virtual_architecture(compute_capability, suffix)
    return compile_program(source, name, headers, options, entries, architecture, line_info)


def _own_child() -> _Child:
    """Return this process's child; one that was inherited through a fork is the parent's."""
    global _child
    with _starting:
        if _child is None or _child.owner != os.getpid():
            _child = _Child()
            atexit.register(_child.close)
        return _child


def _died(job: _Compile, result: JobResult) -> CompileFailure:
    entries = f", entry {', '.join(job.entries)}" if job.entries else ""
    how = str(result.value).replace("killed by", "with") if result.status == "died" else ""
    what = f"died ({how})" if how and not how.startswith("with") else f"died {how}"
    if result.status == "overran":
        what = f"was not done after {result.value:g} s"
    message = (
        f"the compiler itself (NVRTC) {what} on {job.name}{entries}; it reports no error, another compiler may: "
        "try nvcc on the file, or leave parts of it out"
    )
    return CompileFailure(result.log or message, message, seconds=result.seconds)
