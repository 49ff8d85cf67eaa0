"""Recognise KernelBench tasks without running them, and draft them in a child process."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from evokern.declaration.torch_task import REQUIRED_NAMES
from evokern.errors import SourceError

LIMIT_S = 300
"""Time limit in seconds for drafting a task."""
_PACKAGE = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class DraftedTask:
    """Draft of a task, made by the child process."""

    kernel_cu: str
    """Text of a kernel that compiles and computes nothing."""
    kernel_py: str
    """Text of the declaration."""
    study: str
    """Text of a study at the task's own sizes."""
    notes: tuple[str, ...]
    """Points for the user to confirm, one sentence each."""


def is_task(text: str) -> bool:
    """Return whether a text is a Python file with `Model`, `get_inputs` and `get_init_inputs` at its top level."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    kinds = (ast.ClassDef, ast.FunctionDef)
    return set(REQUIRED_NAMES) <= {node.name for node in tree.body if isinstance(node, kinds)}


def draft_task(path: Path, name: str) -> DraftedTask:
    """Run a task in a child process and return its draft.

    Args:
        path: path of the task, which is executed; the caller must have the user's permission.
        name: kernel name.

    Raises:
        SourceError: the task fails, takes too long, or has arguments that a kernel cannot take.
    """
    with tempfile.TemporaryDirectory(prefix="evokern-task-") as folder:
        out = Path(folder) / "draft.json"
        program = (
            f"import sys; sys.path.insert(0, {str(_PACKAGE)!r}); "
            "from evokern.scaffold.torch_task.child import main; main(*sys.argv[1:])"
        )
        command = [sys.executable, "-c", program, str(path.resolve()), name, str(out)]
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=LIMIT_S, stdin=subprocess.DEVNULL,
                env=environment, cwd=folder,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise SourceError(f"{path} did not finish within {LIMIT_S} s; use smaller sizes") from None
        if done.returncode or not out.is_file():
            lines = done.stderr.strip().splitlines()
            how = (
                f"exited with {done.returncode}" if done.returncode >= 0 else f"was killed by signal {-done.returncode}"
            )
            raise SourceError(f"{path} {how}: {lines[-1] if lines else 'without a message'}")
        try:
            answer = json.loads(out.read_text(encoding="utf-8"))
            if "error" in answer:
                raise SourceError(str(answer["error"]))
            return DraftedTask(answer["kernel.cu"], answer["kernel.py"], answer["study"], tuple(answer["notes"]))
        except (ValueError, KeyError, TypeError) as error:
            raise SourceError(f"{path} produced no valid draft: {type(error).__name__}: {error}") from error
