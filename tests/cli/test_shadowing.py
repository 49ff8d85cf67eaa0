"""A user's file named like a library is named as the cause of what it breaks, and of nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from evokern.cli._command import run_command
from evokern.cli._output import Output
from evokern.errors import DeviceError, KernelError
from evokern.workers.pool import ForkServer, WorkerPool, WorkerSpec
from evokern.workers.shadowing import shadowing_advice

HANDLER = """
import somelib
somelib.needed
class Handler:
    def __init__(self, init): pass
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's that Python looks through before one with an installed library `somelib`."""
    library = tmp_path / "site-packages" / "somelib"
    library.mkdir(parents=True)
    (library / "__init__.py").write_text("needed = 1\n")
    (library / "other.py").write_text("")
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "handler_of_somelib.py").write_text(HANDLER)
    monkeypatch.syspath_prepend(str(library.parent))
    monkeypatch.syspath_prepend(str(folder))
    return folder


def start_worker(preload: tuple[str, ...]) -> None:
    """Wait for a worker of the handler that needs the library."""
    server = ForkServer(preload=preload)
    try:
        pool = WorkerPool(server, WorkerSpec("handler_of_somelib:Handler", None), size=1)
        pool.wait_ready()
        pool.close()
    finally:
        server.close()


def test_a_hidden_library_is_named_with_the_file_that_hides_it(mine: Path) -> None:
    """A module and a package of the user's are named, where the error speaks of a library of that name."""
    (mine / "random.py").write_text("")
    (mine / "somelib").mkdir()
    (mine / "somelib" / "__init__.py").write_text("")
    told = shadowing_advice("cannot import name 'Random' from 'random'")
    assert told.startswith(f"{mine / 'random.py'} hides the library random (")
    assert told.endswith("); rename your file")
    assert shadowing_advice("No module named 'somelib.deep'").startswith(
        f"{mine / 'somelib'} hides the library somelib ("
    )


def test_what_hides_nothing_is_not_named(mine: Path) -> None:
    """Neither a file that no library is named like, nor one that the error does not speak of, nor a library itself."""
    (mine / "random.py").write_text("")
    (mine / "helper.py").write_text("")
    assert shadowing_advice("helper raised ValueError in somelib and numpy: randomness") == ""


@pytest.mark.parametrize("body", ["raise RuntimeError('boo')", "raise SystemExit('boo')", "unlike = 1"])
def test_a_worker_that_cannot_start_for_it_says_so(mine: Path, body: str) -> None:
    """Whatever the file does when it is imported, in the server or the worker, the message names it and the remedy."""
    (mine / "somelib.py").write_text(body)
    with pytest.raises(
        DeviceError, match=r"^a worker .*mine/somelib\.py hides the library somelib .*; rename your file$"
    ):
        start_worker(preload=("somelib", "handler_of_somelib"))


def test_a_server_that_cannot_start_tells_why(mine: Path) -> None:
    """Where not even the process that forks workers comes up, its own last words are told, not "no message"."""
    (mine / "deadly.py").write_text("import os; print('ended by deadly.py', flush=True); os._exit(3)")
    with pytest.raises(DeviceError, match=r"died during its start \(.*exit code 3\): ended by deadly\.py$"):
        start_worker(preload=("deadly",))


def test_only_what_looks_like_a_defect_is_looked_through(
    mine: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception that evokern did not expect names the file; a message that has its remedy is left as it is."""
    monkeypatch.setenv("XDG_STATE_HOME", str(mine))
    (mine / "somelib.py").write_text("")

    def stumble() -> int:
        raise AttributeError("module 'somelib' has no attribute 'needed'")

    def refuse() -> int:
        raise KernelError("somelib is no kernel; name another")

    assert run_command(Output(), stumble) == 3
    assert f"{mine / 'somelib.py'} hides the library somelib (" in capsys.readouterr().err
    assert run_command(Output(), refuse) == 2
    assert capsys.readouterr().err == "evokern: somelib is no kernel; name another\n"
