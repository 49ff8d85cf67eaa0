"""Sizes of buffers that a file states in comments, or in a check of an index against a kernel's number."""

from __future__ import annotations

import re
from collections.abc import Sequence

from evokern.cuda_source import CudaSource, KernelFunction
from evokern.cuda_source.lexer import without_comments
from evokern.scaffold.plan import DraftField, StatedSize


def commented_sizes(
    source: CudaSource, function: KernelFunction, fields: Sequence[DraftField]
) -> dict[str, StatedSize]:
    """Return the shapes in comments next to a kernel's pointers, such as `// [B, H, S, D]`, if all extents are fields.

    Args:
        source: the file.
        function: the kernel.
        fields: fields of the draft.
    """
    names = {field.name.lower(): f"p.{field.name}" for field in fields}
    pointers = {one.name for one in function.parameters if one.pointer}
    lines = source.texts.get(function.file, "").split("\n")
    found: dict[str, StatedSize] = {}
    for at, line in enumerate(lines[function.line - 1 : function.line + 4 * len(function.parameters)], function.line):
        match = re.search(r"\b(\w+)\s*[,)]?\s*(?:\{\s*)?(?://|/\*)[^\[(]*[\[(]([\w\s,x*]+)[\])]", line)
        words = re.split(r"\s*[,x*]\s*", match[2].strip()) if match else []
        if match and match[1] in pointers and all(word.lower() in names or word.isdigit() for word in words):
            axes = tuple(names.get(word.lower(), word) for word in words)
            found.setdefault(match[1], StatedSize(axes, f"the comment on line {at}"))
    return found


def inclusive_check(source: str, number: str) -> str:
    """Return the check that includes a number of the kernel, as `i <= n` does, in words, or an empty string.

    Args:
        source: device code.
        number: the kernel's name of the number.
    """
    word = rf"(?<![\w.]){re.escape(number)}(?![\w.(\[])"
    after = r"(?=\s*(?:\)|;|&&|\|\||\?|,))"
    found = re.search(
        rf"\w+[\])]*\s*(?:<=|>)\s*{word}{after}|{word}\s*(?:>=|<(?!<))\s*[A-Za-z_]\w*", without_comments(source)
    )
    return f"the check `{' '.join(found[0].split())}`" if found else ""
