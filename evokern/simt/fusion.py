"""Running several instructions of a kind as one.

Unrolled loops give runs of equal instructions on different registers: 64 multiply-adds, 32 matrix products, 16 loads
from one base address. Where they do not depend on each other, the machine gathers their registers, does the work once
on rows that are as many times longer, and scatters the results. That spreads the fixed cost of NumPy calls, which at a
few hundred lanes is most of the cost. An instruction may be delayed past others that neither touch its registers nor,
for loads, write memory.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from evokern.simt.arrays import DTYPES, Action, Array, lowest_bits
from evokern.simt.instruction_set import Operation
from evokern.simt.operations.matrix_ops import bind_products
from evokern.simt.operations.memory_ops import access_type
from evokern.simt.operations.table import binding_of
from evokern.simt.registers import Binder
from evokern.simt.segments import row_class
from evokern.simt.syntax import TYPE_BYTES, Address, Immediate, Instruction, Operand, Register, Vector
from evokern.simt.touches import Touch

if TYPE_CHECKING:
    from evokern.simt.machine import Machine
    from evokern.simt.program import Program
    from evokern.simt.segments import Segment, Unit

GROUP_ELEMENTS = 32768
"""Most lanes times instructions of a group: beyond, its rows leave the caches."""
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
Plan = list[int | tuple[int, ...]]
"""Positions within a segment, in the order of execution; a tuple runs as one."""


def worthwhile(instruction: Instruction, operation: Operation) -> bool:
    """Say whether an instruction costs enough for gathering its registers to pay."""
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


def kind_of_operands(instruction: Instruction, unit: Unit) -> tuple[object, ...] | None:
    """Return what must agree for instructions to run as one, None when an operand does not allow it."""
    parts: list[object] = []
    if instruction.opcode == "ld":
        address = instruction.operands[1]
        if (
            not isinstance(address, Address)
            or not isinstance(address.base, Register)
            or unit.type_of(address.base.name) is None
        ):
            return None
        targets = instruction.operands[0]
        names = targets.items if isinstance(targets, Vector) else (targets,)
        classes = {row_class(unit.type_of(item.name) or "pred") for item in names if isinstance(item, Register)}
        if len(classes) != 1 or "pred" in classes or not all(isinstance(item, Register) for item in names):
            return None
        return (row_class(unit.type_of(address.base.name) or "pred"), *classes)
    if instruction.opcode == "mma":
        return ()
    for operand in instruction.operands:
        if isinstance(operand, Immediate):
            parts.append(operand)
        elif isinstance(operand, Register) and unit.type_of(operand.name) is not None and not operand.negated:
            parts.append(row_class(unit.type_of(operand.name) or "pred"))
        else:
            return None
    return tuple(parts)


_LOADS = frozenset({"ld", "ldu", "ldmatrix"})


def orders_memory(instruction: Instruction, operation: Operation) -> str:
    """Return the part of an instruction in the order of memory: ``load``, ``sync`` (nothing passes it) or none."""
    if instruction.has("volatile", "relaxed", "acquire"):
        return "sync"
    if instruction.opcode in _LOADS:
        return "load"
    if operation.kind == "effect" and instruction.opcode not in ("mma", "movmatrix", "activemask"):
        return "sync"
    clock = (instruction.opcode == "mov" and "%clock" in instruction.text) or "%globaltimer" in instruction.text
    return "sync" if clock else ""


def plan(program: Program, segment: Segment, touches: list[Touch]) -> Plan:
    """Return the order in which to run a segment's instructions, with groups formed.

    What is cheap runs as soon as it can; of what is costly, the largest set of equal instructions that are ready runs
    next.

    Args:
        program: the program.
        segment: one of its segments; a control instruction at its end is left out.
        touches: registers read and written by each of its instructions.
    """
    size = segment.stop - segment.start - (1 if segment.control else 0)
    instructions = program.instructions[segment.base : segment.base + size]
    operations = program.operations[segment.base : segment.base + size]
    keys: list[object] = []
    for instruction, operation in zip(instructions, operations, strict=True):
        shape = kind_of_operands(instruction, segment.unit) if worthwhile(instruction, operation) else None
        keys.append(None if shape is None else (instruction.name, shape))
    if sum(key is not None for key in keys) < 2:
        return list(range(size))
    followers, open_ = _dependencies(instructions, operations, touches)
    singles = [position for position in range(size) if not open_[position] and keys[position] is None]
    groups: dict[object, list[int]] = {}
    for position in range(size):
        if not open_[position] and keys[position] is not None:
            groups.setdefault(keys[position], []).append(position)
    order: Plan = []

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
    instructions: list[Instruction], operations: list[Operation], touches: list[Touch]
) -> tuple[list[list[int]], list[int]]:
    """Return who follows each instruction, and how many each one waits for."""
    followers: list[list[int]] = [[] for _ in instructions]
    waits = [0] * len(instructions)
    written: dict[object, int] = {}
    read: dict[object, list[int]] = {}
    synced = -1
    loads: list[int] = []
    for position, (instruction, operation) in enumerate(zip(instructions, operations, strict=True)):
        reads, writes = touches[position]
        before = {written[name] for name in reads if name in written}
        for name in writes:
            if name in written:
                before.add(written[name])
            before.update(read.get(name, ()))
        part = orders_memory(instruction, operation)
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


def split(order: Plan, most: int) -> Plan:
    """Cut groups down to at most so many instructions."""
    result: Plan = []
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


class GroupBinder(Binder):
    """Hands an operation the gathered rows of several instructions, as if they were more lanes."""

    def __init__(self, machine: Machine, unit: Unit, instructions: list[Instruction], results: int) -> None:
        super().__init__(machine)
        self.unit = unit
        self.lanes = machine.lanes * len(instructions)
        self.kinds: dict[str, str] = {}
        self.buffers: dict[str, Array] = {}
        self.rows: dict[str, Array] = {}
        self._spare: dict[tuple[str, int], Array] = {}
        first = instructions[0]
        operands: list[Operand] = []
        for place, operand in enumerate(first.operands):
            if isinstance(operand, Immediate):
                operands.append(operand)
                continue
            name = f"#{place}"
            slots = [unit.slots[item.operands[place].name] for item in instructions]  # type: ignore[union-attr]
            kind = slots[0][0]
            self.kinds[name] = kind
            self.rows[name] = np.array([slot[1] for slot in slots])
            self.buffers[name] = np.empty(self.lanes, machine.registers.bits[kind].dtype)
            operands.append(Register(name))
        self.results = [f"#{place}" for place in range(results)]
        self.instruction = Instruction(
            first.opcode, first.modifiers, tuple(operands), None, first.location, first.text, first.ptx_line
        )

    def src(self, operand: Operand, type_name: str) -> Array:
        """Return a gathered operand."""
        if isinstance(operand, Register):
            return self._row(self.buffers[operand.name], type_name)
        return super().src(operand, type_name)

    def dst(self, operand: Operand, type_name: str) -> Array:
        """Return the row that will be scattered."""
        assert isinstance(operand, Register)
        return self._row(self.buffers[operand.name], type_name)

    def _row(self, buffer: Array, type_name: str) -> Array:
        dtype = np.dtype(DTYPES[type_name])
        if dtype.itemsize == buffer.itemsize:
            return buffer.view(dtype)
        view: Array = buffer.view(dtype)[:: buffer.itemsize // dtype.itemsize]
        return view

    def wide(self, operand: Operand, type_name: str) -> str:
        """Return the type that fills the register."""
        assert isinstance(operand, Register)
        kind = self.kinds[operand.name]
        if kind != "pred" and {"16": 2, "32": 4, "64": 8}[kind] > TYPE_BYTES[type_name]:
            return f"{'s' if type_name[0] == 's' else 'u'}{kind}"
        return type_name

    def temporary(self, type_name: str, index: int = 0) -> Array:
        """Return a row for intermediate values."""
        key = (row_class(type_name), index)
        if key not in self._spare:
            self._spare[key] = np.empty(self.lanes, self.machine.registers.bits[key[0]].dtype)
        return self._spare[key].view(DTYPES[type_name])


def bind_group(
    machine: Machine, segment: Segment, positions: tuple[int, ...], single: Callable[[int], Action]
) -> Action:
    """Bind instructions to run as one.

    Args:
        machine: the machine.
        segment: their segment.
        positions: their places in it.
        single: binds one of them alone, for when not all lanes are active.
    """
    program, unit = machine.program, segment.unit
    numbers = [segment.base + position for position in positions]
    instructions = [program.instructions[number] for number in numbers]
    if instructions[0].opcode == "mma":
        binder = Binder(machine)
        binder.start(unit, numbers[0], False)
        binder.begin_effect()
        return bind_products(instructions, binder)
    if instructions[0].opcode == "ld":
        return _bind_loads(machine, unit, numbers, instructions, [single(position) for position in positions])
    operation = program.operations[numbers[0]]
    group = GroupBinder(machine, unit, instructions, operation.results)
    action = binding_of(operation)(group.instruction, group)
    return _scattered(machine, group, action)


def _scattered(machine: Machine, group: GroupBinder, action: Action) -> Action:
    lanes = machine.lanes
    count = group.lanes // lanes
    files = machine.registers.bits
    gathers = []
    for name, rows in group.rows.items():
        if name not in group.results:
            source = group.buffers[name].reshape(count, lanes)
            same = bool((rows == rows[0]).all())
            gathers.append((files[group.kinds[name]], rows, source, same))
    outs = [
        (files[group.kinds[name]], group.rows[name], group.buffers[name].reshape(count, lanes))
        for name in group.results
    ]

    def run() -> None:
        for file, rows, buffer, same in gathers:
            if same:
                buffer[...] = file[rows[0]]
            else:
                file.take(rows, 0, buffer, "clip")
        action()
        active = machine.active
        for file, rows, buffer in outs:
            if active.full:
                file[rows] = buffer
            else:
                file[rows[:, None], active.lanes] = buffer[:, active.lanes]

    return run


def _bind_loads(
    machine: Machine, unit: Unit, numbers: list[int], instructions: list[Instruction], alone: list[Action]
) -> Action:
    """Loads from shared memory through addresses in registers; anything unusual is left to single loads."""
    kind, count = access_type(instructions[0])
    size = TYPE_BYTES[kind]
    width = size * count
    shift = width.bit_length() - 1
    addresses = [item.operands[1] for item in instructions]
    sources = [unit.slots[address.base.name] for address in addresses]  # type: ignore[union-attr]
    offsets = np.array([address.offset for address in addresses], np.int64)[:, None]  # type: ignore[union-attr]
    pointers = machine.registers.bits[sources[0][0]]
    # Several loads often go through one register: its row serves them all.
    places = np.array([source[1] for source in sources[: 1 if len(set(sources)) == 1 else None]])
    element = np.dtype(DTYPES[kind if kind[0] in "us" else f"u{8 * size}"])
    targets = [
        item.operands[0].items if isinstance(item.operands[0], Vector) else (item.operands[0],) for item in instructions
    ]
    slots = [unit.slots[item.name] for items in targets for item in items]  # type: ignore[union-attr]
    file = machine.registers.bits[slots[0][0]]
    plain = file.itemsize >= size
    rows = np.array([slot[1] for slot in slots])
    tags = np.array([number << 10 for number in numbers], np.uint64)[:, None]
    shared = machine.shared

    def run() -> None:
        active = machine.active
        if plain and active.all:
            base = pointers.take(places, 0)
            part = shared.part(active, base)
            where = base.astype(np.int64) + offsets
            few = where[:, part.chosen]
            sound = (
                lowest_bits(few) & (width - 1) == 0 and int(few.min()) >= 0 and int(few.max()) <= shared.size - width
            )
            index = (where + shared.base) >> shift
            if sound and (shared.shadow is None or shared.shadow.read_together(index, width, tags, part)):
                if machine.events is not None:
                    for place, number in enumerate(numbers):
                        machine.events.shared(number, active, index[place], width)
                found = shared.view(width).take(index, mode="clip").view(element)
                if count > 1:
                    found = found.reshape(len(numbers), -1, count).transpose(0, 2, 1).reshape(rows.size, -1)
                file[rows] = found
                return
        for action in alone:
            action()

    return run
