"""Run a tuning script in a child process without tuning anything."""

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
"""Time limit in seconds until the script must call `tune_kernel`."""


def run_script(path: Path) -> TunerRequest:
    """Run a script up to its first call to `tune_kernel`, and return the call's arguments.

    Args:
        path: path of the script, which is executed; the caller must have the user's permission.

    Raises:
        SourceError: the script fails, does not call `tune_kernel`, or takes too long.
    """
    with tempfile.TemporaryDirectory(prefix="evokern-script-") as folder:
        out = Path(folder) / "call.json"
        command = [sys.executable, str(Path(__file__).with_name("fake_kernel_tuner.py")), str(path), str(out)]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL, env=environment
            )
        except subprocess.TimeoutExpired:
            raise SourceError(f"{path} did not call tune_kernel within {LIMIT_S} s") from None
        if done.returncode == 3:
            raise SourceError(f"{path} ended without calling kernel_tuner.tune_kernel, so there is nothing to draft")
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            raise SourceError(
                f"{path} failed before it called tune_kernel: {lines[-1] if lines else 'without a message'}"
            )
        return from_call(json.loads(out.read_text(encoding="utf-8")))
