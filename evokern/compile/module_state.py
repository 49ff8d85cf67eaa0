"""What a call may leave for the next one: the module's writable variables, and the device heap.

Which variables there are stands in the machine code's symbol table, what runs on the heap in its call graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from evokern.compile.elf import data_symbols, runtime_calls
from evokern.compile.fingerprint import variables_in_use
from evokern.compile.records import ModuleVariable, ProblemBuild, Program
from evokern.compile.symbols import named, stands_for, variable_name
from evokern.declaration.kernel import Kernel, Problem
from evokern.declaration.state import State
from evokern.errors import KernelError, nearest

HEAP = frozenset({"malloc", "free"})
"""Functions of the runtime's heap on the device; `new` and `delete` call them (CUDA Programming Guide, dynamic global
memory allocation)."""
_LISTED = 4
"""Variables that a message names."""


def module_variables(kernel: Kernel, program: Program, filled: set[str]) -> tuple[ModuleVariable, ...]:
    """Return the variables of a program that keep what a call writes; none where its code refers to none.

    Args:
        kernel: whose state is declared.
        program: its machine code and PTX.
        filled: names of `__constant__` arrays that are filled before each call.

    Raises:
        KernelError: a variable is declared with another number of bytes than it has.
    """
    listed = [
        one for one in data_symbols(program.cubin)
        if one.kind != "constant" or not any(named(name, [one.name]) for name in filled)
    ]  # fmt: skip
    in_use = variables_in_use(program.ptx) if listed else {}
    used = {one.name: one.size for one in listed if one.name in in_use}
    if not used:
        return ()
    restored = restored_state(kernel.state, used)
    return tuple(
        ModuleVariable(
            one.name, variable_name(one.name), one.offset, one.size, one.kind == "zeroed", one.name in used,
            restored.get(one.name),
        )
        for one in listed
    )  # fmt: skip


def restored_state(state: State, sizes: Mapping[str, int]) -> dict[str, int | bytes]:
    """Return what is restored before each call, by symbol: the declared state of the variables that there are.

    Args:
        state: the declared state.
        sizes: symbol → bytes of the module's variables.

    Raises:
        KernelError: a variable is declared with another number of bytes than it has.
    """
    found: dict[str, int | bytes] = {}
    # The name with the most namespaces is the most certain one.
    for name, value in sorted(state.items(), key=lambda item: item[0].count("::")):
        for symbol in named(name, sizes):
            if isinstance(value, bytes) and len(value) != sizes[symbol]:
                raise KernelError(
                    f"state gives {len(value)} bytes for {name!r}, and the variable has "
                    f"{sizes[symbol]}; give as many, or the byte that fills it: state={{{name!r}: 0}}"
                )
            found[symbol] = value
    return found


def state_evidence(
    names: Iterable[str], problem: Problem, declared: State, known: Iterable[str] = (), *, foreign: bool = False
) -> dict[str, Any]:
    """Return the evidence against a candidate that left variables changed which the kernel does not declare.

    Args:
        names: the variables, as the source has them.
        problem: the problem that was run.
        declared: the kernel's declared state.
        known: all variables of the module, so that a wrong name among the declared ones is told.
        foreign: whether it is a foreign source, whose variables the kernel's declaration has to name.
    """
    changed, there = sorted(set(names)), list(known)
    listed = ", ".join(changed[:_LISTED]) + (f" and {len(changed) - _LISTED} more" if len(changed) > _LISTED else "")
    short = changed[0].rpartition("::")[2]
    who = ", since a source from outside declares nothing" if foreign else ""
    message = (
        f"a call leaves {listed} changed in the module's memory, where the next one finds it. A call must not depend "
        f"on those before it: declare what it begins with in kernel.py{who}, state={{{short!r}: 0}} or its initial "
        "bytes, which is restored before every call and timed with it; or take a workspace"
    )
    strangers = [name for name in declared if there and not any(stands_for(name, one) for one in there)]
    if strangers and (guess := nearest(strangers[0], there)).startswith("did you mean"):
        message += f". The declared {strangers[0]!r} is no variable of this module: {guess}"
    return {"check": "state", "message": f"{message} (at {problem})", "problem": problem.key, "variables": changed}


def heap_evidence(build: ProblemBuild, program: Program) -> dict[str, Any] | None:
    """Return the evidence against launches that allocate on the device's heap, None where none does."""
    for launch in build.launches:
        calls = sorted(runtime_calls(program.cubin, program.lowered[launch.entry]) & HEAP)
        if calls:
            return heap_fault(launch.entry, calls, build.problem)
    return None


def heap_fault(entry: str, calls: Iterable[str], problem: Problem, where: str = "") -> dict[str, Any]:
    """Return the evidence against a kernel that uses the device's heap.

    Args:
        entry: the kernel.
        calls: functions of the heap that it calls.
        problem: the problem that it was compiled for.
        where: the line, where it is known.
    """
    message = (
        f"{entry} calls {' and '.join(calls)}{where}: what lies on the device's heap outlives a call, and nothing can "
        "restore it (new and delete use it too); take a workspace, which is a tensor with role='workspace'"
    )
    return {"check": "state", "message": message, "problem": problem.key}
