"""Fork servers that fork further ones: alike ones alone, each with what its own parent is."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from evokern.workers import sharing
from evokern.workers.pool import ForkServer, WorkerPool, WorkerSpec, wait

Start = Callable[..., ForkServer]


@pytest.fixture
def imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file to which the module `counted` writes a line whenever a process imports it."""
    (tmp_path / "modules").mkdir()
    log = tmp_path / "imports"
    (tmp_path / "modules" / "counted.py").write_text(f"open({str(log)!r}, 'a').write('x')")
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    monkeypatch.setattr(sharing.tempfile, "gettempdir", lambda: str(tmp_path))
    return log


@pytest.fixture
def start(imports: Path) -> Iterator[Start]:
    """Starts a server that imports `counted`; closed behind the test."""
    with ExitStack() as stack:

        def started(shared: str | None = "1") -> ForkServer:
            server = ForkServer(("counted", "worker_handlers"), shared)
            stack.callback(server.close)
            return server

        yield started


def asked(server: ForkServer, job: Any) -> Any:
    """Have a worker of a server do a job; returns its answer."""
    pool = WorkerPool(server, WorkerSpec("worker_handlers:Obedient", None), size=1)
    try:
        pool.submit(0, job, 10.0)
        end = time.monotonic() + 20
        while time.monotonic() < end:
            for result in wait([pool], 0.5):
                assert result.status == "done", result
                return result.value
    finally:
        pool.close()
    raise AssertionError("no answer")


def sockets(folder: Path) -> list[Path]:
    return [path for path in folder.glob("evokern-servers-*/*/*") if path.is_socket()]


def until(true: Callable[[], bool]) -> bool:
    end = time.monotonic() + 5
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    return true()


def test_what_one_has_imported_another_need_not(start: Start, imports: Path, tmp_path: Path) -> None:
    """It works on when the one that forked it has ended, forks others itself, and nothing is left in the end."""
    first = start()
    assert asked(first, ("echo", 1)) == 1
    second = start()
    assert isinstance(second._process, sharing.SharedServer)
    assert asked(second, ("echo", 2)) == 2
    first.close()
    assert asked(second, ("echo", 3)) == 3
    third = start()
    assert asked(third, ("echo", 4)) == 4
    assert imports.read_text() == "x"
    processes = second._process.pid, third._process.pid
    second.close()
    third.close()
    assert until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in processes))


