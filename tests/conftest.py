"""Where it is decided whether tests marked `gpu` run: when the NVIDIA driver shows a GPU; one thread a process."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path

import compiled_programs
import optuna_tables
import pytest
import warm_servers
from typer.main import get_command

from evokern.device.recorded import recording
from evokern.device.recorded.table import Table
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
def simulated_devices_start_fast() -> Iterator[None]:
    """Fork servers of simulated devices begin as copies of one: importing torch in each takes a third of all tests."""
    with pytest.MonkeyPatch.context() as patch:
        warm_servers.install(patch)
        yield


@pytest.fixture(scope="session", autouse=True)
def new_databases_are_made_fast() -> Iterator[None]:
    """Optuna makes its tables once: for each new database of the tests it took a twentieth of all tests."""
    with pytest.MonkeyPatch.context() as patch:
        optuna_tables.install(patch)
        yield


@pytest.fixture(scope="session", autouse=True)
def sources_are_compiled_once() -> Iterator[None]:
    """The same source for the same chip: of the compiles of `check`, `sanitize` and `export` two in three were such."""
    with pytest.MonkeyPatch.context() as patch:
        compiled_programs.install(patch)
        yield


@pytest.fixture(scope="session", autouse=True)
def commands_are_put_together_once() -> Iterator[None]:
    """`CliRunner` makes all commands out of their signatures anew for each one that it runs, which takes 20 ms."""
    make = functools.cache(lambda app, commands: get_command(app))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", lambda app: make(app, len(app.registered_commands)))
        yield


@pytest.fixture(scope="session", autouse=True)
def recordings_are_read_once() -> Iterator[None]:
    """A file that a device replays is read once while it stays as it is: each command of a test read it anew."""
    read = recording.read_recording

    @functools.cache
    def known(path: str | Path, where: Path, size: int, changed: int) -> Table:
        return read(path)

    def read_once(path: str | Path) -> Table:
        try:
            stat = Path(path).stat()
        except OSError:
            return read(path)
        return known(path, Path(path).absolute(), stat.st_size, stat.st_mtime_ns)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording, "read_recording", read_once)
        yield


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
