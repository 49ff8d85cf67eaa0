"""Settings of a batch: shape, options, and segments bound to rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from evokern.ptx.segments import Segment
from evokern.simt.arrays import Action, Active
from evokern.simt.chip_view import ANY_CHIP, ChipView
from evokern.simt.sanitizer.findings import SuspectReads

LEAST_WARPS = 32
"""Minimum number of warps for which an instruction counts toward the limit; it reflects the cost on the CPU."""

End = Callable[[Active], int]
"""Function that ends a segment; returns the next segment of all active lanes, or −1 if it has dispatched them.
"""


@dataclass(slots=True, eq=False)
class Bound:
    """Segment bound to the rows of this batch."""

    segment: Segment
    """The segment before binding."""
    full: list[Action] | None = None
    """Steps to run if every live lane is active."""
    masked: list[Action] | None = None
    """Steps to run for a partial mask."""
    end: End | None = None
    """The control instruction; None if the segment falls through."""
    fall: int = -1
    """The segment that follows in the code."""
    size: int = 0
    """Number of instructions."""
    polls: bool = False
    """True if the segment waits for memory that other lanes write."""
    leaves: bool = False
    """True if the segment only exits the kernel."""
    threads: int = 0
    """Number of lanes that have run the segment."""
    warps: int = 0
    """Number of warps that have run the segment."""
    partial: int = 0
    """Number of warps that have run the segment while other live lanes of the warp were diverged."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a launch."""

    sanitize: bool = True
    """Check for races, uninitialised data and unfinished copies; bounds and alignment are always checked."""
    count: bool = True
    """Count wavefronts and sectors."""
    instruction_limit: int = 50_000_000
    """Maximum number of warp instructions that a batch of blocks may issue."""
    past_misaligned: bool = False
    """Skip a misaligned access and continue."""
    until_fatal: bool = False
    """End at the first finding that would end the launch on a GPU."""
    until_error: bool = False
    """Run no further batch of blocks after an error."""
    enough: Callable[[], bool] | None = None
    """Called periodically; True ends the launch."""
    suspects: SuspectReads | None = None
    """Reads whose values a second run follows."""
    chip: ChipView = ANY_CHIP
    """Chip whose values the special registers show."""
    record_paths: bool = False
    """Record the rounds of loops and the sides of branches."""


@dataclass(slots=True)
class Geometry:
    """Grid, block shape and batch size; without clusters, each block counts as a cluster."""

    grid: tuple[int, int, int]
    """Blocks along x, y, z."""
    block: tuple[int, int, int]
    """Threads along x, y, z."""
    launches: int
    """Number of argument sets that run concurrently."""
    blocks: int
    """Number of blocks in the batch, over all launches; clusters are complete, with their blocks ordered by rank."""
    cluster: tuple[int, int, int] = (1, 1, 1)
    """Blocks of a cluster along x, y, z."""
    explicit_cluster: bool = False
    """Whether the launch or the kernel sets the cluster size (``%is_explicit_cluster``)."""
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
