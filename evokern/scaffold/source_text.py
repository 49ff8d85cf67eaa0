"""Generate the drafted `kernel.cu` with the file's device code, and find the kernel's CPU version in the file.

The generated header sets each choice. The CPU version is a model for the reference.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from evokern.cuda_source import CudaSource, HostFunction, Macro
from evokern.cuda_source.preprocessor import integer
from evokern.declaration.kernel_files import GENERATED
from evokern.errors import UsageError

_HEADER_OF = {
    "cuda_fp16.h": r"\b(?:__half2?|half2?|__float2half\w*|__hadd|__hmul|__hfma2?)\b",
    "cuda_bf16.h": r"\b(?:__nv_bfloat162?|nv_bfloat162?)\b",
    "cuda_fp8.h": r"\b__nv_fp8(?:x[24])?_\w+",
}
"""Header → words that require it; files often include it indirectly through a library header."""
_EMPTY_CONDITIONAL = re.compile(
    r"^[ \t]*#[ \t]*if(?:n?def)?\b(?:\\\n|[^\n])*\n(?:\s*#[ \t]*(?:else|elif)\b[^\n]*\n)*\s*#[ \t]*endif\b[^\n]*\n?",
    re.MULTILINE,
)
_EMPTY_NAMESPACE = re.compile(r"^[ \t]*namespace\b[^{;\n]*\{\s*\}[^\n]*\n?", re.MULTILINE)
_INLINED = re.compile(r"^// ---- [\w./+-]+\n", re.MULTILINE)
"""The line above an inlined header."""
_LONE_COMMENT = re.compile(r"\n[ \t]*\n(?:[ \t]*(?://[^\n]*|/\*(?:[^*]|\*(?!/))*\*/[ \t]*)\n)+(?=[ \t]*\n)")
"""A paragraph that consists of comments only."""


def device_source(text: str, replaced: Iterable[str], *, generated: bool) -> str:
    """Return device code whose macros can be set with `-D` or by the generated header.

    Args:
        text: device code with the file's own definitions.
        replaced: macros that the configuration or the problem sets; a definition of one applies only if it is unset.
        generated: whether to include the generated header.
    """
    for name in replaced:
        define = re.compile(rf"^[ \t]*#[ \t]*define[ \t]+{re.escape(name)}\b(?:\\\n|[^\n])*$", re.MULTILINE)
        guarded = re.compile(rf"^[ \t]*#[ \t]*(?:ifndef[ \t]+|if[ \t]+!\s*defined\b[ \t(]*){re.escape(name)}\b", re.M)
        if not guarded.search(text):
            text = define.sub(rf"#ifndef {name}\n\g<0>\n#endif", text)
    text = _without_remains(text)
    for header, words in _HEADER_OF.items():
        if re.search(words, text) and f"{header}>" not in text and f'{header}"' not in text:
            text = behind_opening(text, f"#include <{header}>\n")
    if generated and GENERATED not in text:
        text = behind_opening(text, f'#include "{GENERATED}"\n')
    return re.sub(r"\n(?:[ \t]*\n){2,}", "\n\n", text).strip("\n") + "\n"


def with_definitions(source: CudaSource, definitions: Sequence[str]) -> CudaSource:
    """Return a file as if its build defined macros: each becomes a default at the start of the device code.

    Args:
        source: the file.
        definitions: macros as NAME=VALUE; NAME alone means the value 1.

    Raises:
        UsageError: a name is not an identifier.
    """
    made: dict[str, Macro] = {}
    for one in definitions:
        name, _, value = one.partition("=")
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise UsageError(f"-D {one}: {name!r} is not the name of a macro; write -D NAME=VALUE")
        value = value if "=" in one else "1"
        made[name] = Macro(name, value, "default", 0, integer(value))
    lines = "".join(f"#ifndef {m.name}\n#define {m.name} {m.value}\n#endif\n" for m in made.values())
    others = tuple(macro for macro in source.macros if macro.name not in made)
    return replace(source, device_text=lines + source.device_text, macros=(*made.values(), *others))


def _without_remains(text: str) -> str:
    """Remove what dropped declarations leave behind: empty conditionals and namespaces, comments without code."""
    while (shorter := _EMPTY_NAMESPACE.sub("", _EMPTY_CONDITIONAL.sub("", text))) != text:
        text = shorter
    text = _INLINED.sub("", _with_each_include_once(text))
    opening = re.match(r"\s*(?:/\*.*?\*/[ \t]*\n|(?://[^\n]*\n)+)", text, re.DOTALL)
    start = opening.end() if opening else 0
    rest = "\n\n" + re.sub(r"[ \t]+\n", "\n", text[start:]) + "\n\n"
    while (shorter := _LONE_COMMENT.sub("\n", rest)) != rest:
        rest = shorter
    return text[:start] + rest


def _with_each_include_once(text: str) -> str:
    """Drop repeated includes outside conditionals."""
    seen: set[str] = set()
    kept: list[str] = []
    depth = 0
    for line in text.split("\n"):
        name = re.match(r"[ \t]*#[ \t]*(if|endif|include\b.*)", line)
        word = "".join(name[1].split()) if name else ""
        depth += {"if": 1, "endif": -1}.get(word, 0)
        if word.startswith("include"):
            if word in seen:
                continue
            if depth == 0:
                seen.add(word)
        kept.append(line)
    return "\n".join(kept)


def behind_opening(text: str, line: str) -> str:
    """Insert a line after the opening comment of a file."""
    opening = re.match(r"\s*(?:/\*.*?\*/\s*|//[^\n]*\n\s*)*", text, re.DOTALL)
    at = text.rfind("\n", 0, opening.end() if opening else 0) + 1
    return text[:at] + line + text[at:]


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
