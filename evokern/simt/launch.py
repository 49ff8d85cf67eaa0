"""Launches: one launch, or several concurrent launches of one kernel with different arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from evokern.hardware.profiles import Profile
from evokern.simt.arguments import place_data
from evokern.simt.chip_view import ChipView
from evokern.simt.counters import Counters
from evokern.simt.launch_run import LaunchResult, LaunchRun
from evokern.simt.memory.buffers import Buffer, Memory
from evokern.simt.module import Module
from evokern.simt.settings import Options


def launch(
    module: Module,
    entry: str,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    args: Sequence[Buffer | np.generic[Any]],
    **options: Any,
) -> LaunchResult:
    """Run one launch.

    Args:
        module: from `parse`.
        entry: the kernel's name in the PTX.
        grid: blocks along x, y, z.
        block: threads along x, y, z.
        args: buffers for pointers, NumPy scalars for numbers, NumPy records for structures.
        **options: options of `launch_many`; ``memory`` is required.
    """
    return launch_many(module, entry, grid, block, [args], **options)[0]


def launch_many(
    module: Module,
    entry: str,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    args: Sequence[Sequence[Buffer | np.generic[Any]]],
    *,
    memory: Memory,
    dynamic_shared: int = 0,
    cluster: tuple[int, int, int] | None = None,
    blocks: Sequence[int] | None = None,
    instruction_limit: int = 50_000_000,
    sanitize: bool = True,
    past_misaligned: bool = False,
    until_fatal: bool = False,
    until_error: bool = False,
    count: bool = True,
    architecture: str | None = None,
    chip: Profile | None = None,
    source: str | None = None,
    batch_blocks: int | None = None,
    enough: Callable[[Counters], bool] | None = None,
    constants: Sequence[Mapping[str, Buffer]] = (),
    record_paths: bool = False,
) -> list[LaunchResult]:
    """Run several launches of one kernel with different arguments concurrently, as lanes of common batches.

    Args:
        module: from `parse`.
        entry: the kernel's name in the PTX.
        grid: blocks along x, y, z.
        block: threads along x, y, z.
        args: one argument list per launch.
        memory: memory that contains the buffers; module variables are placed there too and keep their values between
            launches.
        dynamic_shared: bytes of dynamic shared memory.
        cluster: blocks of a cluster along x, y, z; None uses the kernel's ``__cluster_dims__``, if any.
        blocks: linear ids of the blocks to run; None for all. The other blocks in their clusters run as well. If the
            kernel synchronises its grid, all blocks run.
        instruction_limit: maximum number of warp instructions per batch of blocks; each instruction counts as at least
            `evokern.simt.settings.LEAST_WARPS` of them, which reflects its cost on the CPU.
        sanitize: check for races, uninitialised data and unfinished copies; bounds and alignment are always checked.
        past_misaligned: skip misaligned accesses and continue, to report further findings.
        until_fatal: end at the first finding that would end the launch on a GPU. By default, accesses outside the
            buffers are skipped and the launch continues to report further findings.
        until_error: run no further batch of blocks after a batch with an error; all results are then incomplete.
        count: count wavefronts, sectors and instructions.
        architecture: architecture of the simulated chip, for example ``sm_89``; PTX for a later architecture is
            rejected. None accepts any PTX.
        chip: chip whose values the special registers show (SMs, clocks); None selects one that the PTX was compiled
            for.
        source: text of the CUDA source, quoted in findings.
        batch_blocks: number of concurrent blocks; None selects a number that suits the caches.
        enough: function that is called periodically with the current counters and ends the launch by returning True;
            allowed only with a single argument list.
        constants: for each argument list the contents of its `__constant__` arrays, by their names in the source.
        record_paths: record the rounds of loops and the sides of branches.

    Returns:
        One result per argument list. After a launch that exceeds the limit, the following ones do not run.

    Raises:
        SourceError: the entry does not exist or uses unsupported PTX.
        UsageError: the arguments do not match the entry, or the grid, block or cluster is invalid.
    """
    options = Options(
        sanitize, count, instruction_limit, past_misaligned, until_fatal, until_error,
        chip=ChipView.of(chip, module.target, module.digest), record_paths=record_paths,
    )  # fmt: skip
    run = LaunchRun(module, entry, grid, block, memory, dynamic_shared, options, source, enough)
    run.check(architecture, cluster)
    filled = tuple(constants) or ({},) * len(args)
    chosen = run.everyone if blocks is None or module.needs_whole_grid(entry) else run.cluster.whole(grid, blocks)
    place_data(run.program, module, memory, len(args))
    before = run.contents() if len(args) > 1 or run.allows_second_run() or run.may_wait(chosen, batch_blocks) else []
    began = replace(memory.time)
    results = run.checked(args, chosen, batch_blocks, before, filled)
    if results is None:  # One of the launches stopped the others, so each launch runs again separately.
        results = []
        memory.time.rewind(began)
        for values, own in zip(args, filled, strict=True):
            run.restore(before)
            alone = run.checked([values], chosen, batch_blocks, before, [own], alone=True)
            assert alone is not None
            results += alone
            if alone[0].over_limit:  # the others need about as many instructions
                not_run = LaunchResult((), None, completed=False, printed="", fatal=None, hung=False, finished=False)
                results += [not_run] * (len(args) - len(results))
                break
            before = run.keep(before, values)
    return results
