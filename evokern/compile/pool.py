"""The compile pool's worker: a process that compiles candidates, one at a time, and may crash with the compiler."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from evokern.compile import nvrtc
from evokern.compile.build import Target, build
from evokern.compile.cache import CompileCache
from evokern.compile.records import Built
from evokern.cuda_source.reader.reader import device_only
from evokern.declaration.foreign import ForeignCandidate, ForeignSource
from evokern.declaration.genes import Config
from evokern.errors import EvokernError, InternalError
from evokern.study.discovery import WorkerContext
from evokern.study.trial import Evaluation, Outcome
from evokern.workers.pool import WorkerSpec
from evokern.workers.role import limit_memory

PRELOAD = ("evokern.compile.pool", nvrtc.PRELOAD)
"""What the compile pool's fork server preloads."""
NICENESS = 10
"""Of workers of which there is one for each processor: processes that feed them or time a GPU have priority."""
FOREIGN_MEMORY = 4 << 30
"""Bytes of address space that a worker which compiles foreign sources may take beyond what it starts with. Packaged
kernels take 60 MB (`attention`, 2026-11-23); room is left for template libraries, and a source may ask for anything."""
FOREIGN_PROGRAM = 64 << 20
"""Bytes of machine code and PTX of a foreign source; more would fill the memory of whoever asked for its evaluation."""


@dataclass(frozen=True)
class CompileSettings:
    """What every compile of a study shares."""

    context: WorkerContext
    """The kernel, the problems that a candidate is built for, the chip under the study's limits."""
    cache: Path | None
    """The cache's folder, or None to keep nothing."""
    foreign: bool = False
    """Whether sources that nobody has read are compiled: memory is bounded, and what they break is theirs."""


class CompileWorker:
    """Answers a configuration with what can run or with an outcome."""

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
            KernelError: a function that the kernel declares raised.
            DeviceError: the compiler cannot be loaded.
        """
        if not isinstance(config, ForeignCandidate):
            return build(self._kernel, config, self._problems, self._target)
        try:
            built = self._built_foreign(config)
        except (InternalError, ValueError, ArithmeticError, LookupError, MemoryError) as error:
            return _refused(f"what the compiler made of it cannot be read: {type(error).__name__}: {error}")
        if isinstance(built, Evaluation):
            return built
        size = sum(len(program.cubin) + len(program.ptx) for program in built.programs)
        if size > FOREIGN_PROGRAM:
            return _refused(f"its machine code and PTX take {size:,} bytes, and {FOREIGN_PROGRAM:,} are allowed")
        return built

    def _built_foreign(self, config: ForeignCandidate) -> Built | Evaluation:
        """Build a foreign source as it is; where the compiler refuses it, without the host code that it may have."""
        built = build(self._kernel, config, self._problems, self._target)
        if not isinstance(built, Evaluation) or built.outcome is not Outcome.COMPILE_ERROR:
            return built
        try:
            text = device_only(config.source.text)
        except (EvokernError, RecursionError):  # what cannot be read is the compiler's to refuse, which it did
            return built
        if text == config.source.text:
            return built
        device = ForeignCandidate(config, ForeignSource(config.source.name, text), config.geometry)
        again = build(self._kernel, device, self._problems, self._target)
        return replace(again, compile_s=again.compile_s + built.compile_s)


def _refused(message: str) -> Evaluation:
    return Evaluation(Outcome.COMPILE_ERROR, evidence={"log": message, "message": message})


def compile_spec(settings: CompileSettings) -> WorkerSpec:
    """Return what a compile worker runs."""
    # NVRTC's own cache would answer without the assembler's report, and would grow outside our size cap.
    return WorkerSpec("evokern.compile.pool:CompileWorker", settings, {"CUDA_CACHE_DISABLE": "1"}, NICENESS)
