"""What a kernel reads of the chip it runs on: its SMs, the one a block is on, the launch's number, clocks.

A kernel that could tell the PTX machine from the chip could do its work on one of them only. So these registers hold
what that chip's would: its own counts, blocks dealt out to the SMs in turn (as `evokern.simt.time_model.placement`
does), and clocks that go on from one block, batch and launch to the next. Where they begin is drawn from the text of
the PTX, so that runs repeat and no source can name the value that its own text decides.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from evokern.hardware.profiles import CHIPS, Profile
from evokern.simt.arrays import Array

CYCLES_PER_INSTRUCTION = 32
"""SM clocks from one instruction of a warp to its next, on the mean: on a full SM each of a scheduler's 16 warps has
its turn every 16 clocks at best, and loads take 30 from shared memory, hundreds from L2."""
READ_CYCLES = 8
"""SM clocks between two readings with no other instruction between them."""
LAUNCH_CYCLES = 8_000
"""SM clocks from one launch to the next: some µs, as `LAUNCH_US` of the latencies, and the host's part."""
WARPS_AT_ONCE = 4
"""Warps that issue side by side, one by each scheduler of an SM; those after them read a clock later."""
TIMER_STEP_NS = 32
"""Steps in which ``%globaltimer`` advances."""
EPOCH_NS = 1_767_225_600 * 10**9
"""2026-01-01 in the Unix time that ``%globaltimer`` tells; the day is drawn from the four years that follow."""
DAY_NS = 86_400 * 10**9


@dataclass(slots=True)
class ChipTime:
    """How far the clocks of a chip went since its first launch.

    Attributes are advanced by each batch of blocks and each launch, never set back but to run a launch again.
    """

    cycles: int = 0
    """When the next blocks begin, SM clocks."""
    latest: int = 0
    """When the last of the blocks so far ended, SM clocks."""
    grids: int = 0
    """Launches so far."""

    def ran(self, cycles: int, blocks: int, sms: int) -> None:
        """Let the time of a batch pass: its blocks ran side by side, an SM each, and an SM takes its blocks in turn.

        Args:
            cycles: SM clocks from its beginning to its end.
            blocks: how many there were.
            sms: SMs of the chip.
        """
        self.latest = max(self.latest, self.cycles + cycles)
        self.cycles += max(cycles * blocks // sms, 1)

    def back(self, began: ChipTime) -> None:
        """Go back to where a launch began that is run once more, or looked at a second time."""
        self.cycles, self.latest, self.grids = began.cycles, began.latest, began.grids

    def finished(self, launches: int) -> None:
        """Let launches end, which ran side by side here and one after the other on a chip."""
        self.cycles = max(self.cycles, self.latest) + launches * LAUNCH_CYCLES
        self.grids += launches


@dataclass(frozen=True, slots=True)
class ChipView:
    """A chip as the registers of a launch show it."""

    profile: Profile
    """The chip."""
    began_cycles: int = 0
    """SM clocks that had passed when the first launch began."""
    began_ns: int = EPOCH_NS
    """Unix time at which it began, ns."""
    began_grid: int = 1
    """Number of the first launch."""

    @staticmethod
    def of(profile: Profile | None, target: str, digest: bytes) -> ChipView:
        """Return the view of a program.

        Args:
            profile: the chip; None takes one that the PTX was made for.
            target: architecture of the PTX, for example ``sm_90a``.
            digest: of its text.
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
        """``%nwarpid``: warps that an SM holds."""
        return self.profile.threads_per_sm // 32

    def sm_of(self, block: Array) -> Array:
        """Return the SM of blocks by their linear ids: dealt out in turn."""
        sm: Array = block % self.profile.sms
        return sm

    def clock(self, elapsed: Array) -> Array:
        """Return ``%clock64`` from SM clocks since the first launch."""
        clock: Array = elapsed + np.uint64(self.began_cycles)
        return clock

    def timer(self, elapsed: Array) -> Array:
        """Return ``%globaltimer`` from SM clocks since the first launch, ns."""
        passed = elapsed * np.uint64(1000) // np.uint64(int(self.profile.clock_mhz))
        step = np.uint64(TIMER_STEP_NS)
        timer: Array = (passed + np.uint64(self.began_ns)) // step * step
        return timer


ANY_CHIP = ChipView(CHIPS["h100"])
"""Where nobody asks which one it is."""
