"""Where the repository's parts lie, for tests, helpers and scripts in whatever folder they stand themselves."""

from __future__ import annotations

from pathlib import Path

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "pyproject.toml").is_file())
"""The repository."""
DATA = ROOT / "tests" / "data"
"""What tests read: recordings, old databases, foreign CUDA files, kernel folders made for tests (`kernels/`)."""
KERNELS = ROOT / "kernels"
"""The repository's own kernel folders."""
STUDIES = ROOT / "studies"
"""The repository's own studies."""
