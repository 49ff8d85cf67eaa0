"""Memory layout of a program's variables in call parameters and in local, shared, global and constant memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evokern.ptx.operands import symbols_of
from evokern.ptx.segments import Routine
from evokern.ptx.syntax import Instruction, Variable


@dataclass(slots=True)
class LaneAreas:
    """Layout of each lane's private memory; functions are placed one after another."""

    param_bytes: int = 0
    """Bytes of call parameters."""
    local_bytes: int = 0
    """Bytes of local memory."""

    def place(self, routine: Routine) -> None:
        """Assign offsets to the call parameters and local variables of a function."""
        function = routine.function
        formals = [] if function.is_entry else [*function.params, *function.returns]
        for variable in [*formals, *(item for item in function.locals.values() if item.space == "param")]:
            self.param_bytes = -(-self.param_bytes // 16) * 16
            routine.params[variable.name] = self.param_bytes
            self.param_bytes += max(variable.size, 1)
        for variable in function.locals.values():
            if variable.space == "local":
                align = max(variable.align, 16)
                self.local_bytes = -(-self.local_bytes // align) * align
                routine.depot[variable.name] = self.local_bytes
                self.local_bytes += variable.size


def used_symbols(instructions: Sequence[Instruction]) -> set[str]:
    """Return the symbols in the operands of instructions."""
    return {name for item in instructions for operand in item.operands for name in symbols_of(operand)}


def shared_layout(
    variables: Mapping[str, Variable], routines: Sequence[Routine], used: set[str]
) -> tuple[dict[str, tuple[int, int]], int]:
    """Return (offset, size) of each shared variable, and the start of dynamic shared memory.

    Args:
        variables: variables of the module.
        routines: the functions; their own variables follow the module's.
        used: names that occur in the code; other module variables take no space.
    """
    found = [item for item in variables.values() if item.space == "shared" and item.name in used]
    for routine in routines:
        found += [item for item in routine.function.locals.values() if item.space == "shared"]
    layout: dict[str, tuple[int, int]] = {}
    static = 0
    for variable in found:
        if not variable.extern:
            static = -(-static // variable.align) * variable.align
            layout[variable.name] = (static, variable.size)
            static += variable.size
    for variable in found:
        if variable.extern:
            layout[variable.name] = (-(-static // max(variable.align, 16)) * max(variable.align, 16), 0)
    return layout, static


def data_variables(variables: Mapping[str, Variable], names: set[str]) -> list[Variable]:
    """Return the global and constant variables among the names, and all variables that their initialisers point to."""
    wanted = [name for name in names if name in variables]
    found: dict[str, Variable] = {}
    while wanted:
        name = wanted.pop()
        variable = variables.get(name)
        if name in found or variable is None or variable.space not in ("global", "const"):
            continue
        found[name] = variable
        wanted.extend(symbol for _, symbol, _, _ in variable.pointers)
    return [variable for name, variable in variables.items() if name in found]
