"""The lock of a GPU: one place for all users of a machine, no link followed, nothing written, its holder named."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from evokern.device.gpu.lock import PLACES, GpuLock, lock_folder
from evokern.errors import DeviceError

HOLD = """
import os, sys, time
from pathlib import Path
from evokern.device.gpu.lock import GpuLock
if sys.argv[1] != "-":
    os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
try:
    lock = GpuLock("GPU-1", "cuda:0", Path(sys.argv[2]))
except Exception as error:
    print(error, flush=True)
else:
    print("held", flush=True)
    sys.stdin.readline()
"""


def hold(place: Path, user: str = "-", **environment: str) -> tuple[subprocess.Popen[str], str]:
    """Start a process that takes the lock as a user, and return it with what it says."""
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | environment
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, user, str(place)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables,
    )  # fmt: skip
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder as `/run/lock` is."""
    made = tmp_path / "lock"
    made.mkdir()
    made.chmod(0o1777)
    return made


def test_the_holder_is_named_and_its_death_frees_the_lock(place: Path) -> None:
    """A second search is told which process has the GPU, whatever its TMPDIR is; a killed holder has it no more."""
    holder, told = hold(place, TMPDIR=str(place.parent))
    assert told == "held"
    with pytest.raises(DeviceError, match=rf"cuda:0 is in use by process {holder.pid} \(.*cuda:N"):
        GpuLock("GPU-1", "cuda:0", place)
    GpuLock("GPU-2", "cuda:1", place).release()
    holder.kill()
    holder.communicate()
    lock = GpuLock("GPU-1", "cuda:0", place)
    lock.release()
    lock.release()
    GpuLock("GPU-1", "cuda:0", place).release()


def test_the_lock_file_is_empty_and_nobody_else_s_to_write(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may read it, which is all that locking takes, whatever the umask of its maker was."""
    before = os.umask(0o077)
    try:
        lock = GpuLock("GPU-1/../x", "cuda:0", place)
    finally:
        os.umask(before)
    (path,) = place.iterdir()
    assert (path.name, path.read_bytes(), oct(path.stat().st_mode)) == ("evokern-GPU-1____x.lock", b"", "0o100644")
    lock.release()


def test_a_link_is_not_followed(place: Path, tmp_path: Path) -> None:
    """Whoever puts a link there has neither its target changed nor the GPU locked at another place."""
    target = tmp_path / "target"
    target.write_text("untouched")
    target.chmod(0o600)
    (place / "evokern-GPU-1.lock").symlink_to(target)
    with pytest.raises(DeviceError, match=r"cannot open .*GPU-1\.lock: it is a link; .*owner \(user "):
        GpuLock("GPU-1", "cuda:0", place)
    assert (target.read_text(), stat.S_IMODE(target.stat().st_mode)) == ("untouched", 0o600)
    dangling = tmp_path / "made"
    (place / "evokern-GPU-2.lock").symlink_to(dangling)
    with pytest.raises(DeviceError, match="it is a link"):
        GpuLock("GPU-2", "cuda:0", place)
    assert not dangling.exists()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_non_regular_files_are_rejected(place: Path, make: object) -> None:
    """A pipe keeps nobody waiting."""
    make(place / "evokern-GPU-1.lock")  # type: ignore[operator]
    with pytest.raises(DeviceError, match=r"not a regular file; .*owner"):
        GpuLock("GPU-1", "cuda:0", place)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_gpu_lock_excludes_other_users() -> None:
    """Whoever made the file, root, a user or another one: the second is refused and told which process has the GPU."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="evokern-lock-") as folder:
        place = Path(folder)
        place.chmod(0o1777)
        for first, second in (("1234", "4321"), ("-", "1234")):
            one, told = hold(place, first)
            assert told == "held"
            two, refused = hold(place, second)
            assert f"by process {one.pid} (" in refused
            for process in (one, two):
                process.communicate("\n")


def test_lock_path_is_shared_by_all_users(monkeypatch: pytest.MonkeyPatch, place: Path, tmp_path: Path) -> None:
    """It hangs neither on TMPDIR nor on who asks: a folder of root's where nobody may remove another's file."""
    found = lock_folder()
    assert found in PLACES
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert lock_folder() == found
    plain = tmp_path / "plain"
    plain.mkdir()
    with pytest.raises(DeviceError, match=r"none of .*plain .* as root: chmod 1777 .*plain"):
        lock_folder((tmp_path / "gone", plain))
    if os.geteuid() == 0:
        assert lock_folder((plain, place)) == place


@pytest.mark.gpu
def test_a_gpu_is_locked_by_its_uuid_for_all_jobs(tmp_path: Path) -> None:
    """A second search on the GPU is refused though its job has a TMPDIR of its own, and though it counts GPUs anew."""
    from live_bench import Bench

    code = (
        "from evokern.device.gpu.lock import GpuLock; from evokern.device.gpu.profile import live_gpu\n"
        "try: GpuLock(live_gpu(0).uuid, 'cuda:0'); print('held')\nexcept Exception as error: print(error)"
    )
    (tmp_path / "own").mkdir()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    own = os.environ | {"TMPDIR": str(tmp_path / "own"), "CUDA_VISIBLE_DEVICES": visible}
    own["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))

    def second() -> str:
        return subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True).stdout.strip()

    with Bench("scale_rows", "4096,1024"):
        assert f"cuda:0 is in use by process {os.getpid()} (" in second()
    assert second() == "held"


def test_the_workers_turn_is_the_holder_s_own(place: Path) -> None:
    """Nobody else can keep a search's own workers waiting for each other."""
    lock = GpuLock("GPU-1", "cuda:0", place)
    turn = lock.turn_lock
    assert (turn.exists(), stat.S_IMODE(turn.stat().st_mode)) == (True, 0o600)
    lock.release()
    assert not turn.exists()
