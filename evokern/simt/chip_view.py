"""Values that a kernel can read about its chip: SM count, SM of a block, launch number, clocks.

If a kernel could distinguish the PTX machine from the chip, it could compute correct results on only one of them.
Therefore these special registers hold the values of the simulated chip: its SM count, and the SM of each block,
assigned round-robin (as in `evokern.simt.time_model.placement`). Their clocks advance across blocks, batches and
launches. The initial clock values are derived from a digest of the PTX, so runs are repeatable, but a source cannot
predict the values.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from evokern.hardware.profiles import CHIPS, Profile
from evokern.simt.arrays import Array

CYCLES_PER_INSTRUCTION = 32
"""Average number of SM clocks between two instructions of a warp.

On a full SM, each of a scheduler's 16 warps issues at most every 16 clocks. Loads take 30 clocks from shared memory and
hundreds of clocks from L2.
"""
READ_CYCLES = 8
"""SM clocks between two consecutive readings of the clock."""
LAUNCH_CYCLES = 8_000
"""SM clocks between two launches: a few µs, like `launch_us` of the latencies, plus the host's share."""
CONCURRENT_WARPS = 4
"""Warps that issue at the same time, one per scheduler of an SM; subsequent warps read a later clock."""
TIMER_STEP_NS = 32
"""Resolution of ``%globaltimer``, ns."""
EPOCH_NS = 1_767_225_600 * 10**9
"""Earliest initial value of ``%globaltimer``, Unix time in ns; the digest selects a day in the next four years."""
DAY_NS = 86_400 * 10**9


@dataclass(slots=True)
class ChipTime:
    """Elapsed time on a chip's clocks since its first launch.

    Each batch of blocks and each launch advances the attributes. They are reset only to repeat a launch.
    """

    cycles: int = 0
    """Start of the next blocks, SM clocks."""
    latest: int = 0
    """End of the last block so far, SM clocks."""
    grids: int = 0
    """Number of launches so far."""

    def ran(self, cycles: int, blocks: int, sms: int) -> None:
        """Advance the clocks by the duration that a batch would have on the chip, where its blocks run in waves.

        Args:
            cycles: SM clocks from start to end of the batch.
            blocks: number of blocks.
            sms: SMs of the chip.
        """
        self.latest = max(self.latest, self.cycles + cycles)
        self.cycles += max(cycles * blocks // sms, 1)

    def rewind(self, began: ChipTime) -> None:
        """Reset the clocks to the start of a launch that is run again."""
        self.cycles, self.latest, self.grids = began.cycles, began.latest, began.grids

    def finished(self, launches: int) -> None:
        """Advance the clocks by launches that ran concurrently here, but would run one after another on a chip."""
        self.cycles = max(self.cycles, self.latest) + launches * LAUNCH_CYCLES
        self.grids += launches


@dataclass(frozen=True, slots=True)
class ChipView:
    """Chip as shown by the special registers of a launch."""

    profile: Profile
    """The chip."""
    start_cycles: int = 0
    """SM clocks that had elapsed when the first launch started."""
    start_ns: int = EPOCH_NS
    """Unix time at the start of the first launch, ns."""
    start_grid: int = 1
    """Number of the first launch."""

    @staticmethod
    def of(profile: Profile | None, target: str, digest: bytes) -> ChipView:
        """Return the view of the chip for a program.

        Args:
            profile: the chip; None selects a chip that the PTX was compiled for.
            target: architecture of the PTX, for example ``sm_90a``.
            digest: digest of the PTX text.
        """
        if profile is None:
            fitting = (chip for chip in CHIPS.values() if chip.architecture == target.rstrip("af"))
            profile = next(fitting, ANY_CHIP.profile)
        drawn = hashlib.sha256(b"clocks" + digest).digest()
        up_ns = DAY_NS // 24 + int.from_bytes(drawn[:8], "big") % (30 * DAY_NS)
        since_ns = int.from_bytes(drawn[8:16], "big") % (1461 * DAY_NS)
        began_cycles = int(up_ns * profile.clock_mhz) // 1000
        return ChipView(profile, began_cycles, EPOCH_NS + since_ns, 1 + int.from_bytes(drawn[16:18], "big"))

    @property
    def warps_per_sm(self) -> int:
        """Value of ``%nwarpid``, the number of warps that an SM holds."""
        return self.profile.threads_per_sm // 32

    def sm_of(self, block: Array) -> Array:
        """Return the SM of each block, by the block's linear id; blocks are assigned round-robin."""
        sm: Array = block % self.profile.sms
        return sm

    def clock(self, elapsed: Array) -> Array:
        """Return the value of ``%clock64`` a given number of SM clocks after the first launch."""
        clock: Array = elapsed + np.uint64(self.start_cycles)
        return clock

    def timer(self, elapsed: Array) -> Array:
        """Return the value of ``%globaltimer`` in ns after some SM clocks since the first launch."""
        passed = elapsed * np.uint64(1000) // np.uint64(int(self.profile.clock_mhz))
        step = np.uint64(TIMER_STEP_NS)
        timer: Array = (passed + np.uint64(self.start_ns)) // step * step
        return timer


ANY_CHIP = ChipView(CHIPS["h100"])
"""View for launches that specify no chip."""
