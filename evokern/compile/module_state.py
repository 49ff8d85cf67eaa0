"""State that a call could leave behind for the next call: writable module variables and the device heap.

The symbol table of the machine code lists the variables, and its call graph shows the use of the heap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from evokern.compile.elf import data_symbols, name_matches, runtime_calls, symbols_named, variable_name
from evokern.compile.fingerprint import variables_in_use
from evokern.compile.records import ModuleVariable, ProblemBuild, Program
from evokern.declaration.as_data.words import call_words
from evokern.declaration.kernel import Kernel, Problem
from evokern.declaration.tensor import State
from evokern.errors import KernelError, suggestion

HEAP = frozenset({"malloc", "free"})
"""Functions of the device heap; `new` and `delete` call them (CUDA Programming Guide, dynamic global memory
allocation)."""
_LISTED = 4
"""Maximum number of variables named in a message."""


def module_variables(kernel: Kernel, program: Program, filled: set[str]) -> tuple[ModuleVariable, ...]:
    """Return the module variables that keep values between calls; empty if the program's code uses none.

    Args:
        kernel: kernel with the declared state.
        program: machine code and PTX.
        filled: names of `__constant__` arrays that are filled before each call.

    Raises:
        KernelError: the declared size of a variable differs from its actual size.
    """
    listed = [
        one for one in data_symbols(program.cubin)
        if one.kind != "constant" or not any(symbols_named(name, [one.name]) for name in filled)
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
    """Return the declared state of a module's variables by symbol; each call starts with this state.

    Args:
        state: the declared state.
        sizes: symbol → size of the module's variables in bytes.

    Raises:
        KernelError: the declared size of a variable differs from its actual size.
    """
    found: dict[str, int | bytes] = {}
    # A name with more namespaces is more specific and overrides others.
    for name, value in sorted(state.items(), key=lambda item: item[0].count("::")):
        for symbol in symbols_named(name, sizes):
            if isinstance(value, bytes) and len(value) != sizes[symbol]:
                raise KernelError(
                    f"state declares {len(value)} bytes for {name!r}, but the variable has {sizes[symbol]}; "
                    f"declare all bytes of the variable, or one byte that fills the variable: state={{{name!r}: 0}}"
                )
            found[symbol] = value
    return found


def state_evidence(
    names: Iterable[str], problem: Problem, declared: State, known: Iterable[str] = (), *, foreign: bool = False
) -> dict[str, Any]:
    """Return the evidence against a candidate that changed undeclared module variables.

    Args:
        names: names of the changed variables in the source.
        problem: the problem that was run.
        declared: the kernel's declared state.
        known: all variables of the module, used to detect a misspelled name in `declared`.
        foreign: whether the candidate is an external source, whose variables `kernel.py` must declare.
    """
    changed, there = sorted(set(names)), list(known)
    listed = ", ".join(changed[:_LISTED]) + (f" and {len(changed) - _LISTED} more" if len(changed) > _LISTED else "")
    short = changed[0].rpartition("::")[2]
    who = " (an external source cannot declare it)" if foreign else ""
    message = (
        f"a call changes {listed} in the module's memory, so the next call sees the changed value. Calls must not "
        f"depend on earlier calls: declare the initial value in kernel.py{who} with state={{{short!r}: 0}} or its "
        "initial bytes (restored before every call and timed with it), or use a workspace"
    )
    message = call_words(message, problem)
    strangers = [name for name in declared if there and not any(name_matches(name, one) for one in there)]
    if strangers and (guess := suggestion(strangers[0], there)).startswith("did you mean"):
        message += f". The module has no variable {strangers[0]!r}, which `state` declares: {guess}"
    return {"check": "state", "message": f"{message} (at {problem})", "problem": problem.key, "variables": changed}


def heap_evidence(build: ProblemBuild, program: Program) -> dict[str, Any] | None:
    """Return the evidence against a launch that uses the device heap, or None."""
    for launch in build.launches:
        calls = sorted(runtime_calls(program.cubin, program.lowered[launch.entry]) & HEAP)
        if calls:
            return heap_fault(launch.entry, calls, build.problem)
    return None


def heap_fault(entry: str, calls: Iterable[str], problem: Problem, where: str = "") -> dict[str, Any]:
    """Return the evidence against a kernel that uses the device heap.

    Args:
        entry: the kernel.
        calls: heap functions that it calls.
        problem: the problem that it was compiled for.
        where: clause with the source line, if known.
    """
    message = (
        f"{entry} calls {' and '.join(calls)}{where}: data on the device heap outlives a call and cannot be restored "
        "(new and delete also use the heap); use a workspace, which is a tensor with role='workspace'"
    )
    return {"check": "state", "message": message, "problem": problem.key}
