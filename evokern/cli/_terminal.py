"""Wrappers for stdout and stderr that escape control characters in all printed text."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO, cast

from evokern.escaping import visible_lines


class _EscapingStream:
    """Text stream that escapes control characters and writes the result to another stream."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write text and return its length."""
        self.stream.write(visible_lines(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def unwrapped(stream: TextIO) -> TextIO:
    """Return the wrapped stream, for code that writes escape sequences and escapes all other text itself."""
    return stream.stream if isinstance(stream, _EscapingStream) else stream


@contextlib.contextmanager
def escaping_streams() -> Iterator[None]:
    """Replace stdout and stderr with escaping streams, as a second safeguard."""
    before = sys.stdout, sys.stderr
    # A stream that was closed before the start is None.
    sys.stdout, sys.stderr = (stream and cast(TextIO, _EscapingStream(unwrapped(stream))) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
