"""A foreign source in a kernel's place: its text, and where asked its launch, are somebody else's; the rest stays.

The declaration goes on saying which buffers there are, what is right, and which macros are defined. A foreign candidate
is a configuration that carries its source along, so that every device evaluates it as it does a kernel's own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from evokern.declaration.genes import Config, Value
from evokern.declaration.kernel import Launch
from evokern.errors import UsageError

Extent = tuple[int, int, int]


@dataclass(frozen=True)
class LaunchGeometry:
    """What replaces the geometry of a kernel's only launch; what is None stays as `launches` has it."""

    grid: Extent | None = None
    """Blocks along x, y, z."""
    block: Extent | None = None
    """Threads along x, y, z."""
    shared_bytes: int | None = None
    """Dynamic shared memory of a block."""

    @property
    def given(self) -> dict[str, Any]:
        """What is replaced, by the name of the launch's field."""
        fields = {"grid": self.grid, "block": self.block, "shared_bytes": self.shared_bytes}
        return {name: value for name, value in fields.items() if value is not None}

    def changed(self, by: LaunchGeometry) -> LaunchGeometry:
        """Return this geometry with what another one gives in its place."""
        return replace(self, **by.given)


@dataclass(frozen=True)
class ForeignSource:
    """The text of a CUDA file that takes the place of a kernel's own."""

    name: str
    """Its name in the compiler's messages and in results."""
    text: str
    """Device code with the entry points that the kernel launches."""
    genes: Mapping[str, Value] = field(default_factory=dict, hash=False)
    """Gene → value, for the kernel's macros and launches, where this source is to have others than the rest."""
    geometry: LaunchGeometry = LaunchGeometry()
    """Grid, block and shared memory, where this source is to have others than the rest."""

    def __post_init__(self) -> None:
        # NVRTC takes bytes that end with the first zero: what stands behind one must not vanish in silence.
        text = self.text.replace("\0", "\ufffd").encode("utf-8", errors="replace").decode("utf-8")
        object.__setattr__(self, "text", text)

    @property
    def digest(self) -> str:
        """SHA-256 of the text."""
        return hashlib.sha256(self.text.encode("utf-8")).hexdigest()


class ForeignCandidate(Config):
    """A configuration of a kernel whose program is made from a foreign source."""

    __slots__ = ("geometry", "source")

    def __init__(self, values: Mapping[str, Value], source: ForeignSource, geometry: LaunchGeometry) -> None:
        """Make a candidate.

        Args:
            values: the value of every gene, as for any candidate: macros and `launches` get them.
            source: what is compiled in place of the kernel's own source file.
            geometry: what replaces the geometry of the kernel's launch.
        """
        super().__init__(values)
        self.source = source
        self.geometry = geometry

    def launched(self, launches: Sequence[Launch]) -> tuple[Launch, ...]:
        """Return the launches of a kernel as this candidate's.

        What the declaration knows of the kernel's own text, its static shared memory and launch bounds, says nothing
        of a foreign one: the compiler's report does.

        Raises:
            UsageError: a geometry is given, and there are several launches.
        """
        if self.geometry.given and len(launches) > 1:
            entries = ", ".join(launch.entry for launch in launches)
            raise UsageError(
                f"one grid, block or shared memory for {len(launches)} launches ({entries}): nobody can tell which one "
                "it is for; leave them out, and choose with --set what `launches` makes of the genes"
            )
        return tuple(replace(one, static_shared_bytes=0, min_blocks=1, **self.geometry.given) for one in launches)

    def replace(self, **changes: Value) -> ForeignCandidate:
        """Return a copy with some genes changed."""
        return ForeignCandidate({**self._values, **changes}, self.source, self.geometry)

    def __reduce__(self) -> tuple[Any, ...]:
        return ForeignCandidate, (self._values, self.source, self.geometry)

    def __hash__(self) -> int:
        return hash((self._hash, self.source, self.geometry))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ForeignCandidate):
            return False
        return (self._values, self.source, self.geometry) == (other._values, other.source, other.geometry)
