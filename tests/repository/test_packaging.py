"""The package works where it is installed: a wheel in an empty folder, an editable install from another one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from paths import KERNELS, ROOT


def _run(arguments: list[str], folder: Path, python_path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "EVOKERN_DB")}
    if python_path:
        environment["PYTHONPATH"] = str(python_path)
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    built = _run(["-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)], folder)
    assert built.returncode == 0, built.stdout + built.stderr
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the wheel was installed into."""
    target = tmp_path_factory.mktemp("site")
    done = _run(["-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(wheel)], target)
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.thorough
def test_the_wheel_holds_the_package_and_nothing_beside_it(wheel: Path) -> None:
    """Kernels and studies live inside the package; no top-level `kernels`, `studies` or `tests`."""
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"evokern"}
    inside = {
        "evokern/_data/kernels/attention/kernel.cu",
        "evokern/_data/kernels/common/mma.cuh",
        "evokern/_data/studies/attention-s512.toml",
        "evokern/py.typed",
    }
    assert inside | {"evokern/export/program.cu.in", "evokern/compile/shims/stdint.h"} <= set(names)
    templates = {path.relative_to(ROOT).as_posix() for path in (ROOT / "evokern").rglob("templates/**/*.*")}
    assert "evokern/report/templates/sections/champion.html.j2" in templates
    assert templates <= set(names)


@pytest.mark.thorough
def test_the_source_distribution_holds_the_templates(tmp_path: Path) -> None:
    """A wheel that is built from it is whole."""
    built = _run(["-m", "build", "--sdist", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)], tmp_path)
    assert built.returncode == 0, built.stdout + built.stderr
    (made,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(made) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "evokern").rglob("*.j2")} <= names


@pytest.mark.thorough
def test_a_wheel_works_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    """Kernels and studies are found inside the installed package, and can be used."""
    listed = _run(["-m", "evokern", "list", "--json"], tmp_path, installed)
    assert listed.returncode == 0, listed.stderr
    found = json.loads(listed.stdout)
    kernels = {kernel["name"]: Path(kernel["path"]) for kernel in found["kernels"]}
    assert kernels["rmsnorm"] == installed / "evokern" / "_data" / "kernels" / "rmsnorm"
    assert "attention-s512" in {study["name"] for study in found["studies"]}
    problem = "M=64 N=64 K=64"
    checked = _run(["-m", "evokern", "sanitize", "matmul", "--problem", problem], tmp_path, installed)  # common headers
    assert (checked.returncode, checked.stdout.splitlines()[-1]) == (0, "clean: nothing was found")


@pytest.mark.thorough
def test_a_kernel_of_the_folder_hides_the_package_s(installed: Path, tmp_path: Path) -> None:
    """The working directory comes first."""
    own = tmp_path / "kernels" / "rmsnorm"
    own.mkdir(parents=True)
    (own / "kernel.py").write_text("")
    listed = json.loads(_run(["-m", "evokern", "list", "--json"], tmp_path, installed).stdout)
    kernels = {kernel["name"]: Path(kernel["path"]) for kernel in listed["kernels"]}
    assert kernels["rmsnorm"] == own
    assert kernels["matmul"].is_relative_to(installed)


@pytest.mark.thorough
def test_the_console_script_is_installed(installed: Path, tmp_path: Path) -> None:
    """`evokern` is a program of its own."""
    script = installed / "bin" / "evokern"
    done = _run([str(script), "--version"], tmp_path, installed)
    assert done.stdout.startswith("evokern ")


def test_an_editable_install_works_from_another_folder(tmp_path: Path) -> None:
    """From any folder the checkout's own kernels and studies are found."""
    listed = json.loads(_run(["-m", "evokern", "list", "--json"], tmp_path, ROOT).stdout)
    assert {"attention-s512"} <= {study["name"] for study in listed["studies"]}
    assert {Path(kernel["path"]) for kernel in listed["kernels"]} >= {KERNELS / "attention"}
