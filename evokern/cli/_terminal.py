"""Standard output and error as streams on which no text of a file, a database or a compiler commands a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO, cast

from evokern.escaping import visible_lines


class _ShownText:
    """A text stream before another one: what a terminal would obey is written as an escape that is read."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write text, and return how much of it there was."""
        self.stream.write(visible_lines(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def bare(stream: TextIO) -> TextIO:
    """Return the stream below, for what writes escape sequences of its own and escapes the text of others itself."""
    return stream.stream if isinstance(stream, _ShownText) else stream


@contextlib.contextmanager
def shown_text() -> Iterator[None]:
    """Put such streams in the place of standard output and error, as the last line behind what escapes itself."""
    before = sys.stdout, sys.stderr
    # One that was closed before the start is None.
    sys.stdout, sys.stderr = (stream and cast(TextIO, _ShownText(bare(stream))) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
