"""How to run a batch: its shape, its options, and its segments once bound to rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from evokern.ptx.segments import Segment
from evokern.simt.arrays import Action, Active
from evokern.simt.chip_view import ANY_CHIP, ChipView
from evokern.simt.sanitizer.findings import SuspectReads

LEAST_WARPS = 32
"""An instruction counts at least so many warps against the limit: about what the engine's cost an instruction is
worth."""

End = Callable[[Active], int]
"""Ends a segment: returns the next segment of all the active lanes, or −1 when it has dispatched them itself."""


@dataclass(slots=True, eq=False)
class Bound:
    """One segment bound to the rows of this batch."""

    segment: Segment
    """What it was bound from."""
    full: list[Action] | None = None
    """Steps for when every live lane is active."""
    masked: list[Action] | None = None
    """Steps for a partial mask."""
    end: End | None = None
    """The control instruction, None when it falls through."""
    fall: int = -1
    """The segment after it."""
    size: int = 0
    """Instructions."""
    polls: bool = False
    """True when it waits on memory that others write."""
    leaves: bool = False
    """True when it does nothing but leave the kernel."""
    threads: int = 0
    """Lanes that ran it."""
    warps: int = 0
    """Warps that ran it."""
    partial: int = 0
    """Warps that ran it with some of their live lanes elsewhere."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to run."""

    sanitize: bool = True
    """Check for races, uninitialised data and unwaited copies; bounds and alignment are always checked."""
    count: bool = True
    """Count wavefronts and sectors."""
    instruction_limit: int = 50_000_000
    """Warp instructions a launch may issue."""
    past_misaligned: bool = False
    """Go on after a misaligned access, without it."""
    until_fatal: bool = False
    """End at the first finding for which a GPU would end the launch."""
    enough: Callable[[], bool] | None = None
    """Asked now and then: True ends the launch."""
    suspects: SuspectReads | None = None
    """Reads whose values are followed, on a second look at findings."""
    chip: ChipView = ANY_CHIP
    """The chip that special registers show."""


@dataclass(slots=True)
class Geometry:
    """Grid, block and the blocks of this batch; a launch without clusters has clusters of one block."""

    grid: tuple[int, int, int]
    """Blocks along x, y, z."""
    block: tuple[int, int, int]
    """Threads along x, y, z."""
    launches: int
    """Argument sets that run side by side."""
    blocks: int
    """Blocks in the batch, over all launches; whole clusters, whose blocks stand side by side in the order of ranks."""
    cluster: tuple[int, int, int] = (1, 1, 1)
    """Blocks of a cluster along x, y, z."""
    explicit_cluster: bool = False
    """Whether the launch or the kernel names the cluster (``%is_explicit_cluster``)."""
    threads: int = field(init=False)
    """Threads of a block."""
    width: int = field(init=False)
    """Lanes of a block: threads rounded up to whole warps."""
    ranks: int = field(init=False)
    """Blocks of a cluster."""
    clusters: int = field(init=False)
    """Clusters in the batch."""
    cluster_width: int = field(init=False)
    """Lanes of a cluster."""

    def __post_init__(self) -> None:
        self.threads = self.block[0] * self.block[1] * self.block[2]
        self.width = -(-self.threads // 32) * 32
        self.ranks = self.cluster[0] * self.cluster[1] * self.cluster[2]
        self.clusters = self.blocks // self.ranks
        self.cluster_width = self.ranks * self.width
