"""What is wrong around a command ends it with exit code 2 and a remedy: streams, folders, names, memory, FIFOs, locks.

What a terminal, a shell or the system does is had in processes of their own, everything else in this one.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import pytest
from fuzzed_cases import Done, at, command, workplace
from paths import ROOT

LONG = "a/" * 2500
"""A path of 5,000 characters."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study and its database."""
    place = workplace(tmp_path_factory.mktemp("around"))
    assert _here(place, "search small --trials 3 --quiet --no-verify").code == 0
    return place


def _run(here: Path, words: str, *, before: str = "", after: str = "", **environment: str) -> Done:
    """Run a command line of evokern's in a shell, with words before and after it."""
    line = f"{before} {sys.executable} -m evokern {words} {after}"
    state = {
        "XDG_STATE_HOME": str(here.parent / "state"),
        "EVOKERN_CACHE": str(here.parent / "cache"),
        "COLUMNS": "100",
    }
    given = {**os.environ, "PYTHONPATH": str(ROOT), **state, **environment}
    given.pop("EVOKERN_DB", None)
    done = subprocess.run(line, shell=True, cwd=here, env=given, capture_output=True, timeout=120, check=False)
    return Done(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


def _here(here: Path, words: str) -> Done:
    """Run a command line in this process."""
    with at(here):
        return command(words.split())


def _refused(done: Done, told: str, here: Path) -> None:
    """Check for exit code 2, the words, no traceback and no log of a crash."""
    assert (done.code, told in done.stderr) == (2, True), f"exit {done.code}: {done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr, done.stderr
    assert len(done.stderr) < 2000, "a message is read by people"
    assert [] == [*(here.parent / "state").rglob("crash*")]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "unbuffered"),
    [("show --json", ""), pytest.param("show", "1", marks=pytest.mark.slow), ("--help", "")],
)
def test_a_full_disk_at_stdout(here: Path, words: str, unbuffered: str) -> None:
    """`> /dev/full` is told once, with or without buffers."""
    done = _run(here, words, after="> /dev/full", PYTHONUNBUFFERED=unbuffered)
    _refused(done, "cannot write: No space left on device; redirect stdout", here)


@pytest.mark.thorough
def test_a_closed_stdout(here: Path) -> None:
    """Nothing is searched for nobody, and no file takes the number of the closed stream."""
    done = _run(here, "search small --trials 4 --db closed.db", after=">&-")
    _refused(done, "stdout is closed", here)
    assert not (here / "closed.db").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("after", [pytest.param("2>/dev/full", marks=pytest.mark.slow), "2>&- <&-"])
def test_a_closed_or_full_stderr_is_no_harm(here: Path, after: str) -> None:
    """Who reads no remarks gets the answer all the same."""
    done = _run(here, "show --json", after=after)
    assert (done.code, json.loads(done.stdout)["study"]) == (0, "small"), done


@pytest.mark.thorough
def test_an_ascii_terminal(here: Path) -> None:
    """What ASCII lacks is written as escapes, and JSON stays JSON."""
    plain = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    shown = _run(here, "show", PYTHONIOENCODING="ascii")
    assert (shown.code, r"\xb5s" in shown.stdout) == (0, True), shown.stderr
    found = json.loads(_run(here, "show --json", **plain).stdout)
    assert found["study"] == "small"


@pytest.mark.thorough
@pytest.mark.parametrize("words", ["list", "--help"])
def test_a_working_directory_that_is_gone(here: Path, words: str) -> None:
    """The folder is named as gone, with a way out; the help needs none."""
    before = "mkdir -p gone && cd gone && rmdir ../gone && "
    done = _run(here, words, before=before)
    if words == "--help":
        assert done.code == 0
    else:
        _refused(done, "the working directory is gone", here)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "words",
    [
        f"show --db {LONG}",
        f"search {LONG}",
        f"check {LONG}",
        f"search small --device replay:{LONG} --db x.db",
        f"search small --db {LONG}",
        f"show --log {LONG}",
        f"report -o {LONG}",
        f"replay {LONG}",
        f"sanitize {LONG}.cu",
        f"init {LONG}.cu",
        f"show {'b' * 5000}",
    ],
    ids=lambda words: " ".join(words[:40].split()[:3])[:24],
)
def test_a_path_of_five_thousand_characters(here: Path, words: str) -> None:
    """Every argument that names a file; the message shows both ends of the name."""
    _refused(_here(here, words), "evokern: ", here)


@pytest.mark.thorough
def test_the_place_of_crash_logs_may_be_no_place(here: Path) -> None:
    """Trust is remembered below XDG_STATE_HOME: one that is no name does not end in a traceback."""
    _refused(_run(here, "show --db absent.db", XDG_STATE_HOME=f"/{LONG}"), "absent.db", here)


