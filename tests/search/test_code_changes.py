"""Source, headers and declaration are those with which a session began, and nothing stays verified after a change."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import evokern
from evokern.cli._command import app
from evokern.cli.app import run  # noqa: F401 (registers every command)
from evokern.compile.build import Target, build
from evokern.compile.cache import CompileCache
from evokern.compile.records import Built
from evokern.declaration.kernel_files import outside_headers
from evokern.errors import CodeChangedError
from evokern.hardware.profiles import CHIPS
from evokern.search.results import Progress
from evokern.store import OWN_PROBLEM, open_readonly
from evokern.store._proofs import add_proof
from evokern.study.discovery import find_kernel
from evokern.study.trial import Outcome

DECLARATION = '''
import os
from evokern import Kernel, Launch, Parameter, ProblemField, Tensor, Tolerance, Workload, i32

kernel = Kernel(
    name="affine",
    genes=(Parameter("THREADS", tuple(range(32, 1025, 32)), default=128),),
    fields=(ProblemField("N"),),
    launches=lambda c, p: [Launch("affine", grid=-(-p.N // c.THREADS), block=c.THREADS, args=("x", "y", i32(p.N)))],
    options=("-I" + os.path.abspath(os.path.join(os.path.dirname(__file__), "../../../shared")),),
    workload=Workload(
        tensors=lambda p, c: {"x": Tensor("f32", (p.N,)), "y": Tensor("f32", (p.N,), "output")},
        reference=lambda p, t: {"y": 2 * t["x"] + 1},
        tolerance={"y": Tolerance(1e-6, 1e-6)},
        flops=lambda p: 2 * p.N,
        bytes=lambda p: 8 * p.N,
        small_problems=("1000",),
        cpp_reference=False,
    ),
)
'''  # fmt: skip
SOURCE = """#include <affine.cuh>
#ifndef THREADS
#error "THREADS must be defined"
#endif
extern "C" __global__ void affine(const float* x, float* y, int n) {
  const int i = blockIdx.x * THREADS + threadIdx.x;
  if (i < n) y[i] = mapped(x[i]);
}
"""
HEADER = '#pragma once\n#include "detail/factor.cuh"\n__device__ float mapped(float v) { return FACTOR * v + 1.f; }\n'


@pytest.fixture
def factor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in the working directory; the returned header lies outside it, behind another one."""
    project, shared = tmp_path / "project", tmp_path / "shared"
    folder = project / "kernels" / "affine"
    for made in (folder, project / "studies", shared / "detail"):
        made.mkdir(parents=True)
    (folder / "kernel.py").write_text(DECLARATION)
    (folder / "kernel.cu").write_text(SOURCE)
    (project / "studies" / "affine.toml").write_text('kernel = "affine"\nproblems = ["N=4000"]\nbudget = "5m"\n')
    (shared / "affine.cuh").write_text(HEADER)
    header = shared / "detail" / "factor.cuh"
    header.write_text("#define FACTOR 2.f\n")
    monkeypatch.chdir(project)
    monkeypatch.delenv("EVOKERN_DB", raising=False)
    monkeypatch.setenv("EVOKERN_CACHE", str(tmp_path / "cache"))
    return header


def _search(edit: Callable[[], object], trials: int, **options: object) -> list[str]:
    """Search, edit the files after the first trial, and return the notes."""
    notes: list[str] = []

    def progress(one: Progress) -> None:
        notes[:] = one.notes
        if one.event == "trial":
            edit()

    evokern.search("affine", device="sim:l4", trials=trials, on_progress=progress, **options)  # type: ignore[arg-type]
    return notes


PASSED = {"stages": {OWN_PROBLEM: {"state": "passed", "detail": "", "share": 1.0, "covered": True}}, "playoff": None}


def _champion() -> int:
    with open_readonly("evokern.db") as reader:
        best = reader.best(reader.study())
    assert best is not None
    return best.number


def _verified() -> tuple[bool | None, bool]:
    """Return whether the champion is verified, and whether the reason names the header."""
    shown = CliRunner().invoke(app, ["show", "affine", "--json"]).stdout
    found = json.loads(shown)
    return found["verified"], "factor.cuh" in found["verified_reason"]


def _invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stderr


