"""Run the checks of a kernel in a process of their own, because the kernel's code may end its process or never return.

Findings arrive as they are made. If the process ends or hangs during a check, that check has failed, and another
process runs the later ones.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from evokern.analysis.check.soundness import CheckResult, check_kernel
from evokern.declaration.kernel import Kernel
from evokern.errors import EvokernError, InternalError
from evokern.workers.process import die_with

LIMIT_S = 120.0
"""Seconds without a finding after which a check counts as hung."""
LONG_LIMIT_S = 1200.0
"""The same for checks that compile or simulate."""
_LONG = frozenset({"compiler", "simulated run", "own problem"})


def check_apart(kernel: Kernel) -> Iterator[CheckResult]:
    """Run the checks in another process, and yield each result as soon as it is known."""
    sys.stdout.flush()
    sys.stderr.flush()
    failed: set[str] = set()
    after = ""
    while True:
        running = _Checks(kernel, after, frozenset(failed))
        try:
            for result in running.results():
                if result.ok is False:
                    failed.add(result.check)
                yield result
            if not running.ended:
                return
        finally:
            running.close()
        after = running.check or "problems"
        failed.add(after)
        yield CheckResult(after, False, running.ended)
        if after == "problems":
            return


class _Checks:
    """Process that runs the checks after a given one."""

    def __init__(self, kernel: Kernel, after: str, failed: frozenset[str]) -> None:
        self.check = ""
        """Name of the check that runs."""
        self.ended = ""
        """How the process ended before its last check; empty if it did not."""
        self._connection, there = Pipe(duplex=False)
        parent = os.getpid()
        self._process = os.fork()
        if self._process == 0:
            self._connection.close()
            _run(there, parent, kernel, after, failed)
        there.close()

    def results(self) -> Iterator[CheckResult]:
        """Yield the results until the process has sent the last one, has ended, or does not answer.

        Raises:
            Exception: what the checks raised, which is a bug in evokern.
        """
        while self._connection.poll(limit := LONG_LIMIT_S if self.check in _LONG else LIMIT_S):
            try:
                message = self._connection.recv()
            except (EOFError, OSError):
                self.ended = f"the kernel's code ended the process ({self._how()}); let it return or raise instead"
                return
            match message:
                case None:
                    return
                case str():
                    self.check = message
                case CheckResult():
                    yield message
                case BaseException():
                    raise message
        self.ended = f"the kernel's code did not return within {limit:g} s; make it faster, or the problem smaller"

    def _how(self) -> str:
        _, status = os.waitpid(self._process, 0)
        self._process = 0
        code = os.waitstatus_to_exitcode(status)
        return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        if self._process:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._process, signal.SIGKILL)
                os.waitpid(self._process, 0)


def _run(connection: Connection, parent: int, kernel: Kernel, after: str, failed: frozenset[str]) -> None:
    """Run the checks, send the results, and end this process."""
    try:
        die_with(parent)
        if "torch" in sys.modules:  # threads that the parent started do not exist here
            sys.modules["torch"].set_num_threads(1)
        for result in check_kernel(kernel, begin=connection.send, after=after, failed=failed):
            connection.send(result)
        connection.send(None)
    except EvokernError as error:
        connection.send(error)
    except KeyboardInterrupt:
        pass
    except BaseException as error:
        fault = InternalError(f"{type(error).__name__}: {error}")
        fault.add_note("".join(traceback.format_exception(error)))
        connection.send(fault)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
