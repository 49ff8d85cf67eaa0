"""A lock, state or output file never follows a link that a repository may contain."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import evokern
from evokern.cli._command import app
from evokern.cli._output import save
from evokern.cli.app import run  # noqa: F401 (registers every command)
from evokern.errors import StoreError
from evokern.files import write_text, write_whole
from evokern.store import Store, open_readonly
from evokern.sweep.journal import sweep_lock

Place = Callable[[Path, Path], None]
PRECIOUS = "export PRECIOUS=1\n"


def _socket(path: Path, target: Path) -> None:
    with socket.socket(socket.AF_UNIX) as held:
        held.bind(os.path.relpath(path))


PLACES: dict[str, tuple[Place, str]] = {
    "link": (lambda path, target: path.symlink_to(target), "it is a link to "),
    "relative link": (lambda path, target: path.symlink_to(os.path.relpath(target, path.parent)), "it is a link to "),
    "dangling link": (lambda path, target: path.symlink_to(target.with_name("new")), "it is a link to "),
    "hard link": (lambda path, target: path.hardlink_to(target), "it is one of 2 hard links"),
    "pipe": (lambda path, target: os.mkfifo(path), "it is a pipe (FIFO)"),
    "socket": (_socket, "it is a socket"),
    "folder": (lambda path, target: path.mkdir(), "it is a folder"),
}


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of the user outside the repository, which is the working directory."""
    (tmp_path / "repository").mkdir()
    monkeypatch.chdir(tmp_path / "repository")
    path = tmp_path / "precious"
    path.write_text(PRECIOUS)
    return path


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("suffix", [".lock", "-wal", "-shm", "-journal"])
def test_a_database_with_a_link_next_to_it_is_refused(target: Path, kind: str, suffix: str) -> None:
    """The message names the file, what it is and the remedy; the target keeps its content."""
    put, what = PLACES[kind]
    put(Path(f"a.db{suffix}"), target)
    with pytest.raises(StoreError) as told:
        Store(Path("a.db"))
    assert (f"a.db{suffix}" in str(told.value), what in str(told.value), "emove" in str(told.value)) == (True,) * 3
    assert (target.read_text(), target.with_name("new").exists()) == (PRECIOUS, False)


def test_a_reader_follows_no_link_either(target: Path) -> None:
    """SQLite replays and resets the log of a database that is only read."""
    with Store(Path("a.db")):
        pass
    Path("a.db-wal").symlink_to(target)
    with pytest.raises(StoreError, match="a link to"), open_readonly("a.db"):
        pass
    assert target.read_text() == PRECIOUS


@pytest.mark.parametrize("content", [None, ""])
def test_a_database_is_not_created_through_a_link(target: Path, content: str | None) -> None:
    """A link may lead to a database, but not to a missing or empty file."""
    elsewhere = target.with_name("new")
    if content is not None:
        elsewhere.write_text(content)
    Path("a.db").symlink_to(elsewhere)
    with pytest.raises(StoreError, match=r"a link to .*not a database"):
        Store(Path("a.db"))
    assert elsewhere.exists() == (content is not None)
    assert content is None or not elsewhere.stat().st_size


@pytest.mark.parametrize("kind", PLACES)
def test_a_sweep_is_not_locked_through_a_link(target: Path, kind: str) -> None:
    """The same for the lock of a sweep's folder."""
    put, what = PLACES[kind]
    put(Path("sweep.lock"), target)
    with pytest.raises(StoreError) as told, sweep_lock(Path()):
        pass
    assert (what in str(told.value), "sweep.lock" in str(told.value), "None" in str(told.value)) == (True, True, False)
    assert (target.read_text(), target.with_name("new").exists()) == (PRECIOUS, False)


WRITERS: dict[str, Callable[[Path, str], None]] = {
    "draft": write_text,
    "Study.export": lambda path, text: write_whole(path, text.encode()),
    "-o": lambda path, text: save(path, text, "-o"),
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("kind", ["link", "relative link", "dangling link", "hard link"])
def test_an_output_replaces_a_link(target: Path, kind: str, writer: str) -> None:
    """The name then is a file of its own; what the link led to is unchanged."""
    put, _ = PLACES[kind]
    out = Path("best.cu")
    put(out, target)
    WRITERS[writer](out, "new\n")
    assert (out.read_text(), out.is_symlink(), out.stat().st_nlink) == ("new\n", False, 1)
    assert (target.read_text(), target.with_name("new").exists()) == (PRECIOUS, False)
    assert [path.name for path in Path().iterdir()] == ["best.cu"]


def test_only_files_py_writes_outside_scratch_folders() -> None:
    """Every other writer that may follow a link writes into a temporary folder of its own process."""
    package = Path(evokern.__file__).parent
    writes = re.compile(r"\.write_(text|bytes)\(|open\((?!os\.d)[^)]*[\"'][wax]b?\+?[\"']|shutil\.(copy|move)|np\.save")
    scratch = {
        "analysis/check/reference_check.py", "analysis/profile/counters.py", "cli/commands/compare.py",
        "cluster/host.py", "declaration/kernel_files.py", "pack/library.py",
        "scaffold/torch_task/child.py",
        "scaffold/tuner/fake_kernel_tuner.py",
    }  # fmt: skip
    descriptors = {"cli/__init__.py", "compile/cache.py", "study/discovery.py"}  # opened by `os.open` with O_NOFOLLOW
    found = {str(file.relative_to(package)) for file in package.rglob("*.py") if writes.search(file.read_text())}
    assert found == scratch | descriptors | {"files.py"}


@pytest.mark.parametrize("writer", WRITERS)
def test_an_output_may_be_an_open_stream(writer: str) -> None:
    """`/dev/stdout` is a link that leads to a stream of this process."""
    WRITERS[writer](Path("/dev/null"), "nothing\n")
    read, written = os.pipe()
    WRITERS[writer](Path(f"/proc/self/fd/{written}"), "text")
    os.close(written)
    with os.fdopen(read) as stream:
        assert stream.read() == "text"


@pytest.mark.parametrize("kind", [kind for kind in PLACES if kind != "folder"])
def test_a_log_is_not_written_through_a_link(target: Path, kind: str) -> None:
    """`--log` adds to a file, so a link is refused rather than replaced."""
    put, what = PLACES[kind]
    put(Path("run.log"), target)
    result = CliRunner().invoke(app, ["list", "--log", "run.log"])
    assert (result.exit_code, what in result.stderr, "--log" in result.stderr) == (2, True, True)
    assert (target.read_text(), target.with_name("new").exists()) == (PRECIOUS, False)
