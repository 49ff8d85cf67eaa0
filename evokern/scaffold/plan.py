"""Data of a drafted kernel: genes, fields, arguments, and launch expressions as Python over `c` and `p`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from types import SimpleNamespace
from typing import Any

from evokern.declaration.as_data.expressions import ceil_div, value_of
from evokern.declaration.genes import Form, Gene, Parameter
from evokern.declaration.header.text import constant_macro, genes_header
from evokern.declaration.kernel_files import GENERATED

BLOCK_DOC = "threads per block"
"""Documentation of a gene that only sets an extent of the block."""
WARP = re.compile(
    r"k?_?(?:\w*_)?(?:warp_?(?:size|sz|threads|width)|threads_?(?:per|in)_?warp|warp|lanes?)_?", re.IGNORECASE
)
"""Name of the number of threads per warp."""


@dataclass(frozen=True)
class DraftGene:
    """A number in the source that becomes a parameter."""

    name: str
    """Name of the gene and of its macro."""
    values: tuple[int | str, ...]
    """Value in the file, and values to try."""
    default: int | str
    """Value in the file, or a guess."""
    why: str = ""
    """Reason why the values or the default are guesses; empty if the file states them."""
    doc: str = ""
    """Kind of gene, such as template parameter or extent of the block."""
    as_: Form = "macro"
    """Form in which the value reaches the source."""


@dataclass(frozen=True)
class DraftField:
    """A field of the problem."""

    name: str
    """Name of the field."""
    multiple_of: int = 1
    """Required divisor, from runs on the simulator."""
    why: str = ""
    """Reason why the field is a guess; empty if it is certain."""
    choices: tuple[int | str, ...] = ()
    """All allowed values; empty for any number."""
    default: int | None = None
    """Default value; None for a field that every problem must set."""
    indexed: bool = False
    """Whether integers of an input index an axis of this extent, so that they must be smaller."""


@dataclass(frozen=True)
class DraftArgument:
    """A parameter of the kernel."""

    name: str
    """Name of the parameter."""
    dtype: str
    """evokern's name of the parameter's type, or of its element type."""
    expression: str | None = None
    """Python text of a number's value; None for a pointer."""
    why: str = ""
    """Reason why the argument is a guess; empty if it is certain."""
    lanes: int = 1
    """Number of elements of its vector type, such as 4 of `float4`."""

    @property
    def is_tensor(self) -> bool:
        """Whether the parameter is a pointer."""
        return self.expression is None


@dataclass(frozen=True)
class StatedSize:
    """Size of a buffer according to the file."""

    axes: tuple[str, ...]
    """Python text of each extent, over fields and genes; empty if a part is unknown."""
    where: str
    """Place of the statement in words."""
    sure: bool = True
    """Whether the file states the number of axes, and not only some extents."""


@dataclass(frozen=True)
class DraftTensor:
    """A buffer of the kernel."""

    name: str
    """Name of the buffer."""
    dtype: str
    """evokern's name of the element type."""
    shape: tuple[str, ...]
    """Python text of each extent."""
    role: str
    """Role of the buffer, as in `evokern.Tensor`."""
    why: str = ""
    """Reason why the buffer is a guess; empty if the runs agree."""
    extra: str = ""
    """Further arguments of the declaration, such as `high=7`."""


