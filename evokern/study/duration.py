"""Parse durations such as `2h`, `1h30m` and `45s`."""

from __future__ import annotations

import re

from evokern.errors import StudyError

LONGEST_S = 100 * 365 * 24 * 3600.0
"""Longest accepted duration in seconds: a hundred years."""
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m(?:in)?)?(?:(\d+(?:\.\d+)?)s)?")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def parse_duration(text: str | int | float) -> float:
    """Return the number of seconds of a duration such as `2h`, `1h30m`, `90m`, `45s` or `1 h 30 min` (as printed).

    A number, which only Python callers can pass, means seconds.

    Raises:
        StudyError: the value is not a duration, has no unit, or is not positive.
    """
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        # A large integer may not fit a float.
        return _check_range(text, float(min(text, 2 * LONGEST_S)))
    word = str(text).strip().lower().replace(" ", "")
    match = _DURATION.fullmatch(word)
    if match and any(match.groups()):
        hours, minutes, seconds = (float(part) if part else 0.0 for part in match.groups())
        return _check_range(text, 3600 * hours + 60 * minutes + seconds)
    if _NUMBER.fullmatch(word):
        _check_range(text, float(word))
        raise StudyError(f"{text!r} has no unit; use, for example, {word}h, {word}m or {word}s")
    raise StudyError(f"{text!r} is not a duration; use, for example, 2h, 90m, 1h30m or 45s")


def _check_range(given: str | float, seconds: float) -> float:
    if 0 < seconds <= LONGEST_S:
        return seconds
    if seconds > LONGEST_S:
        raise StudyError(f"{given!r} is longer than 100 years; use, for example, 2h, 90m or 45s")
    raise StudyError(f"{given!r} is not a positive duration; use, for example, 2h, 90m or 45s")
