"""Log events of a running search, and the current step of a command.

`--log FILE` writes each event as a JSON line.

An event is a message of the package's logger whose record has an extra attribute, `FIELDS`. The names of all events
and fields are in docs/searching.md.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

FIELDS = "evokern_fields"
"""Name of the log record's attribute that contains the fields of an event."""
_LOGGER = logging.getLogger("evokern")


def log_event(event: str, message: str, level: int = logging.INFO, **fields: Any) -> None:
    """Log an event.

    Args:
        event: name of the event.
        message: readable message.
        level: level as in `logging`.
        fields: JSON values; None values are omitted.
    """
    if _LOGGER.isEnabledFor(level):
        known = {name: value for name, value in fields.items() if value is not None}
        _LOGGER.log(level, message, extra={FIELDS: {"event": event, **known}})


_STEPS: list[tuple[str, float] | None] = []


@contextmanager
def step(text: str | None) -> Iterator[None]:
    """Name what the command does inside the context, for progress lines.

    Args:
        text: the step; None while the command only waits for requests.
    """
    _STEPS.append(None if text is None else (text, time.monotonic()))
    try:
        yield
    finally:
        _STEPS.pop()


def current_step() -> tuple[str, float] | None:
    """Return the innermost step and its start (monotonic clock); an empty text if unknown, None while waiting."""
    return _STEPS[-1] if _STEPS else ("", 0.0)
