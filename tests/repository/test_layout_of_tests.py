"""How the tests are laid out: none imports another, one module knows where things lie, every folder has fast tests."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from paths import DATA, ROOT

TESTS = DATA.parent
MODULES = sorted(path for path in TESTS.rglob("*.py") if not path.is_relative_to(DATA))
TEST_MODULES = [path for path in MODULES if path.name.startswith("test_")]
LEFT_OUT = ("gpu", "slow", "thorough")
"""Markers of the tests that `make test-fast` leaves out."""


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _has(marks: list[ast.expr], *names: str) -> bool:
    return any(re.match(rf"(pytest\.mark\.)?({'|'.join(names)})\b", ast.unparse(mark)) for mark in marks)


def _marks_of_all(module: ast.Module) -> list[ast.expr]:
    """Return the marks that a module puts on all of its tests."""
    values = [
        node.value
        for node in module.body
        if isinstance(node, ast.Assign) and "pytestmark" in [ast.unparse(target) for target in node.targets]
    ]
    return [mark for value in values for mark in (value.elts if isinstance(value, ast.List) else [value])]


def _fast_and_all(path: Path) -> tuple[int, int]:
    """Return how many test functions of a module `make test-fast` runs, and how many need no GPU."""
    module = _tree(path)
    tests = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    marks = [_marks_of_all(module) + test.decorator_list for test in tests]
    return sum(not _has(one, *LEFT_OUT) for one in marks), sum(not _has(one, "gpu") for one in marks)


def test_no_test_module_imports_another() -> None:
    """What several tests need stands in a helper, so that each module of tests can be read and moved by itself."""
    names = {path.stem for path in TEST_MODULES}
    imported = [
        f"{path.relative_to(TESTS)}: {name}"
        for path in MODULES
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.ImportFrom | ast.Import)
        for name in (
            [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        )
        if name in names
    ]  # fmt: skip
    assert imported == []


def test_names_of_modules_are_unique() -> None:
    """Test modules and helpers are imported by their bare names, whatever folder they stand in."""
    counts = Counter(path.stem for path in MODULES if path.parent != TESTS / "bench")
    assert [name for name, count in counts.items() if count > 1] == []


def test_one_module_says_where_the_repository_lies() -> None:
    """A module that looks from its own place would look elsewhere once it has moved."""
    own = re.compile(r"Path\(__file__\)")
    found = {path.stem for path in MODULES if own.search(path.read_text(encoding="utf-8"))} - {Path(__file__).stem}
    assert found == {"paths", "helpers_path"}


@pytest.mark.thorough
@pytest.mark.parametrize("folder", sorted({path.parent for path in TEST_MODULES}), ids=lambda path: path.name)
def test_every_folder_keeps_most_of_its_tests_in_the_fast_set(folder: Path) -> None:
    """`make test-fast` says something of each room: at least half of its folder's tests that need no GPU run there."""
    counts = [_fast_and_all(path) for path in TEST_MODULES if path.parent == folder]
    fast, every = (sum(column) for column in zip(*counts, strict=True))
    assert fast >= every / 2, f"{folder.relative_to(ROOT)}: {fast} of {every}"


def test_the_fast_set_is_what_the_makefile_runs() -> None:
    """`make test-fast` leaves out what carries one of the markers, and no more."""
    chosen = " and ".join(f"not {name}" for name in LEFT_OUT)
    assert f'-m "{chosen}"' in (ROOT / "Makefile").read_text(encoding="utf-8")
