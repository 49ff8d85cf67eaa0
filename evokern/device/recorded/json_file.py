"""Reader of a recording's JSON, with checks for repeated keys and for the types of values."""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

from evokern.errors import DeviceError
from evokern.files import MOST_BYTES, read_bytes

MOST = 1e20
"""Largest number allowed in a recording, in any unit. Old versions of Kernel Tuner stored it for a missing time."""
_LONE = re.compile(rb"\\u[dD][89a-fA-F]")
RECORDINGS = "a Kernel Tuner cache or T4 file (.json, .json.gz), or a study in a database (runs.db:STUDY)"
"""Sources of a recording, for messages."""


def load_recording(path: str | Path) -> Any:
    """Return the parsed JSON of a recording, which may be compressed with gzip.

    Raises:
        DeviceError: the file is missing, truncated, or not JSON.
    """
    path = Path(path)
    try:
        raw = read_bytes(path)
        if raw[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=io.BytesIO(raw)) as packed:
                raw = packed.read(MOST_BYTES + 1)
            if len(raw) > MOST_BYTES:
                raise DeviceError(
                    f"recording {path} unpacks to more than {MOST_BYTES:,} bytes, the limit for a recording"
                )
        content = _parsed(raw)
        if _LONE.search(raw):
            json.dumps(content, ensure_ascii=False).encode()  # rejects unpaired surrogates, which SQLite cannot store
        return content
    except FileNotFoundError as error:
        database, colon, _ = str(path).rpartition(":")
        nor = f", nor a database {database}" if colon else ""
        raise DeviceError(f"there is no recording {path}{nor}; use {RECORDINGS}") from error
    except (EOFError, ValueError, zlib.error, gzip.BadGzipFile) as error:
        raise DeviceError(f"recording {path} is truncated or not JSON: {error}") from error
    except OSError as error:
        raise DeviceError(f"cannot read recording {path}: {error.strerror or error}; use {RECORDINGS}") from error
    except RecursionError as error:
        raise DeviceError(f"recording {path} nests lists or objects too deeply to be read") from error


def _parsed(raw: bytes) -> Any:
    """Parse a recording; a Kernel Tuner cache that is still open after a complete record is closed.

    Kernel Tuner appends to a cache during a search and closes the file when it ends.
    """
    try:
        return json.loads(raw, object_pairs_hook=_each_once)
    except ValueError as error:
        text = raw.decode("utf-8", errors="replace")
        if not ('"tune_params"' in text and '"cache"' in text):
            raise
        record = text.rstrip(" \r\n\t,")
        try:
            return json.loads(record + "}}", object_pairs_hook=_each_once)
        except ValueError:
            remedy = "if a search was interrupted, delete the incomplete configuration at the end of the file"
            raise ValueError(f"{error}; {remedy}") from error


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dict; repeated keys are an error because one value would be lost silently."""
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {twice!r} occurs twice in one object; keep one of the two entries")
    return found


def number_of(what: str, value: Any, *, zero: bool = True) -> float:
    """Return a number from a recording, such as a time.

    Args:
        what: name of the number for the message.
        value: value in the recording.
        zero: whether 0 is allowed.

    Raises:
        DeviceError: the value is not a number, or is a boolean, negative, not finite, or above `MOST`.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DeviceError(f"{what} is {value!r}; use a number")
    if not (0 <= value <= MOST if zero else 0 < value <= MOST):
        least = "at least 0" if zero else "above 0"
        shown = (
            repr(value) if isinstance(value, float) or value.bit_length() < 100 else ("a number of at least 100 bits")
        )
        raise DeviceError(f"{what} is {shown}; use a number {least} and at most {MOST:g}")
    return float(value)


def text_of(what: str, value: Any) -> str:
    """Return a string from a recording.

    Raises:
        DeviceError: the value is not a string.
    """
    if not isinstance(value, str):
        raise DeviceError(f"{what} is {value!r}; use a string")
    return value