def test_an_edit_during_a_search_changes_nothing(factor: Path) -> None:
    """Every trial runs the code with which the search began; afterwards a header's change refuses what was verified."""
    source, declaration = Path("kernels/affine/kernel.cu"), Path("kernels/affine/kernel.py")
    digest = find_kernel("affine").digest()

    def edit() -> None:
        source.write_text(SOURCE.replace("mapped(x[i])", "3 * mapped(x[i])"))
        declaration.write_text("raise RuntimeError('edited')\n")

    notes = _search(edit, 4, verify=False)
    assert [note for note in notes if "kernel.cu, kernel.py changed during this session" in note]
    with open_readonly("evokern.db") as reader:
        record = reader.study("affine")
        trials = [reader.trial(record, trial.number) for trial in reader.trials(record)]
    assert {trial.kernel_digest for trial in trials} == {record.kernel_digest, digest}
    assert not {Outcome.WRONG, Outcome.CRASHED} & {trial.trial.evaluation.outcome for trial in trials}
    code, told = _invoke("export", "affine", "-o", "edited.cu")
    assert (code, "changed since that trial ran" in told) == (2, True)
    source.write_text(SOURCE)
    declaration.write_text(DECLARATION)
    add_proof(Path("evokern.db"), record, "verify", _champion(), PASSED)
    assert _verified() == (True, False)
    factor.write_text("#define FACTOR 3.f\n")
    assert _verified() == (None, True)
    for command in (
        ("search", "affine", "--device", "sim:l4"),
        ("export", "affine", "-o", "best.cu"),
        ("export", "affine", "-o", "best.cu", "--trust"),
        ("verify", "affine"),
        ("resume", "affine"),
    ):
        code, told = _invoke(*command)
        assert (command, code, "factor.cuh" in told, "changed since" in told) == (command, 2, True, True)
    assert not Path("best.cu").exists()


def test_a_header_outside_the_kernel_ends_the_search_when_it_changes(factor: Path) -> None:
    """The compiler reads it from disk, so two programs would have one digest; the message names it."""
    with pytest.raises(CodeChangedError, match=r"factor\.cuh, a header of kernel affine, changed .*Restore"):
        _search(lambda: factor.write_text("#define FACTOR 3.f\n"), 30, verify=False)


def test_the_cache_knows_headers_outside_the_kernel(factor: Path, tmp_path: Path) -> None:
    """A program that was compiled with another header is not reused."""
    cache = CompileCache(tmp_path / "programs")

    def programs() -> int:
        kernel = find_kernel("affine")
        assert isinstance(
            build(kernel, kernel.space.default(), (kernel.problem("1000"),), Target(CHIPS["l4"], cache)), Built
        )
        return cache.info().programs

    assert (programs(), programs()) == (1, 1)
    factor.write_text("#define FACTOR 3.f\n")
    assert programs() == 2


def test_nothing_stays_verified_after_a_header_changed(factor: Path) -> None:
    """The digest of a kernel covers the headers that the compiler finds by itself, however they are included."""
    kernel = find_kernel("affine")
    factor.write_text("#define FACTOR 4.f\n")
    assert kernel.digest() != find_kernel("affine").digest()
    with pytest.raises(CodeChangedError):
        build(kernel, kernel.space.default(), (kernel.problem("1000"),), Target(CHIPS["l4"], None))


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("#include <h.cuh>", ("-ISHARED",)),
        ("#include <h.cuh>", ("-I", "SHARED")),
        ("#include <h.cuh>", ("--include-path=SHARED",)),
        ('#include "h.cuh"', ("-I=SHARED",)),
        ("# /* a */ include/**/<h.cuh>", ("-ISHARED",)),
        ("#inclu\\\nde <h.cuh>", ("-ISHARED",)),
        ('#include "SHARED/h.cuh"', ()),
        ("#define CHOSEN <h.cuh>\n#include CHOSEN", ("-ISHARED",)),
        ("#include CHOSEN", ("-ISHARED", "-DCHOSEN=<h.cuh>")),
        ("#include CHOSEN", ("-ISHARED",)),
        ("#if __has_include(<h.cuh>)", ("-ISHARED",)),
        ("", ("--pre-include=SHARED/h.cuh",)),
        ("", ("-include", "SHARED/h.cuh")),
        ('#include "../shared/h.cuh"', ()),
    ],
)
def test_headers_are_found_however_they_are_named(factor: Path, text: str, options: tuple[str, ...]) -> None:
    """Every way to name a header that NVRTC understands leads to its digest."""
    header = factor.parents[1] / "h.cuh"
    header.write_text("// one\n")
    shared = str(header.parent)
    texts, given = [text.replace("SHARED", shared)], [option.replace("SHARED", shared) for option in options]
    before = outside_headers(texts, given)
    header.write_text("// two\n")
    after = outside_headers(texts, given)
    assert {path.resolve() for path in before} >= {header}
    assert before != after