@pytest.mark.parametrize(("words", "told"), [("cache", "set HOME"), ("check ..", "--trust")])
def test_a_user_without_a_home(here: Path, monkeypatch: pytest.MonkeyPatch, words: str, told: str) -> None:
    """In a container whose user has no entry: what needs a folder of the user's says so, nothing else minds."""
    (here.parent / "kernel.py").touch()
    with at(here):
        for name in ("HOME", "EVOKERN_CACHE", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr("pwd.getpwuid", _unknown)
        done = command(words.split())
    _refused(done, told, here)


def _unknown(number: int) -> NoReturn:
    raise KeyError(f"uid not found: {number}")


@pytest.mark.parametrize(
    "kilobytes",
    [
        pytest.param(600_000, marks=pytest.mark.thorough),
        *(pytest.param(n, marks=pytest.mark.slow) for n in (3e5, 9e5, 1.2e6, 2e6)),
    ],
)
def test_little_memory(here: Path, kilobytes: float) -> None:
    """Under `ulimit -v` a search works, or says that memory ran out; a database that was begun is whole."""
    words = f"search small --trials 20 --quiet --no-verify --db m{kilobytes:.0f}.db"
    done = _run(here, words, before=f"ulimit -v {kilobytes:.0f};")
    if done.code:
        _refused(done, "memory or threads ran out", here)
    assert _here(here, words).code == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("search small --db fifo", "fifo is a pipe"),
        ("show --db fifo", "fifo"),
        ("search fifo.toml", "fifo.toml"),
        ("search small --device replay:fifo --db x.db", "fifo: it is a pipe (FIFO)"),
        ("replay fifo", "fifo: it is a pipe (FIFO)"),
        ("report -o fifo", "cannot write fifo: it is a pipe (FIFO)"),
        ("show --log fifo", "cannot write the log fifo: "),
        ("init fifo.cu", "it is a pipe (FIFO)"),
        ("sanitize fifo.cu --block 32", "it is a pipe (FIFO)"),
        ("check kernels/piped", "kernels/piped has no kernel.py"),
        ("compare fifo.cu fifo.cu", "fifo.cu"),
    ],
)
def test_a_fifo_in_place_of_a_file(here: Path, words: str, told: str) -> None:
    """Opening one would wait for its other end for ever."""
    for name in ("fifo.toml", "fifo.cu", "kernels/piped/kernel.py"):
        path = here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            os.mkfifo(path)
    _refused(_here(here, words), told, here)


def test_a_fifo_among_the_studies_hides_no_other(here: Path) -> None:
    """`list` says what it is, and lists the rest."""
    os.mkfifo(here / "studies" / "piped.toml")
    done = _here(here, "list --json")
    studies = {one["name"]: one.get("error", "") for one in json.loads(done.stdout)["studies"]}
    (here / "studies" / "piped.toml").unlink()
    assert "it is a pipe (FIFO)" in studies["piped"]
    assert studies["small"] == ""


def _read_to_the_end(fifo: int) -> int:
    """Wait for a writer and return how many bytes it writes."""
    select.select([fifo], [], [], 60)
    count = 0
    while part := os.read(fifo, 1 << 16):
        count += len(part)
    return count


@pytest.mark.thorough
def test_a_reader_at_the_end_of_a_fifo_gets_what_is_written(here: Path) -> None:
    """`-o` takes a FIFO that somebody reads."""
    reader = os.open(here / "fifo", os.O_RDONLY | os.O_NONBLOCK)  # is there before the command opens the other end
    os.set_blocking(reader, True)
    with ThreadPoolExecutor(1) as pool:
        came = pool.submit(_read_to_the_end, reader)
        done = _here(here, "report -o fifo")
    os.close(reader)
    assert (done.code, came.result() > 10_000) == (0, True), done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user: only root can be one for a while")
def test_the_lock_of_another_user() -> None:
    """A lock file that cannot be opened is named with its owner and the remedy."""
    from evokern.errors import StoreError
    from evokern.store._lock import Lock

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        (folder / "x.db.lock").touch(0o600)
        os.seteuid(65534)
        try:
            with pytest.raises(StoreError, match="another user's search") as caught:
                Lock(folder / "x.db")
        finally:
            os.seteuid(0)
    told = str(caught.value)
    assert all(part in told for part in ("x.db.lock", "user 0", "Permission denied", "--db"))


@pytest.mark.parametrize("content", ["[1, 2]", '{"command": 3', "[" * 100_000, '"x"'])
def test_a_lock_that_holds_anything(tmp_path: Path, content: str) -> None:
    """What a lock says of its holder is only shown, whatever it is."""
    from evokern.errors import StoreError
    from evokern.store._lock import Lock

    holder = "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, 2); print('held', flush=True); input()"
    path = tmp_path / "x.db.lock"
    path.write_text(content)
    process = subprocess.Popen(
        [sys.executable, "-c", holder, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(StoreError, match="in use by another search"):
        Lock(tmp_path / "x.db")
    process.communicate("\n", timeout=30)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import sys\nsys.exit(0)\n", "SystemExit: 0"),
        ("raise SystemExit('enough')\n", "SystemExit: enough"),
        ("\ufeffimport sys\nsys.exit(1)\n", "SystemExit: 1"),
        ("(" * 5000 + ")" * 5000, "kernel.py"),
        ("\x00", "kernel.py"),
    ],
)
@pytest.mark.parametrize("word", ["check", "sanitize"])
def test_code_that_ends_the_process(here: Path, text: str, told: str, word: str) -> None:
    """A `sys.exit(0)` in kernel.py is a mistake, no green check."""
    folder = here / "kernels" / "leaves"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kernel.py").write_text(text)
    _refused(_here(here, f"{word} leaves"), told, here)
