"""External source that replaces a kernel's own source text, and optionally the launch geometry.

The kernel's declaration still defines the buffers, the reference and the macros. A `ForeignCandidate` is a
configuration that contains the external source, so that every device evaluates it like the kernel's own candidates.
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
    """Replacement for the geometry of a kernel's only launch; None keeps the value from `launches`."""

    grid: Extent | None = None
    """Blocks along x, y, z."""
    block: Extent | None = None
    """Threads along x, y, z."""
    shared_bytes: int | None = None
    """Dynamic shared memory per block in bytes."""

    @property
    def given(self) -> dict[str, Any]:
        """Values that replace the values of the launch, by the name of the launch's field."""
        fields = {"grid": self.grid, "block": self.block, "shared_bytes": self.shared_bytes}
        return {name: value for name, value in fields.items() if value is not None}

    def changed(self, by: LaunchGeometry) -> LaunchGeometry:
        """Return this geometry, with the values that `by` sets replaced."""
        return replace(self, **by.given)


@dataclass(frozen=True)
class ForeignSource:
    """Text of a CUDA file that replaces a kernel's own source."""

    name: str
    """File name in compiler messages and results."""
    text: str
    """Device code with the entry points that the kernel launches."""
    genes: Mapping[str, Value] = field(default_factory=dict, hash=False)
    """Gene → value to use for this source in the kernel's macros and launches."""
    geometry: LaunchGeometry = LaunchGeometry()
    """Grid, block and shared memory for this source, in place of those from `launches`."""

    def __post_init__(self) -> None:
        # NVRTC stops reading at the first zero byte; replace zeros so that no text is dropped silently.
        text = self.text.replace("\0", "\ufffd").encode("utf-8", errors="replace").decode("utf-8")
        object.__setattr__(self, "text", text)

    @property
    def digest(self) -> str:
        """SHA-256 digest of the text."""
        return hashlib.sha256(self.text.encode("utf-8")).hexdigest()


class ForeignCandidate(Config):
    """A configuration of a kernel that is compiled from an external source."""

    __slots__ = ("geometry", "source")

    def __init__(self, values: Mapping[str, Value], source: ForeignSource, geometry: LaunchGeometry) -> None:
        """Create a candidate.

        Args:
            values: value of every gene, passed to macros and `launches`.
            source: source to compile in place of the kernel's own file.
            geometry: replacement for the geometry of the kernel's launch.
        """
        super().__init__(values)
        self.source = source
        self.geometry = geometry

    def launched(self, launches: Sequence[Launch]) -> tuple[Launch, ...]:
        """Return the kernel's launches with this candidate's geometry.

        The declared static shared memory and launch bounds describe the kernel's own source only. They are reset,
        because the compiler reports the actual values of an external source.

        Raises:
            UsageError: a geometry is given, but there are several launches.
        """
        if self.geometry.given and len(launches) > 1:
            entries = ", ".join(launch.entry for launch in launches)
            raise UsageError(
                f"a grid, block or shared memory size is set, but the kernel has {len(launches)} launches ({entries}), "
                "so the target is ambiguous; omit these options, and use --set to change the genes that `launches` uses"
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
