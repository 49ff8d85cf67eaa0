"""Packages with operators: installed for tests, and run in a new Python process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel
from evokern.hardware.profiles import CHIPS
from evokern.pack.from_study import describe
from evokern.pack.operator_code import Description
from evokern.pack.variant import variant_of


def install(package: Path, target: Path) -> None:
    """Install a package without an index: its build backend needs nothing."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(target)]
    done = subprocess.run([*command, str(package)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def run_python(target: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Run Python with the installed packages, and return its output; the process must succeed."""
    path = os.pathsep.join([str(target), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=target,
        env={**os.environ, "PYTHONPATH": path, **(environment or {})},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout


def described(kernel: Kernel, *problems: str, package: str = "packed", chip: str = "l4", **changes: Any) -> Description:
    """Return an operator with the default candidate for each problem."""
    config = kernel.space.canonical(Config({**kernel.space.default(), **changes}))
    made = [variant_of(kernel, config, kernel.problem(one), CHIPS[chip], f"default at {one}") for one in problems]
    return describe(kernel, package, tuple(made))
