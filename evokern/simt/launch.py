"""Launching: arguments in, blocks in batches, results out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evokern.errors import SourceError, UsageError, nearest
from evokern.simt.arrays import Array
from evokern.simt.counters import Counters, Tally
from evokern.simt.findings import Collector, Finding
from evokern.simt.global_shadow import GlobalShadow
from evokern.simt.machine import Machine, Stopped, check
from evokern.simt.memory import Buffer, Memory
from evokern.simt.module import Module
from evokern.simt.program import Program
from evokern.simt.settings import Geometry, Options

BATCH_LANES = 4096
"""Lanes of a batch aimed at: enough to hide the cost of an instruction's NumPy calls, few enough for the caches."""
REGISTER_BYTES = 192 << 20
"""Most bytes of register rows of a batch."""
SHARED_BYTES = 64 << 20
"""Most bytes of shared memory of a batch, before its shadow."""


@dataclass(frozen=True, slots=True)
class LaunchResult:
    """What came of one launch."""

    findings: tuple[Finding, ...]
    """What the sanitizer saw."""
    counters: Counters | None
    """What was issued and moved; None with ``count=False``. `launch_many` counts its launches together."""
    completed: bool
    """True when every thread ran to its end."""
    printed: str
    """Device printf, block after block."""
    fatal: Finding | None
    """The finding for which a GPU would have ended the launch."""
    hung: bool
    """True when the launch did not end: instruction limit or deadlock."""


