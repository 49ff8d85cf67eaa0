"""On a real Ray cluster of this machine (by hand: `pip install 'evokern[ray]'`, `pytest -m slow tests/cluster`)."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from paths import KERNELS

from evokern.hardware.driver import probe

ray = pytest.importorskip("ray", reason="Ray is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STUDY = """kernel = "rmsnorm"
problems = ["ROWS=256 COLS=1024"]
budget = "10m"
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without processors, and two hosts with one each."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    memory = 80 * 2**20
    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": memory})
    for _ in range(2):
        found.add_node(num_cpus=1, object_store_memory=memory)
    yield found
    found.shutdown()


def begin(folder: Path, db: str, trials: int, *options: str) -> subprocess.Popen[str]:
    (folder / "small.toml").write_text(STUDY)
    line = [sys.executable, "-m", "evokern", "search", "small.toml", "--db", db]
    line += [] if "--device" in options else ["--device", "sim:l4"]
    line += ["--trials", str(trials), "--no-verify", "--warm-start", "none", *options]
    return subprocess.Popen(line, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def sequence(path: Path) -> list[tuple[Any, ...]]:
    with sqlite3.connect(path) as database:
        found = "SELECT number, config, outcome, round(time_us, 9) FROM evokern_trials ORDER BY number"
        return database.execute(found).fetchall()


def large_kernel(folder: Path) -> None:
    """Write rmsnorm with half a megabyte that no compression makes smaller."""
    shutil.copytree(KERNELS, folder / "kernels")
    noise = "".join(f"// {random.Random(n).randbytes(40).hex()}\n" for n in range(6000))
    (folder / "kernels" / "rmsnorm" / "notes.cuh").write_text(noise)


def actors() -> list[int]:
    found = subprocess.run(["pgrep", "-f", "ray::Host"], capture_output=True, text=True, check=False)
    return [int(one) for one in found.stdout.split()]


def test_killed_actors_and_drivers_change_nothing(cluster: Any, tmp_path: Path) -> None:
    """The same trials with the same results as on this machine alone."""
    alone = begin(tmp_path, "alone.db", 40)
    told, _ = alone.communicate(timeout=300)
    assert alone.returncode == 0, told
    there = begin(tmp_path, "there.db", 40, "--ray-address", cluster.address)
    time.sleep(20)
    for pid in actors()[:1]:
        os.kill(pid, signal.SIGKILL)
    time.sleep(8)
    there.kill()
    there.communicate()
    again = begin(tmp_path, "there.db", 40, "--ray-address", cluster.address)
    told, _ = again.communicate(timeout=300)
    assert again.returncode == 0, told
    assert sequence(tmp_path / "there.db") == sequence(tmp_path / "alone.db")


def test_an_address_that_nobody_answers_is_told(tmp_path: Path) -> None:
    """In a sentence, without a traceback."""
    done = begin(tmp_path, "none.db", 4, "--ray-address", "127.0.0.1:9")
    told, _ = done.communicate(timeout=300)
    assert done.returncode == 2
    assert "the Ray cluster at 127.0.0.1:9 does not respond" in told.replace("\n", " ")
    assert "Traceback" not in told


def test_an_actor_of_a_large_kernel_is_started_again(cluster: Any, tmp_path: Path) -> None:
    """Ray keeps what it is made of in its object store, as long as somebody refers to it."""
    large_kernel(tmp_path)
    search = begin(tmp_path, "x.db", 30, "--ray-address", cluster.address)
    time.sleep(20)
    os.kill(actors()[0], signal.SIGKILL)
    told, _ = search.communicate(timeout=300)
    assert search.returncode == 0, told
    assert "is back after" in told
    assert len(sequence(tmp_path / "x.db")) == 30


@pytest.mark.skipif(bool(probe().gpus), reason="this machine has a GPU")
def test_gpus_that_hosts_offer_and_do_not_have_are_told(cluster: Any, tmp_path: Path) -> None:
    """`ray start --num-gpus` believes what it is told."""
    node = cluster.add_node(num_cpus=1, num_gpus=1, object_store_memory=80 * 2**20)
    try:
        search = begin(tmp_path, "x.db", 4, "--ray-address", cluster.address, "--device", "cuda")
        told, _ = search.communicate(timeout=120)
    finally:
        cluster.remove_node(node)
    assert search.returncode == 2
    assert "no GPU found" in told.replace("\n", " ")
    assert "Traceback" not in told
