"""State that instructions access: lanes, registers, memories and synchronisation objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evokern.simt.arrays import Array
from evokern.simt.batch import Batch
from evokern.simt.clusters.barrier import ClusterBarrier
from evokern.simt.control_flow.paths import PathRecorder
from evokern.simt.event_counter import EventCounter
from evokern.simt.memory.buffers import Memory
from evokern.simt.memory.bulk_copies import BulkCopies
from evokern.simt.memory.global_space import GlobalSpace
from evokern.simt.memory.shared_memory import LocalSpace, ParamSpace, SharedSpace
from evokern.simt.sanitizer.async_copies import AsyncCopies
from evokern.simt.sanitizer.barriers import Barriers
from evokern.simt.sanitizer.mbarriers import Mbarriers
from evokern.simt.sanitizer.proxy_fences import ProxyFences
from evokern.simt.sanitizer.thread_order import ThreadOrder
from evokern.simt.schedule import CallStack, Schedule
from evokern.simt.specials import Specials
from evokern.simt.warpgroup import RegisterCounts, WarpgroupProducts


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MachineState:
    """State that operations may read and change."""

    batch: Batch
    """The lanes, their registers, and which lanes are active."""
    schedule: Schedule
    """Scheduler with the lanes that are waiting to run."""
    calls: CallStack
    """Segments at which lanes continue after calls."""
    memory: Memory
    """Allocations in global memory."""
    symbols: Mapping[str, Array]
    """Variable of the module → its address, one per launch."""
    specials: Specials
    """Special registers."""
    order: ThreadOrder | None
    """Happens-before order of the threads of a block; None without checks."""
    shared: SharedSpace
    """Shared memory."""
    local: LocalSpace
    """Local memory."""
    params: ParamSpace
    """Parameters of the kernel and of calls."""
    globals: GlobalSpace
    """Access of lanes to global memory."""
    barriers: Barriers
    """Barriers of blocks."""
    cluster_barrier: ClusterBarrier
    """Barriers of clusters."""
    copies: AsyncCopies
    """Pending asynchronous copies."""
    bulk: BulkCopies
    """Bulk copies in flight."""
    products: WarpgroupProducts
    """Pending products of warpgroups."""
    proxy_fences: ProxyFences
    """Fences between proxies."""
    mbarriers: Mbarriers
    """Mbarriers in shared memory."""
    register_counts: RegisterCounts
    """Registers of each warp, which ``setmaxnreg`` changes."""
    events: EventCounter | None
    """Counters of events; None without counting."""
    paths: PathRecorder | None
    """Recorder of loops and branches; None unless the paths are wanted."""

    def load(self, blocks: Sequence[tuple[int, int]]) -> None:
        """Switch to new blocks, each given as (launch, linear block id)."""
        self.batch.load(blocks)
        self.schedule.load()
        self.calls.load()
        self.specials.load()
        self.params.load()
        if self.order is not None:
            self.order.load(self.globals.last_stamp())
        self.shared.load()
        self.local.load()
        self.globals.load()
        self.barriers.load()
        self.cluster_barrier.load()
        self.copies.load()
        self.bulk.load()
        self.products.load()
        self.proxy_fences.load()
        self.mbarriers.load()
        self.register_counts.load()
        if self.events is not None:
            self.events.load()
        if self.paths is not None:
            self.paths.load()
