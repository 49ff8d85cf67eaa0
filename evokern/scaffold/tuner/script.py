"""Run a tuning script in a child process without tuning anything."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evokern.errors import SourceError
from evokern.events import step
from evokern.files import read_text
from evokern.scaffold.tuner.fake_kernel_tuner import EXITED, NO_CALL
from evokern.scaffold.tuner.request import TunerRequest, from_call

LIMIT_S = 120
"""Time limit in seconds until the script must call `tune_kernel`."""


def run_script(path: Path, arguments: Sequence[str] = (), entry: str | None = None) -> TunerRequest:
    """Run a script up to its call to `tune_kernel`, and return the call's arguments.

    Args:
        path: path of the script, which is executed; the caller must have the user's permission.
        arguments: command-line arguments of the script.
        entry: name of the tuned kernel, if the script calls `tune_kernel` several times; None for the first call.

    Raises:
        SourceError: the script fails, does not call `tune_kernel`, or takes too long.
    """
    with tempfile.TemporaryDirectory(prefix="evokern-script-") as folder:
        command = [sys.executable, str(Path(__file__).with_name("fake_kernel_tuner.py")), str(path), folder]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        try:
            with step(f"running {path.name}"):
                done = subprocess.run(
                    [*command, entry or "", *arguments], capture_output=True, text=True, timeout=LIMIT_S,
                    stdin=subprocess.DEVNULL, env=environment,
                )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise SourceError(
                f"{path} did not call tune_kernel within {LIMIT_S} s; pass it a smaller problem size after --"
            ) from None
        if done.returncode:
            raise SourceError(_failure(path, done, entry))
        request = from_call(json.loads((Path(folder) / "call.json").read_text(encoding="utf-8")))
        arrays = Path(folder) / "arrays.npz"
        request = replace(request, arrays=arrays.read_bytes() if arrays.exists() else b"")
        if entry is None and (others := _other_calls(path)):
            note = f"kernel.py: the script calls tune_kernel {others + 1} times; the first call that it reaches is used"
            request = replace(request, notes=(*request.notes, f"{note}; choose another with --entry KERNEL"))
        return request


def _failure(path: Path, done: subprocess.CompletedProcess[str], entry: str | None) -> str:
    """Return why a script did not reach its call, with the remedy."""
    lines = done.stderr.strip().splitlines()
    last = lines[-1] if lines else "without a message"
    if done.returncode in (NO_CALL, EXITED):
        ended: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        if entry is not None and ended["calls"]:
            known = ", ".join(dict.fromkeys(ended["calls"]))
            return f"{path} tunes {known}, but not {entry}; choose one of these with --entry"
        if done.returncode == NO_CALL:
            return (
                f"{path} ended without calling kernel_tuner.tune_kernel, so there is nothing to draft; pass its "
                "arguments after --, or choose the script that tunes"
            )
        return f"{path} ended with sys.exit before it called tune_kernel: {last}; pass its arguments after --"
    remedy = "install it in evokern's environment" if last.startswith("ModuleNotFoundError") else "correct the script"
    if last.startswith(("IndexError", "ValueError")) and "sys.argv" in read_text(path, "replace"):
        remedy = "pass its arguments after --"
    return f"{path} failed before it called tune_kernel: {last}; {remedy}"


def _other_calls(path: Path) -> int:
    """Return the number of calls of `tune_kernel` in a script beyond the first."""
    tree = ast.parse(read_text(path, "replace"))
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return max(0, sum("tune_kernel" in (getattr(f, "id", ""), getattr(f, "attr", "")) for f in calls) - 1)
