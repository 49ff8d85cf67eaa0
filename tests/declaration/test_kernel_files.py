"""A kernel is its folder's files and the headers that they include from beside it; nothing else is read."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from stored_studies import reseal
from typer.testing import CliRunner

from evokern.cli._command import app
from evokern.cli.app import run  # noqa: F401 (registers every command)
from evokern.compile.build import Target, build
from evokern.declaration.kernel import Kernel
from evokern.declaration.kernel_files import write_kernel_files
from evokern.declaration.render import render
from evokern.errors import KernelError
from evokern.export.sections import reference_section
from evokern.export.standalone import device_code
from evokern.hardware.profiles import CHIPS
from evokern.search.stored_kernel import stored_kernel
from evokern.store import Reader
from evokern.study.discovery import WorkerContext, find_kernel, load_kernel
from evokern.study.trial import Evaluation

DECLARATION = '''
from evokern import Kernel, Launch, Parameter, ProblemField, Tensor, Tolerance, Workload

kernel = Kernel(
    name="NAME",
    genes=(Parameter("FACTOR", (2, 3), default=2),),
    fields=(ProblemField("N"),),
    launches=lambda c, p: [Launch("scale", grid=-(-p.N // 32), block=32, args=("x", "y"))],
    workload=Workload(
        tensors=lambda p, c: {"x": Tensor("f32", (p.N,)), "y": Tensor("f32", (p.N,), "output")},
        reference=lambda p, t: {"y": 2 * t["x"]},
        tolerance={"y": Tolerance(0, 0)},
        flops=lambda p: p.N,
        bytes=lambda p: 8 * p.N,
        small_problems=("64",),
    ),
)
'''  # fmt: skip
SOURCE = """#include "../common/store.cuh"
#include "own.cuh"
#ifndef FACTOR
#error "FACTOR must be defined"
#endif
extern "C" __global__ void scale(const float* x, float* y) {
  const int i = blockIdx.x * 32 + threadIdx.x;
  store(y + i, doubled(x[i]));
}
"""
STORE = """#pragma once
#include "../common/deeper.cuh"

