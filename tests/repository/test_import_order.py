"""The packages of the package: imports run one way, no circles, privacy means something, one name has one meaning."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
from imports import Import, circles, imports_of, modules_of, tree_of
from paths import ROOT

from evokern import simt

PACKAGE = ROOT / "evokern"

IMPORT_ORDER = (
    "version",
    "escaping",
    "errors",
    "events",
    "files",
    "lock_file",
    "ownership",
    "templating",
    "hardware",
    "declaration",
    "wording",
    "study",
    "measurement",
    "workers",
    "cuda_source",
    "compile",
    "ptx",
    "simt",
    "gate",
    "cluster",
    "device",
    "samplers",
    "store",
    "search",
    "progress",
    "sampler_benchmark",
    "doctor",
    "analysis",
    "exploits",
    "export",
    "scaffold",
    "tuning",
    "report",
    "results",
    "api",
    "sweep",
    "pack",
    "cli",
    "__main__",
)
"""Rooms in import order: a package may import itself and those before it."""

MOST_MODULES = 20
"""Modules that may stand side by side in a folder."""

LAZY = (
    "cupy",
    "torch",
    "optuna",
    "sklearn",
    "scipy",
    "rich",
    "sqlite_utils",
    "cuda",
    "pynvml",
    "jinja2",
    "pandas",
    "plotly",
    "ray",
    "IPython",
)
"""Libraries that `evokern --help` must not import."""

MODULES = modules_of(PACKAGE)


@cache
def _imports() -> tuple[Import, ...]:
    """Return what modules import from others; read once, and not by who only collects the tests."""
    return tuple(item for item in imports_of(PACKAGE) if item.module != item.importer)


def _package(module: str) -> str:
    """Return the package of a module: the first folder or file below the package."""
    return module.split(".")[1] if "." in module else "evokern"


def _folder(module: str) -> str:
    """Return the dotted name of the folder a module lies in; a package lies in its own."""
    return module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]


def _told(items: list[Import]) -> list[str]:
    return [
        f"{MODULES[item.importer].relative_to(ROOT)}:{item.line} imports {item.module}.{item.name}" for item in items
    ]


def test_every_module_has_its_package() -> None:
    """A new module or folder takes its place in the order, and none is named that is gone."""
    assert {_package(module) for module in MODULES} - {"_data"} == {"evokern", *IMPORT_ORDER}


def test_imports_run_one_way() -> None:
    """No package imports a later one: not at the top, not inside a function, not by string, not for an annotation.

    The package's own module offers the Python API, so it stands above all packages but the command line.
    """
    place = {name: number for number, name in enumerate(IMPORT_ORDER)} | {"evokern": IMPORT_ORDER.index("cli") - 0.5}
    backwards = [item for item in _imports() if place[_package(item.module)] > place[_package(item.importer)]]
    assert _told(backwards) == []


def test_no_file_imports_itself_in_a_circle() -> None:
    """Imports inside functions, by string and for annotations counted, no files import each other in a circle."""
    assert circles([(item.importer, item.module) for item in _imports()]) == []


def test_annotations_need_no_imports_of_their_own_inside_a_package() -> None:
    """Under TYPE_CHECKING stand imports from other packages alone: within a package they would hide a circle."""
    hidden = [item for item in _imports() if item.annotation and _package(item.module) == _package(item.importer)]
    assert _told(hidden) == []


def test_private_modules_stay_in_their_folder() -> None:
    """A module `_x` is imported from inside the folder that holds it, sub-folders included."""
    strangers = []
    for item in _imports():
        parts = item.module.split(".")
        for depth, part in enumerate(parts):
            inside = f"{_folder(item.importer)}.".startswith(f"{'.'.join(parts[:depth])}.")
            if part.startswith("_") and not part.startswith("__") and not inside:
                strangers.append(item)
    assert _told(strangers) == []


def test_private_names_stay_in_their_module() -> None:
    """Nobody imports a name `_x` from another module."""
    strangers = [item for item in _imports() if item.name.startswith("_") and not item.name.startswith("__")]
    assert _told(strangers) == []


@pytest.mark.parametrize("top", ["evokern", "tests"])
def test_folders_stay_small(top: str) -> None:
    """No folder holds more than twenty modules of its own."""
    counts: dict[Path, int] = defaultdict(int)
    for path in (ROOT / top).rglob("*.py"):
        counts[path.parent.relative_to(ROOT)] += 1
    assert {str(folder): count for folder, count in counts.items() if count > MOST_MODULES} == {}


DOORS = ("evokern.simt", "evokern.simt.exact", "evokern.simt.time_model")
"""Modules of the PTX machine that other packages import; the machine's other modules are its own."""

