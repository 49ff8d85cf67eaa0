"""Settings of a batch: shape, options, and segments bound to rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from evokern.hardware.profiles import Profile
from evokern.ptx.segments import Segment
from evokern.simt.arrays import Action, Active
from evokern.simt.chip_view import ANY_CHIP, ChipView
from evokern.simt.counters import Counters
from evokern.simt.exact.memory import ExactMemory
from evokern.simt.sanitizer.findings import SuspectReads

LEAST_WARPS = 32
"""Minimum number of warps for which an instruction counts toward the limit; it reflects the cost on the CPU."""

End = Callable[[Active], int]
"""Function that ends a segment; returns the next segment of all active lanes, or −1 if it has dispatched them.
"""


@dataclass(slots=True, eq=False, kw_only=True)
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
    weight: int = 1
    """Number of segments for which a run of this one counts, while other lanes wait."""
    leaves: bool = False
    """True if the segment only exits the kernel."""
    threads: int = 0
    """Number of lanes that have run the segment."""
    warps: int = 0
    """Number of warps that have run the segment."""
    partial: int = 0
    """Number of warps that have run the segment while other live lanes of the warp were diverged."""


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """Entry point and shape of a launch."""

    entry: str
    """The kernel's name in the PTX."""
    grid: tuple[int, int, int]
    """Blocks along x, y, z."""
    block: tuple[int, int, int]
    """Threads along x, y, z."""
    dynamic_shared: int = 0
    """Bytes of dynamic shared memory."""
    cluster: tuple[int, int, int] | None = None
    """Blocks of a cluster along x, y, z; None uses the kernel's ``__cluster_dims__``, if any."""
    blocks: Sequence[int] | None = None
    """Linear ids of the blocks to run; None for all. The other blocks in their clusters run as well. If the kernel
    synchronises its grid, all blocks run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """Checks, counters and limits of a launch."""

    instruction_limit: int = 50_000_000
    """Maximum number of warp instructions per batch of blocks; each instruction counts as at least `LEAST_WARPS` of
    them, which reflects its cost on the CPU."""
    sanitize: bool = True
    """Check for races, uninitialised data and unfinished copies; bounds and alignment are always checked."""
    past_misaligned: bool = False
    """Skip misaligned accesses and continue, to report further findings."""
    until_fatal: bool = False
    """End at the first finding that would end the launch on a GPU. By default, accesses outside the buffers are skipped
    and the launch continues to report further findings."""
    until_error: bool = False
    """Run no further batch of blocks after a batch with an error; all results are then incomplete."""
    count: bool = True
    """Count wavefronts, sectors and instructions."""
    sample: bool = False
    """Whether the blocks stand for a grid whose other blocks do not run. All ``atom.inc`` of an instruction then share
    one counter, so that the same share of blocks sees its last value as in the grid."""
    architecture: str | None = None
    """Architecture of the simulated chip, for example ``sm_89``; PTX for a later architecture is rejected. None accepts
    any PTX."""
    chip: Profile | None = None
    """Chip whose values the special registers show (SMs, clocks); None selects one that the PTX was compiled for."""
    source: str | None = None
    """Text of the CUDA source, quoted in findings."""
    batch_blocks: int | None = None
    """Number of concurrent blocks; None selects a number that suits the caches."""
    enough: Callable[[Counters], bool] | None = None
    """Function that is called periodically with the current counters and ends the launch by returning True; only one
    argument list is allowed then."""
    record_paths: bool = False
    """Record the rounds of loops and the sides of branches."""
    exact: ExactMemory | None = None
    """Shadow in which the launch also computes in exact arithmetic; None for real arithmetic alone."""


@dataclass(frozen=True, slots=True)
class Options(LaunchOptions):
    """Options of one machine: those of the launch, and what the run adds."""

    stop: Callable[[], bool] | None = None
    """Called periodically; True ends the launch."""
    suspects: SuspectReads | None = None
    """Reads whose values a second run follows."""
    view: ChipView = ANY_CHIP
    """Chip whose values the special registers show."""


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
