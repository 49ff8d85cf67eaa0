"""Create or update `.venv`: choose CuPy and torch for the driver of this machine, and install the project.

`make setup` passes settings as arguments (see README.md): CUDA=12|13|none|auto, TORCH=VERSION, SYSTEM=1, EXTRAS=a,b
and PIP_ARGS. The settings are stored in `.venv`, so that a later `make search` uses them too. The script does nothing
if `.venv` is up to date. It uses only the standard library, because no package is installed yet.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import platform
import shlex
import subprocess
import sys
import urllib.request
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "evokern-setup.json"
SETTINGS = ("CUDA", "TORCH", "SYSTEM", "EXTRAS", "PIP_ARGS")

TORCH = {"13": "2.13.0", "12": "2.9.1", "none": "2.13.0"}
"""CUDA → version of torch on PyPI: 2.13.0 contains CUDA 13.0; 2.9.1 contains CUDA 12.8, for every CUDA 12 driver."""
NOT_COMPILED = (
    r"/(tests?|testing|benchmarks?)/"
    r"|/(pip|setuptools|sympy|mpmath|networkx|cupyx|torchgen|mypyc?)/"
    r"|/torch/(_inductor|_dynamo|_export|distributed|onnx)/"
)
"""Folders that evokern rarely imports; Python compiles their files when they are imported."""
CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def main(arguments: list[str]) -> int:
    """Update `.venv` and print the chosen packages."""
    if sys.version_info < (3, 11):  # noqa: UP036 (no other code rejects an older Python before this line)
        return fail(f"Python {platform.python_version()} is too old; evokern needs 3.11: make setup PYTHON=python3.11")
    before = json.loads(STAMP.read_text()) if STAMP.is_file() else {}
    settings = before.get("settings", {}) | dict(argument.split("=", 1) for argument in arguments)
    unknown = [name for name in settings if name not in SETTINGS]
    if unknown:
        return fail(f"there is no setting {unknown[0]}; use {', '.join(SETTINGS)}")
    cuda, why = choose_cuda(settings.get("CUDA", ""))
    if cuda not in TORCH:
        return fail(why)
    torch = settings.get("TORCH") or TORCH[cuda]
    system = settings.get("SYSTEM", "") not in ("", "0")
    extras = settings.get("EXTRAS") or f"cuda{13 if cuda == 'none' else cuda},test"
    state = {"settings": settings, "installed": [cuda, torch, system, extras], "digest": digest()}
    if state == before and (VENV / "bin" / "evokern").is_file():
        return 0
    said = "the system's torch and CuPy" if system else f"torch {torch}, CuPy for CUDA {13 if cuda == 'none' else cuda}"
    print(f"setup: {why}; {said}", flush=True)
    make_environment(system)
    python = str(VENV / "bin" / "python")
    command = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-compile"]
    command += [] if sys.stdout.isatty() else ["--quiet"]
    if not system:
        constraints = VENV / "constraints.tried.txt"
        constraints.write_text(f"torch=={torch}\n")
        command += ["--constraint", str(constraints)]
        if cuda == "none" and reachable(CPU_INDEX):
            command += ["--extra-index-url", CPU_INDEX]
    command += [*shlex.split(settings.get("PIP_ARGS", "")), "--editable", f"{ROOT}[{extras}]"]
    if subprocess.run(command, stdin=subprocess.DEVNULL).returncode:
        return fail("pip failed, see its message above. To choose the packages yourself, see Set-up in README.md")
    # pip would compile all files, one after another. Files that do not compile are not imported by evokern.
    subprocess.run([python, "-m", "compileall", "-qq", "-j", "0", "-x", NOT_COMPILED, str(VENV / "lib")])
    if not system:
        constraints.replace(VENV / "constraints.txt")
    STAMP.write_text(json.dumps(state))
    print("setup: done; run .venv/bin/evokern doctor to check this machine", flush=True)
    return 0


def choose_cuda(asked: str) -> tuple[str, str]:
    """Return `12`, `13` or `none`, and the reason; if there is no choice, an empty string and the remedy."""
    word = asked.strip().lower().removeprefix("cuda")
    if word in TORCH:
        return word, f"CUDA={asked} is set"
    if word not in ("", "auto"):
        return "", f"CUDA={asked} is neither 12, 13, none nor auto"
    driver = load_driver_module().probe()
    if driver.cuda_extra:
        version = ".".join(map(str, driver.cuda_version))
        return driver.cuda_extra.removeprefix("cuda"), f"{driver.gpus[0].model}, driver for CUDA {version}"
    if driver.gpus:
        return "", f"{driver.problem}; update the driver, or set up without the GPU: make setup CUDA=none"
    return "none", f"no GPU: {driver.problem}"


def load_driver_module():
    """Load only `evokern/hardware/driver.py`; the package needs modules that are not installed yet."""
    spec = importlib.util.spec_from_file_location("evokern_driver", ROOT / "evokern" / "hardware" / "driver.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def make_environment(system: bool) -> None:
    """Create `.venv` if it is missing, belongs to another Python, or has another setting of SYSTEM."""
    settings = VENV / "pyvenv.cfg"
    text = settings.read_text() if settings.is_file() else ""
    visible = "include-system-site-packages = true" in text
    stale = f"version = {platform.python_version()}" not in text or visible != system
    if stale or not (VENV / "bin" / "python").is_file():
        venv.EnvBuilder(with_pip=True, clear=True, system_site_packages=system, symlinks=True).create(VENV)


def reachable(index: str) -> bool:
    """Return whether a package index answers within five seconds; pip would retry for minutes."""
    try:
        with urllib.request.urlopen(f"{index}/", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def digest() -> str:
    """Return a digest of the interpreter, the folder, and the files that determine the installed packages."""
    state = hashlib.sha256(f"{platform.python_version()} {ROOT}".encode())
    for path in (ROOT / "pyproject.toml", Path(__file__)):
        state.update(path.read_bytes())
    return state.hexdigest()


def fail(message: str) -> int:
    """Print an error message and return the exit code."""
    print(f"setup: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
