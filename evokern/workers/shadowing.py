"""A user's file named like a library hides it: Python imports from a script's own folder first.

What follows looks like a defect of the library or of evokern, so that an error is looked through for it.
"""

from __future__ import annotations

import re
import sys
import sysconfig
from importlib.machinery import PathFinder
from pathlib import Path

from evokern.files import is_file

_WORD = re.compile(r"[A-Za-z_]\w*")


def shadowed(text: str) -> str:
    """Return which file hides a library that an error speaks of, and what to do; empty where none does.

    Args:
        text: the error's message or traceback.
    """
    names = sorted(set(_WORD.findall(text)))
    folders = [Path(entry or ".").resolve() for entry in sys.path]
    for folder in folders:
        if _holds_libraries(folder):
            continue
        others = [str(other) for other in folders if other != folder]
        for name in names:
            for file in (folder / f"{name}.py", folder / name / "__init__.py"):
                if is_file(file) and (found := PathFinder.find_spec(name, others)) and found.origin:
                    what = file if file.stem == name else file.parent
                    return f"{what} hides the library {name} ({found.origin}); rename it"
    return ""


def _holds_libraries(folder: Path) -> bool:
    installed = {"site-packages", "dist-packages"} & set(folder.parts)
    return bool(installed) or folder.is_relative_to(Path(sysconfig.get_path("stdlib")).resolve())
