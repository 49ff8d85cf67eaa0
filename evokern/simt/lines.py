"""From an instruction to the line of CUDA source it stands for.

The compiler writes ``.loc`` before instructions; code that came from an inlined function names the place it was inlined
at (section 11.5.3). A finding should name the innermost line in the user's own file, not one inside ``cuda_fp16.h``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePosixPath


@dataclass(slots=True)
class LineTable:
    """The files and places of one module."""

    source_name: str
    """Name given to the compiler for the user's file."""
    files: dict[int, str] = field(default_factory=dict)
    """``.file`` number → path."""
    places: list[tuple[int, int, int, tuple[int, int, int] | None]] = field(default_factory=list)
    """(file, line, column, place inlined at) per distinct ``.loc``."""
    _index: dict[tuple[int, int, int, tuple[int, int, int] | None], int] = field(default_factory=dict)
    _outer: dict[tuple[int, int, int], tuple[int, int, int]] = field(default_factory=dict)
    _resolved: dict[int, int] = field(default_factory=dict)

    def add(self, file: int, line: int, column: int, inlined_at: tuple[int, int, int] | None) -> int:
        """Record a place and return its number."""
        key = (file, line, column, inlined_at)
        number = self._index.get(key)
        if number is None:
            number = self._index[key] = len(self.places)
            self.places.append(key)
            if inlined_at is not None:
                self._outer.setdefault((file, line, column), inlined_at)
        return number

    def line(self, place: int) -> int:
        """Return the innermost line in the user's file for a place, 0 when there is none."""
        if place < 0:
            return 0
        if place not in self._resolved:
            self._resolved[place] = self._resolve(place)
        return self._resolved[place]

    def _resolve(self, place: int) -> int:
        file, line, column, outer = self.places[place]
        seen = set()
        while True:
            if self._is_user_file(file):
                return line
            step = outer if outer is not None else self._outer.get((file, line, column))
            if step is None or step in seen:
                return 0
            seen.add(step)
            file, line, column = step
            outer = None

    def _is_user_file(self, number: int) -> bool:
        path = self.files.get(number, "")
        return PurePosixPath(path).name == PurePosixPath(self.source_name).name
