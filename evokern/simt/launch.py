"""Launches: one launch, or several concurrent launches of one kernel with different arguments."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from evokern.simt.arguments import place_data
from evokern.simt.launch_run import LaunchResult, LaunchRun
from evokern.simt.memory.buffers import Buffer, Memory
from evokern.simt.module import Module
from evokern.simt.settings import LaunchOptions, LaunchSpec

DEFAULTS = LaunchOptions()
"""Options of a launch that states none."""


def launch(
    module: Module,
    spec: LaunchSpec,
    args: Sequence[Buffer | np.generic[Any]],
    memory: Memory,
    options: LaunchOptions = DEFAULTS,
    constants: Mapping[str, Buffer] | None = None,
) -> LaunchResult:
    """Run one launch.

    Args:
        module: from `parse`.
        spec: entry point and shape.
        args: buffers for pointers, NumPy scalars for numbers, NumPy records for structures.
        memory: as for `launch_many`.
        options: checks, counters and limits.
        constants: contents of `__constant__` arrays, by their names in the source.
    """
    return launch_many(module, spec, [args], memory, options, [constants or {}])[0]


def launch_many(
    module: Module,
    spec: LaunchSpec,
    args: Sequence[Sequence[Buffer | np.generic[Any]]],
    memory: Memory,
    options: LaunchOptions = DEFAULTS,
    constants: Sequence[Mapping[str, Buffer]] = (),
) -> list[LaunchResult]:
    """Run several launches of one kernel with different arguments concurrently, as lanes of common batches.

    Args:
        module: from `parse`.
        spec: entry point and shape.
        args: one argument list per launch.
        memory: memory that contains the buffers; module variables are placed there too and keep their values between
            launches.
        options: checks, counters and limits.
        constants: for each argument list the contents of its `__constant__` arrays, by their names in the source.

    Returns:
        One result per argument list. After a launch that exceeds the limit, the following ones do not run.

    Raises:
        SourceError: the entry does not exist or uses unsupported PTX.
        UsageError: the arguments do not match the entry, or the grid, block or cluster is invalid.
    """
    with _uninterrupted():
        return _launch_many(LaunchRun(module, spec, memory, options), args, tuple(constants) or ({},) * len(args))


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Pause Python's collector: in a launch it would find that all objects of the machine are in use."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _launch_many(
    run: LaunchRun, args: Sequence[Sequence[Buffer | np.generic[Any]]], filled: Sequence[Mapping[str, Buffer]]
) -> list[LaunchResult]:
    module, memory = run.module, run.memory
    place_data(run.program, module, memory, len(args))
    before = run.contents() if len(args) > 1 or run.allows_second_run() or run.may_wait() else []
    began = replace(memory.time)
    results = run.checked(args, before, filled)
    if results is None:  # One of the launches stopped the others, so each launch runs again separately.
        results = []
        memory.time.rewind(began)
        for values, own in zip(args, filled, strict=True):
            run.restore(before)
            alone = run.checked([values], before, [own], alone=True)
            assert alone is not None
            results += alone
            if alone[0].over_limit:  # the others need about as many instructions
                not_run = LaunchResult(
                    findings=(), counters=None, completed=False, printed="", fatal=None, hung=False, finished=False
                )
                results += [not_run] * (len(args) - len(results))
                break
            before = run.keep(before, values)
    return results
