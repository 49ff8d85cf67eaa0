"""Checks of the installation: GPU, driver, libraries, headers and tools, with remedies for missing components.

The checks are independent and never raise exceptions, so a broken CuPy does not hide a missing header. Code that could
crash the process (a compiler, a driver library) runs in a subprocess.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from evokern.compile.cache import default_directory
from evokern.hardware.driver import Driver, driver_version, probe

Status = Literal["ok", "missing", "optional"]
"""State of a component. `missing`: evokern needs it; `optional`: it is absent, so only some features do not work."""


@dataclass(frozen=True)
class Check:
    """Result of one check."""

    name: str
    """Name of the component."""
    status: Status
    """State of the component: present, missing, or absent but optional."""
    found: str
    """Description of the component with its versions, or of the problem."""
    remedy: str = ""
    """Remedy; empty if nothing is missing."""


def diagnose() -> Iterator[Check]:
    """Yield the results of all checks, quick checks first."""
    driver = probe()
    yield Check("python", "ok", f"{platform.python_version()} ({sys.executable})")
    yield _gpu(driver)
    yield from _packages(driver)
    yield _nvrtc()
    yield _headers()
    yield _tool("profiler", "ncu", "to profile kernels on a GPU, install the CUDA toolkit or Nsight Compute")
    yield _tool("nvcc", "nvcc", "to build exported programs, install the CUDA toolkit")
    yield _host_compiler()
    directory = default_directory()
    yield from _peers()
    yield _folder("cache", directory) if directory else Check("cache", "optional", "disabled by EVOKERN_CACHE=off")
    yield _folder("state", Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "evokern")


def _gpu(driver: Driver) -> Check:
    if driver.gpus:
        names = "; ".join(
            f"cuda:{gpu.index} {gpu.model} (sm_{gpu.compute_capability[0]}{gpu.compute_capability[1]}, "
            f"{gpu.memory_bytes / 2**30:.0f} GiB)"
            for gpu in driver.gpus
        )
        version = f"driver {driver_version()} for CUDA {_dotted(driver)}".replace("  ", " ")
        if driver.problem:
            return Check("gpu", "missing", f"{names}; {version}", "install an NVIDIA driver for CUDA 12 or 13")
        return Check("gpu", "ok", f"{names}; {version}")
    return Check(
        "gpu",
        "optional",
        driver.problem,
        "measurements need an NVIDIA GPU with its driver; without one, searches run on a simulated chip "
        "(--device sim:l4)",
    )


def _dotted(driver: Driver) -> str:
    return ".".join(map(str, driver.cuda_version or ()))


def _packages(driver: Driver) -> Iterator[Check]:
    extra = driver.cuda_extra or "cuda13"
    install = f"pip install 'evokern[{extra}]'"
    cupy = [name for name in ("cupy-cuda13x", "cupy-cuda12x", "cupy") if _version(name)]
    if len(cupy) > 1:
        remedy = f"keep only one: pip uninstall {' '.join(cupy)}, then {install}"
        yield Check("cupy", "missing", f"conflicting packages: {', '.join(cupy)}", remedy)
    elif not cupy:
        yield Check("cupy", "missing", "not installed", install)
    elif driver.cuda_extra == "cuda12" and cupy[0] == "cupy-cuda13x":
        remedy = f"pip uninstall {cupy[0]}, then {install}"
        found = f"{cupy[0]} needs a driver for CUDA 13, but the driver supports CUDA {_dotted(driver)}"
        yield Check("cupy", "missing", found, remedy)
    else:
        yield Check("cupy", "ok", f"{cupy[0]} {_version(cupy[0])}")
    yield _package("torch", "torch", "missing", "pip install torch")
    yield _package("nvml", "nvidia-ml-py", "missing" if driver.gpus else "optional", install)
    yield _package("cuda-bindings", "cuda-bindings", "missing" if driver.gpus else "optional", install)
    yield _package("optuna", "optuna", "missing", "pip install 'optuna>=5,<6'")


PEERS = {
    "flash-attn-4": ("flash_attn.cute.interface", "flash-attn-4"),
    "flash-attn": ("flash_attn.flash_attn_interface", "flash-attn --no-build-isolation"),
    "flashinfer": ("flashinfer", "flashinfer-python"),
    "quack": ("quack.gemm_interface", "quack-kernels"),
}
"""Library that is a baseline of a shipped kernel → its module, and the arguments of pip that install it."""


def _peers() -> Iterator[Check]:
    """Check the libraries that searches time as baselines if they are installed; cuDNN and cuBLASLt belong to torch."""
    from evokern.declaration.kernel import is_installed

    for name, (module, arguments) in PEERS.items():
        if is_installed(module):
            version = _version(arguments.split()[0])
            yield Check(name, "ok", f"timed as a baseline{f', version {version}' if version else ''}")
        else:
            remedy = f"to time it as a baseline: pip install {arguments}"
            yield Check(name, "optional", "not installed", remedy)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _package(name: str, distribution: str, absent: Status, remedy: str) -> Check:
    version = _version(distribution)
    return Check(name, "ok", version) if version else Check(name, absent, "not installed", remedy)


_COMPILE = """
from cupy.cuda import nvrtc
program = nvrtc.createProgram("extern \\"C\\" __global__ void k() {}", "k.cu", (), ())
nvrtc.compileProgram(program, ("--gpu-architecture=sm_89",))
print("NVRTC %d.%d compiles for sm_89" % nvrtc.getVersion())
"""


def _nvrtc() -> Check:
    """Compile an empty kernel in a subprocess, as the compile pool does."""
    remedy = "pip install 'evokern[cuda13]' (or cuda12) installs NVRTC; it needs no GPU"
    if importlib.util.find_spec("cupy") is None:
        return Check("nvrtc", "missing", "CuPy, which loads NVRTC, is not installed", remedy)
    try:
        done = subprocess.run([sys.executable, "-P", "-c", _COMPILE], capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("nvrtc", "missing", str(error), remedy)
    if done.returncode == 0:
        return Check("nvrtc", "ok", done.stdout.strip())
    return Check("nvrtc", "missing", (done.stderr.strip().splitlines() or ["it crashed"])[-1], remedy)


def _headers() -> Check:
    from evokern.compile.headers import header_report

    report = header_report()
    missing = [header for header in report if header.path is None and not header.optional]
    if missing:
        names = ", ".join(f"{header.name} ({header.purpose})" for header in missing)
        return Check("headers", "missing", f"not found: {names}", "; ".join(dict.fromkeys(h.remedy for h in missing)))
    absent = [header for header in report if header.path is None]
    found = f"{len(report) - len(absent)} CUDA headers"
    if absent:
        names = ", ".join(f"{header.name} ({header.purpose})" for header in absent)
        return Check("headers", "optional", f"{found}; not found: {names}", "; ".join(h.remedy for h in absent))
    return Check("headers", "ok", found)


def _tool(name: str, program: str, purpose: str) -> Check:
    path = shutil.which(program)
    return Check(name, "ok", path) if path else Check(name, "optional", f"{program} is not on PATH", purpose)


def host_compiler() -> str | None:
    """Return the path of the host's C++ compiler, or None if there is none."""
    for program in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        path = shutil.which(program) if program else None
        if path:
            return path
    return None


def _host_compiler() -> Check:
    path = host_compiler()
    if path:
        return Check("c++", "ok", path)
    return Check(
        "c++", "optional", "no c++, g++ or clang++ on PATH", "needed for `evokern check` to compile reference.h"
    )


def _folder(name: str, folder: Path) -> Check:
    """Check that a folder is writable."""
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if os.access(existing, os.W_OK) and existing.is_dir():
        return Check(name, "ok", str(folder))
    return Check(name, "missing", f"{folder} is not writable", f"make {existing} writable, or choose another folder")
