"""Mapping of instructions to lines of CUDA source.

The compiler writes ``.loc`` before instructions. The ``.loc`` of inlined code also names the location of the call: the
latest ``.loc`` with that file, line and column (section 11.5.3). A finding refers to the innermost line in the user's
own files, not to a line in ``cuda_fp16.h``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """Line in one of the user's files."""

    line: int = 0
    """Line number, counted from 1; 0 if unknown."""
    file: str = ""
    """User header that contains the line, as written in ``#include``; empty for the source itself."""
    called_from: tuple[tuple[str, int], ...] = field(default=(), compare=False)
    """(header or empty, line) of the calls through which it was inlined, innermost first."""


UNKNOWN_LOCATION = SourceLocation()
"""Location for code without a line in the user's files."""


@dataclass(slots=True)
class LineTable:
    """Files and locations of one module."""

    source_name: str
    """Name under which the user's file was passed to the compiler."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Texts of the user's own headers, by the name in ``#include``."""
    files: dict[int, str] = field(default_factory=dict)
    """``.file`` number → path."""
    places: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(file, line, column, number of the call's location or -1) of each distinct ``.loc``."""
    _index: dict[tuple[int, int, int, int], int] = field(default_factory=dict)
    _latest: dict[tuple[int, int, int], int] = field(default_factory=dict)
    _here: set[tuple[int, int, int]] = field(default_factory=set)
    """Locations since the start of the basic block."""
    _undecided: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Location → its call, which the basic block has not named yet."""
    _last: int = -1
    _locations: dict[int, SourceLocation] = field(default_factory=dict)
    _own: dict[int, str | None] = field(default_factory=dict)

    def add(self, file: int, line: int, column: int, inlined_at: tuple[int, int, int] | None) -> int:
        """Record a location and return its number; for line 0 (merged code), return the previous location's number."""
        if line == 0 and self._last >= 0:
            return self._last
        outer, key = -1, (file, line, column)
        undecided = inlined_at is not None and inlined_at not in self._here
        if inlined_at is not None:
            known = self._latest.get(inlined_at)
            outer = self._number((*inlined_at, -1)) if known is None else known
        if undecided:
            self._last = self._latest[key] = len(self.places)
            self.places.append((*key, outer))
        else:
            self._last = self._number((*key, outer))
        self._here.add(key)
        for place in [place for place, call in self._undecided.items() if call == key]:
            self.places[place] = (*self.places[place][:3], self._last)
            del self._undecided[place]
        if inlined_at is not None and undecided:
            self._undecided[self._last] = inlined_at
        else:
            self._undecided.clear()
        return self._last

    def begin_block(self) -> None:
        """Start a basic block: in a loop, the compiler names a call after the code that it inlined there."""
        self._here.clear()
        self._undecided.clear()

    def _number(self, key: tuple[int, int, int, int]) -> int:
        number = self._index.get(key)
        if number is None:
            number = self._index[key] = len(self.places)
            self.places.append(key)
        self._latest[key[:3]] = number
        return number

    def line(self, place: int) -> int:
        """Return the innermost line in the user's files for a location; 0 if there is none."""
        return self.source_location(place).line

    def source_location(self, place: int) -> SourceLocation:
        """Return the innermost source location in the user's files for a location."""
        found = self._locations.get(place)
        if found is None:
            own: list[tuple[str, int]] = []
            at = place
            while at >= 0:
                number, line, _, at = self.places[at]
                file = self._file(number)
                if file is not None and line:
                    own.append((file, line))
            found = self._locations[place] = (
                SourceLocation(own[0][1], own[0][0], tuple(own[1:])) if own else UNKNOWN_LOCATION
            )
        return found

    def _file(self, number: int) -> str | None:
        """Return the user's file for a ``.file`` number: empty for the source, None for other files."""
        if number not in self._own:
            path = self.files.get(number, "")
            # The compiler writes an in-memory header as the working directory, a slash, and its name in the #include.
            mine = [name for name in self.headers if path.endswith("/" + name)]
            source = PurePosixPath(path).name == PurePosixPath(self.source_name).name
            self._own[number] = max(mine, key=len) if mine else "" if source else None
        return self._own[number]
