"""Check of a program for unsupported instructions, before it runs."""

from __future__ import annotations

import numpy as np

from evokern.errors import SourceError
from evokern.ptx.program import PtxProgram
from evokern.simt.machine import Machine
from evokern.simt.memory.buffers import Memory
from evokern.simt.settings import Geometry, Options


def check(program: PtxProgram, cluster: tuple[int, int, int] = (1, 1, 1)) -> None:
    """Check a program by binding each instruction once, for a machine with one cluster and one warp per block.

    Args:
        program: the program.
        cluster: blocks per cluster along x, y, z.

    Raises:
        SourceError: an instruction is not supported; the message contains its line.
    """
    here = np.full(1, 1 << 45, np.uint64)
    symbols = {variable.name: here for variable in program.data_symbols} | {"%params": here, "%workspace": here}
    params = np.zeros((1, sum(item.size + item.align for item in program.entry.params) + 16), np.uint8)
    options = Options(sanitize=False, count=False)
    geometry = Geometry(cluster, (32, 1, 1), 1, cluster[0] * cluster[1] * cluster[2], cluster)
    machine = Machine(program, Memory(), geometry, params, symbols, 0, options, [])
    for bound in machine.bound:
        try:
            machine.bind(bound, False)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            segment = bound.segment
            raise SourceError(
                f"function {segment.routine.function.name}: malformed instruction near PTX line "
                f"{segment.routine.function.instructions[segment.start].ptx_line}: {error}"
            ) from error
