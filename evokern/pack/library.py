"""Build of the C++ library of a package with the host's compiler, against torch's stable ABI."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from evokern.doctor import host_compiler
from evokern.errors import InternalError

OLDEST_TORCH = (2, 10)
"""Oldest version of torch whose stable ABI the library needs; the number of `TORCH_TARGET_VERSION`."""
BUILD_S = 300.0
"""Time limit of a build in seconds."""


@dataclass(frozen=True)
class Library:
    """A built library, or the reason why there is none."""

    data: bytes | None
    """Content of `operator.so`."""
    text: str
    """Compiler and version of torch, or why the library was not built."""


def build_library(sources: Mapping[str, str]) -> Library:
    """Build the library of a package.

    Args:
        sources: file name → text; `operator.cpp` is compiled.

    Raises:
        InternalError: the compiler rejects the source, which is a bug in evokern.
    """
    import torch

    compiler = host_compiler()
    if compiler is None:
        return Library(None, "there is no C++ compiler (c++, g++ or clang++) on PATH")
    version = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    include, libraries = (Path(torch.__file__).parent / name for name in ("include", "lib"))
    if version < OLDEST_TORCH or not (include / "torch/csrc/stable/library.h").is_file():
        return Library(None, f"torch {torch.__version__} has no stable ABI; use torch 2.10 or later")
    with tempfile.TemporaryDirectory(prefix="evokern-pack-") as folder:
        for name, text in sources.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        # The output must not depend on folders, so that the same database gives the same bytes.
        options = [
            "-O2", "-std=c++17", "-fPIC", "-shared", "-fvisibility=hidden", "-w", f"-I{include}",
            f"-DTORCH_TARGET_VERSION=0x{OLDEST_TORCH[0]:02x}{OLDEST_TORCH[1]:02x}000000000000",
            f"-ffile-prefix-map={include}=torch", f"-ffile-prefix-map={folder}=.", "-Wl,--build-id=none", "-s",
            "operator.cpp", "-o", "operator.so", f"-L{libraries}", "-Wl,--no-as-needed", "-l:libtorch_cpu.so",
        ]  # fmt: skip
        try:
            done = subprocess.run(
                [compiler, *options], cwd=folder, capture_output=True, text=True, errors="replace", timeout=BUILD_S
            )
        except subprocess.TimeoutExpired:
            return Library(None, f"{compiler} did not finish in {BUILD_S:.0f} s")
        if done.returncode:
            lines = done.stderr.splitlines()
            first = next((line for line in lines if "error:" in line), "no message")
            raise InternalError(f"{compiler} rejects the operator's library: {first}\n{done.stderr[:2000]}")
        return Library(
            (Path(folder) / "operator.so").read_bytes(), f"{compiler_name(compiler)}, torch {torch.__version__}"
        )


def compiler_name(compiler: str) -> str:
    """Return the first line of the compiler's version."""
    shown = subprocess.run([compiler, "--version"], capture_output=True, text=True, errors="replace")
    return shown.stdout.partition("\n")[0].strip() or compiler
