"""A tuning script, run in a child process in which nothing is tuned."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from evokern.errors import SourceError
from evokern.scaffold.tuner.request import TunerRequest, from_call

LIMIT_S = 120
"""A script that has not called `tune_kernel` after so long does something else."""


def run_script(path: Path) -> TunerRequest:
    """Run a script up to its first call of `tune_kernel` and return what it asked for.

    Args:
        path: the script. It is code that runs: whoever calls this has the user's word for it.

    Raises:
        SourceError: it fails, calls nothing, or takes too long.
    """
    with tempfile.TemporaryDirectory(prefix="evokern-script-") as folder:
        out = Path(folder) / "call.json"
        command = [sys.executable, str(Path(__file__).with_name("stand_in.py")), str(path), str(out)]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL, env=environment
            )
        except subprocess.TimeoutExpired:
            raise SourceError(f"{path} did not call tune_kernel within {LIMIT_S} s") from None
        if done.returncode == 3:
            raise SourceError(
                f"{path} ended without a call of kernel_tuner.tune_kernel, so there is nothing to take over"
            )
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            raise SourceError(f"{path} failed before it called tune_kernel: {lines[-1] if lines else 'without a word'}")
        return from_call(json.loads(out.read_text(encoding="utf-8")))
