"""What happens while a search runs, as messages with fields: `--log FILE` writes each as a JSON line.

An event is a message of the package's logger like any other; its fields come in the record's attribute `FIELDS`. The
names of events and fields, which scripts read, stand in docs/searching.md.
"""

from __future__ import annotations

import logging
from typing import Any

FIELDS = "evokern_fields"
"""Attribute of a log record that holds an event's fields."""
_LOGGER = logging.getLogger("evokern")


def told(event: str, message: str, level: int = logging.INFO, **fields: Any) -> None:
    """Log an event.

    Args:
        event: its name.
        message: the same for people.
        level: as in `logging`.
        fields: JSON values; those that are None are left out.
    """
    if _LOGGER.isEnabledFor(level):
        known = {name: value for name, value in fields.items() if value is not None}
        _LOGGER.log(level, message, extra={FIELDS: {"event": event, **known}})
