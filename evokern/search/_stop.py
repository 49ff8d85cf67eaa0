"""Stop a search on Ctrl-C, SIGTERM and SIGHUP (a closed terminal)."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from evokern.search.loop import Loop

Handler = Callable[[int, FrameType | None], Any] | int | None
"""A signal handler, as in `signal.signal`."""


@dataclass
class Stop:
    """State of the signal handling; it refers to the search loop while one is running."""

    loop: Loop | None = None
    ending: bool = False
    """Whether the session is already being closed, which takes only a moment."""
    received: signal.Signals | None = None
    """The last signal received."""
    late: bool = False
    """Whether the signal arrived too late to stop the search, so that it is passed to the caller's handler."""


@contextmanager
def handle_stop_signals() -> Iterator[Stop]:
    """Let Ctrl-C, SIGTERM and SIGHUP stop the loop between two steps; a second signal stops it at once.

    Without a loop (while a device opens), signals raise KeyboardInterrupt at once. A signal after the last trial is
    passed to the previous handler, unless that is Python's default handler. If SIGHUP is ignored (nohup), it remains
    ignored.
    """
    stop = Stop()

    def handle_signal(number: int, _frame: FrameType | None) -> None:
        stop.received = signal.Signals(number)
        if stop.ending:
            stop.late = True
            return
        if stop.loop is None or stop.loop.stop_requested:
            raise KeyboardInterrupt
        stop.loop.stop_requested = True

    before: Mapping[signal.Signals, Handler] = {}
    try:
        with signal_handler(handle_signal) as before:
            yield stop
    finally:
        if stop.late and stop.received is not None:
            handler = before[stop.received]
            if callable(handler) and handler is not signal.default_int_handler:
                handler(stop.received, None)


@contextmanager
def signal_handler(handler: Callable[[int, FrameType | None], None]) -> Iterator[Mapping[signal.Signals, Handler]]:
    """Handle SIGINT, SIGTERM and SIGHUP with another function; outside the main thread, do nothing.

    If SIGHUP is ignored (nohup), it remains ignored.

    Args:
        handler: called with the signal number and the interrupted frame.

    Yields:
        The previous handler of each signal, which is restored at the end.
    """
    if threading.current_thread() is not threading.main_thread():
        yield {}
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield before
    finally:
        for number, former in before.items():
            signal.signal(number, former)
