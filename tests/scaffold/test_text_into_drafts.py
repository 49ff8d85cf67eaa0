"""Text of the file that a draft is made from does not become code of the `kernel.py` that is drafted."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from evokern.cli._command import app
from evokern.cli.app import run  # noqa: F401 (registers every command)
from evokern.errors import SourceError
from evokern.escaping import in_docstring
from evokern.scaffold.declaration_text import check_declares, literal
from evokern.study.discovery import find_kernel

CALL = '__import__("os").mkdir("ran")'
SOURCE = "__global__ void k(float* x, int n) { int i = blockIdx.x * BS + threadIdx.x; if (i < n) x[i] = i; }"
ANY = st.text(st.characters(exclude_categories=[]) | st.sampled_from("\n\r\\\x0c'\"{}#\u2028"), max_size=20)


def t1(**changes: Any) -> str:
    """Return a T1 file, with changes to its parts by name."""
    parameter = {"Name": "BS", "Type": "int", "Values": "[32, 64]", "Default": 64}
    kernel = {
        "Language": "CUDA", "KernelName": "k", "KernelFile": "k.cu", "LocalSize": {"X": "BS"},
        "GlobalSize": {"X": "100"}, "ProblemSize": [100], "GridDivX": ["BS"], "Arguments": [
            {"Name": "x", "Type": "float", "MemoryType": "Vector", "Size": 100},
            {"Name": "n", "Type": "int32", "MemoryType": "Scalar", "FillValue": 100},
        ],
    }  # fmt: skip
    conditions = [{"Expression": changes.pop("condition", "BS <= 64"), "Parameters": ["BS"]}]
    parameter |= changes.pop("parameter", {})
    space = {"TuningParameters": [parameter], "Conditions": conditions}
    return json.dumps({"ConfigurationSpace": space, "KernelSpecification": kernel | changes})


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a kernel's source."""
    (tmp_path / "k.cu").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def drafted(here: Path, text: str, file: str = "space.json") -> tuple[int, str]:
    """Draft from a T1 file, load what was drafted, and make sure that nothing of the file ran."""
    (here / file).write_text(text)
    done = CliRunner().invoke(app, ["init", file, "--name", "made"])
    if done.exit_code in (0, 1):  # 1: the source does not compile
        find_kernel("made")
    assert not (here / "ran").exists()
    return done.exit_code, done.stderr


def test_a_plain_file_is_drafted(here: Path) -> None:
    """The file of these tests is a sound one."""
    assert drafted(here, t1())[0] == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"parameter": {"Name": f'BS", (1,), default=1), {CALL}, Parameter("y'}},
        {"parameter": {"Name": "BS\nimport os"}},
        {"KernelName": f'k", 1, 1, ()), {CALL}, Launch("k'},
        {"condition": f'{CALL} or BS'},
        {"condition": 'BS <= 64  # \\'},
        {"condition": f'BS <= 64  # "),\n{CALL}#'},
        {"condition": "(BS\n<= 64)"},
        {"GlobalSize": {"X": CALL}, "ProblemSize": None},
        {"ProblemSize": [CALL]},
        {"GridDivX": [CALL]},
        {"LocalSize": {"X": CALL}},
        {"SharedMemory": CALL},
        {"Arguments": [{"Name": f'x"), {CALL}, ("', "Type": "float", "MemoryType": "Vector", "Size": 100}] * 2},
        {"Arguments": [{"Name": "x", "Type": CALL, "MemoryType": "Vector", "Size": 100},
                       {"Name": "n", "Type": CALL, "MemoryType": "Scalar", "FillValue": CALL}]},
        {"CompilerOptions": [f'-DX", {CALL}, "']},
    ],
    ids=str,
)  # fmt: skip
def test_text_of_a_t1_file_is_not_run(here: Path, changes: dict[str, Any]) -> None:
    """Wherever it puts code, the file is refused as the user's mistake, or the draft holds it as text."""
    code, told = drafted(here, t1(**changes))
    assert code in (0, 1, 2), told


@pytest.mark.parametrize("name", [f'k"""\n{CALL}\n""".cu', "k\\.cu", 'k""" + 1.cu'])
def test_a_file_s_name_is_not_run(here: Path, name: str) -> None:
    """The first line of a draft names the file, whatever it is called."""
    name = name.replace("/", "_")
    (here / "k.cu").rename(here / name)
    done = CliRunner().invoke(app, ["init", name, "--name", "made"])
    assert done.exit_code in (0, 1, 2), done.stderr
    if done.exit_code in (0, 1):  # 1: the source does not compile
        find_kernel("made")
    assert not (here / "ran").exists()


def test_lines_of_a_cpu_function_stay_in_their_comments(here: Path) -> None:
    """A carriage return, a form feed or a backslash in the file's own reference leaves no comment of the drafts."""
    cpu = f"void k_cpu(float* x, int n) {{ for (int i = 0; i < n; i++) x[i] = i;  // \v{CALL} \u2028{CALL} \\\n}}\n"
    (here / "k.cu").write_text(f"#define BS 64\n{SOURCE}\n{cpu}\n")
    assert CliRunner().invoke(app, ["init", "k.cu", "--name", "made"]).exit_code == 0
    find_kernel("made")
    assert not (here / "ran").exists()
    header = (here / "kernels" / "made" / "reference.h").read_text()
    assert "mkdir" in header, "the function was found"
    assert not any(line.endswith("\\") for line in header.splitlines() if line.startswith("//"))


@given(ANY)
def test_a_literal_is_its_text(text: str) -> None:
    """A string literal is one line and means the text; a docstring ends where it should."""
    assert ast.literal_eval(literal(text)) == text
    assert len(literal(text).splitlines()) == 1
    (statement,) = ast.parse(f'"""Drafted from {in_docstring(text)}: confirm."""').body
    assert isinstance(statement, ast.Expr)


@pytest.mark.parametrize(
    "text",
    [
        "import os", "from os import system", "from evokern.cli import main", "from . import x", "open('x')",
        "x = (lambda: 0)()", "c.__class__", "a.b", "x = __builtins__", "@f\ndef g(): pass", "class A: pass",
        "for i in (): pass", "[i for i in x]", "f'{x.y}'", "exec('1')", "x = p._values", "def f(): yield", "del x",
        "global x", "t['x']", "x: int = 1", "(y := 1)", "eval", "while 1: pass", "print(1)",
    ],
)  # fmt: skip
def test_a_draft_contains_only_declarations(text: str) -> None:
    """Anything but imports from evokern, calls of what declares and plain expressions is no draft."""
    if text == "eval":
        assert check_declares(text, "x") == text, "a name alone does nothing"
        return
    with pytest.raises(SourceError, match=r"x\.json: .* would be executed"):
        check_declares(text, "x.json")
