"""Where the CUDA headers are: wheels from PyPI, CUDA_HOME, /usr/local/cuda; and evokern's stand-ins for host headers.

NVRTC comes with no headers at all. NVIDIA's wheels bring its own ones, laid out differently for CUDA 12 (one folder
a wheel) and CUDA 13 (one folder for all). The host's ``stdint.h`` and the like would drag in inline assembly and
host functions, so ``shims/`` holds short ones that declare what device code uses.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from evokern.files import is_file

SHIMS = Path(__file__).parent / "shims"
"""The folder of header stand-ins; goes last on the include path, so that a real CUDA header wins."""

FIRST = SHIMS / "evokern_first"
"""The folder of stand-ins for headers of the toolkit that NVRTC cannot read; goes first on the include path."""

PRELUDE = SHIMS / "evokern_prelude.h"
"""What nvcc includes ahead of every file and NVRTC does not: INFINITY, uint32_t, std::min."""

_DEFAULT_TOOLKIT = Path("/usr/local/cuda")
_WHEEL_FOLDERS = {
    13: ("cu13/include", "cu13/include/cccl"),
    12: ("cuda_runtime/include", "cuda_nvcc/include", "cuda_cccl/include", "cuda_nvrtc/include", "curand/include"),
}


@dataclass(frozen=True, slots=True)
class _Header:
    name: str
    purpose: str
    wheel: str
    optional: bool = False


_HEADERS = (
    _Header("cuda_fp16.h", "half precision", "nvidia-cuda-runtime"),
    _Header("cuda_bf16.h", "bfloat16", "nvidia-cuda-runtime"),
    _Header("cuda_fp8.h", "8-bit floating point", "nvidia-cuda-runtime"),
    _Header("cuda_pipeline.h", "asynchronous copies", "nvidia-cuda-runtime"),
    _Header("mma.h", "tensor cores (wmma)", "nvidia-cuda-runtime"),
    _Header("crt/mma.h", "tensor cores (wmma), inner part", "nvidia-cuda-crt"),
    _Header("cooperative_groups.h", "cooperative groups", "nvidia-cuda-runtime"),
    _Header("cuda/std/type_traits", "the C++ library for devices (cuda::std, cuda::barrier)", "nvidia-cuda-cccl"),
    _Header("cub/block/block_reduce.cuh", "block-wide primitives (CUB)", "nvidia-cuda-cccl"),
    _Header("curand_kernel.h", "random numbers in kernels (cuRAND)", "nvidia-curand", optional=True),
)


@dataclass(frozen=True, slots=True)
class HeaderStatus:
    """Whether one CUDA header is there."""

    name: str
    """The header as written in ``#include``."""
    purpose: str
    """What device code needs it for."""
    path: Path | None
    """Where it was found; None when it is missing."""
    remedy: str
    """What to install when it is missing; empty otherwise."""
    optional: bool
    """Whether most kernels do without it."""


def cuda_major() -> int:
    """Return CUDA's major version that the installed CuPy is built for; 13 where there is no CuPy wheel."""
    for major in (13, 12):
        try:
            metadata.version(f"cupy-cuda{major}x")
        except metadata.PackageNotFoundError:
            continue
        return major
    return 13


def include_directories(major: int | None = None, environ: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """Find the include directories for NVRTC, the header stand-ins last.

    A toolkit's directory is added only where the wheels lack something, because headers of two releases do not mix.

    Args:
        major: CUDA's major version; None for the one that CuPy is built for.
        environ: where CUDA_HOME and CUDA_PATH are looked up; None for the process's environment.

    Returns:
        Existing directories in the order in which they are searched.
    """
    major = major or cuda_major()
    found = _existing(_wheel_directories(major))
    if any(_locate(header.name, found) is None for header in _HEADERS if not header.optional):
        found += _existing(_toolkit_directories(major, os.environ if environ is None else environ))
    return (*dict.fromkeys(found), SHIMS)


def nvrtc_options(major: int | None = None) -> tuple[str, ...]:
    """Return the options with which NVRTC reads CUDA files as people have them.

    ``-default-device`` makes unmarked helpers device code, which NVRTC refuses otherwise; the pre-included file brings
    the names that nvcc always has. Neither moves a line.
    """
    directories = (f"--include-path={directory}" for directory in (FIRST, *include_directories(major)))
    return (*directories, f"--pre-include={PRELUDE}", "-default-device")


def header_report(major: int | None = None, environ: Mapping[str, str] | None = None) -> list[HeaderStatus]:
    """Say for each CUDA header where it is, or what to install to have it.

    Args:
        major: CUDA's major version; None for the one that CuPy is built for.
        environ: where CUDA_HOME and CUDA_PATH are looked up; None for the process's environment.
    """
    major = major or cuda_major()
    directories = list(include_directories(major, environ))
    report = []
    for header in _HEADERS:
        path = _locate(header.name, directories)
        remedy = "" if path else _remedy(header, major)
        report.append(HeaderStatus(header.name, header.purpose, path, remedy, header.optional))
    return report


def _remedy(header: _Header, major: int) -> str:
    """The command that installs a header's wheel; CUDA 12's wheels carry the version in their names."""
    if major >= 13:
        wheel = f"'{header.wheel}>={major},<{major + 1}'" if header.wheel != "nvidia-curand" else header.wheel
    else:
        # CUDA 12 ships the inner headers (crt/) with the compiler.
        wheel = {"nvidia-cuda-crt": "nvidia-cuda-nvcc"}.get(header.wheel, header.wheel) + f"-cu{major}"
    return f"pip install {wheel}, or set CUDA_HOME to a CUDA {major} toolkit"


def _wheel_directories(major: int) -> Iterator[Path]:
    for root in _wheel_roots():
        for folder in _WHEEL_FOLDERS.get(major, ()):
            yield root / folder


def _wheel_roots() -> list[Path]:
    """The folders named ``nvidia`` of all site-packages: NVIDIA's wheels share a namespace package."""
    spec = importlib.util.find_spec("nvidia")
    return [Path(root) for root in spec.submodule_search_locations or ()] if spec else []


def _toolkit_directories(major: int, environ: Mapping[str, str]) -> Iterator[Path]:
    for root in (environ.get("CUDA_HOME"), environ.get("CUDA_PATH"), _DEFAULT_TOOLKIT):
        include = Path(root) / "include" if root else None
        if include and include.is_dir() and _toolkit_major(include) == major:
            yield include
            yield include / "cccl"
            return


def _toolkit_major(include: Path) -> int | None:
    """CUDA's major version of a toolkit: CUDART_VERSION is 1000 times it plus ten times the minor one."""
    try:
        text = (include / "cuda_runtime_api.h").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", text)
    return int(match.group(1)) // 1000 if match else None


def _existing(directories: Iterator[Path]) -> list[Path]:
    return [directory for directory in directories if directory.is_dir()]


def _locate(name: str, directories: list[Path]) -> Path | None:
    return next((d / name for d in directories if is_file(d / name)), None)
