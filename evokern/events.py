"""Log events of a running search, and the current step of a command; `--log FILE` writes each event as a JSON line.

An event is a message of the package's logger whose record has an extra attribute, `FIELDS`. The names of all events
and fields are in docs/searching.md.
"""

from __future__ import annotations

import logging
from typing import Any

FIELDS = "evokern_fields"
"""Name of the log record's attribute that contains the fields of an event."""
_LOGGER = logging.getLogger("evokern")


_step = ""


def begin_step(text: str) -> None:
    """Set the current step, for example `compiling`; a command prints it if it prints nothing else for a while."""
    global _step
    _step = text


def current_step() -> str:
    """Return the step that began last."""
    return _step


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
