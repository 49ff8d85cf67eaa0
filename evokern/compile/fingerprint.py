"""Identity of a candidate: its machine code and launches, independent of file, macro and symbol names."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from evokern.compile.elf import Section, sections
from evokern.compile.records import ModuleVariable, ProblemBuild, Program
from evokern.declaration.kernel import Launch, Scalar, Tensor, TileMap

_OWN_SECTIONS = (".text.", ".nv.info.", ".nv.constant0.", ".nv.shared.")
_DATA_SECTIONS = (".nv.global", ".nv.constant1", ".nv.constant3", ".nv.constant4", ".rel.nv.const", ".rela.nv.const")
"""Sections of module variables, which the digest skips: the compiler keeps unused variables, so only variables that the
PTX refers to are added."""
_VARIABLE = re.compile(
    r"^(?:\.(?:visible|extern|weak|common)\s+)*\.(?:global|const)\s[^;(]*?([A-Za-z_$][\w$]*)(?:\[\d*\])*(?:\s*=[^;]*)?;",
    re.MULTILINE,
)


def code_digest(program: Program, entries: Sequence[str]) -> str:
    """Return a digest of the code that a program's entries execute.

    The digest includes each entry's instructions, registers, barriers, parameters and shared memory. It excludes the
    symbol, so that template instantiations with the same code are equal. It also includes functions that were not
    inlined, and module variables that the code refers to. It excludes notes, symbol tables and debug sections, which
    hold names, lines and compiler options.

    Args:
        program: program compiled without line information.
        entries: the launched entry points, in order.
    """
    found = list(sections(program.cubin))
    symbols = {program.lowered[entry]: f"entry {index}" for index, entry in enumerate(entries)}
    others = set(program.lowered.values()) - set(symbols)
    state = hashlib.sha256(repr([program.uses[entry] for entry in entries]).encode())
    shared: list[bytes] = []
    for section in found:
        role, symbol = _split(section.name)
        if symbol in symbols:
            state.update(f"{symbols[symbol]} {role}".encode() + _content(section))
        elif symbol in others or section.name.startswith(_DATA_SECTIONS):
            continue
        elif section.allocated or section.name.startswith((".rel.text", ".rela.text")):
            shared.append(role.encode() + _content(section))
    for part in sorted(shared):
        state.update(part)
    for declaration in variables_in_use(program.ptx).values():
        state.update(declaration.encode())
    return state.hexdigest()


@functools.lru_cache(maxsize=4)  # several callers pass the same text
def variables_in_use(ptx: str) -> Mapping[str, str]:
    """Return the declarations of the module variables that code or another used variable refers to, by symbol."""
    declared = {match.group(1): match.group(0) for match in _VARIABLE.finditer(ptx)}
    used: set[str] = set()
    waiting = [_VARIABLE.sub("", ptx)]
    while waiting:
        words = set(re.findall(r"[\w$]+", waiting.pop()))
        fresh = (words & declared.keys()) - used
        used |= fresh
        waiting += [declared[name] for name in fresh]
    return {name: declared[name] for name in sorted(used)}


def _split(name: str) -> tuple[str, str]:
    for prefix in _OWN_SECTIONS:
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return name if not name.startswith((".rel.text", ".rela.text")) else ".rel.text", ""


def _content(section: Section) -> bytes:
    return f" {section.kind} {section.flags} {len(section.data)} ".encode() + section.data


def fingerprint(
    programs: Sequence[Program],
    builds: Sequence[ProblemBuild],
    tensors: Sequence[Mapping[str, Tensor]],
    variables: Sequence[Sequence[ModuleVariable]] = (),
) -> str:
    """Return the identity of a candidate over all problems of a study.

    Args:
        programs: the distinct programs.
        builds: the build of each problem.
        tensors: the workload's buffers for each problem; only constants and buffers passed to launches count.
        variables: the module variables of each program; only those restored before a call count.
    """
    state = hashlib.sha256()
    for build, buffers in zip(builds, tensors, strict=True):
        entries = tuple(dict.fromkeys(launch.entry for launch in build.launches))
        state.update(code_digest(programs[build.program], entries).encode())
        for launch in build.launches:
            state.update(repr(_launch(launch, entries, buffers)).encode())
        constants = [(name, _buffer(tensor)) for name, tensor in buffers.items() if tensor.role == "constant"]
        if constants:
            state.update(repr(constants).encode())
        watched = variables[build.program] if variables else ()
        restored = [(one.name, one.restored) for one in watched if one.restored is not None]
        if restored:
            state.update(repr(restored).encode())
    return state.hexdigest()


def _launch(launch: Launch, entries: tuple[str, ...], buffers: Mapping[str, Tensor]) -> tuple[Any, ...]:
    arguments = tuple(_argument(argument, buffers) for argument in launch.args)
    window = launch.l2_window and (launch.l2_window.tensor, launch.l2_window.hit_ratio)
    return (
        entries.index(launch.entry), launch.grid, launch.block, launch.shared_bytes, arguments, launch.cluster, window,
    )  # fmt: skip


def _argument(argument: str | Scalar | TileMap, buffers: Mapping[str, Tensor]) -> tuple[Any, ...]:
    if isinstance(argument, Scalar):
        return argument.dtype, argument.value
    if isinstance(argument, TileMap):
        return "map", argument.described, _argument(argument.tensor, buffers)
    return argument, _buffer(buffers.get(argument))


def _buffer(tensor: Tensor | None) -> tuple[Any, ...] | None:
    return None if tensor is None else (tensor.dtype, tensor.shape, tensor.role, tensor.initial)
