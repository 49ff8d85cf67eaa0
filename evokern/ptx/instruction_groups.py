"""Execution order of a segment's instructions, with groups of instructions that run as one.

Unrolled loops contain many equal instructions on different registers, such as 64 multiply-adds, 32 matrix products, or
16 loads from one base address. If they are independent, the machine gathers their registers, does the work once on the
longer rows, and scatters the results (`evokern.simt.group_binding`). An instruction may be delayed past others if they
do not use its registers and, for a load, do not write memory.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from evokern.ptx.instruction_set import Operation
from evokern.ptx.register_accesses import RegisterAccess
from evokern.ptx.segments import Routine, row_class
from evokern.ptx.syntax import Address, Immediate, Instruction, Register, Vector

_COSTLY = frozenset(
    {
        "fma",
        "div",
        "rcp",
        "sqrt",
        "rsqrt",
        "sin",
        "cos",
        "lg2",
        "ex2",
        "tanh",
        "cvt",
        "prmt",
        "lop3",
        "bfe",
        "bfi",
        "bfind",
        "popc",
        "clz",
        "brev",
        "shf",
        "dp4a",
        "dp2a",
        "rem",
        "sad",
        "mul24",
        "mad24",
        "set",
    }
)
IssueOrder = list[int | tuple[int, ...]]
"""Positions of a segment's instructions in execution order; the positions in a tuple run as one instruction."""


def pays_to_group(instruction: Instruction, operation: Operation) -> bool:
    """Return whether an instruction is so expensive that gathering its registers for a group saves time."""
    if instruction.guard is not None or instruction.has("cc"):
        return False
    if operation.kind == "effect":
        if instruction.opcode == "mma":
            return True
        return (
            instruction.opcode == "ld"
            and "shared" in instruction.modifiers
            and not instruction.has("volatile", "relaxed", "acquire")
        )
    if operation.kind != "lanes":
        return False
    if instruction.opcode == "cvt":
        return not all(word[0] in "us" for word in instruction.modifiers if word[-1].isdigit())
    if instruction.opcode in _COSTLY:
        return True
    if operation.family in ("half", "float") and instruction.opcode in ("min", "max", "add", "sub", "mul"):
        return (
            operation.family == "half"
            or instruction.opcode in ("min", "max")
            or instruction.has("ftz", "sat", "rz", "rm", "rp")
        )
    return instruction.opcode == "mul" and instruction.has("hi")


def kind_of_operands(instruction: Instruction, routine: Routine) -> tuple[object, ...] | None:
    """Return the operand properties that grouped instructions must share; None if grouping is impossible."""
    parts: list[object] = []
    if instruction.opcode == "ld":
        address = instruction.operands[1]
        if (
            not isinstance(address, Address)
            or not isinstance(address.base, Register)
            or routine.type_of(address.base.name) is None
        ):
            return None
        targets = instruction.operands[0]
        names = targets.items if isinstance(targets, Vector) else (targets,)
        classes = {row_class(routine.type_of(item.name) or "pred") for item in names if isinstance(item, Register)}
        if len(classes) != 1 or "pred" in classes or not all(isinstance(item, Register) for item in names):
            return None
        return (row_class(routine.type_of(address.base.name) or "pred"), *classes)
    if instruction.opcode == "mma":
        return ()
    for operand in instruction.operands:
        if isinstance(operand, Immediate):
            parts.append(operand)
        elif isinstance(operand, Register) and routine.type_of(operand.name) is not None and not operand.negated:
            parts.append(row_class(routine.type_of(operand.name) or "pred"))
        else:
            return None
    return tuple(parts)


_LOADS = frozenset({"ld", "ldu", "ldmatrix"})


def orders_memory(instruction: Instruction, operation: Operation) -> str:
    """Return how an instruction restricts the order of accesses: ``load``, ``sync`` (no access may pass it) or none."""
    if instruction.has("volatile", "relaxed", "acquire"):
        return "sync"
    if instruction.opcode in _LOADS:
        return "load"
    if operation.kind == "effect" and instruction.opcode not in ("mma", "movmatrix", "activemask"):
        return "sync"
    clock = (instruction.opcode == "mov" and "%clock" in instruction.text) or "%globaltimer" in instruction.text
    return "sync" if clock else ""


