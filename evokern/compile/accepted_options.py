"""Test of compiler options with NVRTC, because options of nvcc reach evokern from other tools."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from evokern.compile.isolated import compile_program
from evokern.compile.records import CompileFailure

_ARCHITECTURE = re.compile(r"-{1,2}(?:arch|gpu-architecture)\b")


def split_options(options: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the options that NVRTC accepts, and the others; an option and its value may be two words.

    An option for the architecture counts as one of the others, because evokern sets it for each chip.
    """
    kept: list[str] = []
    dropped: list[str] = []
    waiting = list(options)
    while waiting:
        words = [waiting.pop(0)]
        while waiting and (not waiting[0].startswith("-") or (len(words) == 1 and _passes_on(words[0]))):
            words.append(waiting.pop(0))
        if _accepts(words):
            kept += words
        else:
            dropped.append(" ".join(words))
    return tuple(kept), tuple(dropped)


def _passes_on(option: str) -> bool:
    """Return whether an option passes the next word to another tool, as `-Xcompiler -fopenmp` does."""
    return option.startswith("-X") and "=" not in option


def _accepts(words: Sequence[str]) -> bool:
    if _ARCHITECTURE.match(words[0]):
        return False
    built = compile_program("", "options.cu", {}, words, (), "compute_80")
    return not (isinstance(built, CompileFailure) and built.message.startswith("nvrtc: error:"))
