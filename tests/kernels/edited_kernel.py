"""A shipped kernel with a fault put into its text."""

from __future__ import annotations

import shutil
from pathlib import Path

from paths import KERNELS

from evokern.declaration.kernel import Kernel
from evokern.study.discovery import load_kernel


def edited_kernel(folder: Path, kernel: str, name: str, right: str, broken: str) -> Kernel:
    """Copy a kernel with the headers that all share, change one place of its text, and load it.

    Args:
        folder: where to; empty.
        kernel: its name.
        name: the file that is changed, `matmul/tiles.cuh` or `common/mma.cuh`.
        right: what stands there, once.
        broken: what stands there instead.
    """
    for part in (kernel, "common"):
        shutil.copytree(KERNELS / part, folder / part)
    text = (folder / name).read_text(encoding="utf-8")
    assert text.count(right) == 1
    (folder / name).write_text(text.replace(right, broken), encoding="utf-8")
    return load_kernel(folder / kernel)