@dataclass(frozen=True)
class Plan:
    """Known parts of the kernel's launch."""

    entry: str
    """Kernel name for `Launch`; a format string over `c` and `p` if genes or fields are template arguments."""
    genes: tuple[DraftGene, ...]
    fields: tuple[DraftField, ...]
    arguments: tuple[DraftArgument, ...]
    grid: tuple[str, ...]
    """Python text of each extent; empty if unknown."""
    block: tuple[str, ...]
    shared: str = "0"
    cluster: tuple[str, ...] = ()
    """Python text of each extent of a thread-block cluster, in blocks; empty for no cluster."""
    macros: Mapping[str, str] = field(default_factory=dict)
    """Macros that depend on the problem → Python text."""
    constraints: tuple[tuple[str, str, str], ...] = ()
    """Constraints: name, Python text of the condition, and reason."""
    options: tuple[str, ...] = ()
    """Additional compiler options."""
    constants: tuple[DraftArgument, ...] = ()
    """`__constant__` arrays that the host fills."""
    stated: Mapping[str, StatedSize] = field(default_factory=dict)
    """Buffer → its size according to the file."""

    @property
    def defaults(self) -> dict[str, int | str]:
        """Configuration with the values in the file."""
        return {gene.name: gene.default for gene in self.genes}

    @property
    def free(self) -> list[str]:
        """Fields that may have any value."""
        return [field.name for field in self.fields if not field.choices]

    @property
    def whole_grid(self) -> tuple[str, ...]:
        """Extents of the grid, rounded up to whole clusters."""
        if not self.grid or not self.cluster:
            return self.grid
        axes = zip_longest(self.grid, self.cluster, fillvalue="1")
        return tuple(_whole_clusters(blocks, cluster) for blocks, cluster in axes)

    def rewritten(self, change: Callable[[str], str]) -> Plan:
        """Return the plan with a change of each expression."""
        return replace(
            self, entry=change(self.entry), grid=tuple(map(change, self.grid)), block=tuple(map(change, self.block)),
            arguments=tuple(replace(a, expression=a.expression and change(a.expression)) for a in self.arguments),
            shared=change(self.shared), cluster=tuple(map(change, self.cluster)),
            macros={name: change(text) for name, text in self.macros.items()},
            constraints=tuple((name, change(text), why) for name, text, why in self.constraints),
            stated={name: replace(one, axes=tuple(map(change, one.axes))) for name, one in self.stated.items()},
        )  # fmt: skip

    def index_limit(self, most: int, problem: Mapping[str, int]) -> int:
        """Return the upper limit of random integers, which the extents that they index lower."""
        return min([most, *(problem[field.name] for field in self.fields if field.indexed)])

    def value(self, text: str, config: Mapping[str, Any], problem: Mapping[str, int]) -> int:
        """Evaluate one of the plan's expressions.

        Raises:
            ZeroDivisionError: the expression divides by zero.
        """
        return int(value_of(text, SimpleNamespace(**config), SimpleNamespace(**problem)))

    def number(self, argument: DraftArgument, config: Mapping[str, Any], problem: Mapping[str, int]) -> float:
        """Return the value of a number that is passed to the kernel.

        Raises:
            ZeroDivisionError: its expression divides by zero.
        """
        text = argument.expression or "0"
        if whole(argument.dtype):
            return self.value(text, config, problem)
        return float(value_of(text, SimpleNamespace(**config), SimpleNamespace(**problem)))

    def extents(
        self, texts: tuple[str, ...], config: Mapping[str, Any], problem: Mapping[str, int]
    ) -> tuple[int, int, int]:
        """Evaluate the three extents of a grid or block."""
        values = [self.value(text, config, problem) for text in texts]
        x, y, z = (*values, 1, 1)[:3]
        return x, y, z

    def entry_of(self, config: Mapping[str, Any], problem: Mapping[str, int]) -> str:
        """Return the kernel name with its template arguments."""
        given = {"c": SimpleNamespace(**config), "p": SimpleNamespace(**problem)}
        return self.entry.format(**given) if "{" in self.entry else self.entry

    def defines(self, config: Mapping[str, Any], problem: Mapping[str, int]) -> tuple[str, ...]:
        """Return the compiler options of a configuration and a problem."""
        macros = {name: self.value(text, config, problem) for name, text in self.macros.items()}
        forms = {gene.name: gene.as_ for gene in self.genes}
        for name, value in config.items():
            form = forms.get(name, "macro")
            if form != "template":
                macros[constant_macro(name) if form == "constexpr" else name] = value
        return (*(f"-D{name}={value}" for name, value in macros.items()), *self.options)


def generated_headers(options: Sequence[str]) -> dict[str, str]:
    """Return the generated header for compiler options, by its name: they set every gene."""
    prefix = f"-D{constant_macro('')}"
    names = [option.removeprefix(prefix).partition("=")[0] for option in options if option.startswith(prefix)]
    genes: list[Gene] = [Parameter(name, (0,), as_="constexpr") for name in names]
    return {GENERATED: genes_header("draft", genes, dict.fromkeys(names, 0))}


def whole(dtype: str) -> bool:
    """Return whether a type holds whole numbers."""
    return dtype[0] in "iu" or dtype == "bool"


def without_fields(plan: Plan, names: set[str], values: Mapping[str, int]) -> Plan:
    """Return the plan with fields that affect no buffer size turned into constant arguments."""
    arguments, why = list(plan.arguments), "not a field, because no buffer size depends on it"
    for at, one in enumerate(arguments):
        if one.expression and one.expression.removeprefix("p.") in names:
            arguments[at] = replace(one, expression=str(values.get(one.name.upper(), 1)), why=why)
    return replace(plan, arguments=tuple(arguments), fields=tuple(f for f in plan.fields if f.name not in names))


def _whole_clusters(blocks: str, cluster: str) -> str:
    """Return Python text of a grid extent, rounded up to a multiple of the cluster's extent."""
    if cluster == "1":
        return blocks
    if blocks == "1":
        return cluster
    size = cluster if re.fullmatch(r"[\w.]+", cluster) else f"({cluster})"
    if blocks.isdigit() and size.isdigit():
        return str(ceil_div(int(blocks), int(size)) * int(size))
    return f"ceil_div({blocks}, {cluster}) * {size}"


def unused_name(wanted: str, text: str) -> str:
    """Return a name that does not occur as a word in a text."""
    words = set(re.findall(r"[A-Za-z_]\w*", text))
    while wanted in words:
        wanted += "_"
    return wanted
