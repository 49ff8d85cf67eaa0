"""Device functions that the CUDA runtime provides: printf and assert; malloc is rejected."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from evokern.ptx.syntax import Operand, Symbol
from evokern.ptx.unsupported import Unsupported
from evokern.simt.arrays import Active, Array
from evokern.simt.binder import Binder
from evokern.simt.memory.buffers import GLOBAL_BASE, LOCAL_WINDOW
from evokern.simt.settings import End
from evokern.simt.state import MachineState

PRINT_LIMIT = 1 << 20
"""Maximum characters of device output per launch, similar to a GPU's printf buffer."""
_FORMAT = re.compile(r"%([-+ #0]*)(\d+|\*)?(?:\.(\d+|\*))?(hh|h|ll|l|z|t|j)?([diouxXcsfFeEgGaAp%])")


@dataclass(frozen=True, slots=True)
class CallOperands:
    """Operands of a call."""

    returns: tuple[Operand, ...]
    arguments: tuple[Operand, ...]


def bind_intrinsic(b: Binder, name: str, given: CallOperands, fall: int) -> End:
    """Bind a call to a runtime function.

    Raises:
        Unsupported: the machine does not support the function.
    """
    state, routine, number, returns = b.state, b.routine, b.pc, given.returns
    starts = [routine.params[item.name] for item in given.arguments if isinstance(item, Symbol)]
    if name == "vprintf":
        form, values = (state.params.column(start, "u64") for start in starts)
        result = state.params.column(routine.params[returns[0].name], "u32") if returns else None  # type: ignore[union-attr]

        def printed(active: Active) -> int:
            for lane in active.lanes:
                _print(state, int(lane), int(form[lane]), int(values[lane]))
            if result is not None:
                active.put(result, np.ones(1, np.uint32))
            return fall

        return printed
    if name in ("__assertfail", "__assert_fail"):
        message = state.params.column(starts[0], "u64")
        line = state.params.column(starts[2], "u32")

        def failed(active: Active) -> int:
            lane = int(active.lanes[0])
            text = _string(state, int(message[lane]))
            state.batch.report_lanes("assert", number, active.lanes, detail=f"assert({text}) at line {int(line[lane])}")
            state.batch.stop()
            return -1

        return failed
    if name in ("malloc", "free"):
        raise Unsupported(
            f"{name} on the device is not simulated (new and delete also use the runtime's heap): pass a workspace"
        )
    raise Unsupported(f"calls to {name} are not supported")


def _string(state: MachineState, address: int) -> str:
    storage: Array = state.memory.storage
    start = address - GLOBAL_BASE
    buffer = state.memory.find(start)
    if buffer is None:
        return "(string outside global memory)"
    raw = storage[start : buffer.offset + buffer.size].tobytes()
    return raw.split(b"\0", 1)[0].decode("utf-8", "replace")


def _print(state: MachineState, lane: int, form: int, values: int) -> None:
    text = _string(state, form)
    cursor = (values - LOCAL_WINDOW if values >= LOCAL_WINDOW else values) + int(state.local.base[lane])
    raw = state.local.bytes

    def take(size: int) -> bytes:
        nonlocal cursor
        cursor = -(-cursor // size) * size
        piece = raw[cursor : cursor + size].tobytes()
        cursor += size
        return piece

    def fill(match: re.Match[str]) -> str:
        flags, width, precision, length, kind = match.groups()
        if kind == "%":
            return "%"
        if width == "*":
            width = str(int.from_bytes(take(4), "little", signed=True))
        if precision == "*":
            precision = str(int.from_bytes(take(4), "little", signed=True))
        shape = f"%{flags or ''}{width or ''}{'.' + precision if precision is not None else ''}"
        if kind in "fFeEgGaA":
            number = float(np.frombuffer(take(8), np.float64)[0])
            return number.hex() if kind in "aA" else (shape + kind) % number
        if kind == "s":
            return (shape + "s") % _string(state, int.from_bytes(take(8), "little"))
        if kind == "p":
            return hex(int.from_bytes(take(8), "little"))
        if kind == "c":
            return chr(int.from_bytes(take(4), "little") & 0xFF)
        size = 8 if length in ("l", "ll", "z", "t", "j") else 4
        value = int.from_bytes(take(size), "little", signed=kind in "di")
        return (shape + ("d" if kind in "diu" else kind)) % value

    state.batch.printed.setdefault(int(state.batch.launch[lane]), []).append((lane, _FORMAT.sub(fill, text)))
