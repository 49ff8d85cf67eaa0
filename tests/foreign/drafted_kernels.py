"""Kernels of other people that `init` drafts, filled in and searched: where their texts are, and what comes of each.

`drafts.toml` names repository, commit, path and SHA-256 of every file. The texts are not part of this repository: they
are read from a folder laid out as OWNER/NAME/PATH, and fetched into it where they are missing. `fillers/GROUP/NAME.py`
holds what a person fills into a draft, and nothing else: reference, tolerance, problem.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import subprocess
import sys
import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from foreign_files import Text

from evokern.scaffold.declaration_text import BOUNDS

FOREIGN = Path("tests/foreign").resolve()
"""Where the lists stand: scripts of the suite are started in the repository's root."""
DRAFTS = FOREIGN / "drafts.toml"
LIMIT_S = 600
"""Of one command."""


@dataclass(frozen=True)
class ForeignDraft:
    """One kernel to draft."""

    name: str
    """Name of the kernel and of its filler."""
    file: Text
    """The file."""
    entry: str
    """Which kernel; empty for a tuning script."""
    fails: str
    """Why no draft of it can pass; empty where it must."""

    @property
    def filler(self) -> ModuleType:
        """What a person fills in."""
        place = FOREIGN / "fillers" / self.name.partition("_")[0] / f"{self.name}.py"
        spec = importlib.util.spec_from_file_location(f"filler_{self.name}", place)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


@dataclass(frozen=True)
class Came:
    """What came of a draft."""

    draft: ForeignDraft
    """The draft."""
    step: str
    """The first step that failed; empty where none did."""
    detail: str
    """What it said."""
    refuted: bool = False
    """Whether no candidate was right: none was measured, or the best one was refuted."""

    @property
    def passed(self) -> bool:
        """Whether it was drafted, checked, sanitized, and searched to a verified best."""
        return not self.step


def read_drafts() -> tuple[list[ForeignDraft], list[Text]]:
    """Return every draft, and the further files that they need."""
    document = tomllib.loads(DRAFTS.read_text(encoding="utf-8"))
    commits: dict[str, str] = document["commits"]

    def file(entry: dict[str, Any]) -> Text:
        return Text(entry["repository"], commits[entry["repository"]], entry["path"], entry["sha256"])

    drafts = [ForeignDraft(e["name"], file(e), e.get("entry", ""), e.get("fails", "")) for e in document["draft"]]
    return drafts, [file(entry) for entry in document["header"]]


def evokern(work: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of evokern's in a folder."""
    command = [sys.executable, "-m", "evokern", *words]
    try:
        return subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"not done within {LIMIT_S} s")


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return what a command said last."""
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"


def make(draft: ForeignDraft, folder: Path, work: Path) -> Came | None:
    """Draft a kernel and fill it in; None where nothing went wrong.

    Args:
        draft: which.
        folder: folder of texts.
        work: folder that gets `kernels/` and `studies/`.
    """
    text = draft.file.provide(folder)
    words = ["init", str(text), "--name", draft.name]
    words += ["--entry", draft.entry] if draft.entry else ["--trust"]
    done = evokern(work, *words)
    if done.returncode:
        return Came(draft, "init", last_line(done))
    fill(draft, work)
    return None


def fill(draft: ForeignDraft, work: Path) -> None:
    """Write reference, tolerance and problem into a draft."""
    filler = draft.filler
    place = work / "kernels" / draft.name / "kernel.py"
    lines = textwrap.dedent(inspect.getsource(filler.reference)).splitlines()[1:]
    text = re.sub(
        r'    raise ValueError\("write the reference.*\n', lambda _: "\n".join(lines) + "\n", place.read_text()
    )
    if "torch." in "\n".join(lines):
        text = text.replace("\nfrom evokern import", "\nimport torch\n\nfrom evokern import", 1)
    limits = ", ".join(f'"{name}": Tolerance({atol!r}, {rtol!r})' for name, (atol, rtol) in filler.TOLERANCE.items())
    text = text.replace("\n".join(BOUNDS), f"        tolerance={{{limits}}},")
    text = text.replace("from evokern import", "from evokern import Tolerance\nfrom evokern import", 1)
    if small := getattr(filler, "SMALL", ()):
        text = re.sub(r"small_problems=\(.*\),.*", f"small_problems={small!r},", text)
    place.write_text(text, encoding="utf-8")
    header = place.with_name("reference.h")
    code = "#error.*"
    body = re.sub(code, lambda _: filler.REFERENCE_H.strip(), header.read_text())
    header.write_text(body.replace("#pragma once", "#pragma once\n#include <cmath>"), encoding="utf-8")
    study = work / "studies" / f"{draft.name}.toml"
    study.write_text(re.sub(r"problems = .*", f'problems = ["{filler.PROBLEM}"]', study.read_text()), encoding="utf-8")


def judged(draft: ForeignDraft, work: Path, trials: int = 20) -> Came:
    """Check, sanitize and search a draft that is filled in."""
    for step in ("check", "sanitize"):
        done = evokern(work, step, draft.name, "--json")
        if done.returncode:
            return Came(draft, step, _failed(done) or last_line(done))
    return searched(draft, work, trials)


def searched(draft: ForeignDraft, work: Path, trials: int = 20) -> Came:
    """Search a draft; it passes with a verified best."""
    database = work / f"{draft.name}.db"
    database.unlink(missing_ok=True)
    done = evokern(
        work, "search", draft.name, "--device", "sim:l4", "--trials", str(trials), "--db", str(database), "--json"
    )
    try:
        told = json.loads(done.stdout)
    except ValueError:
        return Came(draft, "search", last_line(done))
    best = told.get("best")
    if not best:
        return Came(draft, "search", f"nothing measured: {_counts(told)}", refuted=True)
    verified, why = told.get("verified"), told.get("verified_reason", "")
    if verified:
        return Came(draft, "", f"verified; {_counts(told)}")
    word = "not verified" if verified is None else "refuted"
    return Came(draft, "search", f"{word}: {why}; {_counts(told)}", refuted=verified is False)


def _counts(told: dict[str, Any]) -> str:
    """Return the outcomes that occurred."""
    return ", ".join(f"{count} {outcome}" for outcome, count in told.get("outcomes", {}).items() if count)


def with_wrong_index(draft: ForeignDraft, work: Path) -> Came:
    """Put one wrong index into a draft and search it again.

    Raises:
        AssertionError: the text that the index stands in is not in the draft.
    """
    place = work / "kernels" / draft.name / "kernel.cu"
    before = place.read_text()
    right, wrong = draft.filler.WRONG_INDEX
    code = re.sub(r"/\*.*?\*/|//[^\n]*", lambda found: " " * len(found[0]), before, flags=re.DOTALL)
    at = code.find(right)
    assert at >= 0, f"{draft.name}: {right!r} is not in the draft"
    place.write_text(before[:at] + wrong + before[at + len(right) :], encoding="utf-8")
    try:
        return searched(draft, work)
    finally:
        place.write_text(before, encoding="utf-8")


def _failed(done: subprocess.CompletedProcess[str]) -> str:
    """Return what failed of a check or sanitizer's JSON."""
    try:
        told = json.loads(done.stdout)
    except ValueError:
        return ""
    failed = [f"{one['check']}: {one['detail']}" for one in told.get("checks", ()) if one.get("ok") is False]
    kinds = [str(one.get("kind")) for run in told.get("runs", ()) for one in run.get("findings", ())]
    return "; ".join(failed or kinds)