def test_it_has_the_environment_and_directory_of_who_asked(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What differs and is read by no import comes with the request."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert asked(start(), ("environment", "CUDA_VISIBLE_DEVICES")) == ("0", str(Path.cwd()))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.chdir(tmp_path)
    second = start()
    assert isinstance(second._process, sharing.SharedServer)
    assert asked(second, ("environment", "CUDA_VISIBLE_DEVICES")) == ("1", str(tmp_path))


@pytest.mark.parametrize("differs", ["version", "variable", "not shared"])
def test_what_differs_is_imported(start: Start, imports: Path, monkeypatch: pytest.MonkeyPatch, differs: str) -> None:
    """Another version of the modules, a variable that an import may read, or a server that is its parent's alone."""
    assert asked(start(), ("echo", 1)) == 1
    if differs == "variable":
        monkeypatch.setenv("LD_LIBRARY_PATH", "/elsewhere")
    second = start({"version": "2", "not shared": None}.get(differs, "1"))
    assert asked(second, ("echo", 2)) == 2
    assert imports.read_text() == "xx"


def test_one_that_was_killed_is_passed_over(start: Start, imports: Path, tmp_path: Path) -> None:
    """The socket that it left is removed."""
    first = start()
    assert asked(first, ("echo", 1)) == 1
    (left,) = sockets(tmp_path)
    first._process.kill()
    first._process.wait()
    assert left.is_socket()
    second = start()
    assert asked(second, ("echo", 2)) == 2
    assert imports.read_text() == "xx"
    assert until(lambda: left not in sockets(tmp_path))
    second.close()
    assert until(lambda: not sockets(tmp_path))


def test_one_that_withdraws_forks_no_others(start: Start, imports: Path, tmp_path: Path) -> None:
    """It goes on with its own workers."""
    first = start()
    assert asked(first, ("echo", 1)) == 1
    first.stop_sharing()
    assert not sockets(tmp_path)
    assert asked(start(), ("echo", 2)) == asked(first, ("echo", 2))
    assert imports.read_text() == "xx"


def test_one_that_was_forked_and_dies_is_replaced(start: Start) -> None:
    """As one that its parent started: workers that were asked for meanwhile come from the next one."""
    first = start()
    assert asked(first, ("echo", 1)) == 1
    second = start()
    killed = second._process
    killed.kill()
    killed.wait(5.0)
    assert asked(second, ("echo", 2)) == 2
    assert second._process.pid != killed.pid
    assert second._with_earlier_server(0).description == "ended with its fork server, which ended"


def test_a_folder_that_others_may_write_is_not_used(start: Start, imports: Path, tmp_path: Path) -> None:
    """Who listens there could be anybody."""
    (tmp_path / f"evokern-servers-{os.getuid()}").mkdir()
    (tmp_path / f"evokern-servers-{os.getuid()}").chmod(0o777)
    for number in range(2):
        assert asked(start(), ("echo", number)) == number
    assert imports.read_text() == "xx"


def test_a_folder_s_name_may_be_longer_than_a_socket_s(
    start: Start, imports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux allows 107 bytes, and a job's TMPDIR may have more."""
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(sharing.tempfile, "gettempdir", lambda: str(deep))
    for number in range(2):
        assert asked(start(), ("echo", number)) == number
    assert imports.read_text() == "x"


def test_a_copy_that_comes_too_late_serves_nobody(start: Start, imports: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is stopped while it is asked forks when it goes on; who asked has a server of its own by then."""
    first, before = start(), forked_for(os.getpid())
    assert asked(first, ("echo", 1)) == 1
    monkeypatch.setattr(sharing, "_ANSWER_S", 0.2)
    os.kill(first._process.pid, signal.SIGSTOP)
    second = start()
    os.kill(first._process.pid, signal.SIGCONT)
    assert asked(second, ("echo", 2)) == 2
    assert imports.read_text() == "xx"
    assert until(lambda: forked_for(os.getpid()) <= before)
    assert asked(first, ("echo", 3)) == 3


def forked_for(parent: int) -> set[str]:
    """Return the processes that were forked as servers for a process."""
    found = subprocess.run(["pgrep", "-x", f"forks-{parent}"], capture_output=True, text=True, check=False)
    return set(found.stdout.split())


def test_generations_do_not_add_up(start: Start) -> None:
    """Each copy forks the next: its stack is as deep as the first one's, and its descriptors are as many."""
    server, opened = start(), []
    for _ in range(40):
        assert asked(server, ("echo", 1)) == 1
        opened.append(len(list(Path(f"/proc/{server._process.pid}/fd").iterdir())))
        following = start()
        assert isinstance(following._process, sharing.SharedServer)
        server.close()
        server = following
    assert opened[1] == opened[-1]


class Asking:
    """A socket in a folder of its own, and a client that is connected to it."""

    def __init__(self, folder: Path) -> None:
        self.listener = sharing.open_listener(folder)
        assert self.listener is not None
        self.client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with sharing._opened(folder) as place:
            self.client.connect(f"/proc/self/fd/{place}/{os.getpid()}")


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[Asking]:
    made = Asking(tmp_path / "home" / "alike")
    yield made
    made.client.close()
    made.listener.close()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("message", [b"", b"no JSON", b"[1]", b"{}"])
@pytest.mark.parametrize("handles", [0, 1, 2])
def test_what_is_no_request_is_passed_over(asking: Asking, message: bytes, handles: int) -> None:
    """Silence, too; the server goes on at once, and keeps no file of whoever asked."""
    if message or handles:
        socket.send_fds(asking.client, [message], [1] * handles)
    before, began = descriptors(), time.monotonic()
    found = sharing.accept_request(asking.listener)
    assert time.monotonic() - began < 1.0
    if (message, handles) == (b"{}", 2):
        assert found is not None
        found[0].close()
        os.close(found[1].control)
        os.close(found[1].log)
    else:
        assert found is None
    assert descriptors() == before


def test_nothing_is_taken_from_another_user(
    asking: Asking, start: Start, imports: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a request nor a server."""
    first = start()
    assert asked(first, ("echo", 1)) == 1
    socket.send_fds(asking.client, [b"{}"], [1, 2])
    monkeypatch.setattr(sharing, "_other_end", lambda connected: (os.getpid(), os.getuid() + 1, 0))
    assert sharing.accept_request(asking.listener) is None
    assert asked(start(), ("echo", 2)) == 2
    assert imports.read_text() == "xx"


def test_nothing_is_taken_from_another_container(start: Start, imports: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is forked there sees other files, and ends with that container."""
    first = start()
    assert asked(first, ("echo", 1)) == 1
    assert sharing._in_same_container(os.getpid())
    assert not sharing._in_same_container(0)
    monkeypatch.setattr(sharing, "_in_same_container", lambda process: False)
    assert asked(start(), ("echo", 2)) == 2
    assert imports.read_text() == "xx"


@pytest.mark.parametrize("swapped", ["folder", "home"])
def test_files_of_another_folder_stay(start: Start, imports: Path, tmp_path: Path, swapped: str) -> None:
    """A link in the folder's place leads nowhere: nothing is asked there, and nothing removed."""
    first = start()
    assert asked(first, ("echo", 1)) == 1
    (left,) = sockets(tmp_path)
    other = tmp_path / "other"
    theirs = other if swapped == "folder" else other / left.parent.name
    theirs.mkdir(parents=True)
    (theirs / str(first._process.pid)).write_text("thesis")
    place = left.parent if swapped == "folder" else left.parent.parent
    place.rename(tmp_path / "away")
    place.symlink_to(other)
    assert asked(start(), ("echo", 2)) == 2
    first.close()
    assert (theirs / str(first._process.pid)).read_text() == "thesis"


def test_a_removed_directory_keeps_nobody_from_starting(
    start: Start, imports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one in which whoever asks was started."""
    assert asked(start(), ("echo", 1)) == 1
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert asked(start(), ("echo", 2)) == 2
    assert imports.read_text() == "xx"


def test_without_handles_of_processes_nothing_is_shared(
    start: Start, imports: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux has them from 5.3 on, and a Python that was built for an older one has none."""
    monkeypatch.delattr(sharing.os, "pidfd_open")
    for number in range(2):
        assert asked(start(), ("echo", number)) == number
    assert imports.read_text() == "xx"
