"""Translate a file's launch: kernel parameters become fields, and host variables become genes."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from evokern.cuda_source import CudaSource, KernelFunction, LaunchSite, Macro
from evokern.scaffold.expression import inlined, one_line_functions, to_python
from evokern.scaffold.plan import split_tuple, unused_name

WHOLE = {
    "int": "i32", "signed": "i32", "int32_t": "i32", "unsigned": "u32", "unsigned int": "u32", "uint32_t": "u32",
    "uint": "u32", "size_t": "u64", "std::size_t": "u64", "long": "i64", "long int": "i64", "long long": "i64",
    "long long int": "i64", "int64_t": "i64", "std::int64_t": "i64", "uint64_t": "u64", "unsigned long long": "u64",
    "unsigned long": "u64", "ptrdiff_t": "i64",
}  # fmt: skip
"""C integer type of a possible problem size → evokern's name."""


def find_launch(source: CudaSource, entry: KernelFunction) -> LaunchSite | None:
    """Return the first launch whose arguments match the kernel's parameters, preferably in the file itself."""
    sites = [site for site in source.launches if site.kernel.rpartition("::")[2] == entry.name]
    fitting = [site for site in sites if len(site.arguments) == len(entry.parameters)]
    found = next((site for site in fitting if not site.file), fitting[0] if fitting else None)
    return found and _with_functions(source, found)


def _with_functions(source: CudaSource, site: LaunchSite) -> LaunchSite:
    """Return a launch whose expressions contain the bodies of the file's one-line functions instead of calls."""
    known = constant_names(source)  # such as macros that round up, which have a shorter translation
    functions = {name: made for name, made in one_line_functions(source.text).items() if name not in known}
    grid, block, shared = (inlined(text, functions) for text in (site.grid, site.block, site.shared))
    definitions = tuple((name, inlined(text, functions)) for name, text in site.definitions)
    return replace(site, grid=grid, block=block, shared=shared, definitions=definitions)


@dataclass(frozen=True)
class LaunchText:
    """Translated expressions of a launch."""

    grid: tuple[str, ...]
    """Python text of each extent of the grid; empty if a part is unknown."""
    block: tuple[str, ...]
    shared: str | None
    """Python text of the dynamic shared memory in bytes; None if unknown."""
    block_genes: Mapping[str, int | None]
    """Gene for a variable in the block's extents → its number in the file, or None."""


def read_launch(site: LaunchSite, names: Mapping[str, str], taken: str, known: Mapping[str, int]) -> LaunchText:
    """Translate a CUDA launch into the Python text for `kernel.py`.

    Args:
        site: launch to translate.
        names: C text → Python, for known names: macros, template parameters, the kernel's numbers.
        taken: text whose words must not be used as gene names.
        known: values of constants.
    """
    locals_, names = dict(site.definitions), dict(names)
    genes: dict[str, int | None] = {}
    for word in _block_variables(site.block, locals_, names):
        gene = unused_name(word.upper(), taken)
        genes[gene] = _number(locals_.pop(word, ""), known)
        names[word] = f"c.{gene}"
    block = _extents(site.block, names, locals_)
    if len(block) == 1 and block[0].isdigit() and int(block[0]) > 1:
        # A single number can usually change; with two or three extents the kernel probably relies on the values.
        gene, number = unused_name("BLOCK_X", taken), int(block[0])
        genes[gene], block = number, (f"c.{gene}",)
        grid = tuple(_divided_by_gene(text, number, gene) for text in _extents(site.grid, names, locals_))
        shared = to_python(site.shared, names, locals_)
        return LaunchText(grid, block, shared and _with_gene(shared, number, gene), genes)
    return LaunchText(_extents(site.grid, names, locals_), block, to_python(site.shared, names, locals_), genes)


