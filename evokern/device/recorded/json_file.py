"""The JSON that a recording is: read whole, every key once, and numbers and texts that are what they should be."""

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
"""Largest number that a recording may hold, whatever its unit; Kernel Tuner wrote it for a time that there is not."""
_LONE = re.compile(rb"\\u[dD][89a-fA-F]")
RECORDINGS = "a Kernel Tuner cache or T4 file (.json, .json.gz), or a database and its study, runs.db:STUDY"
"""What may be named as a recording."""


def load_recording(path: str | Path) -> Any:
    """Return the JSON of a recording, plain or gzip.

    Raises:
        DeviceError: the file is missing, truncated, or no JSON.
    """
    path = Path(path)
    try:
        raw = read_bytes(path)
        if raw[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=io.BytesIO(raw)) as packed:
                raw = packed.read(MOST_BYTES + 1)
            if len(raw) > MOST_BYTES:
                raise DeviceError(f"recording {path} unpacks to more than {MOST_BYTES:,} bytes; none is so large")
        content = json.loads(raw, object_pairs_hook=_each_once)
        if _LONE.search(raw):
            json.dumps(content, ensure_ascii=False).encode()  # half of a character, which no database takes
        return content
    except FileNotFoundError as error:
        database, colon, _ = str(path).rpartition(":")
        nor = f", nor a database {database}" if colon else ""
        raise DeviceError(f"there is no recording {path}{nor}; name {RECORDINGS}") from error
    except (EOFError, ValueError, zlib.error, gzip.BadGzipFile) as error:
        raise DeviceError(f"recording {path} is truncated or no JSON: {error}") from error
    except OSError as error:
        raise DeviceError(f"cannot read recording {path}: {error.strerror or error}; name {RECORDINGS}") from error
    except RecursionError as error:
        raise DeviceError(f"recording {path} nests lists or objects deeper than can be read") from error


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of JSON whose keys must differ: of two that are equal, one would be lost in silence."""
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {twice!r} stands in one object twice; keep one")
    return found


def number_of(what: str, value: Any, *, zero: bool = True) -> float:
    """Return a number of a recording, such as a time.

    Args:
        what: what it is, for the message.
        value: what stands there.
        zero: whether it may be 0.

    Raises:
        DeviceError: it is no number, boolean, negative, not finite, or beyond all times.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DeviceError(f"{what} is {value!r}; it must be a number")
    if not (0 <= value <= MOST if zero else 0 < value <= MOST):
        least = "at least 0" if zero else "above 0"
        shown = repr(value) if isinstance(value, float) or value.bit_length() < 100 else "a number of hundreds of bits"
        raise DeviceError(f"{what} is {shown}; it must be a number {least}, at most {MOST:g}")
    return float(value)


def text_of(what: str, value: Any) -> str:
    """Return a text of a recording.

    Raises:
        DeviceError: it is none.
    """
    if not isinstance(value, str):
        raise DeviceError(f"{what} is {value!r}; it must be text")
    return value
