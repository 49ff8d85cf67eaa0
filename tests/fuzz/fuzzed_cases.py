"""What the fuzzers share: a folder to work in, one command run on it, and what must hold whatever it was given.

A case is drawn from its seed alone, so that a failure names all it takes to see it again:
`pytest -p no:xdist tests/fuzz -k NAME --count 1 --seed SEED`.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paths import DATA
from typer.testing import CliRunner

from evokern.cli._command import app
from evokern.cli.app import run  # noqa: F401 (registers every command)

LIMIT_S = 30
"""Time after which a command counts as hanging, seconds: the slowest sound one takes two."""
STUDY = 'kernel = "recording"\nproblems = ["recorded"]\ndevice = "replay:table.json.gz"\n'
"""A study of the small recording."""
BESIDE = ("", "-wal", "-shm", "-journal", ".lock")
"""What SQLite and the lock of a search keep beside a database."""


class Hang(BaseException):
    """A command took longer than `LIMIT_S`; nothing on its way out may catch it."""


@dataclass(frozen=True)
class Done:
    """What a command did."""

    code: int
    """Its exit code."""
    stdout: str
    """Its answer."""
    stderr: str
    """Its remarks and complaints."""


def workplace(folder: Path) -> Path:
    """Make a folder with a study of the small recording, a folder, a FIFO and a CUDA file; returns where to work."""
    here = folder / "work"
    (here / "studies").mkdir(parents=True)
    (here / "folder").mkdir()
    shutil.copy(DATA / "table_small.json.gz", here / "table.json.gz")
    (here / "studies" / "small.toml").write_text(STUDY)
    (here / "file.cu").write_text("__global__ void k(float* y) { y[threadIdx.x] = 1; }\n")
    os.mkfifo(here / "fifo")
    return here


@contextmanager
def at(here: Path) -> Iterator[None]:
    """Work in a folder, with a home, a state folder, a cache and a place for temporary files of its own beside it.

    All of them are watched (`checked`), so that a file left in `/tmp` or at home is seen as well.
    """
    before, environment, temporary = Path.cwd(), dict(os.environ), tempfile.tempdir
    own = {"HOME": "home", "TMPDIR": "tmp", "XDG_STATE_HOME": "state", "EVOKERN_CACHE": "cache"}
    os.environ.update({name: str(here.parent / folder) for name, folder in own.items()})
    for name in ("EVOKERN_DB", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        os.environ.pop(name, None)
    for folder in ("home", "tmp"):
        (here.parent / folder).mkdir(exist_ok=True)
    tempfile.tempdir = None  # asks TMPDIR again
    os.chdir(here)
    try:
        yield
    finally:
        tempfile.tempdir = temporary
        os.chdir(before)
        os.environ.clear()
        os.environ.update(environment)


def held(folder: Path) -> dict[str, str]:
    """Return what stands below a folder: name → kind and permissions, of a file its digest, of a link its target."""
    found = {}
    for path in folder.rglob("*"):
        mode = path.lstat().st_mode
        content = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(mode) else ""
        found[str(path)] = f"{mode:o} {content}{path.readlink() if stat.S_ISLNK(mode) else ''}"
    return found


def command(words: Sequence[str], *, apart: bool = False) -> Done:
    """Run a command line, in this process or in one of its own.

    Raises:
        Hang: it does not end.
    """
    if apart:
        line = [sys.executable, "-m", "evokern", *words]
        try:
            done = subprocess.run(line, capture_output=True, timeout=2 * LIMIT_S, stdin=subprocess.DEVNULL, check=False)
        except subprocess.TimeoutExpired as error:
            raise Hang from error
        return Done(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))

    def late(*_: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return Done(result.exit_code, result.stdout, result.stderr)


def checked(
    words: Sequence[str],
    here: Path,
    named: Sequence[Path | str] = (),
    *,
    apart: bool = False,
    codes: Sequence[int] = (0, 1, 2),
) -> Done:
    """Run a command line that may be refused, and nothing worse: no traceback, no exit 3, no hang, no other file.

    Args:
        words: the command line.
        here: the working directory, whose parent is watched.
        named: files that it may make or change; of databases what SQLite keeps beside them as well.
        apart: run it in a process of its own.
        codes: exit codes that it may have.
    """
    before = held(here.parent)
    try:
        done = command(words, apart=apart)
    except Hang:
        raise AssertionError(f"hangs: {words!r}") from None
    except Exception as error:
        raise AssertionError(f"raises {type(error).__name__}: {error}: {words!r}") from error
    told = done.stdout + done.stderr
    shown = f"{words!r}: exit {done.code}\n{told[-1500:]}"
    assert done.code in codes, shown
    asked = any(word.startswith(("-v", "--verbose")) for word in words)  # which shows where a mistake was found
    assert "internal error" not in told and (asked or "Traceback (most recent" not in told), shown
    if done.code == 2:
        assert any(line.startswith(("evokern: ", "Error", "Usage")) for line in done.stderr.splitlines()), shown
    may = {os.path.abspath(here / f"{name}{suffix}") for name in named for suffix in BESIDE}  # noqa: PTH100 (as named)
    after = held(here.parent)
    touched = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    own = str(here.parent / "cache")
    other = [path for path in touched if path not in may and not path.startswith(own)]
    assert other == [], f"{shown}\ntouched {other}"
    return done


def each(cases: tuple[int, int], one: Callable[[int, random.Random], None]) -> None:
    """Run every case, and tell at the end of those that failed.

    Args:
        cases: how many, and the seed of the first.
        one: takes a case's seed and its random numbers.
    """
    count, first = cases
    failed = []
    for seed in range(first, first + count):
        try:
            one(seed, random.Random(seed))
        except AssertionError as error:
            failed.append(f"--seed {seed}: {error}")
    shown = "\n\n".join(failed[:20])
    assert not failed, f"{len(failed)} of {count} cases failed\n{shown}"
