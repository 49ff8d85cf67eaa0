"""Where it is decided whether tests marked `gpu` run: when the NVIDIA driver shows a GPU; one thread a process."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import compiled_programs
import optuna_tables
import pytest
import warm_servers
from typer.main import get_command

from evokern.device.recorded import recording
from evokern.device.recorded.table import Table
from evokern.export.checked import ExportChecks
from evokern.hardware.driver import probe

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # pytest's own processes use the cores; more threads of torch's only wait


FUZZED = {"test_options": 10, "test_study_files": 16, "test_recordings": 12}
"""Cases of a fuzzer that run with all other tests, 5 of any other; by hand it is `pytest tests/fuzz --count 800`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let whoever runs the fuzzers by hand say how many cases, and from which seed on."""
    parser.addoption("--count", type=int, default=None, help="cases of each fuzzer of tests/fuzz")
    parser.addoption("--seed", type=int, default=1, help="seed of a fuzzer's first case")


@pytest.fixture(scope="session", autouse=True)
def costly_steps_are_taken_once() -> Iterator[None]:
    """What every test would do anew, with the same outcome, is done once in each of pytest's processes.

    Shares of all tests before each was: a third, importing torch in the fork server of each simulated device; a
    twentieth, Optuna's tables in each new database; two in three compiles of `check`, `sanitize` and `export`, of the
    same source for the same chip; 20 ms a command, putting all commands together; reading a recording.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evokern.cli._silence.FIRST_S", 1e9)  # no progress lines on a busy machine
        warm_servers.install(patch)
        optuna_tables.install(patch)
        compiled_programs.install(patch)
        make = functools.cache(lambda app, commands: get_command(app))
        patch.setattr("typer.testing._get_command", lambda app: make(app, len(app.registered_commands)))
        patch.setattr(recording, "read_recording", _reads_once(recording.read_recording))
        # nvcc takes seconds for each export; tests/export/test_checked.py tests this step itself.
        patch.setattr("evokern.export.checked._whole_checks", lambda *arguments: ExportChecks(omitted=("not built",)))
        yield


def _reads_once(read: Callable[[str | Path], Table]) -> Callable[[str | Path], Table]:
    """Return a reader of recordings that reads a file once while it stays as it is."""

    @functools.cache
    def known(path: str | Path, where: Path, size: int, changed: int) -> Table:
        return read(path)

    def read_once(path: str | Path) -> Table:
        try:
            stat = Path(path).stat()
        except OSError:
            return read(path)
        return known(path, Path(path).absolute(), stat.st_size, stat.st_mtime_ns)

    return read_once


@pytest.fixture
def fuzz(request: pytest.FixtureRequest) -> tuple[int, int]:
    """How many cases a fuzzer runs, and the seed of the first."""
    count = request.config.getoption("--count")
    return (FUZZED.get(request.node.name, 5) if count is None else int(count)), int(request.config.getoption("--seed"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` where there is none, with the driver's own reason."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    driver = probe()
    if not driver.gpus:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=f"no GPU: {driver.problem}"))
