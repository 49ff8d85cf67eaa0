"""Binding of several instructions of one kind as a single step (`evokern.ptx.instruction_groups` forms the groups).

The rows of their registers are gathered, the work is done once on the longer rows, and the results are scattered. The
instructions thus share the fixed cost of NumPy calls, which dominates for a few hundred lanes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from evokern.ptx.operands import access_type
from evokern.ptx.segments import Routine, Segment, row_class
from evokern.ptx.syntax import TYPE_BYTES, Immediate, Instruction, Operand, Register, Vector
from evokern.simt.arrays import DTYPES, Action, Array, lowest_bits
from evokern.simt.binder import Binder
from evokern.simt.operations.matrix_ops import bind_products
from evokern.simt.operations.memory_ops import is_expected_value_load
from evokern.simt.operations.table import binding_of
from evokern.simt.sanitizer.access_keys import NUMBER
from evokern.simt.state import MachineState

GROUP_ELEMENTS = 32768
"""Maximum number of lanes times instructions in a group; longer rows do not fit in the caches."""


class GroupBinder(Binder):
    """Provider of the gathered rows of several instructions, which appear as one instruction with more lanes."""

    def __init__(self, state: MachineState, routine: Routine, instructions: list[Instruction], results: int) -> None:
        super().__init__(state)
        batch = state.batch
        self.routine = routine
        self.lanes = batch.lanes * len(instructions)
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
            slots = [routine.slots[item.operands[place].name] for item in instructions]  # type: ignore[union-attr]
            kind = slots[0][0]
            self.kinds[name] = kind
            self.rows[name] = np.array([slot[1] for slot in slots])
            self.buffers[name] = np.empty(self.lanes, batch.registers.bits[kind].dtype)
            operands.append(Register(name))
        self.results = [f"#{place}" for place in range(results)]
        self.instruction = Instruction(
            first.opcode, first.modifiers, tuple(operands), None, first.location, first.text, first.ptx_line
        )

    def src(self, operand: Operand, type_name: str) -> Array:
        """Return the gathered rows of an operand."""
        if isinstance(operand, Register):
            return self._row(self.buffers[operand.name], type_name)
        return super().src(operand, type_name)

    def dst(self, operand: Operand, type_name: str) -> Array:
        """Return a row for results, to be scattered after the operation."""
        assert isinstance(operand, Register)
        return self._row(self.buffers[operand.name], type_name)

    def _row(self, buffer: Array, type_name: str) -> Array:
        dtype = np.dtype(DTYPES[type_name])
        if dtype.itemsize == buffer.itemsize:
            return buffer.view(dtype)
        view: Array = buffer.view(dtype)[:: buffer.itemsize // dtype.itemsize]
        return view

    def wide(self, operand: Operand, type_name: str) -> str:
        """Return the type with the same width as the register."""
        assert isinstance(operand, Register)
        kind = self.kinds[operand.name]
        if kind != "pred" and {"16": 2, "32": 4, "64": 8}[kind] > TYPE_BYTES[type_name]:
            return f"{'s' if type_name[0] == 's' else 'u'}{kind}"
        return type_name

    def temporary(self, type_name: str, index: int = 0) -> Array:
        """Return a row for intermediate values."""
        key = (row_class(type_name), index)
        if key not in self._spare:
            self._spare[key] = np.empty(self.lanes, self.file.bits[key[0]].dtype)
        return self._spare[key].view(DTYPES[type_name])


def bind_group(
    state: MachineState, segment: Segment, positions: tuple[int, ...], single: Callable[[int], Action]
) -> Action:
    """Bind several instructions to run as one.

    Args:
        state: the machine's state.
        segment: segment that contains the instructions.
        positions: positions of the instructions in the segment.
        single: function that binds one instruction alone, for partial masks.
    """
    program, routine = state.batch.program, segment.routine
    numbers = [segment.base + position for position in positions]
    instructions = [program.instructions[number] for number in numbers]
    if instructions[0].opcode == "mma":
        binder = Binder(state)
        binder.start(routine, numbers[0], False)
        binder.begin_effect()
        return bind_products(instructions, binder)
    if instructions[0].opcode == "ld":
        if any(is_expected_value_load(routine, instruction) for instruction in instructions):
            return _one_by_one([single(position) for position in positions])
        return _bind_loads(state, routine, numbers, instructions, [single(position) for position in positions])
    operation = program.operations[numbers[0]]
    group = GroupBinder(state, routine, instructions, operation.results)
    action = binding_of(operation)(group.instruction, group)
    return _scattered(state, group, action)


def _one_by_one(actions: list[Action]) -> Action:
    def run() -> None:
        for action in actions:
            action()

    return run


def _scattered(state: MachineState, group: GroupBinder, action: Action) -> Action:
    batch = state.batch
    lanes = batch.lanes
    count = group.lanes // lanes
    files = batch.registers.bits
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
        active = batch.active
        for file, rows, buffer in outs:
            if active.full:
                file[rows] = buffer
            else:
                file[rows[:, None], active.lanes] = buffer[:, active.lanes]

    return run


def _bind_loads(
    state: MachineState, routine: Routine, numbers: list[int], instructions: list[Instruction], alone: list[Action]
) -> Action:
    """Bind loads from shared memory with addresses in registers; unusual cases are bound as single loads."""
    batch, events, shared = state.batch, state.events, state.shared
    kind, count = access_type(instructions[0])
    size = TYPE_BYTES[kind]
    width = size * count
    shift = width.bit_length() - 1
    addresses = [item.operands[1] for item in instructions]
    sources = [routine.slots[address.base.name] for address in addresses]  # type: ignore[union-attr]
    offsets = np.array([address.offset for address in addresses], np.int64)[:, None]  # type: ignore[union-attr]
    pointers = batch.registers.bits[sources[0][0]]
    # Several loads often use one address register, so they share its row.
    places = np.array([source[1] for source in sources[: 1 if len(set(sources)) == 1 else None]])
    element = np.dtype(DTYPES[kind if kind[0] in "us" else f"u{8 * size}"])
    targets = [
        item.operands[0].items if isinstance(item.operands[0], Vector) else (item.operands[0],) for item in instructions
    ]
    slots = [routine.slots[item.name] for items in targets for item in items]  # type: ignore[union-attr]
    file = batch.registers.bits[slots[0][0]]
    plain = file.itemsize >= size
    rows = np.array([slot[1] for slot in slots])
    tags = NUMBER.pack_all(np.array(numbers, np.uint64))[:, None]

    def run() -> None:
        active = batch.active
        if plain and active.all:
            base = pointers.take(places, 0)
            leaders = shared.leader_lanes(active, base)
            where = base.astype(np.int64) + offsets
            if shared.ranks > 1:
                where -= shared.window
            few = where[:, leaders.chosen]
            sound = (
                lowest_bits(few) & (width - 1) == 0 and int(few.min()) >= 0 and int(few.max()) <= shared.size - width
            )
            index = (where + shared.base) >> shift
            if sound and (shared.shadow is None or shared.shadow.read_group(index, width, tags, leaders)):
                if events is not None:
                    for place, number in enumerate(numbers):
                        events.shared(number, active, index[place], width)
                found = shared.view(width).take(index, mode="clip").view(element)
                if count > 1:
                    found = found.reshape(len(numbers), -1, count).transpose(0, 2, 1).reshape(rows.size, -1)
                file[rows] = found
                return
        for action in alone:
            action()

    return run
