"""Files whose export once did not compile: drafted by `init`, then exported and compiled."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from paths import DATA
from typer.testing import CliRunner

from evokern.cli.app import app
from evokern.compile.records import Program
from evokern.doctor import host_compiler
from evokern.export import checked
from evokern.export.banner import Provenance
from evokern.export.standalone import standalone_program
from evokern.hardware.profiles import CHIPS
from evokern.study.discovery import load_kernel

WHOLE_CHECKS = checked._whole_checks  # tests/conftest.py replaces it while tests run


@pytest.mark.thorough
@pytest.mark.skipif(host_compiler() is None, reason="no C++ compiler on PATH")
@pytest.mark.parametrize(
    ("name", "entry", "problem"),
    [
        ("licence_first", "twice", "5000"),
        ("field_is_macro", "shift", "4096"),
        ("functor_entry", "activate<float, silu>", "5000"),
        ("bool_parameter", "saxpy", "5000"),
    ],
)
def test_a_drafted_file_is_exported(
    name: str, entry: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's section is the same program, and the whole compiles, here without nvcc."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(DATA / "exports" / f"{name}.cu", tmp_path)
    done = CliRunner().invoke(app, ["init", f"{name}.cu", "--entry", entry])
    assert done.exit_code == 0, done.output
    folder = tmp_path / "kernels" / name
    draft = (folder / "kernel.py").read_text()
    (folder / "kernel.py").write_text(re.sub(r"raise ValueError\(.*\)", 'return {"y": 2 * t["x"]}', draft, count=1))
    signature = (folder / "reference.h").read_text().partition("{")[0]
    (folder / "reference.h").write_text(f"{signature}{{}}\n")
    kernel = load_kernel(folder)
    arguments = (kernel, kernel.space.default(), kernel.problem(problem), CHIPS["l4"], Provenance())
    program = standalone_program(*arguments)
    original = checked._compiled(program, program.original.source)
    assert isinstance(original, Program), original.message
    assert checked._device_fault(program, original) is None
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda tool, *more: None if tool == "nvcc" else which(tool, *more))
    assert "host part compiled" in WHOLE_CHECKS(program, name, lambda text: None, False).in_words()
