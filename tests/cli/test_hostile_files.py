"""Names that are not UTF-8, damaged state and short resources get one sentence with the true reason, never exit 3."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from paths import DATA
from typer.testing import CliRunner

from evokern import lock_file
from evokern.cli._command import app, environment_error_message
from evokern.cli.app import run  # noqa: F401 (registers every command)
from evokern.compile.build import Target, compile_rendered
from evokern.compile.cache import CompileCache
from evokern.compile.elf import sections
from evokern.compile.pool import CompileSettings, CompileWorker
from evokern.compile.records import Program
from evokern.declaration.foreign import ForeignCandidate, ForeignSource, LaunchGeometry
from evokern.declaration.kernel import Tensor
from evokern.declaration.render import Rendered
from evokern.errors import KernelError, StoreError
from evokern.hardware.profiles import CHIPS
from evokern.store import Store, _files
from evokern.study.discovery import WorkerContext, load_kernel
from evokern.study.trial import Evaluation
from evokern.sweep.journal import Journal

NAME = os.fsdecode(b"k\xff")


def _invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stderr


@pytest.mark.parametrize(
    ("place", "arguments"),
    [
        (f"kernels/{NAME}", ("check", NAME)),
        (f"kernels/{NAME}", ("check", f"kernels/{NAME}")),
        (f"kernels/{NAME}", ("sanitize", NAME)),
        (f"{NAME}/kernels/mine", ("check", f"{NAME}/kernels/mine")),
    ],
)
def test_a_kernel_folder_that_is_not_utf8_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, arguments: tuple[str, ...]
) -> None:
    """Its path cannot be stored in a database; the message says what to rename."""
    shutil.copytree(DATA / "kernels" / "scale_rows", tmp_path / place)
    monkeypatch.chdir(tmp_path)
    code, told = _invoke(*arguments)
    assert (code, "is not UTF-8" in told, "rename" in told) == (2, True, True)


def test_a_study_file_that_is_not_utf8_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for a study, by its name and by its path, and for a sweep."""
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / f"{NAME}.toml").write_text('kernel = "rmsnorm"\nproblems = ["64,1024"]\n')
    monkeypatch.chdir(tmp_path)
    for words in (("search", NAME), ("search", f"studies/{NAME}.toml"), ("sweep", "run", f"studies/{NAME}.toml")):
        code, told = _invoke(*words)
        assert (code, "is not UTF-8" in told, "rename" in told) == (2, True, True)


def test_a_word_that_cannot_be_encoded_is_named() -> None:
    """Wherever Python meets such a name first."""
    with pytest.raises(UnicodeEncodeError) as told:
        f"some text with {NAME} inside".encode()
    assert environment_error_message(told.value) == (
        "'k\\udcff' is not UTF-8; rename that file or folder, or pass another argument"
    )


SLICE: dict[str, Any] = {
    "study": "a", "first": 0, "last": 4, "why": "new", "before_us": None, "before_s": 0.0, "after_us": 2.0,
    "seconds": 1.5,
}  # fmt: skip


def _journal(folder: Path, table: object) -> Journal:
    (folder / "sweep.json").write_text(json.dumps(table))
    return Journal.of(folder)


def test_a_sound_journal_is_read(tmp_path: Path) -> None:
    """Whole numbers count as times, too."""
    found = _journal(tmp_path, {"version": 1, "device": None, "slices": [SLICE, {**SLICE, "seconds": 2}]})
    assert [one.seconds for one in found.slices] == [1.5, 2]


@pytest.mark.parametrize(
    "table",
    [
        *({"version": 1, "device": None, "slices": [{**SLICE, **change}]} for change in (
            {"study": 3}, {"study": None}, {"first": "0"}, {"first": 1.5}, {"first": True}, {"first": -1}, {"last": []},
            {"why": {}}, {"before_us": "1"}, {"before_us": 0}, {"before_us": -2.0}, {"after_us": float("nan")},
            {"before_s": None}, {"before_s": float("inf")}, {"seconds": [1]}, {"seconds": -1.0},
        )),
        {"version": 1, "device": 7, "slices": []},
        {"version": "1", "device": None, "slices": []},
        {"version": None, "device": None, "slices": []},
        {"version": 1, "device": None, "slices": {"a": SLICE}},
        {"version": 1, "device": None, "slices": [[SLICE]]},
        {"version": 1, "device": None, "slices": 3},
        {"version": 1, "slices": []},
        [SLICE],
        "text",
    ],
)  # fmt: skip
def test_a_journal_of_wrong_types_is_refused(tmp_path: Path, table: object) -> None:
    """The message names the file and what to do with it."""
    with pytest.raises(StoreError, match=r"sweep\.json cannot be read .*remove it"):
        _journal(tmp_path, table)


