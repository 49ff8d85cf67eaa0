"""Exports are compiled before they are handed over; one that does not compile is not written."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from paths import ROOT

from evokern.doctor import host_compiler
from evokern.errors import DeviceError, InternalError, KernelError, StudyError
from evokern.export import checked
from evokern.export.banner import Provenance
from evokern.export.checked import ExportChecks, checked_program
from evokern.export.standalone import StandaloneProgram, standalone_program
from evokern.files import write_whole
from evokern.hardware.driver import Driver, Gpu
from evokern.hardware.profiles import CHIPS
from evokern.study.discovery import load_kernel

WHOLE_CHECKS = checked._whole_checks  # tests/conftest.py replaces it while tests run
GUIDE = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], StandaloneProgram]:
    """Make the program of the documents' kernel."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "scale"
    folder.mkdir()
    for name, language in (("kernel.cu", "cuda"), ("kernel.py", "python"), ("reference.h", "cpp")):
        blocks = re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
        (folder / name).write_text(blocks[0])
    kernel = load_kernel(folder)

    def program(code: str | None) -> StandaloneProgram:
        return standalone_program(
            kernel, kernel.space.default(), kernel.problem("4096"), CHIPS["l4"], Provenance(), code=code
        )

    return program


def broken(program: StandaloneProgram, text: str = "this is not CUDA") -> StandaloneProgram:
    """Return the program with an error in the kernel's section."""
    added = f"\n{text};\n"
    section = program.section
    section = replace(section, text=section.text + added, device_text=section.device_text + added)
    return replace(program, section=section, text=program.text.replace(program.section.text, section.text))


def check(make: Callable[[str | None], StandaloneProgram], **options: bool) -> tuple[str, ExportChecks]:
    return checked_program(make, "trial 7 of scale", lambda text: None, **options)


def test_the_checks_are_named(make: Callable[[str | None], StandaloneProgram]) -> None:
    """The compiler and the architecture are part of the result."""
    text, checks = check(make)
    assert text == make(None).text
    assert re.fullmatch(r"compiled with nvrtc [\d.]+ for sm_89", checks.passed[0])


def test_what_does_not_compile_is_not_handed_over(
    make: Callable[[str | None], StandaloneProgram], tmp_path: Path
) -> None:
    """The message names the first error and the rejected text, and asks for a report."""
    with pytest.raises(InternalError, match="expected a declaration") as caught:
        check(lambda code: broken(make(code)))
    for part in ("trial 7 of scale does not compile with NVRTC for sm_89", "Nothing was written", "please report"):
        assert part in str(caught.value)
    kept = re.search(r"report it with (\S+)$", str(caught.value))
    assert kept and Path(kept[1]).is_relative_to(tmp_path) and "this is not CUDA" in Path(kept[1]).read_text()


@pytest.mark.parametrize(
    ("text", "told"),
    [("this is not CUDA", "does not compile"), ("#undef BLOCK\n", "")],
)
def test_a_faulty_specialisation_is_replaced_by_the_whole_source(
    make: Callable[[str | None], StandaloneProgram], text: str, told: str
) -> None:
    """The program keeps the code of all variants and says why; a harmless difference changes nothing."""
    found, checks = check(lambda code: broken(make(code), text) if code is None else make(code))
    assert ("// Still contains the code of other variants, because the specialised source" in found) == bool(told)
    assert any(told in one and "please report" in one for one in checks.omitted) == bool(told)


def test_other_machine_code_is_a_fault(make: Callable[[str | None], StandaloneProgram]) -> None:
    """A program that computes something else than the trial is not handed over as the trial's."""

    def wrong(code: str | None) -> StandaloneProgram:
        program = make(code)
        if code is not None:
            return program
        text = program.section.device_text.replace("y[i] = 2 * x[i];", "y[i] = 3 * x[i];")
        assert text != program.section.device_text
        return replace(program, section=replace(program.section, device_text=text))

    _, checks = check(wrong)
    assert any("has other machine code than the original" in one for one in checks.omitted)


def test_a_kernel_that_no_longer_compiles_is_the_users(make: Callable[[str | None], StandaloneProgram]) -> None:
    """An error in the kernel itself is not a bug of the export."""

    def stale(code: str | None) -> StandaloneProgram:
        program = make(code)
        return replace(program, original=replace(program.original, source="#error changed\n"))

    with pytest.raises(KernelError, match="kernel of trial 7 of scale does not compile any more"):
        check(stale)


