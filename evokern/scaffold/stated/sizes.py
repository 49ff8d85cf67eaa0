"""Sizes of buffers that a file states in comments, or in a check of an index against a kernel's number."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from evokern.cuda_source import CudaSource, KernelFunction
from evokern.cuda_source.host import HostLaunch, Pointer
from evokern.cuda_source.lexer import without_comments
from evokern.scaffold.plan import DraftField, StatedSize

_COMMENT = re.compile(r"//|/\*|^\s*\*|^\s*@")
_MOST_ABOVE = 40
"""Maximum number of comment lines above a function that may state shapes."""
_PROSE = frozenset(("in", "out", "inout", "input", "output", "device", "host", "optional", "float", "int", "half"))


def commented_sizes(
    source: CudaSource, function: KernelFunction, view: HostLaunch | None, names: Mapping[str, str]
) -> tuple[dict[str, StatedSize], tuple[DraftField, ...]]:
    """Return the shapes that comments state for a kernel's pointers, and a field for each extent that only they name.

    They are next to a parameter, as in `float* q,  // [B, H, S, D]`, or above the kernel or its launch, as in
    `// points: (B, C, M)` or `feat: features, FloatTensor[b, c, n]`.

    Args:
        source: the file.
        function: the kernel.
        view: its launch; None if there is none.
        names: name in lower case → Python text.
    """
    pointers = {one.name: one.name for one in function.parameters if one.pointer}
    beside = rf"\b({'|'.join(pointers)})\s*[,)]?\s*(?:\{{\s*)?(?://|/\*)[^\[(]*[\[(]([^\])]+)[\])]"
    places = [(beside, _lines(source, function.file, function.line, 4 * len(function.parameters) + 1), pointers)]
    above = r"(?<![\w.*&(])({})\b(?:\s*[:-][^\[({{=;]*|\s+)[\[({{]([^\])}}]+)[\])}}]"
    places.append((above.format("|".join(pointers)), _above(source, function.file, function.line), pointers))
    if view is not None:
        hosts = {
            argument.buffer.name: parameter.name
            for parameter, argument in zip(function.parameters, view.arguments, strict=True)
            if isinstance(argument, Pointer) and argument.offset == 0 and argument.buffer.name
        } | pointers
        first = _start(source, view)
        lines = [*_above(source, view.file, first), *_lines(source, view.file, first, view.line - first)]
        places.append((above.format("|".join(map(re.escape, hosts))), lines, hosts))
    found: dict[str, StatedSize] = {}
    for pattern, lines, wanted in places:
        for at, line in lines:
            if _COMMENT.search(line) is None and pattern is not beside:
                continue
            for match in re.finditer(pattern, line):
                parts = re.split(r"\s*(?:,|\bx\b)\s*", match[2].strip())
                last = [_axis(part, names) for part in parts if part != "..."]
                rest = _others(last, names) if parts[0] == "..." and len(parts) > 1 else []
                axes = (*rest, *last)
                known = sum(1 for axis in axes if re.search(r"[cp]\.[A-Z]", axis) and "?" not in axis)
                if "" in axes or (known < len(axes) and (known == 0 or len(axes) < 2)):
                    continue
                made = tuple(axis.replace("?", "") for axis in axes)
                found.setdefault(wanted[match[1]], StatedSize(made, f"the comment on line {at}", sure=not rest))
    taken = set(names.values())
    words = dict.fromkeys(w for one in found.values() for axis in one.axes for w in re.findall(r"p\.\w+", axis))
    why = "only a comment names it"
    return found, tuple(DraftField(word[2:], why=why, indexed=True) for word in words if word not in taken)


def _others(axes: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """Return the fields that no axis contains, which `...` stands for."""
    return [one for one in dict.fromkeys(names.values()) if re.fullmatch(r"p\.\w+", one) and one not in " ".join(axes)]


def _axis(text: str, names: Mapping[str, str]) -> str:
    """Return the Python text of an extent, with `?` behind the name of a new field; empty if it is not one."""
    if not re.fullmatch(r"(?:\w+|\s|[-+*]|//?)+", text) or re.search(r"\w\s+\w", text):
        return ""
    words = re.findall(r"[A-Za-z_]\w*", text)
    if (len(words) > 1 and any(word.lower() not in names for word in words)) or _PROSE.intersection(
        map(str.lower, words)
    ):
        return ""
    made = re.sub(r"[A-Za-z_]\w*", lambda one: names.get(one[0].lower()) or f"p.{one[0].upper()}?", text)
    return re.sub(r"(?<!/)/(?!/)", "//", made)


def _lines(source: CudaSource, file: str, first: int, count: int) -> list[tuple[int, str]]:
    return list(enumerate(source.texts.get(file, "").split("\n")[first - 1 : first - 1 + count], first))


def _above(source: CudaSource, file: str, line: int) -> list[tuple[int, str]]:
    """Return the comment that ends above a line, and the lines of a template's head between them."""
    lines = _lines(source, file, 1, line - 1)[-_MOST_ABOVE:]
    at = len(lines)
    while at and not re.search(r"[;}]\s*$|^\s*#", without_comments(lines[at - 1][1])):
        at -= 1
    return [(number, f"// {text}") for number, text in lines[at:]]


def _start(source: CudaSource, view: HostLaunch) -> int:
    """Return the line of the function that contains a launch."""
    name = re.compile(rf"\b{re.escape(view.function.rpartition('::')[2])}\s*\(")
    lines = _lines(source, view.file, 1, view.line - 1)
    return next(
        (at for at, text in reversed(lines) if name.search(text) and not text.rstrip().endswith(";")), view.line
    )


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
