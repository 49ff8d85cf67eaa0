"""Machine-code accesses that move a `wmma` fragment between shared memory and registers, for counting wavefronts.

For sm_90, the assembler translates `wmma.load` of 16-bit operands to `ldmatrix` (LDSM: up to 32 rows of 16 bytes). It
moves accumulators with plain loads and stores of adjacent elements (LDS.64, STS.64).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evokern.simt.arrays import Active, Array
from evokern.simt.memory.buffers import SHARED_WINDOW, WINDOW_BITS
from evokern.simt.state import MachineState

WIDEST = 16
"""Maximum bytes that a lane moves in one access."""


@dataclass(frozen=True)
class Move:
    """One access by a warp."""

    width: int
    """Bytes per lane."""
    lines: Array
    """Line of the matrix in memory, for each lane."""
    starts: Array
    """Bytes from the start of the line, for each lane."""


def moves(lines: Array, places: Array, size: int, *, rows_of_16_bytes: bool) -> tuple[Move, ...]:
    """Return the accesses that move a fragment.

    Args:
        lines: line of each element, [32 lanes, elements of a lane].
        places: position of each element in its line.
        size: bytes of an element.
        rows_of_16_bytes: whether `ldmatrix` can move it.
    """
    if rows_of_16_bytes:
        height, chunks = int(lines.max()) + 1, (int(places.max()) + 1) * size // WIDEST
        line, chunk = np.tile(np.arange(height), chunks), np.repeat(np.arange(chunks), height)
        return tuple(Move(WIDEST, line[at : at + 32], chunk[at : at + 32] * WIDEST) for at in range(0, line.size, 32))
    found: list[Move] = []
    at = 0
    while at < lines.shape[1]:
        run = _run(lines[:, at:], places[:, at:], size)
        found.append(Move(run * size, lines[:, at], places[:, at] * size))
        at += run
    return tuple(found)


def _run(lines: Array, places: Array, size: int) -> int:
    """Return how many leading elements are adjacent in every lane, rounded down to a supported access width."""
    run = 1
    while 2 * run <= lines.shape[1] and 2 * run * size <= WIDEST:
        side_by_side = (places[:, : 2 * run] == places[:, :1] + np.arange(2 * run)).all()
        if not side_by_side or (lines[:, : 2 * run] != lines[:, :1]).any() or (places[:, 0] % (2 * run)).any():
            break
        run *= 2
    return run


def count_moves(
    state: MachineState, number: int, active: Active, matrix: tuple[Array, Array], way: tuple[Move, ...], space: str
) -> None:
    """Count the wavefronts of a fragment's moves if they access shared memory.

    Args:
        state: the machine's state.
        number: the instruction.
        active: lanes that take part, whole warps.
        matrix: start of the matrix, and bytes from line to line; one each per active lane or one for all.
        way: accesses that move the fragment.
        space: state space, or ``generic``.
    """
    assert state.events is not None
    start, step = (np.broadcast_to(row.astype(np.int64), (active.count,)) for row in matrix)
    if space == "generic":
        inside = start >> WINDOW_BITS == 1
        if not inside.any():
            return
        active, start, step = state.batch.restrict(active, inside), start[inside] - SHARED_WINDOW, step[inside]
    start, lane = start + active.pick(state.shared.base), active.lanes % 32
    for move in way:
        taken = lane < move.lines.size
        some = active if taken.all() else state.batch.restrict(active, taken)
        mine = lane[taken]
        where = start[taken] + move.lines[mine] * step[taken] + move.starts[mine]
        state.events.shared(number, some, where // move.width, move.width)
