"""What each source line of a launch issues and moves, the time it takes, and which of its call sites pay for it.

A line's own time is what the time model gives for its instructions alone on the busiest SM, on the resource they load
most (of L2 and DRAM its share by sectors); lines overlap, so that these times need not add up to the launch's. A line
of an inline function stands in the machine code once for every place that it was inlined at: its cost is split by them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from evokern.declaration.kernel import Launch
from evokern.hardware.profiles import Profile
from evokern.ptx.matrix_shapes import matrix_name
from evokern.simt import Counters
from evokern.simt.time_model import prediction as timemodel

Chain = tuple[tuple[str, int], ...]
"""(header or empty, line) of the calls through which a line was inlined, innermost first."""


@dataclass(frozen=True)
class CallShare:
    """What one call site has of a line of an inline function."""

    calls: Chain
    """(header or empty, line) of the calls that lead there, the innermost first."""
    source: str
    """Text of the innermost call's line."""
    time_us: float
    """Its part of the line's time, µs."""
    warp_instructions: int
    """Its part of the line's warp instructions."""


@dataclass(frozen=True)
class LineProfile:
    """One source line; counts are of the whole grid, estimated from the sampled blocks."""

    file: str
    """The kernel's header that holds it, empty for the source itself."""
    line: int
    """Line, 0 for what the compiler names no line for."""
    source: str
    """Its text."""
    time_us: float
    """Time that its instructions alone take on the busiest SM, on the resource they load most, µs."""
    resource: str
    """That resource."""
    warp_instructions: int
    """Instructions issued for a warp."""
    thread_instructions: int
    """The same, counted per active thread."""
    divergent: int
    """Warp instructions issued while live lanes of the warp were elsewhere."""
    shared_wavefronts: int
    """Wavefronts of shared memory."""
    ideal_wavefronts: int
    """The same without bank conflicts."""
    global_sectors: int
    """32-byte sectors of global memory, loads and stores."""
    ideal_sectors: int
    """The least for that many bytes."""
    stall_clocks: float
    """SM clocks that a mean warp of a block waits at it: for operands, copies, products, a barrier."""
    pipes: Mapping[str, int]
    """Pipe → warp instructions."""
    calls: tuple[CallShare, ...] = ()
    """For a line of an inline function: its call sites, the most expensive first."""


def line_profiles(
    counters: Counters,
    launch: Launch,
    chip: Profile,
    texts: Mapping[str, str],
    terms_us: Mapping[str, float],
    stalls: Mapping[int, float] | None = None,
) -> tuple[LineProfile, ...]:
    """Return every line that issued something, scaled from the sampled blocks to the grid, the most expensive first.

    Args:
        counters: of the sampled blocks.
        launch: what was launched.
        chip: where.
        texts: the user's files by header name as included, the source itself under the empty name.
        terms_us: the launch's predicted terms.
        stalls: instruction number → clocks that a mean warp waits at it.
    """
    found = _Lines(counters, launch, chip, {name: text.splitlines() for name, text in texts.items()}, terms_us,
                   stalls or {})  # fmt: skip
    return tuple(sorted(found.profiles(), key=lambda line: -line.time_us))


