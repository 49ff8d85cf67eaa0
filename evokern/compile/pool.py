"""Worker of the compile pool: a process that compiles one candidate at a time and may crash with the compiler."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from evokern.compile import nvrtc
from evokern.compile.build import Target, build
from evokern.compile.cache import CompileCache
from evokern.compile.records import Built
from evokern.declaration.foreign import ForeignCandidate
from evokern.declaration.genes import Config
from evokern.errors import InternalError
from evokern.study.discovery import WorkerContext
from evokern.study.trial import Evaluation, Outcome
from evokern.workers.pool import WorkerSpec
from evokern.workers.role import limit_memory

PRELOAD = ("evokern.compile.pool", nvrtc.PRELOAD)
"""Modules and functions that the fork server of the compile pool preloads."""
NICENESS = 10
"""Niceness of compile workers, one per processor: processes that feed them or time a GPU have priority."""
FOREIGN_MEMORY = 4 << 30
"""Bytes of address space that a worker for external sources may allocate. Packaged kernels need 60 MB
(`docs/lab/2026-11-23-compile-memory.md`); the rest is for template libraries."""
FOREIGN_PROGRAM = 64 << 20
"""Maximum bytes of machine code and PTX of an external source, which protects the memory of the parent process."""


@dataclass(frozen=True)
class CompileSettings:
    """Settings shared by all compiles of a study."""

    context: WorkerContext
    """Kernel, problems for which candidates are built, and the chip under the study's resource limits."""
    cache: Path | None
    """Folder of the cache; None disables it."""
    foreign: bool = False
    """Whether external, unreviewed sources are compiled; memory is then limited, and their failures are outcomes."""


class CompileWorker:
    """Worker that turns a configuration into a program or an outcome."""

    def __init__(self, settings: CompileSettings) -> None:
        if settings.foreign:
            limit_memory(FOREIGN_MEMORY)
        self._problems = settings.context.problems
        self._kernel = settings.context.kernel()
        self._target = Target(settings.context.profile, CompileCache(settings.cache) if settings.cache else None)
        self.ready_report = {"compiler": nvrtc.compiler_version()}

    def handle(self, config: Config) -> Built | Evaluation:
        """Build one candidate.

        Raises:
            KernelError: a function in `kernel.py` raised.
            DeviceError: the compiler cannot be loaded.
        """
        if not isinstance(config, ForeignCandidate):
            return build(self._kernel, config, self._problems, self._target)
        try:
            built = build(self._kernel, config, self._problems, self._target)
        except (InternalError, ValueError, ArithmeticError, LookupError, MemoryError) as error:
            return _refused(f"cannot read the compiler's output: {type(error).__name__}: {error}")
        if isinstance(built, Evaluation):
            return built
        size = sum(len(program.cubin) + len(program.ptx) for program in built.programs)
        if size > FOREIGN_PROGRAM:
            return _refused(f"machine code and PTX take {size:,} bytes; at most {FOREIGN_PROGRAM:,} are allowed")
        return built


def _refused(message: str) -> Evaluation:
    return Evaluation(Outcome.COMPILE_ERROR, evidence={"log": message, "message": message})


def compile_spec(settings: CompileSettings) -> WorkerSpec:
    """Return the specification of a compile worker."""
    # NVRTC's own cache omits the assembler's report, and would grow beyond our size limit.
    return WorkerSpec("evokern.compile.pool:CompileWorker", settings, {"CUDA_CACHE_DISABLE": "1"}, NICENESS)