@pytest.mark.parametrize("damage", ["no ELF", "half", "header only", "no sections", "other entry", "no machine code"])
def test_a_program_of_the_cache_that_cannot_be_read_is_compiled_again(tmp_path: Path, damage: str) -> None:
    """Its digest is valid, because any user who can write to the cache can compute it."""
    cache = CompileCache(tmp_path)
    rendered = Rendered('extern "C" __global__ void k(int* x) { *x = 1; }', "k.cu", {}, (), ("k",))
    target = Target(CHIPS["l4"], cache)
    sound = compile_rendered(rendered, target)
    assert isinstance(sound, Program)
    (path,) = (tmp_path / "programs").glob("*/*")
    key = path.parent.name + path.name
    cubin = {
        "no ELF": b"not machine code" * 100,
        "half": sound.cubin[: len(sound.cubin) // 2],
        "header only": sound.cubin[:64],
        "no sections": sound.cubin[:40] + b"\xff" * 24 + sound.cubin[64:],
        "no machine code": b"",
    }.get(damage, sound.cubin)
    cache.put(
        key, replace(sound, cubin=cubin, lowered={"other": "other"} if damage == "other entry" else sound.lowered)
    )
    again = compile_rendered(rendered, target)
    assert isinstance(again, Program)
    assert list(sections(again.cubin)) == list(sections(sound.cubin))
    assert again.lowered == {"k": "k"}


@pytest.mark.parametrize("shape", [(2**62, 2**62), (2**63,), (2**31, 2**31, 2)])
def test_a_tensor_has_fewer_bytes_than_an_address_can_name(shape: tuple[int, ...]) -> None:
    """Torch reports an overflow as an internal error."""
    with pytest.raises(KernelError, match="bytes; at most"):
        Tensor("f32", shape)
    assert Tensor("u8", (2**62,)).bytes == 2**62


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_too_many_open_files_are_told_without_a_name(number: int) -> None:
    """A pipe or a socket has none."""
    told = environment_error_message(OSError(number, os.strerror(number)))
    assert told is not None
    assert told.startswith(os.strerror(number) + "; ")


def test_a_database_that_cannot_be_opened_for_want_of_files_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite itself only says that it cannot open the file."""
    monkeypatch.setattr(_files, "_no_more_files", lambda: True)
    with pytest.raises(StoreError, match=r"too many open files.*ulimit -n"), _files.explain_errors(Path("a.db")):
        raise sqlite3.OperationalError("unable to open database file")


def test_a_lock_on_a_full_disk_names_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is the first file that a search writes; no file is left, and stdout is not blamed."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(lock_file.os, "pwrite", full)
    with pytest.raises(StoreError, match=r"a\.db cannot be locked: No space left on device; .*--db"):
        Store(tmp_path / "a.db")
    assert not list(tmp_path.iterdir())


def test_a_source_that_launches_a_kernel_is_refused_by_that_name() -> None:
    """Its kernel would otherwise be taken for host code, and be missing."""
    kernel = load_kernel(DATA / "kernels" / "scale_rows")
    text = """__global__ void child(float* y) { y[threadIdx.x] = 1; }
extern "C" __global__ void scale_rows(const float* x, float* y, int n) { child<<<1, 1>>>(y); }
"""
    worker = CompileWorker(CompileSettings(WorkerContext.of(kernel, (kernel.problem("64,256"),), CHIPS["l4"]), None))
    built = worker.handle(ForeignCandidate(kernel.space.default(), ForeignSource("k.cu", text), LaunchGeometry()))
    assert isinstance(built, Evaluation)
    assert built.evidence["message"] == (
        "k.cu:2: a kernel launches another one (dynamic parallelism), but evokern has no device runtime"
    )


def test_variables_that_do_not_fit_are_named(tmp_path: Path) -> None:
    """A variable of a terabyte is not a lack of memory of this machine."""
    source = tmp_path / "k.cu"
    source.write_text('__device__ char room[1ull << 40];\nextern "C" __global__ void k(int* x) { room[*x] = 1; }')
    code, told = _invoke("sanitize", str(source), "--grid", "1", "--block", "32", "--arg", "in:i32[32]")
    assert (code, "(room: 1,099,511,627,776), but the simulator supports at most" in told) == (2, True)
