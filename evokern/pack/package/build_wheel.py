"""Build backend (PEP 517) that writes the wheel of this package; it needs only Python.

The package contains everything that it needs. The wheel has fixed dates, so the same content gives the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import os
import tomllib
import zipfile
from pathlib import Path
from typing import Any

_TAG = "py3-none-linux_x86_64"
_DATE = (1980, 1, 1, 0, 0, 0)


def _project() -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


def _metadata(project: dict[str, Any]) -> str:
    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {project['version']}"]
    lines += [f"Summary: {project['description']}", f"Requires-Python: {project['requires-python']}"]
    return "\n".join([*lines, *(f"Requires-Dist: {one}" for one in project["dependencies"]), ""])


def get_requires_for_build_wheel(settings: Any = None) -> list[str]:
    """Return no requirements."""
    return []


def build_wheel(folder: str, settings: Any = None, metadata: str | None = None) -> str:
    """Write the wheel into a folder, and return its name."""
    project = _project()
    name, version = project["name"], project["version"]
    info = f"{name}-{version}.dist-info"
    files = {
        str(path): path.read_bytes()
        for path in sorted(Path(name).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    files[f"{info}/METADATA"] = _metadata(project).encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: evokern\nRoot-Is-Purelib: false\nTag: {_TAG}\n".encode()
    if Path("LICENSE").is_file():
        files[f"{info}/licenses/LICENSE"] = Path("LICENSE").read_bytes()
    digests = {
        path: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=") for path, data in files.items()
    }
    rows = [f"{path},sha256={digest.decode()},{len(files[path])}" for path, digest in digests.items()]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    wheel = f"{name}-{version}-{_TAG}.whl"
    with zipfile.ZipFile(os.path.join(folder, wheel), "w", zipfile.ZIP_DEFLATED) as archive:  # noqa: PTH118
        for path, data in files.items():
            entry = zipfile.ZipInfo(path, _DATE)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return wheel
