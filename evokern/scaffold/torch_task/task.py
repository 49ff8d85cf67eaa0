"""A task of KernelBench, told from other files without running it, and drafted in a child."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from evokern.declaration.torch_task import NEEDED
from evokern.errors import SourceError

LIMIT_S = 300
"""A task that is not drafted after so long computes too much."""
_PACKAGE = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class DraftedTask:
    """What the child made of a task."""

    kernel_cu: str
    """A kernel that compiles and computes nothing."""
    kernel_py: str
    """The declaration."""
    study: str
    """A study at the task's own sizes."""
    notes: tuple[str, ...]
    """What only the user can know, one sentence each."""


def is_task(text: str) -> bool:
    """Whether a text is a Python file with `Model`, `get_inputs` and `get_init_inputs` at its top level."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    kinds = (ast.ClassDef, ast.FunctionDef)
    return set(NEEDED) <= {node.name for node in tree.body if isinstance(node, kinds)}


def draft_task(path: Path, name: str) -> DraftedTask:
    """Run a task in a child and return what it made of it.

    Args:
        path: the file. It is code that runs: whoever calls this has the user's word for it.
        name: the kernel's name.

    Raises:
        SourceError: it fails, takes too long, or passes what a kernel cannot take.
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
            raise SourceError(f"{path} was not done within {LIMIT_S} s; give it smaller sizes") from None
        if done.returncode or not out.is_file():
            lines = done.stderr.strip().splitlines()
            how = f"ended with {done.returncode}" if done.returncode >= 0 else f"was killed ({-done.returncode})"
            raise SourceError(f"{path} {how}: {lines[-1] if lines else 'without a word'}")
        try:
            answer = json.loads(out.read_text(encoding="utf-8"))
            if "error" in answer:
                raise SourceError(str(answer["error"]))
            return DraftedTask(answer["kernel.cu"], answer["kernel.py"], answer["study"], tuple(answer["notes"]))
        except (ValueError, KeyError, TypeError) as error:
            raise SourceError(f"{path} left no draft: {type(error).__name__}: {error}") from error