def launch(
    module: Module,
    entry: str,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    args: Sequence[Buffer | np.generic[Any]],
    **options: Any,
) -> LaunchResult:
    """Run one launch; see `launch_many`."""
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
    blocks: Sequence[int] | None = None,
    instruction_limit: int = 50_000_000,
    sanitize: bool = True,
    count: bool = True,
    architecture: str = "sm_89",
    source: str | None = None,
    batch_blocks: int | None = None,
) -> list[LaunchResult]:
    """Run several launches that differ in their arguments only, side by side."""
    program = module.program(entry)
    params = np.stack([pack_arguments(program, module, entry, values) for values in args])
    symbols = place_data(program, module, memory, len(args)) | place_hidden(program, memory, params)
    options = Options(sanitize, count, instruction_limit, architecture)
    collectors = [Collector(source) for _ in args]
    total = grid[0] * grid[1] * grid[2]
    chosen = range(total) if blocks is None else blocks
    pairs = [(launch, number) for launch in range(len(args)) for number in chosen]
    threads = block[0] * block[1] * block[2]
    if not 1 <= threads <= 1024:
        raise UsageError(f"a block of {threads} threads: use 1 to 1024")
    width = -(-threads // 32) * 32
    per_batch = len(pairs) if program.grid_wide else batch_blocks or batch_size(program, width, dynamic_shared)
    machines: dict[int, Machine] = {}
    shadow = GlobalShadow(program, memory, len(args), total) if sanitize else None
    completed = True
    printed: dict[int, list[tuple[int, str]]] = {}
    if not module.checked(entry):
        check(
            Machine(
                program,
                memory,
                Geometry(grid, block, 1, 1),
                params[:1],
                {k: v[:1] for k, v in symbols.items()},
                dynamic_shared,
                options,
                collectors,
            )
        )
        module.mark_checked(entry)
    tally = Tally(program) if count else None
    try:
        for start in range(0, len(pairs), per_batch):
            part = pairs[start : start + per_batch]
            machine = machines.get(len(part))
            if machine is None:
                geometry = Geometry(grid, block, len(args), len(part))
                machine = machines[len(part)] = Machine(
                    program, memory, geometry, params, symbols, dynamic_shared, options, collectors, shadow, tally
                )
            machine.load(part)
            machine.run()
            if machine.events is not None:
                machine.events.finish()
            completed &= machine.live_count == 0
    except Stopped:
        completed = False
    for machine in machines.values():
        for number, lines in machine.printed.items():
            printed.setdefault(number, []).extend(lines)
    counters = tally.counters(tuple(chosen), len(args), width // 32) if tally is not None else None
    return [
        LaunchResult(
            collector.findings,
            counters,
            completed and collector.fatal is None,
            "".join(text for _, text in printed.get(number, [])),
            collector.fatal,
            collector.fatal is not None and collector.fatal.kind in ("instruction_limit", "deadlock"),
        )
        for number, collector in enumerate(collectors)
    ]


def batch_size(program: Program, width: int, dynamic_shared: int) -> int:
    """Return how many blocks to run side by side."""
    row_bytes = sum(count * {"pred": 1, "16": 2, "32": 4, "64": 8}[kind] for kind, count in program.rows.items())
    by_lanes = BATCH_LANES // width
    by_registers = REGISTER_BYTES // max((row_bytes + program.local_bytes * 2) * width, 1)
    by_shared = SHARED_BYTES // max(program.static_shared + dynamic_shared, 1)
    return max(1, min(by_lanes, by_registers, by_shared))


def pack_arguments(program: Program, module: Module, entry: str, args: Sequence[Buffer | np.generic[Any]]) -> Array:
    """Lay the arguments out as the entry's parameter block.

    Raises:
        UsageError: count, kind or size do not match the entry.
    """
    params = module.entries[entry].params
    if len(args) != len(params):
        listed = ", ".join(f".{item.type} {item.name}" for item in params) or "none"
        raise UsageError(f"{entry} takes {len(params)} arguments ({listed}), was given {len(args)}")
    size = max((item.offset + item.size for item in params), default=0)
    packed = np.zeros(-(-max(size, 16) // 16) * 16, np.uint8)
    for number, (item, value) in enumerate(zip(params, args, strict=True)):
        raw = (
            np.array([value.address], np.uint64).view(np.uint8)
            if isinstance(value, Buffer)
            else np.atleast_1d(np.asarray(value)).view(np.uint8)
        )
        if raw.size != item.size:
            raise UsageError(
                f"argument {number} of {entry} is {item.size} bytes (.{item.type}), was given {raw.size}: {value!r}"
            )
        packed[item.offset : item.offset + item.size] = raw
    return packed


def place_data(program: Program, module: Module, memory: Memory, launches: int) -> dict[str, Array]:
    """Allocate the module's global and constant variables, once per launch, and return their addresses."""
    addresses: dict[str, Array] = {}
    for variable in program.data_symbols:
        row = np.zeros(launches, np.uint64)
        for number in range(launches):
            known = memory.module_data.setdefault((id(module), number), {})
            if variable.name not in known:
                data = np.frombuffer(variable.data or bytes(max(variable.size, 1)), np.uint8)
                known[variable.name] = memory.allocate(
                    variable.name, data, writable=variable.space == "global", space=variable.space
                )
            row[number] = known[variable.name].address
        addresses[variable.name] = row
    for variable in program.data_symbols:
        for number in range(launches):
            for offset, symbol, addend, _ in variable.pointers:
                target = addresses.get(symbol)
                if target is None:
                    if symbol not in program.unit_of:
                        raise SourceError(f"variable {variable.name} points to {symbol}, which is not in this module")
                    value = program.unit_of[symbol].number
                else:
                    value = int(target[number]) + addend
                buffer = memory.module_data[id(module), number][variable.name]
                memory.arena[buffer.offset + offset : buffer.offset + offset + 8] = np.array([value], np.uint64).view(
                    np.uint8
                )
    return addresses


def place_hidden(program: Program, memory: Memory, params: Array) -> dict[str, Array]:
    """Allocate what is reached without a name: the parameter block, the workspace of grid-wide barriers."""
    hidden: dict[str, Array] = {}
    if program.param_address:
        blocks = [memory.allocate("kernel parameters", block, writable=False, space="param") for block in params]
        hidden["%params"] = np.array([buffer.address for buffer in blocks], np.uint64)
    if program.grid_wide:
        spaces = [memory.allocate("grid workspace", np.zeros(64, np.uint32)) for _ in params]
        hidden["%workspace"] = np.array([buffer.address for buffer in spaces], np.uint64)
    return hidden


__all__ = ["LaunchResult", "launch", "launch_many", "nearest"]
