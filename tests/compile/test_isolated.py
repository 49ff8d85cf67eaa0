"""The compiler's own crash is an answer, and whatever process asked goes on."""

from __future__ import annotations

import importlib
import os
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from worker_handlers import DeadlyCompile, WhichProcess

from evokern.cli._command import app
from evokern.cli.app import run  # noqa: F401 (registers every command)
from evokern.compile import isolated
from evokern.compile.pool import PRELOAD
from evokern.compile.records import CompileFailure, Program
from evokern.device._gpus import GPU_PRELOAD
from evokern.device.sim.simulated import MODULES
from evokern.workers import role
from evokern.workers.pool import ForkServer, WorkerPool, WorkerSpec

CRASHES = (
    "template <int A> __global__ void __launch_bounds__(WARP_SIZE * A) kk(half* q, int n) { q[threadIdx.x] = n; }\n"
)
"""NVRTC 12 and 13 end with SIGSEGV on it: undefined names in the bounds and parameters of an instantiated kernel."""


def _done(job: Any) -> Any:
    return isolated._own_child().run(job)


def test_a_compiler_that_dies_is_a_refusal_and_the_next_compile_works() -> None:
    """The message says how it died, on which file and entry point; a new child takes over."""
    before = _done(WhichProcess()).value
    result = _done(DeadlyCompile())
    refusal = isolated._crash_failure(DeadlyCompile(), result)  # type: ignore[arg-type]
    assert isinstance(refusal, CompileFailure)
    assert "the compiler itself (NVRTC) died with SIGSEGV on deadly.cu, entry k<2>" in refusal.message
    after = _done(WhichProcess()).value
    assert len({before, after, os.getpid()}) == 3
    built = isolated.compile_program("__global__ void k() {}", "k.cu", {}, (), ("k",), "sm_89")
    assert isinstance(built, Program)


def test_a_worker_compiles_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search's compile workers are expendable already: they start no child of their own."""
    monkeypatch.setattr(role, "_worker", True)
    monkeypatch.setattr(isolated, "_own_child", lambda: pytest.fail("a worker asked for a child"))
    assert isinstance(isolated.compile_ptx("__global__ void k() {}", "k.cu", {}, (), ("k",), (8, 9)), Program)


@pytest.mark.parametrize("names", [PRELOAD, MODULES, GPU_PRELOAD])
def test_what_is_preloaded_is_there(names: tuple[str, ...]) -> None:
    """A fork server passes over what it cannot import: no list names such a thing."""
    for name in names:
        module, _, function = name.partition(":")
        loaded = importlib.import_module(module)
        assert not function or callable(getattr(loaded, function))


def test_a_worker_finds_the_compiler_loaded() -> None:
    """The fork server loads NVRTC once: no worker does it again before its first compile."""
    server = ForkServer(PRELOAD)
    pool = WorkerPool(server, WorkerSpec("worker_handlers:Obedient", "x"), size=1)
    pool.wait_ready()
    while not pool.processes:  # the server reports a process after it has forked it, which can be later than `ready`
        time.sleep(0.01)
    (worker,) = pool.processes
    assert "libnvrtc" in Path(f"/proc/{worker}/maps").read_text()
    pool.close()
    server.close()


def test_a_file_on_which_the_compiler_crashes_ends_with_a_sentence(tmp_path: Path) -> None:
    """`sanitize` ends with exit code 2 and says that the compiler died, on which file, for which entry point."""
    (tmp_path / "crash.cu").write_text(CRASHES)
    arguments = ["--entry", "kk<2>", "--grid", "1", "--block", "32", "--arg", "out:f16[32]", "--arg", "i32=0"]
    result = CliRunner().invoke(app, ["sanitize", str(tmp_path / "crash.cu"), *arguments])
    assert result.exit_code == 2
    if "is undefined" in result.stderr:
        pytest.skip("this compiler reports the error and survives")
    assert "died with SIGSEGV on crash.cu, entry kk<2>" in result.stderr
