"""The script for SLURM: checked by shellcheck, and run where `srun`, `ray` and `evokern` are stand-ins."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from paths import ROOT

SCRIPT = ROOT / "docs" / "sweep.slurm"
LOGGED = 'echo "$(basename "$0") $*" >> "$LOG"\n'
COMMANDS = {
    # What follows srun's own options runs here, once.
    "srun": LOGGED + 'while [[ $1 == --* ]]; do shift; done\nexec "$@"\n',
    # The names come in several writes: who reads the first alone would end it, and with it the script.
    "scontrol": LOGGED + "if [[ $1 == show ]]; then echo n1; sleep 0.1; echo n2; echo n3; fi\n",
    "hostname": 'echo "10.0.0.1 fe80::1"\n',
    "ray": LOGGED + "echo $$ >> $PIDS\nexec sleep 60\n",
    "python3": "echo 3\n",
    # On a busy machine the nodes' Ray comes late: what they are told stands before what evokern is told.
    "evokern": "trap 'echo stopped >> $LOG; exit 130' TERM\n"
    + "until [ $(cat $PIDS 2> /dev/null | wc -l) -ge 2 ]; do sleep 0.05; done\n"
    + LOGGED
    + "sleep ${SEARCH_S} > /dev/null 2>&1 & wait $!\nexit 3\n",  # one that outlives it holds nobody's output open
}


class Job:
    """The script as a job of three nodes."""

    def __init__(self, folder: Path, search_s: float) -> None:
        for name, text in COMMANDS.items():
            (folder / name).write_text(f"#!/bin/bash\n{text}")
            (folder / name).chmod(0o755)
        self.log, self.pids = folder / "log", folder / "pids"
        environment = {
            "PATH": f"{folder}:{os.environ['PATH']}", "LOG": str(self.log), "PIDS": str(self.pids), "RAY_HEAD_S": "0.3",
            "SEARCH_S": str(search_s), "SLURM_JOB_NUM_NODES": "3", "SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "n[1-3]",
            "SLURM_CPUS_PER_TASK": "16", "SLURM_GPUS_ON_NODE": "4",
        }  # fmt: skip
        line = ["bash", str(SCRIPT), "sweep.toml", "--budget", "6h"]
        self.process = subprocess.Popen(
            line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def logged(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def ray_processes(self) -> list[str]:
        pids = self.pids.read_text().split() if self.pids.exists() else []
        return [pid for pid in pids if Path("/proc", pid).exists()]

    def end(self) -> str:
        told, _ = self.process.communicate(timeout=60)
        end = time.monotonic() + 10
        while (left := self.ray_processes()) and time.monotonic() < end:
            time.sleep(0.05)
        assert not left, "Ray's processes end"
        return told


def test_each_node_runs_ray_and_the_first_one_the_sweep(tmp_path: Path) -> None:
    """The driver's exit code is the job's."""
    job = Job(tmp_path, 0.1)
    assert "3 of 3 nodes joined the Ray cluster at 10.0.0.1:20077" in job.end()
    assert job.process.returncode == 3
    limits = "--num-cpus=16 --num-gpus=4 --disable-usage-stats --block"
    head, workers, sweep = (line for line in job.logged() if line.startswith(("ray", "evokern")))
    assert head == f"ray start --head --node-ip-address=10.0.0.1 --port=20077 --include-dashboard=false {limits}"
    assert workers == f"ray start --address=10.0.0.1:20077 {limits}"
    assert sweep == "evokern sweep run sweep.toml --ray-address 10.0.0.1:20077 --budget 6h"
    assert any(
        line.startswith("srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --exclude=n1 ray") for line in job.logged()
    )
    assert not any("requeue" in line for line in job.logged())


def test_a_job_whose_time_ends_stops_the_sweep_and_is_queued_again(tmp_path: Path) -> None:
    """SLURM's TERM before the end goes on to the driver, which ends by itself."""
    job = Job(tmp_path, 30)
    end = time.monotonic() + 20
    while time.monotonic() < end and not any(line.startswith("evokern") for line in job.logged()):
        time.sleep(0.05)
    time.sleep(0.2)
    job.process.send_signal(signal.SIGTERM)
    job.end()
    assert job.process.returncode == 130
    assert job.logged()[-2:] == ["stopped", "scontrol requeue 77"]


def test_shellcheck_finds_nothing() -> None:
    shellcheck = Path(sys.executable).parent / "shellcheck"
    found = subprocess.run([shellcheck, SCRIPT], capture_output=True, text=True, check=False)
    assert not found.stdout