__device__ __forceinline__ void store(float* to, float value) {
  *to = passed_on(value);
}
"""
DEEPER = "#pragma once\n__device__ __forceinline__ float passed_on(float value) { return value; }\n"
OWN = "#pragma once\n__device__ __forceinline__ float doubled(float x) { return FACTOR * x; }\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a kernel that includes common headers, one that does not, and a study of the first."""
    for name in ("scale", "alone"):
        folder = tmp_path / "kernels" / name
        folder.mkdir(parents=True)
        (folder / "kernel.py").write_text(DECLARATION.replace("NAME", name))
        (folder / "own.cuh").write_text(OWN)
        (folder / "reference.h").write_text("inline void reference(int N, const double* x, double* y) {}\n")
        (folder / "kernel.cu").write_text(SOURCE)
    source = SOURCE.replace('#include "../common/store.cuh"\n', "").replace("store(y + i, ", "y[i] = (")
    (tmp_path / "kernels" / "alone" / "kernel.cu").write_text(source)
    common = tmp_path / "kernels" / "common"
    common.mkdir()
    for name, text in {"store.cuh": STORE, "deeper.cuh": DEEPER, "unused.cuh": "// nobody's\n"}.items():
        (common / name).write_text(text)
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "mine.toml").write_text('kernel = "scale"\nproblems = ["4096"]\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVOKERN_DB", raising=False)
    monkeypatch.setenv("EVOKERN_CACHE", str(tmp_path / "cache"))
    return tmp_path


def _kernel(here: Path, name: str = "scale") -> Kernel:
    return load_kernel(here / "kernels" / name)


def _headers(kernel: Kernel) -> dict[str, str]:
    return dict(render(kernel, kernel.space.default(), kernel.problem("64")).headers)


def _invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def _append(path: Path, text: str = "// changed\n") -> None:
    path.write_text(path.read_text() + text)


def test_headers_beside_the_folder_travel_with_the_source(here: Path) -> None:
    """The compiler gets every header that is included, by the name in `#include`; one that is not stays behind."""
    expected = {"../common/store.cuh": STORE, "../common/deeper.cuh": DEEPER, "own.cuh": OWN}
    assert expected == _headers(_kernel(here))
    assert {"own.cuh": OWN} == _headers(_kernel(here, "alone"))


@pytest.mark.parametrize(("file", "changed"), [("store", True), ("deeper", True), ("unused", False)])
def test_a_common_header_counts_for_the_kernels_that_include_it(here: Path, file: str, changed: bool) -> None:
    """Its change is a change of those kernels, through another header too, and of no other kernel."""
    before, alone = _kernel(here).digest(), _kernel(here, "alone").digest()
    _append(here / "kernels" / "common" / f"{file}.cuh")
    assert (changed, False) == (before != _kernel(here).digest(), alone != _kernel(here, "alone").digest())


def test_common_headers_of_the_reference_belong_to_the_kernel(here: Path) -> None:
    """Their change is a change of the kernel, they are stored and exported, and device code does not get them."""
    common = here / "kernels" / "common"
    (common / "sum.h").write_text('#include "../common/more.h"\n')
    (common / "more.h").write_text("inline double more(double x) { return 2 * x; }\n")
    reference = here / "kernels" / "scale" / "reference.h"
    reference.write_text('#include "../common/sum.h"\n' + reference.read_text())
    kernel = _kernel(here)
    assert {"../common/sum.h", "../common/more.h"} <= kernel.read_content().stored(kernel.folder).keys()
    assert not [name for name in _headers(kernel) if name.endswith(".h")]
    assert "double more(double x)" in reference_section(kernel)
    before = kernel.digest()
    _append(common / "more.h")
    assert _kernel(here).digest() != before


def test_the_digest_of_a_folder_alone_is_that_of_its_files(here: Path) -> None:
    """Names and contents in order of the names, as studies of such kernels have it in their databases."""
    state = hashlib.sha256()
    for path in sorted((here / "kernels" / "alone").iterdir()):
        if path.is_file():
            state.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    assert state.hexdigest() == _kernel(here, "alone").digest()


@pytest.mark.parametrize("include", ["../../far.cuh", "../common/notes.txt", "../common/link.cuh", "../common/no.cuh"])
def test_files_outside_the_parent_folder_are_not_read(here: Path, include: str) -> None:
    """Beyond the kernel folder's parent, through a link too, and what is no header, is the compiler's to find."""
    (here / "far.cuh").write_text("// far\n")
    (here / "kernels" / "common" / "notes.txt").write_text("secret\n")
    (here / "kernels" / "common" / "link.cuh").symlink_to(here / "far.cuh")
    names = {file.name for file in _kernel(here).files()}
    source = here / "kernels" / "scale" / "kernel.cu"
    source.write_text(f'#include "{include}"\n' + source.read_text())
    assert names == {file.name for file in _kernel(here).files()}


def test_headers_of_a_folder_within_are_found(here: Path) -> None:
    """A header's own quoted includes start where it lies."""
    detail = here / "kernels" / "alone" / "detail"
    detail.mkdir()
    (detail / "inner.cuh").write_text("// inner\n")
    _append(here / "kernels" / "alone" / "own.cuh", '#include "detail/inner.cuh"\n')
    assert "// inner\n" == _headers(_kernel(here, "alone"))["detail/inner.cuh"]
    assert "detail/inner.cuh" in {file.name for file in _kernel(here, "alone").files()}


def test_one_name_must_mean_one_file(here: Path) -> None:
    """The compiler knows headers by the name in `#include` alone: it would take one file for the other."""
    (here / "kernels" / "common" / "own.cuh").write_text("// another\n")
    _append(here / "kernels" / "common" / "store.cuh", '#include "own.cuh"\n')
    with pytest.raises(KernelError, match=r'"own.cuh" in .*store.cuh .*common/own.cuh, .*scale/own.cuh'):
        _kernel(here).digest()


def test_a_folder_of_headers_is_no_kernel(here: Path) -> None:
    """`list` names kernels; a folder without a kernel.py is none."""
    listed = json.loads(_invoke("list", "--json")[1])["kernels"]
    names = {kernel["name"] for kernel in listed}
    assert ({"scale", "alone", "attention"} <= names, "common" in names) == (True, False)


@pytest.mark.thorough
def test_check_reads_common_headers(here: Path) -> None:
    """A folder that includes them is as sound as one that does not; a mistake in one is named with its line."""
    checks = {entry["check"]: entry for entry in json.loads(_invoke("check", "scale", "--json")[1])["checks"]}
    assert {True} == {entry["ok"] for name, entry in checks.items() if name != "reference.h"}
    _append(here / "kernels" / "common" / "store.cuh", "__device__ int broken() { return absent; }\n")
    checks = {entry["check"]: entry for entry in json.loads(_invoke("check", "scale", "--json")[1])["checks"]}
    assert '../common/store.cuh:7: identifier "absent" is undefined' in checks["compiler"]["detail"]


def test_a_refused_compile_names_the_common_header(here: Path) -> None:
    """Evidence has the file as its includer names it, and the line there."""
    _append(here / "kernels" / "common" / "deeper.cuh", "int x = absent;\n")
    kernel = _kernel(here)
    found = build(kernel, kernel.space.default(), [kernel.problem("64")], Target(CHIPS["l4"], None))
    assert isinstance(found, Evaluation)
    assert ("../common/deeper.cuh", 3) == (found.evidence["file"], found.evidence["line"])


def test_findings_and_counters_name_lines_of_common_headers(here: Path) -> None:
    """The innermost line is the header's, with its text, called from the source's."""
    told = _invoke("profile", "scale", "--device", "sim:l4", "--problem", "4096", "--json")[1]
    lines = json.loads(told)["launches"][0]["lines"]
    store = next(line for line in lines if line["file"] == "../common/store.cuh")
    assert (5, "*to = passed_on(value);") == (store["line"], store["source"])
    header = here / "kernels" / "common" / "store.cuh"
    header.write_text(header.read_text().replace("*to =", "to[1] ="))
    code, out, _ = _invoke("sanitize", "scale", "--json")
    finding, *others = json.loads(out)["findings"]
    assert (1, "out_of_bounds") == (code, finding["kind"])
    assert {"unwritten_output"} == {other["kind"] for other in others}
    assert ("../common/store.cuh", 5, "to[1] = passed_on(value);") == tuple(
        finding[key] for key in ("file", "line", "source")
    )
    assert [["", 8]] == [list(call) for call in finding["called_from"]]


def test_an_exported_source_needs_no_header(here: Path) -> None:
    """Common headers are put in place, each once."""
    kernel = _kernel(here)
    text = device_code(kernel, kernel.space.default(), kernel.problem("64"), CHIPS["l4"])
    assert [] == re.findall(r'#include "', text)
    assert (1, 1) == (text.count("float passed_on("), text.count("void store("))


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH")
def test_nvcc_finds_the_same_headers(here: Path) -> None:
    """A kernel folder is plain CUDA: no include path is needed."""
    command = ["nvcc", "-arch=sm_89", "-cubin", "-DFACTOR=2", "kernel.cu", "-o", str(here / "out.cubin")]
    done = subprocess.run(command, cwd=here / "kernels" / "scale", capture_output=True, text=True)
    assert (0, "") == (done.returncode, done.stderr)


def test_init_puts_them_in_place(here: Path) -> None:
    """What the kernel uses of headers from beside the file stands in its `kernel.cu`, each piece once."""
    assert 0 == _invoke("init", "kernels/scale/kernel.cu", "--name", "flat")[0]
    folder = here / "kernels" / "flat"
    assert {"kernel.cu", "kernel.py", "reference.h"} == {path.name for path in folder.iterdir()}
    text = (folder / "kernel.cu").read_text()
    assert ["evokern_genes.h"] == re.findall(r'#include "([^"]*)"', text)
    assert (1, 1) == (text.count("float passed_on("), text.count("void store("))


@pytest.mark.thorough
def test_a_database_keeps_common_headers(here: Path, tmp_path: Path) -> None:
    """A study goes on knowing the code it ran: the copy is the same kernel, and what changed is named."""
    assert 0 == _invoke("search", "mine", "--device", "sim:l4", "--trials", "1", "--quiet", "--no-verify")[0]
    digest = _kernel(here).digest()
    _append(here / "kernels" / "common" / "store.cuh")
    code, _, told = _invoke("search", "mine", "--device", "sim:l4", "--trials", "2", "--quiet", "--no-verify")
    assert (2, True) == (code, "kernel code (../common/store.cuh)" in told)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with Reader(here / "evokern.db") as reader:
        copy = stored_kernel(reader, reader.study("mine"), digest, scratch, trust=True)
    assert (digest, STORE) == (copy.digest(), _headers(copy)["../common/store.cuh"])
    assert {"scale", "common"} == {path.name for path in scratch.iterdir()}
    assert 0 == _invoke("export", "--trust", "-o", str(tmp_path / "best.cu"))[0]


@pytest.mark.thorough
def test_a_copy_stays_in_its_scratch_folder(here: Path, tmp_path: Path) -> None:
    """A database may come from anybody: a file's name leads nowhere else."""
    assert 0 == _invoke("search", "mine", "--device", "sim:l4", "--trials", "1", "--quiet", "--no-verify")[0]
    digest = _kernel(here).digest()
    _append(here / "kernels" / "common" / "store.cuh")
    scratch = tmp_path / "in" / "scratch"
    scratch.mkdir(parents=True)
    for name in ("../../escaped.cuh", "/escaped.cuh", "../common/../../escaped.cuh"):
        with sqlite3.connect(here / "evokern.db") as database:
            database.execute("DELETE FROM evokern_sources WHERE text = ?", ["// out\n"])
            database.execute("INSERT INTO evokern_sources VALUES (?, ?, ?, NULL)", [digest, name, "// out\n"])
        reseal(here / "evokern.db")
        with Reader(here / "evokern.db") as reader, pytest.raises(KernelError, match="outside the folder for copies"):
            stored_kernel(reader, reader.study("mine"), digest, scratch, trust=True)
        assert [] == [*tmp_path.rglob("escaped.cuh")]


def test_files_are_read_again_when_they_change(here: Path) -> None:
    """What did not change is not read again; a changed header, and a new file of the folder, are seen at once."""
    kernel = _kernel(here)
    first = kernel.files()
    assert all(once is again for once, again in zip(first, kernel.files(), strict=True))
    header = here / "kernels" / "common" / "store.cuh"
    header.write_text(header.read_text() + "// more\n")
    assert header.read_bytes() in [file.content for file in kernel.files()]
    (kernel.folder / "new.cuh").write_text("// new\n")
    assert "new.cuh" in [file.name for file in kernel.files()]


def test_a_kernel_can_keep_its_content(here: Path) -> None:
    """A command uses the files as they were when it began, in its workers too, whatever happens to them."""
    kernel = find_kernel("scale")
    first, digest, context = kernel.files(), kernel.digest(), WorkerContext.of(kernel, (), CHIPS["l4"])
    for path in (here / "kernels" / "common" / "store.cuh", kernel.source_path, kernel.folder / "kernel.py"):
        path.write_text("changed\n")
    (kernel.folder / "new.cuh").write_text("// new\n")
    for same in (kernel, context.kernel(), pickle.loads(pickle.dumps(context)).kernel()):
        assert (first, digest, _headers(kernel)) == (same.files(), same.digest(), _headers(same))
    assert digest != kernel.read_content().digest()
    shutil.rmtree(kernel.folder)
    assert context.kernel().digest() == digest
    kernel.folder.mkdir()
    (kernel.folder / "kernel.py").symlink_to("/dev/null")
    assert context.kernel().digest() == digest


def test_kernel_files_keep_their_places_and_stay_in_the_scratch_folder(tmp_path: Path) -> None:
    """Headers that several kernels share lie above the folder; nothing is written outside."""
    folder = write_kernel_files(tmp_path, "kernels/mine", {"kernel.py": b"1", "../common/a.cuh": b"2"})
    assert (folder / "kernel.py").read_bytes() == b"1"
    assert (folder.parent / "common" / "a.cuh").read_bytes() == b"2"
    assert folder.is_relative_to(tmp_path)
    with pytest.raises(KernelError, match="outside the folder for copies"):
        write_kernel_files(tmp_path, "mine", {"../../../x": b"3"})


def test_modules_of_the_folder_are_kept_too(here: Path) -> None:
    """A module that `kernel.py` imports has the text of the kept content, even if it was imported before."""
    folder = here / "kernels" / "alone"
    (folder / "sizes.py").write_text("WIDTH = 32\n")
    extra = "import os\nimport sys\nsys.path.insert(0, os.path.dirname(__file__))\nimport sizes\n"
    declaration = (folder / "kernel.py").read_text().replace("block=32", "block=sizes.WIDTH")
    (folder / "kernel.py").write_text(extra + declaration)
    context = WorkerContext.of(find_kernel("alone"), (), CHIPS["l4"])
    (folder / "sizes.py").write_text("WIDTH = 64\n")
    kernel = context.kernel()
    assert kernel.launches(kernel.space.default(), kernel.problem("64"))[0].block == (32, 1, 1)
    sys.path.remove(str(folder))
