"""Code of a kernel that ends or stops its process fails a check; it does not end the command as a success."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from paths import DATA

from evokern.analysis.check import own_process, soundness
from evokern.analysis.check.folder import Folder, Results
from evokern.analysis.check.own_process import check_apart
from evokern.analysis.check.soundness import CheckResult
from evokern.errors import InternalError, KernelError
from evokern.study.discovery import load_kernel

KERNEL = load_kernel(DATA / "kernels" / "scale_rows")


def _passed(folder: Folder) -> Results:
    yield True, "passed"


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], list[CheckResult]]:
    """Return the results of five checks: the last two need the reference, and the last one calls a function."""
    monkeypatch.setattr(own_process, "LIMIT_S", 3.0)

    def run(called: Callable[[], object]) -> list[CheckResult]:
        def reference(folder: Folder) -> Results:
            called()
            yield True, "returned"

        checks = {"macros": _passed, "reference": reference, "tolerance": reference, "simulated run": _passed}
        monkeypatch.setattr(soundness, "_CHECKS", {**checks, "state": _passed})
        return list(check_apart(KERNEL))

    return run


ENDS: dict[str, tuple[Callable[[], object], str]] = {
    "os._exit(0)": (lambda: os._exit(0), "exit code 0"),
    "os._exit(7)": (lambda: os._exit(7), "exit code 7"),
    "_exit of C": (lambda: ctypes.CDLL(None)._exit(0), "exit code 0"),
    "SIGKILL": (lambda: os.kill(os.getpid(), signal.SIGKILL), "killed by SIGKILL"),
    "SIGTERM": (lambda: os.kill(os.getpid(), signal.SIGTERM), "killed by SIGTERM"),
    "another program": (lambda: os.execv("/bin/true", ["true"]), "exit code 0"),
    "endless": (lambda: time.sleep(60), "did not return within 3 s"),
    "busy": (lambda: [None for _ in iter(int, 1)], "did not return within 3 s"),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_kernel_that_ends_its_process_fails_the_check(
    checked: Callable[[Callable[[], object]], list[CheckResult]], how: str
) -> None:
    """The failure names how the process ended; later checks run, except those that call the reference."""
    called, told = ENDS[how]
    found = {one.check: one for one in checked(called)}
    assert {name: one.ok for name, one in found.items()} == {
        "problems": True, "macros": True, "reference": False, "tolerance": None, "simulated run": None, "state": True
    }  # fmt: skip
    assert told in found["reference"].detail


def test_sys_exit_fails_the_check(checked: Callable[[Callable[[], object]], list[CheckResult]]) -> None:
    """The same for an exception that would end the process; without a kernel's line it is not evokern's success."""
    with pytest.raises(InternalError, match="SystemExit"):
        checked(lambda: sys.exit(0))


def test_what_the_checks_raise_arrives(checked: Callable[[Callable[[], object]], list[CheckResult]]) -> None:
    """A usage error keeps its type, and no process is left."""

    def fail() -> Iterator[None]:
        raise KernelError("told")

    before = _children()
    assert [one.detail for one in checked(fail) if one.ok is False] == ["told"]
    assert _children() <= before


def _children() -> set[str]:
    """Return the processes that this one started and has not waited for; other tests keep some."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_a_kernel_cannot_end_a_command_as_a_success(tmp_path: Path) -> None:
    """`os._exit` in a `kernel.py` is an error that names the line, in the process of the command too."""
    (tmp_path / "kernel.py").write_text("import os\nos._exit(0)\n")
    with pytest.raises(KernelError, match=r"kernel\.py, line 2, raised SystemExit: os\._exit\(0\)"):
        load_kernel(tmp_path)


def test_c_code_that_ends_a_command_is_reported(tmp_path: Path) -> None:
    """C code of a `kernel.py` cannot be stopped from ending the process, but another process says so."""
    folder = tmp_path / "kernels" / "own"
    folder.mkdir(parents=True)
    (folder / "kernel.py").write_text("import ctypes\nctypes.CDLL(None)._exit(0)\n")
    command = [sys.executable, "-m", "evokern", "sanitize", "own"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert f"the process ended while it loaded {folder}/kernel.py" in done.stderr


def test_a_kernel_that_closes_stdout_is_reported(tmp_path: Path) -> None:
    """It is the kernel's mistake, not an internal error."""
    folder = tmp_path / "kernels" / "own"
    folder.mkdir(parents=True)
    text = (DATA / "kernels" / "scale_rows" / "kernel.py").read_text()
    (folder / "kernel.py").write_text(f"{text}\nimport sys\nsys.stdout.close()\n")
    (folder / "kernel.cu").write_text((DATA / "kernels" / "scale_rows" / "kernel.cu").read_text())
    command = [sys.executable, "-m", "evokern", "check", "own"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, "kernel code closed sys.stdout" in done.stderr) == (2, True)
