"""``mbarrier`` instructions (PTX ISA 9.7.13.15)."""

from __future__ import annotations

import numpy as np

from evokern.ptx.syntax import Address, Instruction, Operand, Sink
from evokern.ptx.unsupported import Unsupported
from evokern.simt.arrays import Action, Array
from evokern.simt.binder import Binder
from evokern.simt.memory.buffers import SHARED_WINDOW
from evokern.simt.operations.memory_ops import address_rows, space_of
from evokern.simt.operations.spaces import widened
from evokern.simt.operations.table import operation

_ONE = np.ones(1, np.int64)


@operation("mbarrier", "9.7.13.15", pipe="load_store", kind="effect", results=1)
def mbarrier(i: Instruction, b: Binder) -> Action:
    """Initialise an mbarrier, arrive at it, announce bytes, test it or wait for it."""
    state, number, active_of = b.state, b.pc, b.active
    if any("cluster" in word for word in i.modifiers):
        raise Unsupported(f"{i.name} on mbarriers of other blocks in a cluster is not supported")
    kind = i.modifiers[0]
    operands = list(i.operands)
    result: Operand | None = None
    if operands and not isinstance(operands[0], Address):
        result = operands.pop(0)
    if kind == "pending_count":
        raise Unsupported(f"{i.name}")
    row, offset = address_rows(operands[0], b, "shared")
    generic = space_of(i) == "generic"

    def where() -> Array:
        address = active_of().pick(row)
        return widened(address) - np.uint64(SHARED_WINDOW) if generic else address

    if kind in ("init", "inval"):
        count = b.src(operands[1], "u32") if kind == "init" else np.zeros(1, np.uint32)
        return lambda: state.mbarriers.init(active_of(), where(), offset, number, active_of().pick(count))
    if kind in ("expect_tx", "complete_tx"):
        amount = b.src(operands[1], "u32")
        sign = 1 if kind == "expect_tx" else -1
        return lambda: state.mbarriers.expect(
            active_of(), where(), offset, number, active_of().pick(amount).astype(np.int64) * sign
        )
    if kind in ("arrive", "arrive_drop"):
        announce = i.has("expect_tx")
        extra = b.src(operands[1], "u32") if len(operands) > 1 else None
        out = None if result is None or isinstance(result, Sink) else b.dst(result, "u64")

        def arrive() -> None:
            active = active_of()
            value = active.pick(extra).astype(np.int64) if extra is not None else _ONE
            tokens = state.mbarriers.arrive(active, where(), offset, number, _ONE if announce else value,
                                            expect=value if announce else None, drop=kind == "arrive_drop",
                                            releases=not i.has("relaxed"))  # fmt: skip
            if out is not None:
                active.put(out, tokens)

        return arrive
    if kind in ("test_wait", "try_wait") and result is not None:
        parity = i.has("parity")
        token = b.src(operands[1], "u32" if parity else "u64")
        flag = b.dst(result, "pred")

        def wait() -> None:
            active = active_of()
            done = state.mbarriers.done(
                active, where(), offset, number, active.pick(token), parity=parity, acquires=not i.has("relaxed")
            )
            active.put(flag, done)

        return wait
    raise Unsupported(f"{i.name}")
