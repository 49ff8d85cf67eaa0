"""docs/security.md names every place where text becomes code, a process or a statement of SQL."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from imports import tree_of
from paths import ROOT

RUNS = {"exec", "eval", "compile"}
"""Built-in functions that make code of a text."""
STARTS = {
    *("subprocess.run", "subprocess.Popen", "subprocess.call", "subprocess.check_call", "subprocess.check_output"),
    *("subprocess.getoutput", "os.system", "os.popen", "os.execv", "os.execve", "os.execvp", "os.spawnv"),
    *("pickle.load", "pickle.loads", "marshal.loads", "runpy.run_path", "webbrowser.open"),
}
"""Functions that start a program, or make objects of bytes."""
SQL = {"execute", "executemany", "executescript", "query"}
"""Methods that run a statement of SQL."""
LAST = SQL | {name.rpartition(".")[2] for name in RUNS | STARTS}
"""Last parts of all these names."""
HEADING = "## Every place in the code"


def places(path: Path) -> Iterator[str]:
    """Yield what a module calls that makes code, a process, objects or SQL of a text."""
    for node in ast.walk(tree_of(path)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
            continue
        called = ast.unparse(node.func) if LAST & {getattr(node.func, "id", ""), getattr(node.func, "attr", "")} else ""
        if called in RUNS | STARTS:
            yield called
        shell = [keyword for keyword in node.keywords if keyword.arg == "shell"]
        if shell:
            yield "shell="
        made = node.args and isinstance(node.args[0], ast.JoinedStr)
        if made and called.rpartition(".")[2] in SQL:
            yield "SQL"


def told() -> set[str]:
    """Return the modules that the last table of the page names."""
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    return set(re.findall(r"`(evokern/[\w/]+\.py)`", page.partition(HEADING)[2]))


def test_every_module_that_runs_text_is_listed() -> None:
    """A module that begins to run text is named there, and one that ended to is not."""
    found = {
        str(path.relative_to(ROOT)): sorted(set(places(path))) for path in sorted((ROOT / "evokern").rglob("*.py"))
    }
    here = {path for path, calls in found.items() if calls}
    assert (here - told(), told() - here) == (set(), set())
    assert [path for path, calls in found.items() if "shell=" in calls] == [], "no shell is run"


def test_each_row_has_a_test_or_says_that_there_is_none() -> None:
    """Rows about text, shell, terminal and paths have three columns, the last with names of tests or nothing else."""
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8").partition(HEADING)[0]
    rows = [line.strip("|").split(" | ") for line in page.splitlines() if line.startswith("| ") and " | " in line]
    three = [row for row in rows if len(row) >= 3]
    assert len(three) > 40
    for row in three:
        last = row[-1].strip()
        named = re.sub(r"`test_\w+`(, )?", "", last)
        assert named in ("", "test", "see [checking](checking.md)"), row
