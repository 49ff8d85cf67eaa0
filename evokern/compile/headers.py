"""Include paths: CUDA headers from wheels, CUDA_HOME or /usr/local/cuda, and evokern's replacements of host headers.

NVRTC comes without headers. NVIDIA's wheels contain the CUDA headers, with one folder per wheel for CUDA 12 and one
common folder for CUDA 13. The host's ``stdint.h`` and similar headers contain inline assembly and host functions, so
``shims/`` holds short replacements that declare only what device code uses.
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
"""Folder of the replacement headers; it is last on the include path, so that real CUDA headers take precedence."""

OVERRIDES = SHIMS / "evokern_first"
"""Folder of replacements for toolkit headers that NVRTC cannot read; it is first on the include path."""

PRELUDE = SHIMS / "evokern_prelude.h"
"""Header included before every file, with names that nvcc always provides: INFINITY, uint32_t, std::min."""

TOOLKIT_HEADER = "cuda_runtime_api.h"
"""Header that identifies the include folder of a CUDA toolkit."""

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
    """Status of one CUDA header."""

    name: str
    """The header as written in ``#include``."""
    purpose: str
    """Features that need the header."""
    path: Path | None
    """Path of the header; None if it is missing."""
    remedy: str
    """Command that installs a missing header; empty otherwise."""
    optional: bool
    """Whether most kernels do not need the header."""


def cuda_major() -> int:
    """Return the CUDA major version of the installed CuPy wheel; 13 without one."""
    for major in (13, 12):
        try:
            metadata.version(f"cupy-cuda{major}x")
        except metadata.PackageNotFoundError:
            continue
        return major
    return 13


def include_directories(major: int | None = None, environ: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """Return the include directories for NVRTC, the replacement headers last.

    A toolkit's directory is added only if the wheels lack a header, because headers of two releases do not mix.

    Args:
        major: CUDA major version; None for CuPy's version.
        environ: environment with CUDA_HOME and CUDA_PATH; None for the environment of the process.

    Returns:
        Existing directories in search order.
    """
    major = major or cuda_major()
    found = _existing(_wheel_directories(major))
    if any(_locate(header.name, found) is None for header in _HEADERS if not header.optional):
        found += _existing(_toolkit_directories(major, os.environ if environ is None else environ))
    return (*dict.fromkeys(found), SHIMS)


def nvrtc_options(major: int | None = None) -> tuple[str, ...]:
    """Return the NVRTC options for ordinary CUDA files written for nvcc.

    ``-default-device`` compiles unmarked helper functions as device code, which NVRTC rejects by default. The
    pre-included file declares the names that nvcc always provides. Neither option changes line numbers.
    """
    directories = (f"--include-path={directory}" for directory in (OVERRIDES, *include_directories(major)))
    return (*directories, f"--pre-include={PRELUDE}", "-default-device")


def header_report(major: int | None = None, environ: Mapping[str, str] | None = None) -> list[HeaderStatus]:
    """Return the path or the installation command of each CUDA header.

    Args:
        major: CUDA major version; None for CuPy's version.
        environ: environment with CUDA_HOME and CUDA_PATH; None for the environment of the process.
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
    """Return the command that installs a header's wheel; the names of CUDA 12 wheels contain the version."""
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
    """Return the folders of the namespace package ``nvidia``, which NVIDIA's wheels share."""
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
    """Return the major version of a toolkit: CUDART_VERSION is 1000 * major + 10 * minor."""
    try:
        text = (include / TOOLKIT_HEADER).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", text)
    return int(match.group(1)) // 1000 if match else None


def _existing(directories: Iterator[Path]) -> list[Path]:
    return [directory for directory in directories if directory.is_dir()]


def _locate(name: str, directories: list[Path]) -> Path | None:
    return next((d / name for d in directories if is_file(d / name)), None)
