"""Handlers for the tests of worker processes: they answer, raise, die, hang and retire on demand."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evokern.compile.records import Built, Program
from evokern.errors import DeviceError, KernelError
from evokern.study.trial import Evaluation, Outcome, Resources
from evokern.workers.process import Retire


class Obedient:
    """Does what the job says."""

    def __init__(self, init: Any) -> None:
        if init == "raise":
            raise KernelError("no such kernel")
        if init == "die":
            print("dying on purpose", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGSEGV)
        match init:
            case ("late after the first", folder) if (Path(folder) / "first").exists():
                time.sleep(1.0)
        self.ready_report = {"init": init}

    def listen(self, next_waits: Callable[[], bool]) -> None:
        self.next_waits = next_waits

    def handle(self, job: Any) -> Any:
        match job:
            case ("does the next wait", seconds):
                time.sleep(seconds)
                return self.next_waits()
            case ("echo", value):
                return value
            case "threads":
                import numpy  # noqa: F401 (its library is what is asked)
                from threadpoolctl import threadpool_info

                return [library["num_threads"] for library in threadpool_info()]
            case ("print", size):
                print("x" * size, flush=True)
                return Path("/proc/self/fd/1").stat().st_size
            case ("pid",):
                return os.getpid()
            case ("environment", name):
                return os.environ[name], str(Path.cwd())
            case ("raise", "usage"):
                raise KernelError("a bad kernel")
            case ("raise", _):
                raise ValueError("broken")
            case ("die", number):
                print("last words", file=sys.stderr, flush=True)
                os.kill(os.getpid(), number)
            case ("exit", code):
                os._exit(code)
            case ("first time", folder, what):
                first = Path(folder) / "first"
                if first.exists():
                    return os.getpid()
                first.write_text(str(os.getpid()))
                return self.handle(what)
            case "memory":
                raise MemoryError("Unable to allocate 8.00 GiB")
            case "disk":
                try:
                    raise OSError(errno.ENOSPC, "No space left on device")
                except OSError as error:
                    raise RuntimeError("cannot write") from error
            case ("sleep", seconds):
                time.sleep(seconds)
                return seconds
            case ("retire", value):
                raise Retire(value)
            case ("retire and retry", value):
                raise Retire(os.getpid(), retry=True)
            case ("retire busy", value):
                raise Retire(value, busy=True)
        return None


class Compiler:
    """Answers a configuration with a build whose fingerprint and delay the configuration names."""

    def __init__(self, init: Any) -> None:
        pass

    def handle(self, job: Any) -> Any:
        time.sleep(job.get("COMPILE_MS", 0) / 1000)
        match job["KIND"]:
            case "refused":
                return Evaluation(Outcome.COMPILE_ERROR, evidence={"log": "no"}, compile_s=0.5)
            case "compiler_dies":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "compiler_killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "unsound":
                raise KernelError("tensors raised ValueError: no such layout")
            case "no_compiler":
                raise DeviceError("the CUDA compiler library (NVRTC) cannot be loaded")
        use = Resources(32, 0, 0, 0, 0, 1.0)
        # As large as what a compile of `attention` gives.
        ptx = "call.uni (retval0), vprintf," if job.get("PRINTS") else "p" * 80_000
        program = Program(bytes(36_000), {}, {}, "", ptx)
        return Built((program,), (), (use,), f"code {job['CODE']}", 0.25)


class Executor:
    """Answers work with an outcome that its configuration names."""

    def __init__(self, init: Any) -> None:
        self._executed: list[int] = []

    def handle(self, job: Any) -> Any:
        number, config, *_ = job
        time.sleep(config.get("RUN_MS", 0) / 1000)
        match config["KIND"]:
            case "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            case "dies of owner" if number == config["OWNER"]:
                os.kill(os.getpid(), signal.SIGTERM)
            case "faults":
                os.kill(os.getpid(), signal.SIGBUS)
            case "hangs":
                time.sleep(60)
            case "unsound there":
                raise KernelError("reference raised ZeroDivisionError")
            case "poisons":
                evidence = {"error": "CUDA_ERROR_ILLEGAL_ADDRESS"}
                raise Retire(Evaluation(Outcome.CRASHED, evidence=evidence, device_s=0.1))
            case "broken":
                raise ValueError("a bug")
            case "wrong":
                return Evaluation(Outcome.WRONG, evidence={"check": "tolerance"}, device_s=0.1)
        return Evaluation(Outcome.MEASURED, 10.0 + number, device_s=0.1)


class Diagnostician:
    """Diagnoses by hearsay: says of a candidate what its own genes say, and notes every job in a file."""

    def __init__(self, settings: Any) -> None:
        self._notes = Path(os.environ["DIAGNOSED"])
        if self._notes.name == "broken":
            raise KernelError("no kernel here\nnot at all")
        self.ready_report: dict[str, Any] = {}

    def handle(self, job: Any) -> dict[str, Any]:
        with self._notes.open("a", encoding="utf-8") as file:
            file.write(f"{job.config['FAULT']} {job.config['VARIANT']} {'hung' if job.hung else 'crashed'}\n")
        if self._notes.name == "slow":
            time.sleep(60)
        if self._notes.name == "deadly":
            os.kill(os.getpid(), signal.SIGKILL)
        return {"diagnosis": f"{job.config['FAULT']} at line 7", "finding": {"kind": job.config["FAULT"], "line": 7}}


class LateDiagnosis:
    """Diagnoses as a search does, but not before a file says that it may; notes every job."""

    def __init__(self, settings: Any) -> None:
        from evokern.analysis.sanitize.diagnose import DiagnosisWorker

        self._worker = DiagnosisWorker(settings)
        self._notes, self._released = Path(os.environ["DIAGNOSED"]), Path(os.environ["RELEASED"])
        self.ready_report = self._worker.ready_report

    def handle(self, job: Any) -> Any:
        with self._notes.open("a", encoding="utf-8") as file:
            file.write(f"{job.config.key}\n")
        end = time.monotonic() + 150
        while not self._released.exists():
            if time.monotonic() > end:
                raise KernelError("the search waits for a diagnosis")
            time.sleep(0.05)
        return self._worker.handle(job)


@dataclass(frozen=True)
class DeadlyCompile:
    """A compile that the compiler does not survive."""

    name: str = "deadly.cu"
    entries: tuple[str, ...] = ("k<2>",)

    def run(self) -> None:
        """Die as NVRTC does."""
        os.kill(os.getpid(), signal.SIGSEGV)


@dataclass(frozen=True)
class WhichProcess:
    """Not a compile: tells which process does them."""

    def run(self) -> int:
        """Return the process's number."""
        return os.getpid()


class Verifier:
    """Answers jobs of a champion's verification: trial 0 is wrong, the others are right."""

    def __init__(self, settings: Any) -> None:
        self.ready_report: dict[str, Any] = {}

    def handle(self, job: Any) -> dict[str, Any]:
        wrong = {"state": "failed", "detail": "wrong at 3,5"} if job.number == 0 else {"state": "passed", "detail": ""}
        return {"passed": job.number != 0, "stages": {"fuzz": wrong}}
