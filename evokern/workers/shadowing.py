"""Detection of a user's file that hides a library with the same name.

Python imports from the script's folder first. The resulting errors look like bugs in the library or in evokern.
"""

from __future__ import annotations

import re
import sys
import sysconfig
from importlib.machinery import PathFinder
from pathlib import Path

from evokern.files import is_file

_WORD = re.compile(r"[A-Za-z_]\w*")


def shadowing_advice(text: str) -> str:
    """Return the file that hides a library that an error names, and the remedy; empty if no file hides it.

    Args:
        text: message or traceback of the error.
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
                    return f"{what} hides the library {name} ({found.origin}); rename your file"
    return ""


def _holds_libraries(folder: Path) -> bool:
    installed = {"site-packages", "dist-packages"} & set(folder.parts)
    return bool(installed) or folder.is_relative_to(Path(sysconfig.get_path("stdlib")).resolve())
