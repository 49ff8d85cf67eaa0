"""Find the CPU version of a kernel in a file; the draft shows it as a model for the reference."""

from __future__ import annotations

import difflib
import re

from evokern.cuda_source import CudaSource, HostFunction

_MARKS = re.compile(
    r"(?:^|_)(?:cpu|host|ref|reference|gold|golden|serial|naive|verify|expected)(?:_|$)|cpu|reference", re.I
)
MOST_LINES = 80
"""Maximum number of lines of a CPU version; a longer function is not a plain reference."""
LEAST_LIKENESS = 0.3
"""Minimum similarity of the names without `cpu` and `kernel`; the file may contain only another kernel's reference."""


def cpu_function(source: CudaSource, kernel: str) -> str:
    """Return the text of the host function that is most likely the kernel's reference, or an empty string.

    Args:
        source: parsed file.
        kernel: name of the kernel.
    """
    lines = source.text.split("\n")
    best: tuple[float, HostFunction] | None = None
    for function in source.host_functions:
        body = "\n".join(lines[function.line - 1 : function.last_line])
        marked = bool(_MARKS.search(_separated(function.name)))
        computes = marked and "for" in body and "<<<" not in body and "printf" not in body
        if function.name == "main" or not computes or function.last_line - function.line > MOST_LINES:
            continue
        likeness = difflib.SequenceMatcher(None, _bare(function.name), _bare(kernel)).ratio()
        if likeness > LEAST_LIKENESS and (best is None or likeness > best[0]):
            best = likeness, function
    if best is None:
        return ""
    return "\n".join(lines[best[1].line - 1 : best[1].last_line])


def _separated(name: str) -> str:
    """Separate the words of a name such as `matMulCPU` with `_`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)


def _bare(name: str) -> str:
    return re.sub(r"_?(?:kernel|cpu|host|ref(?:erence)?|gold(?:en)?)\d*_?", "", _separated(name).lower())
