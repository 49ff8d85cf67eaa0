"""Instructions that end a segment: control flow (PTX ISA 9.7.12), barriers (9.7.13.1-3) and traps (9.7.19)."""

from __future__ import annotations

from functools import partial

import numpy as np

from evokern.ptx.segments import Routine, Segment, member_mask_key
from evokern.ptx.syntax import Immediate, Instruction, Operand, Register, Symbol, Vector
from evokern.ptx.unsupported import Unsupported
from evokern.simt.arrays import Action, Active, Array, ballot
from evokern.simt.binder import Binder
from evokern.simt.operations.intrinsics import CallOperands, bind_intrinsic
from evokern.simt.operations.table import operation
from evokern.simt.sanitizer.barriers import BarrierCall
from evokern.simt.schedule import MAX_DEPTH
from evokern.simt.settings import End
from evokern.simt.state import MachineState


@operation("bra brx ret exit call", "9.7.12", pipe="control", kind="control", results=0)
@operation("bar barrier", "9.7.13.1-3", pipe="control", kind="control", results=0)
@operation("trap brkpt", "9.7.19.1, 9.7.19.4", pipe="control", kind="control", results=0)
def control(i: Instruction, b: Binder) -> Action:
    """Reject a control instruction: `bind_control` must bind it, because binding also needs the segment."""
    raise Unsupported(f"{i.name} is not supported within a segment")


def bind_control(b: Binder, segment: Segment, i: Instruction) -> End:
    """Bind the control instruction that ends a segment."""
    fall = segment.index + 1
    guard = b.src(Register(i.guard.name), "pred") if i.guard is not None else None
    negated = i.guard.negated if i.guard is not None else False
    if i.opcode == "bra":
        target = _label(b, segment.routine, i.operands[0])
        if b.state.paths is not None:
            return _recorded_branch(b, segment, guard, negated, target, fall)
        return (lambda active: target) if guard is None else _branch(b.state, guard, negated, target, fall)
    if i.opcode in ("bar", "barrier") and "warp" in i.modifiers:
        return _guarded(b.state, _warp_barrier(b, segment, i, fall), guard, negated, fall)
    if i.has("cluster"):
        return _guarded(b.state, _cluster_barrier(b, i, fall), guard, negated, fall)
    binders = {"ret": _return, "exit": _exit, "brx": _indexed, "call": _call, "trap": _trap, "brkpt": _trap,
               "bar": _barrier, "barrier": _barrier}  # fmt: skip
    return _guarded(b.state, binders[i.opcode](b, segment, i, fall), guard, negated, fall)


def _label(b: Binder, routine: Routine, operand: Operand) -> int:
    if not isinstance(operand, Symbol):
        raise Unsupported(f"a branch to {operand!r} is not supported")
    if operand.name not in routine.function.labels:
        raise Unsupported(f"branch to the undefined label {operand.name}")
    known = b.state.batch.program.label_segment.get((routine.number, operand.name))
    if known is None:
        raise Unsupported(f"branch to {operand.name}, past the last instruction")
    return known


def _branch(state: MachineState, guard: Array, negated: bool, target: int, fall: int) -> End:
    yes, no = (fall, target) if negated else (target, fall)
    batch, schedule, count_nonzero = state.batch, state.schedule, np.count_nonzero

    def end(active: Active) -> int:
        taken = guard if active.all else guard & active.mask
        count = int(count_nonzero(taken))
        if count == active.count:
            return yes
        if count == 0:
            return no
        live = batch.live_count
        base = schedule.base
        schedule.push(base + yes, Active(taken.copy() if active.all else taken, count, live))
        schedule.push(base + no, Active(active.mask & ~guard, active.count - count, live))
        return -1

    return end


def _recorded_branch(b: Binder, segment: Segment, guard: Array | None, negated: bool, target: int, fall: int) -> End:
    """Bind a branch that records its sides and the rounds of the loop that it repeats, if any."""
    paths = b.state.paths
    assert paths is not None
    loop = paths.loop(segment, target)
    if guard is None:

        def repeat(active: Active) -> int:
            if loop is not None and not loop.settled:
                loop.repeat(active.mask)
            return target

        return repeat
    sides, end = paths.branch(b.pc), _branch(b.state, guard, negated, target, fall)

    def run(active: Active) -> int:
        if not (sides.jumped and sides.fell) or (loop is not None and not loop.settled):
            jumps = active.mask & (~guard if negated else guard)
            sides.jumped = sides.jumped or bool(jumps.any())
            sides.fell = sides.fell or not (jumps | ~active.mask).all()
            if loop is not None:
                loop.repeat(jumps)
        return end(active)

    return run


