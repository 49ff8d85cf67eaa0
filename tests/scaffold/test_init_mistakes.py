"""`init` refuses what it cannot draft in one sentence with the remedy, and replaces a draft only with `--force`."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from evokern.cli._command import app
from evokern.cli.app import run  # noqa: F401 (registers every command)
from evokern.scaffold import write

KERNEL = "__global__ void scale(const float* x, float* y, int n) {{\n  int i = blockIdx.x * 64 + threadIdx.x;\n{}}}\n"
SCALE = KERNEL.format("  if (i < n) y[i] = 2 * x[i];\n")
LAUNCH = "void start(const float* x, float* y, int n) { scale<<<(n + 63) / 64, 64>>>(x, y, n); }\n"

FILES: dict[str, tuple[str | bytes, str]] = {
    "none.cu": ("int main() { return 0; }\n", "contains no __global__ function; choose a file with a kernel"),
    "several.cu": (SCALE + SCALE.replace("scale", "other"), "choose a kernel with --entry: other, scale"),
    "header.cu": ('#include "k.cuh"\nint main() {}\n', "its headers do; choose one with --entry: scale (k.cuh)"),
    "opencl.cl": ("__kernel void a(__global float* x) { x[get_global_id(0)] = 1; }\n", "is an OpenCL file"),
    "opencl.cu": ("kernel void a(global float* x) { x[0] = 1; }\n", "rewrite the kernel with __global__"),
    "amd.hip": (SCALE, "has the suffix .hip, so it is a HIP file"),
    "amd.cu": ("#include <hip/hip_runtime.h>\n" + SCALE, "includes hip/hip_runtime.h, so it is a HIP file"),
    "binary.cu": (b"\x7fELF\x02\x01\0\0" * 50, "is a binary file; name the source file"),
    "empty.cu": ("", "is empty; name a file with a kernel"),
    "blank.cu": ("\n \n", "is empty; name a file with a kernel"),
    "open.cu": (SCALE[:-2] + "\n", "open.cu:1: the '{' is never closed; correct the file"),
    "close.cu": (SCALE + "}\n", "close.cu:5: the '}' closes nothing; correct the file"),
    "inside.cu": (KERNEL.format("  y[i] = (2 * x[i];\n"), "inside.cu:4: the '}' closes nothing; correct the file"),
    "comment.cu": ("\n/* " + SCALE, "the comment that starts on line 2 never ends"),
    "never.py": ("print('hi')\n", "neither imports kernel_tuner nor defines Model"),
    "broken.py": ("import kernel_tuner\nf(\n", "is not valid Python, line 2: '(' was never closed; correct it"),
    "silent.py": ("import kernel_tuner\n", "ended without calling kernel_tuner.tune_kernel"),
    "raising.py": ("import kernel_tuner\nraise ValueError('boo')\n", "ValueError: boo"),
    "data.json": ('{"a": 1}', "is not a T1 file, which has ConfigurationSpace and KernelSpecification"),
    "missing.cu": ("", "there is no file missing.cu; check the path"),
    "folder.cu": ("", "folder.cu is a folder; name a file in it: a.cu"),
}  # fmt: skip
"""File → its content, and a part of the message."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a kernel, and with a kernel in a header."""
    (tmp_path / "scale.cu").write_text(SCALE + LAUNCH)
    (tmp_path / "k.cuh").write_text(SCALE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _refused(*arguments: str) -> str:
    """Return the one message of a command that must be refused."""
    result = CliRunner().invoke(app, ["init", *arguments])
    assert (result.exit_code, "Traceback" in result.output) == (2, False), result.output
    message = result.stderr.splitlines()[-1]
    assert message.startswith("evokern: ")
    return message


@pytest.mark.parametrize("name", FILES)
def test_an_unsuitable_file_is_refused_with_the_remedy(here: Path, name: str) -> None:
    """One sentence, exit code 2, and nothing is written."""
    content, told = FILES[name]
    if name == "folder.cu":
        (here / name).mkdir()
        (here / name / "a.cu").write_text(SCALE)
    elif name != "missing.cu":
        (here / name).write_bytes(content.encode() if isinstance(content, str) else content)
    assert told in _refused(name, "--trust")
    assert not (here / "kernels").exists()


def test_a_file_without_permission_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says how to permit reading."""

    def denied(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(write, "read_bytes", denied)
    assert "chmod u+r scale.cu" in _refused("scale.cu")


def test_a_hip_header_for_amd_only_is_no_obstacle(here: Path) -> None:
    """Files that compile for both take the header in a conditional, and a header may contain kernels too."""
    guarded = '#ifdef __HIPCC__\n#include <hip/hip_runtime.h>\n#endif\n#include "k.cuh"\n'
    (here / "both.cu").write_text(guarded + (SCALE + LAUNCH).replace("scale", "mine"))
    assert CliRunner().invoke(app, ["init", "both.cu"]).exit_code == 0


def test_a_draft_is_replaced_only_with_force(here: Path) -> None:
    """Without it the message names it; with it files of another form of draft disappear, and the user's stay."""
    assert CliRunner().invoke(app, ["init", "scale.cu"]).exit_code == 0
    folder = here / "kernels" / "scale"
    assert "kernels/scale already exists; choose another name with --name, or replace it with --force" in _refused(
        "scale.cu"
    )
    (folder / "notes.txt").write_text("mine")
    again = CliRunner().invoke(app, ["init", "scale.cu", "--force", "--reference", "lambda x: 2 * x"])
    assert again.exit_code == 0, again.output
    assert sorted(one.name for one in folder.iterdir()) == ["kernel.cu", "kernel.py", "notes.txt"]


def test_each_step_names_file_and_line(here: Path) -> None:
    """Every TODO of the draft is listed where it is, and says what to write."""
    told = CliRunner().invoke(app, ["init", "scale.cu"]).stdout
    for name in ("kernels/scale/kernel.py", "kernels/scale/reference.h", "studies/scale.toml"):
        lines = (here / name).read_text().splitlines()
        marked = [number for number, line in enumerate(lines, 1) if "TODO: " in line]
        assert marked, name
        for number in marked:
            assert f"{name}:{number}: {lines[number - 1].partition('TODO: ')[2]}" in told


def test_an_example_that_no_candidate_can_run_is_refused(here: Path) -> None:
    """The message names the rule; sizes that another value of a gene permits are taken."""
    whole = KERNEL.replace("x * 64", "x * BLOCK").format("  y[i] = 2 * x[i];\n")
    launch = LAUNCH.replace("(n + 63) / 64, 64", "n / BLOCK, BLOCK")
    (here / "whole.cu").write_text(f"#define BLOCK 64\n{whole}{launch}")
    assert "not possible with any values of the genes: N must be a multiple of BLOCK" in _refused(
        "whole.cu", "--example", "N=1000"
    )
    assert CliRunner().invoke(app, ["init", "whole.cu", "--example", "N=96"]).exit_code == 0


def test_a_race_of_the_own_values_is_named_and_not_blamed_on_others(here: Path) -> None:
    """The first point of the list is the line of the race; the gene keeps its values."""
    body = "  __shared__ float s[BLOCK];\n  s[threadIdx.x] = x[i];\n  if (i < n) y[i] = s[BLOCK - 1 - threadIdx.x];\n"
    text = KERNEL.replace("x * 64", "x * BLOCK").format(body.replace("= x[i]", "= i < n ? x[i] : 0"))
    launch = LAUNCH.replace("(n + 63) / 64, 64", "(n + BLOCK - 1) / BLOCK, BLOCK")
    (here / "race.cu").write_text(f"#define BLOCK 64\n{text}{launch}")
    told = CliRunner().invoke(app, ["init", "race.cu"]).stdout.partition("To do:\n")[2]
    assert told.startswith("  - kernel.cu:9: shared race with the file's own values at N="), told
    assert "stays fixed" not in told and "confirm BLOCK" in told