def test_without_nvrtc_the_checks_say_so(
    make: Callable[[str | None], StandaloneProgram], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing compiler is not an error of the program."""

    def absent(*arguments: object) -> None:
        raise DeviceError("NVRTC cannot be loaded")

    monkeypatch.setattr(checked, "compile_program", absent)
    assert "the kernel was not compiled: NVRTC cannot be loaded" in check(make)[1].in_words()


# ---- the whole program


def tool(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a few tools and without compilers, which is the whole PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "cp", "chmod", "printf"):
        (folder / name).symlink_to(shutil.which(name) or f"/bin/{name}")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CXX", raising=False)
    return folder


def whole(program: StandaloneProgram, *, force: bool = False) -> ExportChecks:
    return WHOLE_CHECKS(program, "trial 7 of scale", lambda text: None, force)


@pytest.mark.thorough
@pytest.mark.skipif(host_compiler() is None, reason="no C++ compiler on PATH")
def test_without_nvcc_a_host_compiler_reads_the_host_part(
    make: Callable[[str | None], StandaloneProgram], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It needs the CUDA headers alone; an error there is a bug, too."""
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, *more: None if name == "nvcc" else which(name, *more))
    program = make(None)
    assert re.search(r"host part compiled with \S+; nvcc was not found", whole(program).in_words())
    wrong = replace(program, text=program.text.replace("int run_program(", "int run_program(no_type x, "))
    with pytest.raises(InternalError, match="no_type"):
        whole(wrong)


def test_without_any_compiler_the_checks_say_so(make: Callable[[str | None], StandaloneProgram], tools: Path) -> None:
    """Nothing fails, and nothing is claimed."""
    assert whole(make(None)) == ExportChecks(
        omitted=("nvcc and a C++ compiler were not found, so the host part was not compiled",)
    )


def test_a_compiler_that_does_not_work_is_not_a_bug(
    make: Callable[[str | None], StandaloneProgram], tools: Path
) -> None:
    """Nvcc without a host compiler, or too old for the chip, fails on any file."""
    tool(tools, "nvcc", 'echo "nvcc fatal : Unsupported gpu architecture" >&2; exit 1')
    assert whole(make(None)).omitted[0] == ("the host part was not compiled: nvcc fatal : Unsupported gpu architecture")


def test_what_nvcc_rejects_is_a_bug(make: Callable[[str | None], StandaloneProgram], tools: Path) -> None:
    """The first error is in the message."""
    tool(tools, "nvcc", 'case "$*" in *empty.cu*) exit 0;; esac; echo "best.cu(7): error: no such thing" >&2; exit 1')
    with pytest.raises(InternalError, match=r"does not compile with nvcc: best.cu\(7\): error: no such thing"):
        whole(make(None))


@pytest.mark.parametrize(
    ("script", "result"),
    [
        ("echo PASS", "ran on Toy L4: PASS"),
        ("echo 'y: worst element'; exit 1", StudyError),
        ("echo 'launch: invalid argument' >&2; exit 3", StudyError),
        ("echo 'cudaMalloc: out of memory' >&2; exit 3", "the check on Toy L4 failed: cudaMalloc: out of memory"),
        ("echo 'needs more memory' >&2; exit 2", "the check on Toy L4 failed: needs more memory"),
    ],
)
def test_on_the_gpu_the_program_runs_once(
    make: Callable[[str | None], StandaloneProgram],
    tools: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    result: str | type[Exception],
) -> None:
    """A failed check is reported and nothing is handed over, unless it is forced."""
    (tools / "made").write_text(f"#!/bin/sh\n{script}\n")
    tool(tools, "nvcc", f'while [ "$1" != "-o" ]; do shift; done; cp {tools}/made "$2"; chmod +x "$2"')
    gpu = Gpu(0, "Toy L4", (8, 9), 1 << 30)
    monkeypatch.setattr(checked, "probe", lambda: Driver((13, 0), (gpu,)))
    monkeypatch.setattr(checked, "live_gpu", lambda index: SimpleNamespace(uuid="GPU-toy"))
    monkeypatch.setattr(checked, "GpuLock", lambda uuid, name: SimpleNamespace(release=lambda: None))
    if isinstance(result, str):
        assert result in whole(make(None)).in_words()
        return
    with pytest.raises(result, match="built and run on Toy L4, and failed"):
        whole(make(None))
    assert "the check on Toy L4 failed" in whole(make(None), force=True).in_words()


def test_another_gpu_does_not_run_it(
    make: Callable[[str | None], StandaloneProgram], tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program for sm_89 does not run on sm_90, and the checks say so."""
    tool(tools, "nvcc", 'while [ "$1" != "-o" ]; do shift; done; printf x > "$2"')
    monkeypatch.setattr(checked, "probe", lambda: Driver((13, 0), (Gpu(0, "H", (9, 0), 1 << 30),)))
    assert whole(make(None)).in_words() == "built with nvcc; not run, because this machine has no GPU of sm_89"


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted write keeps the previous file and leaves nothing else."""
    file = tmp_path / "best.cu"
    file.write_text("before")
    file.chmod(0o640)
    write_whole(file, b"after")
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("after", 0o640)

    def interrupted(self: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_whole(file, b"half")
    assert (file.read_text(), list(tmp_path.iterdir())) == ("after", [file])