def _guarded(state: MachineState, end: End, guard: Array | None, negated: bool, fall: int) -> End:
    if guard is None:
        return end
    batch, schedule = state.batch, state.schedule

    def run(active: Active) -> int:
        mask = active.mask & ~guard if negated else active.mask & guard
        count = int(np.count_nonzero(mask))
        if count == active.count:
            return end(active)
        if count == 0:
            return fall
        base = schedule.base
        rest = Active(active.mask & ~mask, active.count - count, batch.live_count)
        schedule.push(base + fall, rest)
        part = Active(mask, count, batch.live_count)
        batch.active = part
        following = end(part)
        if following >= 0:
            schedule.push(base + following, part)
        return -1

    return run


def _leave(state: MachineState, active: Active) -> None:
    """Remove lanes from the launch; barriers without a count may now be complete."""
    state.batch.leave(active.mask, active.count)
    state.barriers.recheck()
    if state.shared.lifetime is not None:
        state.shared.lifetime.leave(active)
    state.cluster_barrier.recheck()


def _exit(b: Binder, segment: Segment, i: Instruction, fall: int) -> End:
    state = b.state

    def end(active: Active) -> int:
        _leave(state, active)
        return -1

    return end


def _return(b: Binder, segment: Segment, i: Instruction, fall: int) -> End:
    state, batch, schedule, calls = b.state, b.state.batch, b.state.schedule, b.state.calls

    def end(active: Active) -> int:
        depth = schedule.depth
        if depth == 0:
            _leave(state, active)
            return -1
        inside = calls.inside.get(segment.routine.number)
        if inside is not None:
            inside[active.mask] = False
        targets = calls.returns[depth - 1][active.lanes]
        base = schedule.key(depth - 1, 0)
        for target in np.unique(targets):
            part = batch.restrict(active, targets == target)
            copy = calls.copies.get(int(target), {}).get(segment.routine.number)
            if copy is not None:
                state.params.copy(part.lanes, *copy)
            schedule.push(base + int(target), part)
        return -1

    return end


def _indexed(b: Binder, segment: Segment, i: Instruction, fall: int) -> End:
    """Bind ``brx.idx`` (9.7.12.4), a branch through a table."""
    batch, schedule = b.state.batch, b.state.schedule
    index = b.src(i.operands[0], "u32")
    operand = i.operands[1]
    names = segment.routine.function.branch_targets.get(operand.name) if isinstance(operand, Symbol) else None
    if names is None:
        raise Unsupported("brx.idx without a branch table is not supported")
    targets = np.array([_label(b, segment.routine, Symbol(name)) for name in names])

    def end(active: Active) -> int:
        chosen = np.minimum(
            index[active.lanes] if index.shape[0] > 1 else np.repeat(index, active.count), len(targets) - 1
        )
        wanted = targets[chosen]
        base = schedule.base
        for target in np.unique(wanted):
            part = batch.restrict(active, wanted == target)
            schedule.push(base + int(target), part)
        return -1

    return end


def _trap(b: Binder, segment: Segment, i: Instruction, fall: int) -> End:
    number, batch = b.pc, b.state.batch

    def end(active: Active) -> int:
        batch.report_lanes("trap", number, active.lanes)
        batch.stop()
        return -1

    return end


def _call(b: Binder, segment: Segment, i: Instruction, fall: int) -> End:
    """Bind direct and indirect calls (9.7.12.5), which copy arguments to the callee and results back on return."""
    state, batch = b.state, b.state.batch
    operands = list(i.operands)
    returns = operands.pop(0).items if isinstance(operands[0], Vector) else ()  # type: ignore[union-attr]
    callee = operands.pop(0)
    arguments = operands[0].items if operands and isinstance(operands[0], Vector) else ()
    if isinstance(callee, Symbol) and callee.name in batch.program.routine_of:
        return _enter(state, segment, batch.program.routine_of[callee.name], CallOperands(returns, arguments), fall)
    if isinstance(callee, Symbol):
        return bind_intrinsic(b, callee.name, CallOperands(returns, arguments), fall)
    if not isinstance(callee, Register):
        raise Unsupported(f"a call to {callee!r} is not supported")
    target, given = b.src(callee, "u64"), CallOperands(returns, arguments)
    ends: dict[int, End] = {}

    def end(active: Active) -> int:
        wanted = active.pick(target)
        for value in np.unique(wanted):
            routine = batch.program.routines[int(value)] if int(value) < len(batch.program.routines) else None
            if routine is None or routine.function.is_entry:
                batch.report_lanes(
                    "trap", segment.base, active.lanes, detail="The call's pointer does not point to a function"
                )
                batch.stop()
                return -1
            part = active if wanted.shape[0] == 1 else batch.restrict(active, wanted == value)
            if int(value) not in ends:
                ends[int(value)] = _enter(state, segment, routine, given, fall, indirect=True)
            ends[int(value)](part)
        return -1

    return end


