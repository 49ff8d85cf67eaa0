"""Calls of NVRTC through CuPy; they need neither a GPU nor a CUDA toolkit.

NVRTC crashes on some sources and takes its process down; use `evokern.compile.isolated` to survive such crashes.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evokern.compile.elf import constant_symbols
from evokern.compile.headers import OVERRIDES, TOOLKIT_HEADER, nvrtc_options
from evokern.compile.records import CompileFailure, EntryUse, Program, entry_uses, failure
from evokern.errors import DeviceError, InternalError
from evokern.files import is_file

STANDARD = "--std=c++17"
"""Language standard of device code; the kernel's options can override it."""
PRELOAD = "evokern.compile.nvrtc:base_options"
"""Function that a fork server calls to preload CuPy, the compiler library and the include paths."""


@functools.cache
def _nvrtc() -> Any:
    try:
        from cupy.cuda import nvrtc

        nvrtc.getVersion()
    except (ImportError, RuntimeError, OSError) as error:
        raise DeviceError(
            f"the CUDA compiler library (NVRTC) cannot be loaded: {error}; "
            "install NVRTC with `pip install evokern[cuda13]` (or cuda12 for a driver before 580)"
        ) from error
    return nvrtc


def compiler_version() -> str:
    """Return NVRTC's version, for example `nvrtc 13.0`.

    Raises:
        DeviceError: CuPy or NVRTC cannot be loaded; the message says what to install.
    """
    major, minor = _nvrtc().getVersion()
    return f"nvrtc {major}.{minor}"


@functools.cache
def base_options() -> tuple[str, ...]:
    """Return the options of every compile: include paths, prelude, and no NVRTC cache.

    Since version 12.9, in a process that uses a GPU, NVRTC returns a source compiled before from a cache of the driver.
    That result lacks the assembler's report of registers.
    """
    own_cache = ("--no-cache",) if _nvrtc().getVersion() >= (12, 9) else ()
    return (*own_cache, *nvrtc_options())


def all_options(options: Sequence[str], architecture: str, line_info: bool) -> tuple[str, ...]:
    """Return all options of a compile, in the order passed to NVRTC."""
    target = "--gpu-architecture=" + architecture
    standard = () if any(option.lstrip("-").startswith("std=") for option in options) else (STANDARD,)
    verbose = ("--ptxas-options=-v",) if architecture.startswith("sm_") else ()
    before, after = _include_folders(options)
    first = f"--include-path={OVERRIDES}"
    known = [option for option in base_options() if option != first]
    line = ("-lineinfo",) if line_info else ()
    return (target, *standard, *verbose, *line, first, *before, *known, *after)


def _include_folders(options: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the include folders that precede CUDA's own, as in nvcc, and the other options.

    The folder of a CUDA toolkit comes later, because headers of two releases do not mix.
    """
    folders = [option for option in options if option.startswith("--include-path=")]
    own = [option for option in folders if not is_file(Path(option.partition("=")[2]) / TOOLKIT_HEADER)]
    return own, [option for option in options if option not in own]


def compile_program(
    source: str,
    name: str,
    headers: Mapping[str, str],
    options: Sequence[str],
    entries: Sequence[str],
    architecture: str,
    line_info: bool = False,
) -> Program | CompileFailure:
    """Compile one translation unit.

    Args:
        source: source text.
        name: file name for messages.
        headers: texts of the kernel's headers, by the name used in `#include`.
        options: macros and the kernel's own options.
        entries: entry points as the kernel names them, including template instantiations.
        architecture: `sm_90` produces machine code and PTX, `compute_90` only PTX.
        line_info: whether to include line information, which does not change the instructions.

    Returns:
        The program, or the failure.

    Raises:
        DeviceError: the compiler cannot be loaded.
    """
    nvrtc = _nvrtc()
    began = time.perf_counter()
    texts, names = (tuple(part.encode() for part in parts) for parts in (headers.values(), headers))
    program = nvrtc.createProgram(source, name, texts, names)
    try:
        try:
            for entry in entries:
                nvrtc.addNameExpression(program, entry)
            nvrtc.compileProgram(program, all_options(options, architecture, line_info))
            log = _text(nvrtc.getProgramLog(program))
            lowered = {entry: _text(nvrtc.getLoweredName(program, entry)) for entry in entries}
            cubin = bytes(nvrtc.getCUBIN(program)) if architecture.startswith("sm_") else b""
            ptx = _text(nvrtc.getPTX(program))
        except nvrtc.NVRTCError as error:
            seconds = time.perf_counter() - began
            return failure(_text(nvrtc.getProgramLog(program)), f"{type(error).__name__}: {error}", seconds)
    finally:
        nvrtc.destroyProgram(program)
    uses = entry_uses(log)
    if cubin and not set(lowered.values()) <= set(uses):
        raise InternalError(f"the assembler reported nothing for {sorted(set(lowered.values()) - set(uses))}: {log}")
    return Program(
        cubin=cubin,
        lowered=lowered,
        uses={entry: uses.get(symbol, EntryUse(0)) for entry, symbol in lowered.items()},
        log=log,
        ptx=ptx,
        constants=tuple(constant_symbols(ptx)),
        seconds=time.perf_counter() - began,
    )


def virtual_architecture(compute_capability: tuple[int, int], suffix: str = "") -> str:
    """Return the compiler's name of a PTX target, for example `compute_90a`."""
    return f"compute_{compute_capability[0]}{compute_capability[1]}{suffix}"


def _text(value: str | bytes) -> str:
    return (value.decode() if isinstance(value, bytes) else value).replace("\0", "")
