"""Parser of the compiler's messages: the first error, and the resources that ptxas reports for each entry."""

from __future__ import annotations

import re

from evokern.compile.records import CompileFailure, EntryUse
from evokern.declaration.kernel import AtMost

_ERROR = re.compile(
    r"^(?P<file>[^\n()]+)\((?P<line>\d+)\): (?:catastrophic |fatal |internal )?error:? ?(?P<text>.*)$", re.M
)
_PTXAS = re.compile(r"^(?:ptxas|nvrtc)[^:\n]*(?:error|fatal)\s*:?\s*(?P<text>.*)$", re.M)
_SHARED = re.compile(r"uses too much shared data \((0x[0-9a-f]+) bytes, (0x[0-9a-f]+) max\)")
NO_ENTRY = "the source has no entry point"
"""Start of the message about a missing entry point; its name follows in quotes."""
_ABSENT = re.compile(r"Error in parsing name expression.*?\" ?([^\"]+)\"")
_NAME_MAP = "__nv_name_map"
"""File that NVRTC generates to look up entry points; its errors are consequences of errors in the source."""
LAUNCHES = "device-side kernel launch could not be processed"
"""Part of NVRTC's error for a launch in device code."""
_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_STATIC_SHARED = re.compile(r"(\d+) bytes smem")
_SERIALISED = re.compile(r"wgmma\.mma_async instructions are serialized due to .* in (?:the )?function '([^']+)'")
"""Advisories C7510 to C7514 of ptxas: it inserts a wait after every warpgroup product."""
_LATER = ("for this GPU architecture", 'no member "this_cluster"')
"""Parts of messages about features that only a later architecture has."""


def needs_later_architecture(message: str) -> bool:
    """Return whether a compile failed because of a later architecture's feature, for example thread-block clusters."""
    return any(part in message for part in _LATER)


def entry_uses(log: str) -> dict[str, EntryUse]:
    """Return the resources of each entry point, by symbol, from the log of `--ptxas-options=-v`."""
    uses: dict[str, EntryUse] = {}
    serialised = frozenset(_SERIALISED.findall(log))
    parts = _ENTRY.split(log)
    for symbol, text in zip(parts[1::2], parts[2::2], strict=True):
        registers = _REGISTERS.search(text)
        if registers is None:
            continue
        # The line before "Used n registers" describes the entry; properties of called functions follow.
        spills = _SPILLS.search(text)
        stack, stores, loads = (int(group) for group in spills.groups()) if spills else (0, 0, 0)
        shared = _STATIC_SHARED.search(text, registers.end(), text.find("\n", registers.end()) % (len(text) + 1))
        static_shared = int(shared[1]) if shared else 0
        uses[symbol] = EntryUse(int(registers[1]), stores + loads, stack, static_shared, symbol in serialised)
    return uses


def failure(log: str, fallback: str, seconds: float) -> CompileFailure:
    """Return the reason for a failed compile from its log.

    Args:
        log: all messages of the compiler.
        fallback: message if the log contains no error, for example the compiler's result code.
        seconds: duration of the failed compile.
    """
    over = _SHARED.search(log)
    if over:
        needed, available = int(over[1], 16), int(over[2], 16)
        text = f"static shared memory: needs {needed} bytes, limit {available}; use dynamic shared memory for more"
        need = AtMost(needed, available, "bytes")
        return CompileFailure(log, text, constraint="static_shared_memory", need=need, seconds=seconds)
    errors = list(_ERROR.finditer(log))
    error = next((found for found in errors if found["file"].strip() != _NAME_MAP), None)
    if error:
        file, line, text = error["file"].strip(), int(error["line"]), error["text"].strip()
        if LAUNCHES in text:
            text = "a kernel launches another one (dynamic parallelism), but evokern has no device runtime"
        return CompileFailure(log, f"{file}:{line}: {text}", file, line, seconds=seconds)
    absent = _ABSENT.search(log)
    if absent:
        why = next((found["text"].strip() for found in errors if not _ABSENT.match(found["text"].strip())), "")
        name = re.sub(r" ?([<>:]) ?", r"\1", absent[1])  # the compiler separates the tokens with blanks
        if "overloaded function" in why:
            return CompileFailure(log, f"kernel {name!r} has the name of another function; rename it", seconds=seconds)
        text = f"{NO_ENTRY} {name!r}"
        return CompileFailure(log, f"{text}: {why}" if why else text, seconds=seconds)
    assembler = _PTXAS.search(log)
    text = assembler["text"] if assembler else next((x.strip() for x in log.splitlines() if x.strip()), fallback)
    return CompileFailure(log or fallback, text, seconds=seconds)
