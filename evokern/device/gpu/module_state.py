"""Writable variables of a loaded module: declared variables are restored, all others must keep their values.

The expected values are those that the driver loaded, read once; zeros need no copy. Everything is enqueued on torch's
current stream. A comparison copies one piece at a time and waits for a single number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from cuda.bindings import driver

from evokern.compile.records import ModuleVariable
from evokern.device.gpu.driver_call import check

COMPARED_AT_ONCE = 64 << 20
"""Bytes of a variable that are copied and compared in one step."""
_LARGEST_GAP = 256
"""Largest gap in bytes between two variables of a section; the gap is checked with them. Alignment leaves smaller gaps
(PTX ISA, section 5.4.1: vectors and arrays are aligned to at most 128 bytes)."""


@dataclass(frozen=True)
class _Placed:
    """Variable with its address in GPU memory."""

    variable: ModuleVariable
    address: int
    allocation: int
    """Start of the enclosing allocation; a copy cannot cross allocations."""

    @property
    def end(self) -> int:
        return self.address + self.variable.size


@dataclass(frozen=True)
class _Region:
    """Adjacent variables and their expected bytes."""

    placed: tuple[_Placed, ...]
    expected: torch.Tensor | None
    """All bytes; None for zeros."""

    @property
    def address(self) -> int:
        return self.placed[0].address

    @property
    def size(self) -> int:
        return self.placed[-1].end - self.address


class ModuleState:
    """Restores and checks the variables of one loaded module."""

    def __init__(self, module: Any, variables: Sequence[ModuleVariable]) -> None:
        """Find the variables and read the initial values of undeclared variables.

        Args:
            module: the driver's handle.
            variables: `Built.variables` of the module's program.

        Raises:
            RunFailed: the module lacks a variable that code uses.
        """
        placed = sorted(_placed(module, variables), key=lambda one: one.address)
        self._fills: list[tuple[int, int, int]] = []
        self._copies: list[tuple[int, torch.Tensor]] = []
        for one in placed:
            value = one.variable.restored
            if isinstance(value, bytes):
                self._copies.append((one.address, torch.frombuffer(bytearray(value), dtype=torch.uint8).cuda()))
            elif value is not None:
                self._fills.append((one.address, value, one.variable.size))
        # Headers define hundreds of unused constants; they are checked only next to used variables.
        self._regions = [_region(group) for group in _groups(placed) if any(one.variable.used for one in group)]

    def restore(self) -> None:
        """Enqueue, as part of a call, the copies that reset the declared variables to their initial values.

        Raises:
            RunFailed: the driver reports an error.
        """
        stream = torch.cuda.current_stream().cuda_stream
        for address, byte, size in self._fills:
            check(driver.cuMemsetD8Async(address, byte, size, stream))
        for address, data in self._copies:
            check(driver.cuMemcpyDtoDAsync(address, data.data_ptr(), data.numel(), stream))

    def changed(self) -> list[str]:
        """Return the source names of undeclared variables that changed.

        Raises:
            RunFailed: the driver reports an error.
        """
        differ = [_differs(region.address, region.size, region.expected) for region in self._regions]
        if not differ or not bool(torch.stack(differ).any()):
            return []
        return [name for region in self._regions for name in _names(region)]


def _names(region: _Region) -> Iterator[str]:
    """Yield the changed variables of a region; a changed gap counts for the variable before it."""
    for number, one in enumerate(region.placed):
        end = region.placed[number + 1].address if number + 1 < len(region.placed) else one.end
        start = one.address - region.address
        expected = None if region.expected is None else region.expected[start : start + end - one.address]
        if bool(_differs(one.address, end - one.address, expected)):
            yield one.variable.name


def _placed(module: Any, variables: Sequence[ModuleVariable]) -> Iterator[_Placed]:
    for variable in variables:
        answer = driver.cuModuleGetGlobal(module, variable.symbol.encode())
        if answer[0] == driver.CUresult.CUDA_ERROR_NOT_FOUND and not variable.used:
            continue  # unused; the bytes next to it are checked anyway
        pointer, _ = check(answer)
        base, _ = check(driver.cuMemGetAddressRange(pointer))
        yield _Placed(variable, int(pointer), int(base))


def _groups(placed: Sequence[_Placed]) -> Iterator[tuple[_Placed, ...]]:
    """Yield groups of undeclared variables that are as close in memory as in their section."""
    group: list[_Placed] = []
    for one in placed:
        if one.variable.restored is not None:
            if group:
                yield tuple(group)
            group = []
            continue
        if group and not _adjacent(group[-1], one):
            yield tuple(group)
            group = []
        group.append(one)
    if group:
        yield tuple(group)


def _adjacent(before: _Placed, after: _Placed) -> bool:
    same_shift = before.address - before.variable.offset == after.address - after.variable.offset
    together = same_shift and before.allocation == after.allocation
    return together and 0 <= after.address - before.end <= _LARGEST_GAP


def _region(group: tuple[_Placed, ...]) -> _Region:
    size = group[-1].end - group[0].address
    without_gaps = sum(one.variable.size for one in group) == size
    zeros = without_gaps and all(one.variable.zeroed for one in group)
    return _Region(group, None if zeros else _read(group[0].address, size))


def _read(address: int, size: int) -> torch.Tensor:
    data = torch.empty(size, dtype=torch.uint8, device="cuda")
    check(driver.cuMemcpyDtoDAsync(data.data_ptr(), address, size, torch.cuda.current_stream().cuda_stream))
    return data


def _differs(address: int, size: int, expected: torch.Tensor | None) -> torch.Tensor:
    """Return whether memory differs from bytes, or from zeros; the result stays on the GPU."""
    found = torch.zeros((), dtype=torch.bool, device="cuda")
    for start in range(0, size, COMPARED_AT_ONCE):
        now = _read(address + start, min(COMPARED_AT_ONCE, size - start))
        found |= (now != 0).any() if expected is None else (now != expected[start : start + now.numel()]).any()
    return found
