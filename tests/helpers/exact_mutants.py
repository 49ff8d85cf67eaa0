"""Kernels in which the source of one candidate has a change, for tests of the exact proof."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from paths import KERNELS

from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel
from evokern.study.discovery import load_kernel
from evokern.study.trust import remember_trust


@dataclass(frozen=True)
class Change:
    """One change of a source."""

    file: str
    """Name as in `#include`; empty for the source itself."""
    before: str
    """Line without surrounding white space."""
    after: str
    """The changed line."""
    line: int = 1
    """Number of the line; the nearest line with this text counts."""
    kind: str = ""
    """What is changed, such as an index."""


def changed_in_one_candidate(name: str, config: Config, change: Change, folder: Path) -> Kernel:
    """Return a copy of a kernel in which the source of one candidate has a change."""
    for one in (name, "common"):
        shutil.copytree(KERNELS / one, folder / one, dirs_exist_ok=True)
    original = load_kernel(KERNELS / name)
    places = (folder / name / (change.file or original.source), folder / "common" / change.file)
    path = next(one for one in places if one.is_file())
    lines = path.read_text().splitlines()
    found = [number for number, line in enumerate(lines, 1) if line.split("//")[0].strip() == change.before]
    number = min(found, key=lambda one: abs(one - change.line))
    here = f"\n#line {number}\n"
    lines[number - 1] = f"#ifdef MUTANT{here}{change.after}\n#else{here}{lines[number - 1]}\n#endif{here}"
    path.write_text("\n".join(lines) + "\n")
    remember_trust(folder / name)
    copy = load_kernel(folder / name)
    return replace(copy, macros=lambda c, p: {**copy.macros(c, p), **({"MUTANT": 1} if c == config else {})})
