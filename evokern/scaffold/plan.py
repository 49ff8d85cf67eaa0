"""What a draft knows of a kernel: genes, fields, arguments, and launch expressions as Python over `c` and `p`."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from types import CodeType, SimpleNamespace
from typing import Any

BLOCK_DOC = "threads of a block"
"""What the documentation of a gene says that is nothing but an extent of the block."""


@dataclass(frozen=True)
class DraftGene:
    """A number that becomes a parameter."""

    name: str
    """Name of the gene; the macro that carries it."""
    values: tuple[int | str, ...]
    """Its value in the file and the ones worth trying beside it."""
    default: int | str
    """The value in the file; a guess where the file gives none."""
    why: str = ""
    """Why values or default are guesses; empty where the file says them."""
    doc: str = ""
    """What it is: a template parameter, the block's extent."""


@dataclass(frozen=True)
class DraftField:
    """A field of the problem."""

    name: str
    """Its name."""
    multiple_of: int = 1
    """What must divide it, as runs on the simulator show."""
    why: str = ""
    """What is a guess about it."""
    choices: tuple[int | str, ...] = ()
    """Everything it may be; empty for any number."""
    default: int | None = None
    """The value where the problem does not name it; None for a field that every problem names."""


@dataclass(frozen=True)
class DraftArgument:
    """A parameter of the kernel."""

    name: str
    """Its name."""
    dtype: str
    """evokern's name of its type, or of what it points to."""
    expression: str | None = None
    """Python text of a number's value; None for a pointer."""
    why: str = ""
    """What is a guess about it."""

    @property
    def is_tensor(self) -> bool:
        """Whether it is a pointer."""
        return self.expression is None


@dataclass(frozen=True)
class DraftTensor:
    """A buffer."""

    name: str
    """Its name."""
    dtype: str
    """evokern's name of its element type."""
    shape: tuple[str, ...]
    """Python text of each extent."""
    role: str
    """As of `evokern.Tensor`."""
    why: str = ""
    """What is a guess about it; empty where runs agree."""
    extra: str = ""
    """Further arguments of the declaration, such as `high=7`."""


@dataclass(frozen=True)
class Plan:
    """How the kernel is launched, as far as it is known."""

    entry: str
    """The kernel as `Launch` names it; a format string where genes are template arguments."""
    genes: tuple[DraftGene, ...]
    fields: tuple[DraftField, ...]
    arguments: tuple[DraftArgument, ...]
    grid: tuple[str, ...]
    """Python text of each extent; empty where it is not known."""
    block: tuple[str, ...]
    shared: str = "0"
    cluster: tuple[str, ...] = ()
    """Python text of each extent of a thread-block cluster, in blocks; empty where the kernel demands none."""
    macros: Mapping[str, str] = field(default_factory=dict)
    """Macros that the problem decides → Python text."""
    constraints: tuple[tuple[str, str, str], ...] = ()
    """Name, Python text of the condition, reason."""
    options: tuple[str, ...] = ()
    """Further compiler options."""
    constants: tuple[DraftArgument, ...] = ()
    """`__constant__` arrays that the host fills."""

    @property
    def defaults(self) -> dict[str, int | str]:
        """The configuration of the file."""
        return {gene.name: gene.default for gene in self.genes}

    @property
    def whole_grid(self) -> tuple[str, ...]:
        """The grid's extents, rounded up to whole clusters."""
        if not self.grid or not self.cluster:
            return self.grid
        axes = zip_longest(self.grid, self.cluster, fillvalue="1")
        return tuple(_whole_clusters(blocks, cluster) for blocks, cluster in axes)

    def value(self, text: str, config: Mapping[str, Any], problem: Mapping[str, int]) -> int:
        """Evaluate one of the plan's expressions.

        Raises:
            ZeroDivisionError: it divides by zero there.
        """
        return int(eval(_compiled(text), {**_KNOWN, "c": SimpleNamespace(**config), "p": SimpleNamespace(**problem)}))

    def extents(
        self, texts: tuple[str, ...], config: Mapping[str, Any], problem: Mapping[str, int]
    ) -> tuple[int, int, int]:
        """Evaluate a grid or a block."""
        values = [self.value(text, config, problem) for text in texts]
        x, y, z = (*values, 1, 1)[:3]
        return x, y, z

    def entry_of(self, config: Mapping[str, Any]) -> str:
        """Return the entry with its template arguments."""
        return self.entry.format(c=SimpleNamespace(**config)) if "{" in self.entry else self.entry

    def defines(self, config: Mapping[str, Any], problem: Mapping[str, int]) -> tuple[str, ...]:
        """Return the compiler's options for a configuration and a problem."""
        macros = {**config, **{name: self.value(text, config, problem) for name, text in self.macros.items()}}
        return (*(f"-D{name}={value}" for name, value in macros.items()), *self.options)


def _whole_clusters(blocks: str, cluster: str) -> str:
    """Return Python text of an extent of the grid, rounded up to a multiple of the cluster's along that axis."""
    if cluster == "1":
        return blocks
    if blocks == "1":
        return cluster
    size = cluster if re.fullmatch(r"[\w.]+", cluster) else f"({cluster})"
    if blocks.isdigit() and size.isdigit():
        return str(ceil_div(int(blocks), int(size)) * int(size))
    return f"ceil_div({blocks}, {cluster}) * {size}"


def ceil_div(a: int, b: int) -> int:
    """Return a / b, rounded up."""
    return -(-a // b)


_KNOWN: Mapping[str, Any] = {"__builtins__": {}, "ceil_div": ceil_div, "min": min, "max": max, "int": int}
_MAY_STAND = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call, ast.Name, ast.Attribute,
    ast.Constant, ast.Load, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.Tuple,
)  # fmt: skip


def _compiled(text: str) -> CodeType:
    """Compile an expression that holds arithmetic over `c.NAME` and `p.NAME` and nothing else."""
    tree = ast.parse(text.strip(), mode="eval")
    for node in ast.walk(tree):
        hidden = isinstance(node, ast.Attribute) and node.attr.startswith("_")
        called = isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in _KNOWN)
        if not isinstance(node, _MAY_STAND) or hidden or called:
            raise ValueError(f"{text!r} is no arithmetic expression")
    return compile(tree, "<draft>", "eval")


def split_tuple(text: str) -> tuple[str, ...]:
    """Return the members of a Python tuple's text, or the text itself where it is none."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        return ()
    if isinstance(tree, ast.Tuple):
        return tuple(ast.unparse(item) for item in tree.elts)
    return (ast.unparse(tree),)


def unused_name(wanted: str, text: str) -> str:
    """Return a name that no word of a text is."""
    words = set(re.findall(r"[A-Za-z_]\w*", text))
    while wanted in words:
        wanted += "_"
    return wanted
