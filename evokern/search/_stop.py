"""Ctrl-C, SIGTERM and SIGHUP (a terminal that closes) end a search between two steps."""

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
"""What handles a signal, as `signal.signal` has it."""


@dataclass
class Stop:
    """What a signal reaches: the loop while one runs."""

    loop: Loop | None = None
    ending: bool = False
    """Whether the session only writes its end: that takes a moment, and is what a signal wants."""
    asked: signal.Signals | None = None
    """The signal that came last."""
    late: bool = False
    """Whether it came too late to end the search itself, and is whose who started it."""


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Let Ctrl-C, SIGTERM and SIGHUP end the loop between two steps: nothing half-written is left; a second ends now.

    Outside a loop (while a device opens) they raise KeyboardInterrupt at once. One that comes after the last trial is
    handed to whoever handled it before, if that is not Python itself. SIGHUP stays ignored where it is, as under nohup.
    """
    stop = Stop()

    def wish(number: int, _frame: FrameType | None) -> None:
        stop.asked = signal.Signals(number)
        if stop.ending:
            stop.late = True
            return
        if stop.loop is None or stop.loop.stop_requested:
            raise KeyboardInterrupt
        stop.loop.stop_requested = True

    before: Mapping[signal.Signals, Handler] = {}
    try:
        with handled(wish) as before:
            yield stop
    finally:
        if stop.late and stop.asked is not None:
            handler = before[stop.asked]
            if callable(handler) and handler is not signal.default_int_handler:
                handler(stop.asked, None)


@contextmanager
def handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[Mapping[signal.Signals, Handler]]:
    """Handle the signals that end a program by another function; none outside the main thread, which alone gets them.

    SIGHUP stays ignored where it is, as under nohup.

    Args:
        handler: called with a signal's number and the frame that it came in.

    Yields:
        Signal → what handled it before, and does again after.
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
