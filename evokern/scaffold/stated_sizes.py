"""Sizes of buffers that a file states: in its allocations, or in a check of an index against a kernel's number."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from evokern.cuda_source import Allocation, CudaSource, KernelFunction, LaunchSite
from evokern.cuda_source.lexer import without_comments
from evokern.declaration.kernel import DTYPE_BYTES
from evokern.scaffold.expression import to_python
from evokern.scaffold.plan import DraftArgument, StatedSize

_CALLERS = 3
"""Maximum number of calls between an allocation and the launch."""
_POINTER = re.compile(
    r"(?:\(\s*[\w:\s]+\*+\s*\)\s*)?(?:(?:thrust::)?raw_pointer_cast\s*\(\s*&?\s*)?([A-Za-z_]\w*)"
    r"(?:\.data\s*\(\s*\)(?:\.get\s*\(\s*\))?|\.get\s*\(\s*\)|\[\s*0\s*\])?\s*\)?"
)
"""A launch's pointer argument: a variable, with casts and the accessors of containers."""
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_STEP = re.compile(r"([A-Za-z_]\w*)\s*([+-])\s*(\d+)")


def allocated_sizes(
    source: CudaSource,
    function: KernelFunction,
    site: LaunchSite | None,
    arguments: Sequence[DraftArgument],
    names: Mapping[str, str],
) -> dict[str, StatedSize]:
    """Return the sizes of the buffers that host code allocates for a launch.

    Args:
        source: the file.
        function: the kernel.
        site: its launch; None if there is none.
        arguments: the kernel's arguments in the draft.
        names: C name → Python text, for constants and genes.

    Returns:
        Buffer → size. A size that depends on unknown variables has no extents.
    """
    if site is None or not site.arguments:
        return {}
    passed = {p.name: text.strip() for p, text in zip(function.parameters, site.arguments, strict=True)}
    dtypes = {a.name: a.dtype for a in arguments if a.is_tensor and a.name in passed and not a.why}
    buffers = {name: m[1] for name in dtypes if (m := _POINTER.fullmatch(passed[name]))}
    numbers = [(passed[a.name], a.expression or "") for a in arguments if a.name in passed]
    known = _named((argument, text) for argument, text in numbers if text.startswith("p."))
    found: dict[str, StatedSize] = {}
    owner = site.function
    for _ in range(_CALLERS):
        for name, variable in buffers.items():
            made = [a for a in source.allocations if a.name == variable and a.function == owner]
            sizes = {_elements(one, dtypes[name], {**names, **known}) for one in made}
            if sizes:
                axes = sizes.pop() if len(sizes) == 1 else ()
                found.setdefault(name, StatedSize(axes, f"the allocation on line {made[0].line}"))
        called = _call(source, owner)
        if called is None:
            break
        owner, given = called
        known = _named((given[name], text) for name, text in known.items() if name in given)
        buffers = {
            name: m[1] for name, variable in buffers.items() if (m := _POINTER.fullmatch(given.get(variable, "")))
        }
    return found


def _named(arguments: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the host's variables and literals → Python text, from (argument, Python text of the parameter).

    An argument that is passed for several numbers does not show which of them a size depends on.
    """
    found: dict[str, set[str]] = {}
    for argument, text in arguments:
        if re.fullmatch(r"[A-Za-z_]\w*|\d\d+", argument):
            found.setdefault(argument, set()).add(text)
        elif step := _STEP.fullmatch(argument):
            found.setdefault(step[1], set()).add(f"({text} {'-' if step[2] == '+' else '+'} {step[3]})")
    return {word: texts.pop() for word, texts in found.items() if len(texts) == 1}


def _elements(made: Allocation, dtype: str, names: Mapping[str, str]) -> tuple[str, ...]:
    """Return the extents of an allocation as Python text; empty if a part is unknown."""
    locals_ = {name: text for name, text in made.definitions if name not in names}
    text = to_python(made.size, names, locals_)
    if not text:
        return ()
    factors = list(_factors(ast.parse(text, mode="eval").body))
    if not made.in_bytes:
        return tuple(factors)
    width = DTYPE_BYTES[dtype]
    if str(width) in factors:
        factors.remove(str(width))
        return tuple(factors) or ("1",)
    return (f"({text}) // {width}",) if width > 1 else tuple(factors)


def _factors(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        yield from _factors(node.left)
        yield from _factors(node.right)
    else:
        yield ast.unparse(node)


def _call(source: CudaSource, function: str) -> tuple[str, dict[str, str]] | None:
    """Return the caller of a host function, and the function's parameters → the arguments of the call.

    A function that is called from several places states nothing.
    """
    text = _COMMENT.sub(lambda found: "\n" * found[0].count("\n") or " ", source.text)
    word = rf"\b{re.escape(function)}\s*\(([^(){{}};]*)\)\s*"
    defined = re.search(word + r"\{", text)
    calls = list(re.finditer(word + ";", text))
    heads = [call for call in calls if not re.search(r"[\w*&>]\s+$|[*&]$", text[: call.start()].rpartition("\n")[2])]
    if not function or defined is None or len(heads) != 1:
        return None
    names = [re.findall(r"[A-Za-z_]\w*", part)[-1:] for part in defined[1].split(",")]
    given = [part.strip() for part in heads[0][1].split(",")]
    if len(names) != len(given):
        return None
    line = text.count("\n", 0, heads[0].start()) + 1
    caller = next((f.name for f in source.host_functions if f.line <= line <= f.last_line), "")
    return caller, {name[0]: one for name, one in zip(names, given, strict=True) if name}


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
