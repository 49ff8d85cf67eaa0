"""Times to spend as people write them: `2h`, `1h30m`, `45s`."""

from __future__ import annotations

import re

from evokern.errors import StudyError

LONGEST_S = 100 * 365 * 24 * 3600.0
"""A hundred years: no clock here counts further."""
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m(?:in)?)?(?:(\d+(?:\.\d+)?)s)?")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def parse_duration(text: str | int | float) -> float:
    """Return seconds from `2h`, `1h30m`, `90m`, `45s`, or `1 h 30 min` as it is printed.

    A number, which only Python can give, is seconds already.

    Raises:
        StudyError: it is no duration, has no unit, or is not longer than nothing.
    """
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        # A whole number may be too large for a float.
        return _longer_than_nothing(text, float(min(text, 2 * LONGEST_S)))
    word = str(text).strip().lower().replace(" ", "")
    match = _DURATION.fullmatch(word)
    if match and any(match.groups()):
        hours, minutes, seconds = (float(part) if part else 0.0 for part in match.groups())
        return _longer_than_nothing(text, 3600 * hours + 60 * minutes + seconds)
    if _NUMBER.fullmatch(word):
        _longer_than_nothing(text, float(word))
        raise StudyError(f"{text!r} has no unit; write for example {word}h, {word}m or {word}s")
    raise StudyError(f"{text!r} is no duration; write for example 2h, 90m, 1h30m or 45s")


def _longer_than_nothing(given: str | float, seconds: float) -> float:
    if 0 < seconds <= LONGEST_S:
        return seconds
    if seconds > LONGEST_S:
        raise StudyError(f"{given!r} is more than a hundred years; write for example 2h, 90m or 45s")
    raise StudyError(f"{given!r} is no time to spend: it must be longer than nothing; write for example 2h, 90m or 45s")
