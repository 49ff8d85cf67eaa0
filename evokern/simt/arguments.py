"""Data that a launch places in memory before it runs: parameter block, module variables and hidden workspaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evokern.compile.elf import symbol_of
from evokern.cuda_source.mangled import source_name
from evokern.errors import SourceError, UsageError
from evokern.ptx.program import PtxProgram
from evokern.ptx.syntax import Variable
from evokern.simt.arrays import Array
from evokern.simt.memory.buffers import Buffer, Memory
from evokern.simt.module import Module

MOST_VARIABLE_BYTES = 1 << 30
"""Maximum total size in bytes of a module's variables; every launch of a batch has its own copy of them."""


def pack_arguments(module: Module, entry: str, args: Sequence[Buffer | np.generic[Any]]) -> Array:
    """Pack the arguments of a launch into the entry's parameter block.

    Raises:
        UsageError: the number, kind or size of the arguments does not match the entry.
    """
    params = module.entries[entry].params
    if len(args) != len(params):
        listed = ", ".join(f".{item.type} {item.name}" for item in params) or "none"
        raise UsageError(f"{entry} takes {len(params)} arguments ({listed}), but the launch passes {len(args)}")
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
                f"argument {number} of {entry} must have {item.size} bytes (.{item.type}), not {raw.size}: {value!r}"
            )
        packed[item.offset : item.offset + item.size] = raw
    return packed


def place_data(program: PtxProgram, module: Module, memory: Memory, launches: int) -> dict[str, Array]:
    """Allocate the module's global and constant variables for each launch and return their addresses.

    Raises:
        SourceError: the variables are too large, or one of them points to an undefined symbol.
    """
    largest = max(program.data_symbols, key=lambda variable: variable.size, default=None)
    if largest and (total := sum(variable.size for variable in program.data_symbols)) > MOST_VARIABLE_BYTES:
        raise SourceError(
            f"module variables have {total:,} bytes ({source_name(largest.name)}: {largest.size:,}), but the simulator "
            f"supports at most {MOST_VARIABLE_BYTES:,}; make them smaller, or pass a buffer as an argument"
        )
    addresses: dict[str, Array] = {}
    fresh: list[tuple[Variable, int]] = []
    for variable in program.data_symbols:
        row = np.zeros(launches, np.uint64)
        for number in range(launches):
            known = memory.module_data.setdefault((module, number), {})
            if variable.name not in known:
                fresh.append((variable, number))
                initial = module.restored.get(variable.name) or variable.data
                data = np.frombuffer(initial or bytes(max(variable.size, 1)), np.uint8)
                known[variable.name] = memory.allocate(
                    variable.name, data, writable=variable.space == "global", space=variable.space
                )
            row[number] = known[variable.name].address
        addresses[variable.name] = row
    for variable, number in fresh:
        pointers = () if variable.name in module.restored else variable.pointers
        for offset, symbol, addend, _ in pointers:
            target = addresses.get(symbol)
            if target is None:
                if symbol not in program.routine_of:
                    raise SourceError(
                        f"variable {variable.name} points to {symbol}, which is not defined in this module"
                    )
                value = program.routine_of[symbol].number
            else:
                value = int(target[number]) + addend
            start = memory.module_data[module, number][variable.name].offset + offset
            memory.storage[start : start + 8] = np.array([value], np.uint64).view(np.uint8)
        if variable.data or variable.name in module.restored:
            placed = memory.module_data[module, number][variable.name]
            memory.module_initial.setdefault((module, number), {})[variable.name] = placed.read()
    return addresses


def restore_variables(module: Module, memory: Memory, *, every: bool = False) -> None:
    """Restore the initial values of a module's variables with declared state, or of all variables.

    Variables that are not placed in memory yet get their initial values when they are placed.
    """
    for key, variables in memory.module_data.items():
        if key[0] is module:
            initial = memory.module_initial.get(key, {})
            for name, buffer in variables.items():
                if buffer.writable and (every or name in module.restored):
                    buffer.write(initial.get(name, np.zeros(buffer.size, np.uint8)))


def changed_variables(module: Module, memory: Memory) -> set[str]:
    """Return the symbols of a module's variables that differ from their initial values in any launch."""
    found: set[str] = set()
    for key, variables in memory.module_data.items():
        if key[0] is module:
            initial = memory.module_initial.get(key, {})
            for name, buffer in variables.items():
                if buffer.writable and name not in found:
                    before, now = initial.get(name), buffer.read()
                    if now.any() if before is None else not np.array_equal(before, now):
                        found.add(name)
    return found


def fill_constants(module: Module, memory: Memory, number: int, filled: Mapping[str, Buffer]) -> None:
    """Copy buffers into the `__constant__` arrays of a launch; the rest of each array is poisoned.

    Args:
        module: the module that defines the arrays.
        memory: memory that contains the arrays.
        number: number of the launch.
        filled: name of an array in the source → its contents. Names of arrays that no code uses are ignored, because
            the compiler removes these arrays.

    Raises:
        UsageError: an array is smaller than its buffer.
    """
    placed = memory.module_data.get((module, number), {})
    for name, buffer in filled.items():
        symbol = symbol_of(name, placed)
        if symbol is None:
            continue
        array = placed[symbol]
        if buffer.size > array.size:
            raise UsageError(f"tensor {name!r} has {buffer.size} bytes, but the __constant__ array has {array.size}")
        data = np.full(array.size, 0xFF, np.uint8)
        data[: buffer.size] = buffer.read().reshape(-1).view(np.uint8)
        array.write(data)


def allocate_hidden(program: PtxProgram, memory: Memory, params: Array) -> dict[str, Array]:
    """Allocate memory without a name in the source: the parameter block and the workspace of grid-wide barriers."""
    hidden: dict[str, Array] = {}
    if program.param_address:
        blocks = [_reused(memory, n, "kernel parameters", block, "param") for n, block in enumerate(params)]
        hidden["%params"] = np.array([buffer.address for buffer in blocks], np.uint64)
    if program.grid_wide:
        spaces = [_reused(memory, n, "grid workspace", np.zeros(64, np.uint32)) for n in range(len(params))]
        hidden["%workspace"] = np.array([buffer.address for buffer in spaces], np.uint64)
    return hidden


def _reused(memory: Memory, number: int, name: str, data: Array, space: str = "global") -> Buffer:
    """Return the buffer of earlier launches with this number and size, with new contents."""
    known = memory.module_data.setdefault(("hidden", number, data.nbytes), {})
    if name not in known:
        known[name] = memory.allocate(name, data, writable=space == "global", space=space)
    else:
        known[name].write(data)
    return known[name]