MOST_FUNCTIONS = 12
"""Functions that the door of the PTX machine may offer."""

MOST_PARAMETERS = 6
"""Parameters that a function of the PTX machine may have."""


def test_the_ptx_machine_has_a_public_door() -> None:
    """Other packages import the PTX machine from its doors alone, which offer about ten functions."""
    past = [
        item
        for item in _imports()
        if _package(item.module) == "simt" != _package(item.importer) and item.module not in DOORS
    ]
    assert _told(past) == []
    offered = {name for name in simt.__all__ if inspect.isfunction(getattr(simt, name))}
    assert {"launch", "launch_many", "parse"} < offered
    assert len(offered) <= MOST_FUNCTIONS


def test_signatures_of_the_ptx_machine_are_short() -> None:
    """No function has more than six parameters, without the object itself; longer records are built by names alone."""
    long = []
    for path in (PACKAGE / "simt").rglob("*.py"):
        for node in ast.walk(tree_of(path)):
            names: list[str] = []
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                arguments = node.args
                names = [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
                names = names[1:] if names[:1] in (["self"], ["cls"]) else names
            elif isinstance(node, ast.ClassDef):
                decorators = " ".join(ast.unparse(one) for one in node.decorator_list)
                if "dataclass" in decorators and "kw_only=True" not in decorators:
                    fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
                    names = [ast.unparse(one.target) for one in fields if "init=False" not in ast.unparse(one)]
            if len(names) > MOST_PARAMETERS:
                long.append(f"{path.relative_to(ROOT)}:{node.lineno}: {', '.join(names)}")
    assert long == []


@cache
def _definitions() -> dict[str, dict[str, str]]:
    """Return module → public class or function defined at its top → kind."""
    found: dict[str, dict[str, str]] = {}
    for module, path in MODULES.items():
        tree = tree_of(path)
        found[module] = {
            node.name: type(node).__name__
            for node in tree.body
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
        }
    return found


@pytest.mark.thorough
def test_one_class_name_has_one_meaning() -> None:
    """A public class name is defined once in the whole package."""
    places: dict[str, list[str]] = defaultdict(list)
    for module, names in _definitions().items():
        for name, kind in names.items():
            if kind == "ClassDef":
                places[name].append(module)
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


def test_one_exported_name_has_one_meaning() -> None:
    """What other packages import from a package has a name that no other package exports for something else.

    The names of a command and of the function behind it are the same on purpose: the command line is the last package
    and exports nothing.
    """
    definitions = _definitions()
    exporters: dict[str, set[str]] = defaultdict(set)
    for item in _imports():
        crossing = _package(item.module) != _package(item.importer)
        if crossing and item.name in definitions[item.module] and _package(item.module) != "cli":
            exporters[item.name].add(_package(item.module))
    assert {name: sorted(packages) for name, packages in exporters.items() if len(packages) > 1} == {}


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


def test_what_mypy_does_not_read_is_used_nowhere() -> None:
    """A module of torch or Optuna that `pyproject.toml` leaves out would have no types here: none is named."""
    overrides = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]["overrides"]
    (names,) = [one["module"] for one in overrides if one.get("follow_imports") == "skip"]
    assert all(name.endswith(".*") for name in names)
    left_out = re.compile(rf"\b({'|'.join(re.escape(name[:-2]) for name in names)})\b")
    texts = {path: path.read_text(encoding="utf-8") for path in MODULES.values()}
    assert [str(path.relative_to(ROOT)) for path, text in texts.items() if left_out.search(text)] == []