def _with_gene(text: str, number: int, gene: str) -> str:
    """Replace a block's number in another expression with its gene."""
    text = re.sub(rf"(?<![\w.]){number}(?![\w.])", f"c.{gene}", text)
    return re.sub(rf"(?<![\w.]){number - 1}(?![\w.])", f"(c.{gene} - 1)", text)


def _divided_by_gene(text: str, number: int, gene: str) -> str:
    """Replace a block's number with its gene where an extent of the grid is divided by it: in `(n + 255) // 256`.

    An equal number elsewhere, such as a fixed number of blocks or a limit, is another number.
    """
    tree = ast.parse(text.strip(), mode="eval")
    found: set[tuple[int, str]] = set()
    for node in ast.walk(tree):
        parts: list[ast.expr] = []
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv | ast.Div):
            parts = [node.left, node.right]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "ceil_div":
            parts = node.args
        inside = [one for part in parts for one in ast.walk(part) if isinstance(one, ast.Constant)]
        if parts and any(isinstance(one, ast.Constant) and one.value == number for one in ast.walk(parts[-1])):
            found |= {(one.col_offset, f"c.{gene}") for one in inside if one.value == number}
            found |= {(one.col_offset, f"(c.{gene} - 1)") for one in inside if one.value == number - 1}
    text = text.strip()
    for place, made in sorted(found, reverse=True):
        text = text[:place] + made + re.sub(r"^\d+", "", text[place:])
    return text


def _extents(text: str, names: Mapping[str, str], locals_: Mapping[str, str]) -> tuple[str, ...]:
    made = to_python(text, names, locals_)
    if made is None:
        return ()
    parts = split_tuple(made)
    while parts and parts[-1] == "1" and len(parts) > 1:
        parts = parts[:-1]
    return parts if len(parts) <= 3 else ()


def _block_variables(text: str, locals_: Mapping[str, str], names: Mapping[str, str]) -> list[str]:
    """Return the variables in a block's extents: numbers of the host function and its parameters."""
    found: list[str] = []
    waiting = [text]
    seen: set[str] = set()
    while waiting:
        for word in re.findall(r"\b(?:\w+::)*[A-Za-z_]\w*\b(?!\s*\()", waiting.pop(0)):
            if word in seen or word in names or "::" in word or word in _NO_VARIABLE:
                continue
            seen.add(word)
            inner = locals_.get(word)
            if inner is not None and re.search(rf"\b{re.escape(word)}\b", inner):
                inner = None  # a parameter that the function modifies
            if inner is None or re.fullmatch(r"\(?\s*\d+[uUlL]*\s*\)?", inner):
                found.append(word)
            else:
                waiting.append(re.sub(r"^(?:dim3|int|unsigned|uint)\b", "", inner))
    return found


_NO_VARIABLE = frozenset({"dim3", "int", "unsigned", "size_t", "uint", "long", "min", "max", "sizeof", "std", "x", "y",
                          "static_cast", "float", "double", "half", "cdiv", "ceil_div", "CEIL_DIV"})  # fmt: skip


def _number(text: str, known: Mapping[str, int]) -> int | None:
    bare = text.strip().strip("()").rstrip("uUlL").strip()
    return int(bare) if bare.isdigit() else known.get(bare)


def constant_names(source: CudaSource) -> dict[str, str]:
    """Return a map from C names to Python text for constants: numeric macros, integers, and macros that round up."""
    names = {m.name: str(m.number) for m in source.macros if m.number is not None and not m.function_like}
    names |= {macro.name: "ceil_div" for macro in source.macros if rounds_up(macro)}
    names |= {c.name: c.expression for c in source.constants if re.fullmatch(r"\d+", c.expression)}
    return names


def rounds_up(macro: Macro) -> bool:
    """Return whether a macro with two arguments computes a / b, rounded up: `(((a) + (b) - 1) / (b))`."""
    bare = re.sub(r"[\s()]", "", macro.value or "")
    return macro.function_like and re.fullmatch(r"(?!\d)(\w+)\+(?!\d)(\w+)-1/\2", bare) is not None
