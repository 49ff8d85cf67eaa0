"""Words for kernels that `evokern.tune` declares: messages about a kernel folder, as messages about the call."""

from __future__ import annotations

import re
from collections.abc import Iterable

SHAPES = "SHAPES"
"""Field of the only problem of a kernel that a call declares."""

_WORDS = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"`evokern check (\S+)` compiles a kernel folder faster", r"`evokern show \1` shows the compiler's message"),
        (r"`evokern sanitize (\S+)` names the line in a kernel folder", r"`evokern show \1` names the line"),
        (r"set large= of the input tensors in kernel\.py to the largest input that the kernel must support, or ", ""),
        (r"start over with `--fresh --inputs normal`; every result then says so",
         "narrow their range with draw=, and pass fresh=True"),
        (r", which `evokern check \S+` shows", "; a larger tolerance= accepts them"),
        (r"the order of the launch's args", "the order of args"),
        (r"a tensor whose role should be inout", "an array that should be evokern.inout"),
        (r'a workspace that needs initial="zero"', "an array that should be evokern.inout(zeros)"),
        (r"declare their initial values as `state` in kernel\.py", "pass them as arrays in args"),
        (r"declare the initial value in kernel\.py.*?, or use a workspace", "pass the variable as an array in args"),
        (r"; the finding does not depend on kernel\.py", ""),
        (r"the grid in launches", "grid="),
        (r", and of infinities and NaN if kernel\.py declares nonfinite=", ""),
        (r"set Tensor's large= to the largest input that the kernel must support", "narrow the range with draw="),
        (r"the workload's flops and bytes: they may be too high", "the reference: it may do more work than needed"),
        (r"a Constraint in kernel\.py", "a condition in where="),
        (r"Lower the tolerance \(in kernel\.py, or .*? in the study file\)", "Pass a smaller tolerance="),
        (r"declare a bound with `error` in kernel\.py", "pass error= or tolerance="),
        (r"if (\w+) is a gene, declare it in kernel\.py", r"if \1 is a parameter, add it to params"),
        (r"kernel\.py: ", ""),
        (r"kernel\.py", "the call of evokern.tune"),
        (r"add smaller values to the genes", "add smaller values to params"),
    )
)  # fmt: skip


def is_call(fields: Iterable[str]) -> bool:
    """Return whether the names of a problem's fields are those of a kernel that `evokern.tune` declares."""
    return set(fields) == {SHAPES}


def call_words(text: str, fields: Iterable[str]) -> str:
    """Return a message about a kernel in the words of its call, if a call declares the kernel.

    Args:
        text: the message, about a kernel folder.
        fields: names of the fields of the kernel's problems.
    """
    if not is_call(fields):
        return text
    for pattern, words in _WORDS:
        text = pattern.sub(words, text)
    return text
