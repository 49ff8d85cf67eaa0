"""Generate the drafted `kernel.cu`, in which each choice is a macro with an `#error` if it is missing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set

from evokern.cuda_source import Macro

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


def device_source(
    text: str, macros: Iterable[Macro], sizes: Mapping[str, int], genes: Set[str], required: Iterable[str] = ()
) -> str:
    """Return device code in which numbers are macros that the command line sets.

    Args:
        text: device code with the file's own definitions.
        macros: macros with a number.
        sizes: macros that depend on the problem.
        genes: macros that depend on the configuration.
        required: genes that the text may only mention; those without an `#error` get one.
    """
    for macro in macros:
        if (macro.name not in genes and macro.name not in sizes) or macro.kind == "required":
            continue
        define = re.compile(rf"^[ \t]*#[ \t]*define[ \t]+{re.escape(macro.name)}\b(?:\\\n|[^\n])*$", re.MULTILINE)
        demand = f'#error "{macro.name} must be defined"'
        text = define.sub(demand if macro.kind == "default" else f"#ifndef {macro.name}\n{demand}\n#endif", text)
    text = _without_remains(text)
    for name in required:
        if f'#error "{name} must be defined"' not in text:
            text = _behind_opening(text, f'#ifndef {name}\n#error "{name} must be defined"\n#endif\n')
    for header, words in _HEADER_OF.items():
        if re.search(words, text) and f"{header}>" not in text and f'{header}"' not in text:
            text = _behind_opening(text, f"#include <{header}>\n")
    return re.sub(r"\n(?:[ \t]*\n){2,}", "\n\n", text).strip("\n") + "\n"


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


def _behind_opening(text: str, line: str) -> str:
    """Insert a line after the opening comment of a file."""
    opening = re.match(r"\s*(?:/\*.*?\*/\s*|//[^\n]*\n\s*)*", text, re.DOTALL)
    at = text.rfind("\n", 0, opening.end() if opening else 0) + 1
    return text[:at] + line + text[at:]