def _enter(
    state: MachineState, segment: Segment, callee: Routine, given: CallOperands, fall: int, *, indirect: bool = False
) -> End:
    batch, schedule, calls, caller = state.batch, state.schedule, state.calls, segment.routine
    copies: list[tuple[int, int, int]] = []
    for operand, formal in zip(given.arguments, callee.function.params, strict=True):
        if not isinstance(operand, Symbol) or operand.name not in caller.params:
            raise Unsupported(f"call argument {operand!r} is not supported")
        copies.append((callee.params[formal.name], caller.params[operand.name], formal.size))
    for operand, formal in zip(given.returns, callee.function.returns, strict=True):
        if isinstance(operand, Symbol) and operand.name in caller.params:
            calls.copies.setdefault(fall, {})[callee.number] = (
                caller.params[operand.name], callee.params[formal.name], formal.size,
            )  # fmt: skip

    def end(active: Active) -> int:
        depth = schedule.depth
        if depth + 1 >= MAX_DEPTH:
            batch.report_lanes(
                "trap", segment.base, active.lanes, detail=f"Calls are nested more than {MAX_DEPTH - 1} deep"
            )
            batch.stop()
        if indirect:
            inside = calls.lanes_inside(callee.number)
            if inside[active.mask].any():
                raise batch.program.refuse(
                    batch.program.instructions[segment.base],
                    f"recursive call to {callee.function.name} is not simulated",
                )
            inside[active.mask] = True
        calls.returns_at(depth)[active.mask] = fall
        if state.paths is not None:
            state.paths.enter(callee, active.mask)
        for copy in copies:
            state.params.copy(active.lanes, *copy)
        schedule.push(schedule.key(depth + 1, callee.first_segment), active)
        return -1

    return end


def _barrier(b: Binder, segment: Segment, i: Instruction, fall: int) -> End:
    """Bind ``bar`` and ``barrier`` (9.7.13.1): sync, arrive and red, with barrier ids and thread counts."""
    operands = list(i.operands)
    if i.has("red"):
        result, operands = operands[0], operands[1:]
        source = operands.pop()
        if not isinstance(source, Register):
            raise Unsupported("bar.red with a constant operand is not supported")
        row = b.src(Register(source.name), "pred")
        kind = "popc" if i.has("popc") else "and" if i.has("and") else "or"
        out = b.file.row(*b.routine.slots[result.name][:2], "u32" if kind == "popc" else "pred")  # type: ignore[union-attr]
        reduction = (kind, row, source.negated, out)
    else:
        reduction = None
    identity = b.src(operands[0], "u32")
    count = b.src(operands[1], "u32") if len(operands) > 1 else None
    constant = int(operands[0].value) if isinstance(operands[0], Immediate) else None
    arrive = i.has("arrive")
    plain = constant == 0 and count is None and not arrive and reduction is None
    call = BarrierCall(b.pc, identity, count, not arrive, reduction, plain)
    return partial(b.state.barriers.arrive, call=call, follow=fall)


def _cluster_barrier(b: Binder, i: Instruction, fall: int) -> End:
    """Bind ``barrier.cluster`` (9.7.13.3): arrive, with or without release, and wait, which always acquires."""
    barrier, aligned = b.state.cluster_barrier, i.has("aligned")
    if i.has("arrive"):
        releases = not i.has("relaxed")
        return partial(barrier.arrive, number=b.pc, follow=fall, releases=releases, aligned=aligned)
    if i.has("wait"):
        return partial(barrier.wait, number=b.pc, follow=fall, aligned=aligned)
    raise Unsupported(f"{i.name}")


def _member_masks(active: Active, named: Array) -> Array | None:
    """Return the lanes in each active lane's mask as bits; None if all lanes of each warp name each other."""
    here = np.repeat(ballot(active.mask), 32)[active.lanes]
    members = np.broadcast_to(active.pick(named), here.shape)
    return None if bool((members & here == here).all()) else members.astype(np.int64)


def _warp_barrier(b: Binder, segment: Segment, i: Instruction, fall: int) -> End:
    order = b.state.order
    named = b.src(i.operands[0], "u32") if member_mask_key(i) is not None else None

    def end(active: Active) -> int:
        if order is not None:
            order.warp_barrier(active, _member_masks(active, named) if named is not None else None)
        return fall

    return end
