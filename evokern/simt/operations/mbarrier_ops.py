"""``mbarrier`` instructions (PTX ISA 9.7.13.15)."""

from __future__ import annotations

import numpy as np

from evokern.ptx.syntax import Address, Instruction, Operand, Sink
from evokern.ptx.unsupported import Unsupported
from evokern.simt.arrays import Action, Array
from evokern.simt.binder import Binder
from evokern.simt.memory.buffers import SHARED_WINDOW
from evokern.simt.operations.memory_ops import address_rows, reaches_cluster, space_of
from evokern.simt.operations.spaces import widened
from evokern.simt.operations.table import operation
from evokern.simt.sanitizer.mbarriers import MbarrierCall

_ONE = np.ones(1, np.int64)


@operation("mbarrier", "9.7.13.15", pipe="load_store", kind="effect", results=1)
def mbarrier(i: Instruction, b: Binder) -> Action:
    """Initialise an mbarrier, arrive at it, announce bytes, test it or wait for it."""
    state, active_of = b.state, b.active
    kind = i.modifiers[0]
    operands = list(i.operands)
    result: Operand | None = None
    if operands and not isinstance(operands[0], Address):
        result = operands.pop(0)
    if kind == "pending_count":
        raise Unsupported(f"{i.name}")
    row, offset = address_rows(operands[0], b, "shared")
    generic = space_of(i) == "generic"
    call = MbarrierCall(
        b.pc,
        offset,
        i.has("relaxed"),
        drop=kind == "arrive_drop",
        parity=i.has("parity"),
        cluster=reaches_cluster(i),
        near=i.has("cta") and state.batch.geometry.ranks > 1,
    )

    def where() -> Array:
        address = active_of().pick(row)
        return widened(address) - np.uint64(SHARED_WINDOW) if generic else address

    if kind in ("init", "inval"):
        count = b.src(operands[1], "u32") if kind == "init" else None
        return lambda: state.mbarriers.init(
            active_of(), where(), call, None if count is None else active_of().pick(count)
        )
    if kind in ("expect_tx", "complete_tx"):
        amount = b.src(operands[1], "u32")
        sign = 1 if kind == "expect_tx" else -1
        return lambda: state.mbarriers.expect(
            active_of(), where(), call, active_of().pick(amount).astype(np.int64) * sign
        )
    if kind in ("arrive", "arrive_drop"):
        announce = i.has("expect_tx")
        extra = b.src(operands[1], "u32") if len(operands) > 1 else None
        out = None if result is None or isinstance(result, Sink) else b.dst(result, "u64")

        def arrive() -> None:
            active = active_of()
            value = active.pick(extra).astype(np.int64) if extra is not None else _ONE
            counts, expect = (_ONE, value) if announce else (value, None)
            tokens = state.mbarriers.arrive(active, where(), call, counts, expect)
            if out is not None:
                active.put(out, tokens)

        return arrive
    if kind in ("test_wait", "try_wait") and result is not None:
        token = b.src(operands[1], "u32" if call.parity else "u64")
        flag = b.dst(result, "pred")

        def wait() -> None:
            active = active_of()
            active.put(flag, state.mbarriers.done(active, where(), call, active.pick(token)))

        return wait
    raise Unsupported(f"{i.name}")
