"""Imports run one way, along a trial's journey, and heavy libraries are imported where they are used."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import evokern

PACKAGE = Path(evokern.__file__).parent

ROOMS = (
    "errors",
    "shadowing",
    "driver",
    "space",
    "problem",
    "kernel",
    "profiles",
    "duration",
    "study",
    "study_file",
    "discovery",
    "trial",
    "stats",
    "roofline",
    "worker_process",
    "fork_server",
    "workers",
    "cuda_source",
    "feasibility",
    "render",
    "compile",
    "simt",
    "timing",
    "gate",
    "device",
    "samplers",
    "store",
    "search",
    "replay",
    "diagnosis",
    "explain",
    "exploits",
    "export",
    "scaffold",
    "report",
    "cli",
    "__main__",
)
"""Rooms in import order: a room may import itself and those before it."""

LAZY = ("cupy", "torch", "optuna", "sklearn", "scipy", "rich", "sqlite_utils", "cuda", "pynvml")
"""Libraries that `evokern --help` must not import."""


def _imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of each import, those that only a type checker sees left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.lineno, node.module
            if node.module == "evokern":
                yield from ((node.lineno, f"evokern.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        yield from _imports(node)


def _room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_every_module_has_its_room() -> None:
    """A new module or folder takes its place in the order."""
    found = {_room(path) for path in PACKAGE.rglob("*.py")} - {"__init__", "_data"}
    assert found - set(ROOMS) == set()


def test_imports_run_one_way() -> None:
    """No room imports a later one."""
    backwards = []
    for path in sorted(PACKAGE.rglob("*.py")):
        here = _room(path)
        if here not in ROOMS:
            continue
        for line, name in _imports(ast.parse(path.read_text(encoding="utf-8"))):
            parts = name.split(".")
            known = parts[0] == "evokern" and len(parts) > 1 and parts[1] in ROOMS
            if known and ROOMS.index(parts[1]) > ROOMS.index(here):
                backwards.append(f"{path.relative_to(PACKAGE)}:{line} imports {name}")
    assert backwards == []


def test_help_imports_nothing_heavy() -> None:
    """`evokern --help` and `import evokern` leave CuPy, torch, Optuna and the like alone."""
    code = (
        "import sys; sys.argv = ['evokern', '--help']\n"
        "import evokern.cli.app as a\n"
        "try: a.app()\n"
        "except SystemExit: pass\n"
        f"print('heavy:', [name for name in {LAZY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "heavy: []"
