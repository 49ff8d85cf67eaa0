"""`evokern.tune` on the example of the documents and on ten kernels of different kinds, in processes of their own."""

from __future__ import annotations

import fcntl
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

import pytest
from paths import DATA, ROOT
from typer.testing import CliRunner

import evokern
from evokern.cli.app import app
from evokern.errors import StoreError
from evokern.hardware.driver import probe
from evokern.store import open_readonly

EXAMPLES = DATA / "tune"
KINDS = {
    "elementwise": "twice", "reduction": "row_sums", "stencil": "stencil", "transpose": "transpose",
    "histogram": "histogram", "gemm": "gemm", "softmax": "softmax", "layernorm": "layernorm", "attention": "attention",
    "scan": "scan",
}  # fmt: skip
"""Example → its study."""
KILLED = ("elementwise", "transpose", "histogram", "gemm", "scan")
MOST_LINES, MOST_COLUMNS = 25, 100


def documents_example() -> str:
    """Return the first example of the README."""
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.M | re.S)[0]


def run(here: Path, *command: str | Path) -> str:
    """Run a Python program or a command of evokern in a folder, and return its output."""
    done = subprocess.run([sys.executable, *map(str, command)], cwd=here, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def command(*words: str, code: int = 0) -> str:
    """Run a command of evokern in this process, and return its output."""
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def program(here: Path, text: str, name: str = "program.py") -> Path:
    (here / name).write_text(text)
    return here / name


def test_the_example_is_short_and_the_same_everywhere() -> None:
    """At most 25 lines of 100 columns, in the README and in the tutorial; so are the ten examples."""
    example = documents_example()
    assert example in (ROOT / "docs" / "getting-started.md").read_text("utf-8")
    for text in (example, *((EXAMPLES / f"{kind}.py").read_text("utf-8") for kind in KINDS)):
        lines = text.splitlines()
        assert len(lines) <= MOST_LINES and all(len(line) <= MOST_COLUMNS for line in lines)


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_the_first_example_from_search_to_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call searches, verifies and exports; then commands use the database alone, or with the reference."""
    text = documents_example().replace('budget="3m"', 'trials=3, device="sim:l4"')
    text = text.replace("lambda x: 2 * x", "reference").replace(
        "x = torch", "def reference(x): return 2 * x\n\nx = torch"
    )
    script = program(tmp_path, text)
    assert re.search(r"\{'BLOCK': \d+, 'ITEMS': \d+\} \d+\.\d+ None", run(tmp_path, script))
    golden = (tmp_path / "best.golden").read_bytes()
    assert len(golden) > 100_000 * (4 + 16) and "best.golden" in (tmp_path / "best.cu").read_text("utf-8")

    study = evokern.load_study("scale", db=tmp_path / "evokern.db")
    assert study.summary["verified"] is True and len(study.trials) == 3
    program(tmp_path, "", "best.golden").unlink()
    script.rename(tmp_path / "moved.py")  # show and export need no script
    monkeypatch.chdir(tmp_path)
    assert "verified" in command("show", "scale")
    assert "has no check" in command("export", "scale", "-o", "alone.cu")
    assert "NOT CHECKED" in (tmp_path / "alone.cu").read_text("utf-8") and not (tmp_path / "alone.golden").exists()

    refused = command("resume", "scale", "--trials", "4", code=2)
    assert "pass --reference" in refused and "Traceback" not in refused
    command("resume", "scale", "--trials", "4", "--reference", "moved:reference", "--no-verify")
    assert len(study.trials) == 4


def killed(here: Path, command: list[str], study: str) -> None:
    """Start a search, and kill its process group when a trial is recorded."""
    process = subprocess.Popen(command, cwd=here, start_new_session=True, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 400
    while time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.5)
        if (here / "evokern.db").exists():
            with suppress(StoreError), open_readonly(here / "evokern.db") as reader:  # the study may not exist yet
                record = next((one for one in reader.studies() if one.name == study), None)
                if record and sum(reader.outcomes(record).values()) >= 1:
                    break
    process.send_signal(signal.SIGKILL)
    process.wait()


@contextmanager
def gpu_turn(number: int) -> Iterator[None]:
    """Wait until no other test of this file searches on a GPU; exports need no turn."""
    with (Path(tempfile.gettempdir()) / f"evokern-tests-gpu-{number}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def searched(kind: str, device: str, here: Path, turn: AbstractContextManager[None]) -> None:
    """Search an example, for five of them after a kill; the champion is verified and its program compiles."""
    command = [sys.executable, str(EXAMPLES / f"{kind}.py"), device]
    with turn:
        if kind in KILLED:
            killed(here, command, KINDS[kind])
        run(here, *command[1:])
    study = evokern.load_study(KINDS[kind], db=here / "evokern.db")
    assert study.best is not None and study.summary["verified"] is True, study.summary["verified_reason"]
    reference = str(EXAMPLES / f"{kind}.py:reference")
    said = run(here, "-m", "evokern", "export", KINDS[kind], "-o", "best.cu", "--reference", reference)
    assert "compiled with" in said and "not compiled" not in said and "no check" not in said
    if device.startswith("cuda") and shutil.which("nvcc"):
        assert "PASS" in said


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_tuned_on_a_simulated_chip(kind: str, tmp_path: Path) -> None:
    """Ten kernels of different kinds end with a verified champion and a program that compiles."""
    searched(kind, "sim:l4", tmp_path, nullcontext())


@pytest.mark.gpu
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_tuned_on_a_gpu(kind: str, tmp_path: Path) -> None:
    """The same on a GPU, where the program also runs. Parallel tests use several GPUs, and take turns on each."""
    number = list(KINDS).index(kind) % len(probe().gpus)
    searched(kind, f"cuda:{number}", tmp_path, gpu_turn(number))
