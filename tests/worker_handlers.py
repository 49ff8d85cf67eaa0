"""Handlers for the tests of worker processes: they answer, raise, die, hang and retire on demand."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from evokern.errors import KernelError
from evokern.worker_process import Retire


class Obedient:
    """Does what the job says."""

    def __init__(self, init: Any) -> None:
        if init == "raise":
            raise KernelError("no such kernel")
        if init == "die":
            print("dying on purpose", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGSEGV)
        self.greeting = {"init": init}

    def handle(self, job: Any) -> Any:
        match job:
            case ("echo", value):
                return value
            case ("pid",):
                return os.getpid()
            case ("raise", "usage"):
                raise KernelError("a bad kernel")
            case ("raise", _):
                raise ValueError("broken")
            case ("die", number):
                print("last words", file=sys.stderr, flush=True)
                os.kill(os.getpid(), number)
            case ("exit", code):
                os._exit(code)
            case ("sleep", seconds):
                time.sleep(seconds)
                return seconds
            case ("retire", value):
                raise Retire(value)
        return None