@dataclass(frozen=True)
class _Lines:
    """One launch's counters, and what turns those of some instructions into times."""

    counters: Counters
    launch: Launch
    chip: Profile
    texts: Mapping[str, Sequence[str]]
    terms_us: Mapping[str, float]
    stalls: Mapping[int, float]

    @property
    def scale(self) -> float:
        """Blocks of the grid for each sampled one."""
        return self.launch.blocks / max(len(self.counters.blocks) * self.counters.launches, 1)

    @cached_property
    def _whole(self) -> Mapping[str, float]:
        """Clocks that all lines of a mean block hold each pipe."""
        return timemodel.block_clocks(self.counters, self.chip)

    def profiles(self) -> Iterator[LineProfile]:
        """Yield the lines in the order of the code."""
        scale, moved = self.scale, max(_sectors(self.counters), 1)
        for (file, line), numbers in _places(self.counters).items():
            selected = _only(self.counters, numbers)
            if not selected.total_warp_instructions:
                continue
            times = self._times(selected, moved)
            resource = max(times, key=times.__getitem__)
            ideal = selected.ideal_load_sectors.sum() + selected.ideal_store_sectors.sum()
            yield LineProfile(
                file=file,
                line=line,
                source=self._text(file, line),
                time_us=times[resource],
                resource=resource,
                warp_instructions=round(selected.total_warp_instructions * scale),
                thread_instructions=round(int(selected.thread_instructions.sum()) * scale),
                divergent=round(int(selected.divergent.sum()) * scale),
                shared_wavefronts=round(int(selected.shared_wavefronts.sum()) * scale),
                ideal_wavefronts=round(int(selected.ideal_wavefronts.sum()) * scale),
                global_sectors=round(_sectors(selected) * scale),
                ideal_sectors=round(int(ideal) * scale),
                stall_clocks=sum(self.stalls.get(number, 0.0) for number in numbers),
                pipes={name: round(count * scale) for name, count in selected.by_pipe().items() if count},
                calls=tuple(sorted(self._calls(numbers, resource, moved), key=lambda share: -share.time_us)),
            )

    def _calls(self, numbers: Sequence[int], resource: str, moved: int) -> Iterator[CallShare]:
        chains: dict[Chain, list[int]] = {}
        for number in numbers:
            chains.setdefault(self.counters.called_from[number], []).append(number)
        for chain, part in chains.items():
            selected = _only(self.counters, part)
            if chain and selected.total_warp_instructions:
                # A call that issues nothing to the line's resource has no part in its time.
                time_us = self._times(selected, moved).get(resource, 0.0)
                issued = round(selected.total_warp_instructions * self.scale)
                yield CallShare(chain, self._text(*chain[0]), time_us, issued)

    def _times(self, selected: Counters, moved: int) -> dict[str, float]:
        """Return resource → µs on the SM that is done last: a line has its part of the launch's term."""
        clocks = timemodel.block_clocks(selected, self.chip)
        times = {name: self.terms_us[name] * value / self._whole[name] for name, value in clocks.items() if value}
        return times | {name: self.terms_us.get(name, 0.0) * _sectors(selected) / moved for name in ("l2", "dram")}

    def _text(self, file: str, line: int) -> str:
        own = self.texts.get(file, ())
        return own[line - 1].strip() if 0 < line <= len(own) else ""


def _sectors(counters: Counters) -> int:
    return int(counters.load_sectors.sum() + counters.store_sectors.sum())


def _places(counters: Counters) -> dict[tuple[str, int], list[int]]:
    """Return (file, line) → the numbers of its instructions."""
    places: dict[tuple[str, int], list[int]] = {}
    for number, place in enumerate(zip(counters.files, counters.lines.tolist(), strict=True)):
        places.setdefault(place, []).append(number)
    return places


def _only(counters: Counters, numbers: Sequence[int]) -> Counters:
    """Return the counters of some instructions, without what is known of the launch as a whole only."""
    changes: dict[str, Any] = {"record": (), "unique_load_sectors": {}, "unique_store_sectors": {}}
    size = len(counters.instructions)
    for item in fields(counters):
        value = getattr(counters, item.name)
        if isinstance(value, np.ndarray) and value.shape == (size,):
            changes[item.name] = value[list(numbers)]
    for name in ("instructions", "pipes", "files", "called_from"):
        changes[name] = tuple(getattr(counters, name)[number] for number in numbers)
    changes["mma"] = _matrix_work(counters, numbers)
    return replace(counters, **changes)


def _matrix_work(counters: Counters, numbers: Sequence[int]) -> dict[str, tuple[int, float]]:
    """Return what these instructions have of the matrix work, by the names that the counters use."""
    work: dict[str, tuple[int, float]] = {}
    for number in numbers:
        opcode = re.sub(r"^@\S+\s+", "", counters.instructions[number]).split(None, 1)[0]
        name = matrix_name(opcode.split(".")[1:])
        if counters.pipes[number] != "tensor" or name not in counters.mma:
            continue
        issued, operations = counters.mma[name]
        selected = int(counters.warp_instructions[number])
        known = work.get(name, (0, 0.0))
        work[name] = known[0] + selected, known[1] + operations / issued * selected
    return work
