"""Make `.venv`: choose CuPy and torch by the driver this machine has, install the project, do nothing when up to date.

Run by `make setup` with settings as arguments (the README lists them): CUDA=12|13|none|auto, TORCH=VERSION, SYSTEM=1,
EXTRAS=a,b and PIP_ARGS. They are remembered in `.venv`, so that a later `make search` keeps them. Standard library
only, because nothing is installed yet.
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
"""PyPI's builds of torch: 2.13.0 carries CUDA 13.0, 2.9.1 CUDA 12.8 (runs on every CUDA 12 driver)."""
NOT_COMPILED = (
    r"/(tests?|testing|benchmarks?)/"
    r"|/(pip|setuptools|sympy|mpmath|networkx|cupyx|torchgen|mypyc?)/"
    r"|/torch/(_inductor|_dynamo|_export|distributed|onnx)/"
)
"""What nothing here imports, or little of: it is compiled when it is imported, if ever."""
CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def main(arguments: list[str]) -> int:
    """Bring `.venv` up to date and say what was chosen."""
    if sys.version_info < (3, 11):  # noqa: UP036 (this runs before anything could have refused an older Python)
        return fail(f"Python {platform.python_version()} is too old; evokern needs 3.11: make setup PYTHON=python3.11")
    before = json.loads(STAMP.read_text()) if STAMP.is_file() else {}
    settings = before.get("settings", {}) | dict(argument.split("=", 1) for argument in arguments)
    unknown = [name for name in settings if name not in SETTINGS]
    if unknown:
        return fail(f"there is no setting {unknown[0]}; there are {', '.join(SETTINGS)}")
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
        return fail("pip failed; its message stands above. The README, under Set-up, shows how to choose by hand")
    # pip compiles one file after the other, what nobody imports too. A file that does not compile is not imported here.
    subprocess.run([python, "-m", "compileall", "-qq", "-j", "0", "-x", NOT_COMPILED, str(VENV / "lib")])
    if not system:
        constraints.replace(VENV / "constraints.txt")
    STAMP.write_text(json.dumps(state))
    print("setup: done; .venv/bin/evokern doctor shows what this machine has", flush=True)
    return 0


def choose_cuda(asked: str) -> tuple[str, str]:
    """Return `12`, `13` or `none`, and why; an empty choice comes with what to do."""
    word = asked.strip().lower().removeprefix("cuda")
    if word in TORCH:
        return word, f"CUDA={asked} was asked for"
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
    """Load `evokern/hardware/driver.py` alone: the package itself needs what is not installed yet."""
    spec = importlib.util.spec_from_file_location("evokern_driver", ROOT / "evokern" / "hardware" / "driver.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def make_environment(system: bool) -> None:
    """Create `.venv` where it is missing, was made by another Python, or sees the system's packages unlike asked."""
    settings = VENV / "pyvenv.cfg"
    text = settings.read_text() if settings.is_file() else ""
    visible = "include-system-site-packages = true" in text
    stale = f"version = {platform.python_version()}" not in text or visible != system
    if stale or not (VENV / "bin" / "python").is_file():
        venv.EnvBuilder(with_pip=True, clear=True, system_site_packages=system, symlinks=True).create(VENV)


def reachable(index: str) -> bool:
    """Whether an index answers within five seconds (pip itself would retry for minutes)."""
    try:
        with urllib.request.urlopen(f"{index}/", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def digest() -> str:
    """Identify the interpreter, the place and the files that decide what is installed."""
    state = hashlib.sha256(f"{platform.python_version()} {ROOT}".encode())
    for path in (ROOT / "pyproject.toml", Path(__file__)):
        state.update(path.read_bytes())
    return state.hexdigest()


def fail(message: str) -> int:
    """Print what is wrong and what to do."""
    print(f"setup: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
