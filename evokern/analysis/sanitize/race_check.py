"""Races at a problem that is too large to run completely: the sanitizer watches a sample of its blocks.

A race may need more rounds of a loop than any small problem takes, so the study's own problem is looked at too: the
first block, the last one, and blocks at random places. On a GPU, some blocks may run before others start, so an error
in such a run is real. The exception is a block that waits for others: it does not end, which says nothing.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass

from evokern.declaration.genes import Config
from evokern.declaration.kernel import Problem
from evokern.declaration.render import Rendered, render
from evokern.device.sim.failure import failure
from evokern.device.sim.full_size_runs import CandidateCall, OwnProblemRuns, drawn_blocks
from evokern.device.sim.program import SimulatedProgram
from evokern.gate import RunFailed
from evokern.simt import ENDLESS, LEAST_WARPS, NO_PATHS, Counters, Paths
from evokern.study.trial import Outcome

INSTRUCTIONS = 3_000_000
"""Maximum number of warp instructions of a sample, about two seconds."""
ROOM = 4
"""Multiple of `INSTRUCTIONS` after which a run of several blocks ends; other blocks may be longer than the first."""
WAITING = 8
"""Multiple of the first block's instructions after which a block that depends on others counts as waiting for them."""
MOST_S = 10.0
"""Maximum number of seconds of a run; blocks that wait for others take much time for few instructions."""
_LIMIT = f"{INSTRUCTIONS:,} warp instructions, or {MOST_S:g} s, under the sanitizer"
BLOCKS = 12
"""Number of blocks in a sample, if the instructions allow it."""
NO_LIMIT = 1 << 62
"""Instruction limit of runs that end by `INSTRUCTIONS` instead."""


@dataclass(frozen=True)
class RaceSample:
    """Blocks of a call that the sanitizer watched, without an error."""

    blocks: int
    """Number of blocks that ran to their end."""
    of: int
    """Number of blocks of the call."""
    paths: Paths = NO_PATHS
    """Paths that the blocks took; also those of a block that was too long to end."""
    reason: str = ""
    """Clause that says why no block ran to its end."""

    def __str__(self) -> str:
        return f"{self.blocks} of {self.of} blocks"


class RaceCheck:
    """Sanitizer for samples of a candidate's blocks."""

    def __init__(self, runs: OwnProblemRuns) -> None:
        """Create a check.

        Args:
            runs: provides programs and buffers, the instruction limit, and the secret for random places.
        """
        self._runs = runs
        self._last: tuple[Rendered, SimulatedProgram] | None = None

    def at(self, config: Config, problem: Problem, *, blocks: int = BLOCKS) -> RaceSample:
        """Run some blocks of a candidate, or all if they depend on each other and the instructions allow it.

        Args:
            config: configuration of the candidate.
            problem: a problem that the candidate can run.
            blocks: number of blocks of a sample.

        Raises:
            RunFailed: the candidate does not compile there, or the sanitizer found an error.
        """
        call = self._runs.call(config, problem, self._last)
        self._last = render(self._runs.kernel, config, problem), call.program
        # The blocks of a further launch need the results of all blocks before.
        launch = call.launches[0]
        if call.program.entry(launch).grid_wide:
            return self._whole(call)  # its blocks wait for each other
        cluster = call.program.cluster(launch)
        first = cluster.members(launch.grid, (0,))
        paths, issued = self._run(call, first, INSTRUCTIONS)
        if issued is None:
            return RaceSample(0, call.blocks, paths, f"a block takes more than {_LIMIT}")
        most: float = ROOM * INSTRUCTIONS
        if not alone(call):
            if self._cost(call, issued / len(first)) <= INSTRUCTIONS:
                return self._whole(call)
            most = min(most, WAITING * blocks * issued)
        room = int(INSTRUCTIONS / max(issued, 1.0)) * cluster.blocks
        last = cluster.members(launch.grid, (launch.blocks // cluster.blocks - 1,))
        rng = random.Random(f"{self._runs.secret} races {config.key} {problem.key}")
        more = min(room, blocks) - len({*first, *last})
        chosen = drawn_blocks(launch.grid, cluster, more, rng, (*first, *last)) if more >= 0 else first
        if len(chosen) > len(first):
            further, issued = self._run(call, chosen, most)
            paths, chosen = paths.merged(further), first if issued is None else chosen
        return RaceSample(len(chosen), call.blocks, paths)

    def _whole(self, call: CandidateCall) -> RaceSample:
        """Run all blocks of all launches."""
        paths, issued = self._run(call, None, ROOM * INSTRUCTIONS)
        if issued is None:
            return RaceSample(0, call.blocks, paths, f"its blocks depend on each other and take more than {_LIMIT}")
        return RaceSample(call.blocks, call.blocks, paths)

    def _cost(self, call: CandidateCall, each_block: float) -> float:
        """Return the estimated warp instructions of a call; infinite if blocks of its launches wait for each other."""
        if len(call.launches) == 1:
            return each_block * call.blocks
        try:
            each = self._runs.counted(call)
        except RunFailed as failed:
            if failed.outcome is not Outcome.HUNG:
                raise
            return math.inf
        return sum(one * launch.blocks for one, launch in zip(each, call.launches, strict=True))

    def _run(self, call: CandidateCall, blocks: tuple[int, ...] | None, most: float) -> tuple[Paths, float | None]:
        """Run some blocks of the first launch, or all blocks of all launches, under the sanitizer.

        Returns:
            The paths, and the number of warp instructions; None if it exceeds `most`, which ends the run, or if a block
            waits for others.
        """
        buffers = self._runs.buffers(call.problem, call.tensors)
        call.program.restore(buffers.memory, every=True)
        paths, issued, began = NO_PATHS, 0.0, time.monotonic()
        for launch in call.launches if blocks is None else call.launches[:1]:
            # A narrow block costs as much time per instruction as `LEAST_WARPS` warps.
            warps = -(-launch.threads // 32) * min(len(blocks) if blocks else launch.blocks, BLOCKS)
            scale = max(LEAST_WARPS / warps, 1.0)

            def enough(counters: Counters, scale: float = scale) -> bool:
                late = time.monotonic() - began > MOST_S
                return late or scale * counters.total_warp_instructions > most

            result = call.program.launch(
                launch, buffers.buffers, buffers.memory, instruction_limit=NO_LIMIT, blocks=blocks, record_paths=True,
                count=True, enough=enough,
            )  # fmt: skip
            errors = [one for one in result.errors if blocks is None or alone(call) or one.kind not in ENDLESS]
            if errors:
                raise failure(errors[0], launch, NO_LIMIT, call.problem)
            assert result.paths is not None  # record_paths=True was passed
            assert result.counters is not None  # count=True was passed
            paths = paths.merged(result.paths)
            if result.ended or not result.finished:
                return paths, None
            issued += scale * result.counters.total_warp_instructions
        return paths, issued


def alone(call: CandidateCall) -> bool:
    """Return whether each block of a call can run without the other blocks."""
    if len(call.launches) != 1 or any(tensor.role == "workspace" for tensor in call.tensors.values()):
        return False
    entry = call.program.entry(call.launches[0])
    shared = any(variable.space == "global" for variable in entry.data_symbols)
    return not (shared or entry.orders_blocks or entry.grid_wide)