def plan(
    routine: Routine,
    instructions: Sequence[Instruction],
    operations: Sequence[Operation],
    accesses: Sequence[RegisterAccess],
    in_place: frozenset[int] = frozenset(),
) -> IssueOrder:
    """Return the execution order of a segment's instructions, with groups.

    Cheap instructions run as soon as possible. Otherwise, the largest set of equal expensive instructions that are
    ready runs next.

    Args:
        routine: the function.
        instructions: instructions of one segment, without a control instruction at its end.
        operations: table entry of each instruction.
        accesses: registers read and written by each instruction.
        in_place: positions of instructions that no synchronisation may pass; loads among them run alone.
    """
    size = len(instructions)
    keys: list[object] = []
    for position, (instruction, operation) in enumerate(zip(instructions, operations, strict=True)):
        alone = not pays_to_group(instruction, operation) or (position in in_place and instruction.opcode in _LOADS)
        shape = None if alone else kind_of_operands(instruction, routine)
        keys.append(None if shape is None else (instruction.name, shape))
    if sum(key is not None for key in keys) < 2:
        return list(range(size))
    followers, open_ = _dependencies(instructions, operations, accesses, in_place)
    singles = [position for position in range(size) if not open_[position] and keys[position] is None]
    groups: dict[object, list[int]] = {}
    for position in range(size):
        if not open_[position] and keys[position] is not None:
            groups.setdefault(keys[position], []).append(position)
    order: IssueOrder = []

    def finish(position: int) -> None:
        for follower in followers[position]:
            open_[follower] -= 1
            if not open_[follower]:
                if keys[follower] is None:
                    heapq.heappush(singles, follower)
                else:
                    groups.setdefault(keys[follower], []).append(follower)

    while singles or groups:
        if singles:
            position = heapq.heappop(singles)
            order.append(position)
            finish(position)
            continue
        key = max(groups, key=lambda item: (len(groups[item]), -groups[item][0]))
        members = sorted(groups.pop(key))
        order.append(tuple(members) if len(members) > 1 else members[0])
        for position in members:
            finish(position)
    return order


def _dependencies(
    instructions: Sequence[Instruction],
    operations: Sequence[Operation],
    accesses: Sequence[RegisterAccess],
    in_place: frozenset[int],
) -> tuple[list[list[int]], list[int]]:
    """Return the successors of each instruction, and the number of instructions for which each one waits."""
    followers: list[list[int]] = [[] for _ in instructions]
    waits = [0] * len(instructions)
    written: dict[object, int] = {}
    read: dict[object, list[int]] = {}
    synced = -1
    loads: list[int] = []
    for position, (instruction, operation) in enumerate(zip(instructions, operations, strict=True)):
        reads, writes = accesses[position]
        before = {written[name] for name in reads if name in written}
        for name in writes:
            if name in written:
                before.add(written[name])
            before.update(read.get(name, ()))
        part = orders_memory(instruction, operation) or ("load" if position in in_place else "")
        if part:
            if synced >= 0:
                before.add(synced)
            if part == "sync":
                before.update(loads)
                loads, synced = [], position
            else:
                loads.append(position)
        before.discard(position)
        for name in reads:
            read.setdefault(name, []).append(position)
        for name in writes:
            written[name] = position
            read[name] = []
        waits[position] = len(before)
        for item in before:
            followers[item].append(position)
    return followers, waits


def split(order: IssueOrder, most: int) -> IssueOrder:
    """Split groups so that each has at most `most` instructions."""
    result: IssueOrder = []
    for item in order:
        if isinstance(item, int):
            result.append(item)
        elif most < 2:
            result.extend(item)
        else:
            for start in range(0, len(item), most):
                part = item[start : start + most]
                result.append(part if len(part) > 1 else part[0])
    return result
