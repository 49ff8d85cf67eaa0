"""An exported program restores declared state before each call, its own checks and timed calls included."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from paths import DATA

from evokern.declaration.genes import Config
from evokern.doctor import host_compiler
from evokern.errors import KernelError
from evokern.export.standalone import Provenance, standalone
from evokern.hardware.profiles import chip
from evokern.study.discovery import load_kernel

KERNEL = load_kernel(DATA / "kernels" / "state")
PROBLEM = KERNEL.problem("640")
L4 = chip("l4")


def exported(keeps: str) -> str:
    return standalone(KERNEL, Config({"KEEPS": keeps}), PROBLEM, L4, Provenance())


def test_each_call_begins_with_the_declared_bytes() -> None:
    """One byte is a memset, others are copied from the GPU's own memory; a candidate without a variable has neither."""
    filled, copied, plain = (exported(keeps) for keeps in ("restored", "first_bytes", "none"))
    assert "cudaMemsetAsync(evokern_variable, 0, sizeof(::counts::calls), evokern_stream)" in filled
    assert "initial_factors[] = {\n    0, 0, 192, 63, 0, 0, 0, 63};" in copied
    assert "cudaMemcpyAsync(evokern_variable, evokern_initial, sizeof(::factors)," in copied
    assert "factors" not in filled + plain
    assert "cudaGetSymbolAddress" not in plain


@pytest.mark.parametrize(
    ("declaration", "used", "inside", "name"),
    [
        ("", "inner", "  static int inner[kMost];\n", "twice::inner"),
        (
            "template <int N> struct Box { static int kept[N]; };\ntemplate <int N> int Box<N>::kept[N];\n",
            "Box<kMost>::kept",
            "",
            "Box::kept",
        ),
    ],
)
def test_what_no_program_can_name_is_refused(
    tmp_path: Path, declaration: str, used: str, inside: str, name: str
) -> None:
    """Static variables of functions and of templates are out of the launcher's reach; the message has the remedy."""
    for file in ("kernel.py", "reference.h"):
        shutil.copy(DATA / "kernels" / "state" / file, tmp_path)
    source = (DATA / "kernels" / "state" / "kernel.cu").read_text()
    changed = source.replace("float(2 + counts::calls[i]++)", f"float(2 + {used}[i]++)")
    changed = changed.replace("#elif KEEPS == KEEPS_RESTORED\n  y", f"#elif KEEPS == KEEPS_RESTORED\n{inside}  y")
    (tmp_path / "kernel.cu").write_text(changed.replace('extern "C"', f'{declaration}extern "C"', 1))
    kernel = replace(KERNEL, folder=tmp_path, state={name.rpartition("::")[2]: 0})
    with pytest.raises(KernelError, match=rf"'{name}', which is static in a function or part of a template"):
        standalone(kernel, Config({"KEEPS": "restored"}), PROBLEM, L4, Provenance())


@pytest.mark.thorough
@pytest.mark.skipif(host_compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("restored", [True, False])
def test_the_program_checks_itself_with_it(tmp_path: Path, restored: bool) -> None:
    """Many timed calls and one check: right where each is restored, wrong where the counts go on."""
    text = exported("restored")
    if not restored:
        before = text
        text = text.replace("cudaMemsetAsync(evokern_variable, 0,", "cudaMemsetAsync(evokern_variable, 1,")
        assert text != before
    (tmp_path / "best.cpp").write_text(text)
    types = ["-DFAKE_KERNEL_TYPES=const float*,float*,int", "-DFAKE_KERNEL_COUNT=3"]
    options = ["-std=c++17", "-w", f"-I{DATA / 'fake_cuda'}", "-include", "utility", *types]
    command = [str(host_compiler()), *options, "best.cpp", "-o", "best"]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    done = subprocess.run(["./best"], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == ("PASS" if restored else "FAIL")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH")
@pytest.mark.parametrize("keeps", ["restored", "first_bytes"])
def test_it_builds_with_nvcc(tmp_path: Path, keeps: str) -> None:
    """The names are those of the source, and the symbols can be reached."""
    (tmp_path / "best.cu").write_text(exported(keeps))
    subprocess.run(["nvcc", "-arch=sm_89", "-fatbin", "-o", "best", "best.cu"], cwd=tmp_path, check=True)
