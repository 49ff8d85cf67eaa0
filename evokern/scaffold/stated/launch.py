"""The file's launch of a kernel, in the draft's terms: fields, genes, grid, block, arguments, and sizes of buffers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from evokern.cuda_source import KernelFunction
from evokern.cuda_source.c_types import ELEMENT_TYPES, WHOLE
from evokern.cuda_source.host import (
    Arithmetic,
    Dim3,
    Expr,
    HostLaunch,
    Name,
    Pointer,
    names_in,
    number,
    substituted,
    text_of,
    to_python,
    to_real,
)
from evokern.cuda_source.host.values import VARIABLE, operation
from evokern.declaration.kernel import DTYPE_BYTES
from evokern.scaffold.plan import WARP, DraftField, StatedSize, unused_name
from evokern.scaffold.stated.factors import divided, divisors, elements, factors, with_factor
from evokern.scaffold.stated.found_launch import StatedLaunch, axes_of, equalities, in_extents

_LETTERS = "MNKLBCHW"
_MOST_THREADS = 1024


@dataclass(frozen=True)
class LaunchText:
    """Translated expressions of a launch; without one, only the fields."""

    fields: tuple[DraftField, ...] = ()
    grid: tuple[str, ...] = ()
    """Python text of each extent of the grid; empty if a part is unknown."""
    block: tuple[str, ...] = ()
    shared: str | None = None
    """Python text of the dynamic shared memory in bytes; None if unknown."""
    cluster: tuple[str, ...] = ()
    """Python text of each extent of the cluster that the launch sets; empty if it sets none."""
    unread: str = "the file does not launch the kernel"
    """Reason why grid or block could not be read; empty if both could."""
    block_genes: Mapping[str, int | None] = field(default_factory=dict)
    """Gene for a variable in the launch → its number in the file, or None."""
    numbers: Mapping[str, str] = field(default_factory=dict)
    """Parameter of the kernel → Python text; one in floating point only if the file states or computes it."""
    literals: Mapping[str, int] = field(default_factory=dict)
    """Field → number in the file."""
    stated: Mapping[str, StatedSize] = field(default_factory=dict)
    """Buffer → its size according to the file."""
    copied: Mapping[str, str] = field(default_factory=dict)
    """Buffer → `in`, `out` or `both`: how the file copies it before and after the launch."""
    constraints: tuple[tuple[str, str, str], ...] = ()
    """Constraints that the file checks: name, Python text of the condition, and reason."""
    named: Mapping[str, str] = field(default_factory=dict)
    """Name in the host code → Python text."""


class LaunchReader:
    """Translation of one launch: names become fields or genes.

    Args:
        launch: the launch.
        function: its kernel.
        names: C name → Python text, for genes, sizes and constants.
        types: types as written → actual types.
        taken: text whose words must not be used as gene names.
    """

    def __init__(
        self,
        launch: StatedLaunch,
        function: KernelFunction,
        names: Mapping[str, str],
        types: Mapping[str, str],
        taken: str,
    ) -> None:
        self._launch = launch
        self._view = in_extents(launch.view)
        self._names = names
        self._types = types
        self._taken = taken
        self._mapping: dict[Name, str] = {}
        self._genes: dict[str, int | None] = {}
        self._cuts: list[tuple[int, Name]] = []
        self._fields: dict[str, int | None] = {}
        self._passed = list(zip(function.parameters, self._view.arguments, strict=True))
        self._whole = [(p, a) for p, a in self._passed if not p.pointer and types.get(p.base, p.base) in WHOLE]

    def read(
        self, dtypes: Mapping[str, str], fields: Mapping[str, tuple[Name, ...]], literals: Mapping[int, tuple[str, str]]
    ) -> LaunchText:
        """Translate the launch.

        Args:
            dtypes: pointer parameter → evokern's name of its element type.
            fields: fields that template arguments state → the host's names for them.
            literals: number that the launch gives for a gene → its Python text and template parameter.
        """
        for text, hosts in fields.items():
            self._mapping |= dict.fromkeys(hosts, f"p.{text}")
        self._block_genes()
        self._plain_constants()
        self._direct_fields()
        self._other_fields()
        self._order_fields()
        view = self._with_genes(literals)
        numbers = {p.name: self._number(p.name, a) for p, a in self._whole} | dict(self._reals())
        grid, block = self._extents(view.grid), self._extents(view.block)
        stated = self._sizes(dtypes)
        return LaunchText(
            fields=tuple(DraftField(name) for name in self._fields if name not in fields),
            grid=grid,
            block=block,
            shared=to_python(view.shared, self._python),
            cluster=self._extents(view.cluster) if view.cluster not in (None, Dim3()) else (),
            unread=self._unread(grid, block),
            block_genes=self._genes,
            numbers=numbers,
            literals={name: value for name, value in self._fields.items() if value is not None},
            stated=stated,
            copied=dict(self._copied()),
            constraints=tuple(self._constraints()),
            named={name.text: text for name, text in self._mapping.items()},
        )

    # ---- names

    def _gene(self, name: Name) -> str | None:
        """Return the Python text of a name that is a gene or size already."""
        if name.kind not in ("macro", "constant", "template", "unknown"):
            return None
        text = self._names.get(name.text)
        return text if text and re.search(r"\b[cp]\.", text) else None

    def _python(self, name: Name) -> str | None:
        name = self._launch.aliases.get(name, name)
        if sized := re.fullmatch(r"sizeof\((.+)\)", name.text):
            dtype = ELEMENT_TYPES.get(self._types.get(sized[1], sized[1]))
            return str(DTYPE_BYTES[dtype]) if dtype else None
        made = self._mapping.get(name) or self._gene(name)
        if made is not None:
            return made
        if name.kind in ("macro", "constant", "template", "unknown"):
            if isinstance(name.value, Arithmetic) and (text := to_python(name.value, self._python)):
                return f"({text})"
            value = number(name)
            plain = self._names.get(name.text, "")
            return str(value) if value is not None else plain if plain.isdigit() else None
        return None

    def _is_open(self, name: Name) -> bool:
        """Return whether a name is neither a gene nor a field yet."""
        return name not in self._mapping and self._gene(name) is None

    def _add_field(self, name: Name, wanted: str) -> None:
        value = self._launch.values.get(name, number(name))
        if name.kind == "local" and (value or 0) < 2:
            value = None  # the start of a sum or product
        text = self._field_name(wanted)
        self._fields.setdefault(text, value)
        self._mapping[name] = f"p.{text}"

    def _field_name(self, wanted: str) -> str:
        """Return the name of a field, which is not the name of a gene."""
        taken = {text[2:] for text in (*self._names.values(), *self._mapping.values()) if text.startswith("c.")}
        return wanted if wanted not in taken else wanted.lower()

    def _block_genes(self) -> None:
        """Turn the variables in the block's extents into genes."""
        block, passed = self._view.block, [a for _, a in self._whole]
        varied = any(n.kind in VARIABLE for n in names_in(self._view.grid))
        for extent in (block.x, block.y, block.z):
            for name in names_in(extent):
                if (
                    not self._is_open(name)
                    or name.kind in ("extent", "macro")
                    or (name.kind == "constant" and not name.scope)
                ):
                    continue
                if name in passed and (name.kind != "constant" or not varied):
                    continue
                if WARP.fullmatch(name.text) and number(name):
                    self._mapping[name] = str(number(name))
                    continue
                if name.kind != "constant" and name is not extent and name not in factors(extent):
                    continue
                self._add_gene(name, number(name) or self._launch.values.get(name))
        for name in divisors(self._view.grid):
            if self._is_open(name) and name.kind == "constant" and name in passed and varied:
                self._add_gene(name, number(name))

    def _plain_constants(self) -> None:
        """Keep the numbers of constants that are passed and divide another argument: sizes of tiles."""
        for name in {n for _, a in self._whole if isinstance(a, Arithmetic) for n in divisors(Dim3(a))}:
            if self._is_open(name) and name.kind == "constant" and any(a == name for _, a in self._whole):
                self._mapping[name] = str(number(name))

    def _add_gene(self, name: Name, value: int | None) -> None:
        gene = unused_name(re.sub(r"\W+", "_", name.text).strip("_").upper(), self._taken)
        self._genes[gene] = value if value is None or 1 <= value <= _MOST_THREADS else None
        self._mapping[name] = f"c.{gene}"

    def _direct_fields(self) -> None:
        """Make a field of each variable that is passed for an integer of the kernel."""
        for parameter, argument in self._whole:
            wanted = self._field_name(parameter.name.upper())
            if isinstance(argument, Name) and self._is_open(argument):
                self._add_field(argument, wanted)
            elif isinstance(argument, int) or (
                isinstance(argument, Arithmetic)
                and number(argument) is not None
                and not any(n.kind in VARIABLE or self._gene(n) for n in names_in(argument))
            ):
                self._fields.setdefault(wanted, number(argument))

    def _other_fields(self) -> None:
        """Make fields of the variables in other expressions: of arguments, grid, shared memory and sizes."""
        parts: list[object] = [a for _, a in self._whole if isinstance(a, Arithmetic)]
        parts += [self._view.grid, self._view.block, self._view.shared]
        cuts = set(divisors(self._view.grid))
        for name in [n for part in parts for n in names_in(part)]:
            name = self._launch.aliases.get(name, name)
            if not self._is_open(name) or "sizeof" in name.text:
                continue
            variable = name.kind == "unknown" and name.text.isidentifier() and not name.text.isupper()
            if (
                variable
                or name.kind in ("parameter", "extent", "local")
                or (name.kind == "constant" and name.scope and name not in cuts and (number(name) or 0) > 1)
            ):
                self._add_field(name, self._own_name(name))

    def _own_name(self, name: Name) -> str:
        """Return the name of a field for a variable of the host code."""
        extent = re.fullmatch(r"(.*)\.size\((-?\d+)\)", name.text)
        if extent is None:
            word = re.sub(r"\W+", "_", name.text.rpartition(".")[2] or name.text).strip("_").upper()
            return unused_name(word if word[:1].isalpha() else f"N_{word}", " ".join(self._fields))
        for argument in self._view.arguments:
            buffer = argument.buffer if isinstance(argument, Pointer) else None
            if buffer is not None and buffer.name == extent[1] and (label := buffer.labels.get(int(extent[2]))):
                return unused_name(label.upper(), " ".join(self._fields))
        return next((letter for letter in _LETTERS if letter not in self._fields), "SIZE")

    def _order_fields(self) -> None:
        """Order the fields as they occur in the kernel's arguments."""
        order: dict[str, None] = {}
        for parameter, argument in self._whole:
            texts = [self._mapping.get(self._launch.aliases.get(n, n), "") for n in names_in(argument)]
            order |= dict.fromkeys(
                [t[2:] for t in texts if t.startswith("p.")] or [self._field_name(parameter.name.upper())]
            )
        known = {name: self._fields[name] for name in order if name in self._fields}
        self._fields = known | self._fields

    # ---- expressions

    def _with_genes(self, literals: Mapping[int, tuple[str, str]]) -> HostLaunch:
        """Return the launch with genes for numbers: template arguments, and a block that is one number."""
        view = self._view
        for known, (text, parameter) in literals.items():
            view = self._with_gene(view, known, text, "warp" in parameter.lower())
        block = view.block
        value = number(block.x)
        open_ = all(self._is_open(n) and n.kind in ("macro", "constant") for n in names_in(block.x))
        if value is None or value < 2 or (block.y, block.z) != (1, 1) or not open_:
            return view
        name = unused_name("BLOCK_X", self._taken)
        self._genes[name] = value
        mark = self._mark(f"c.{name}")
        return replace(self._with_gene(view, value, f"c.{name}", False), block=Dim3(mark),
                       shared=with_factor(view.shared, value, mark))  # fmt: skip

    def _mark(self, text: str) -> Name:
        mark = Name(text, "gene")
        self._mapping[mark] = text
        return mark

    def _with_gene(self, view: HostLaunch, value: int, text: str, warps: bool) -> HostLaunch:
        """Return a launch with a gene for a number: in the block, and where the grid is divided by it."""
        mark = self._mark(text)
        self._cuts.append((value, mark))

        def in_block(part: Expr) -> Expr:
            if warps and isinstance(part, int) and part == 32 * value:
                return operation("*", mark, 32)
            return mark if isinstance(part, int) and part == value else part

        block, grid = view.block, view.grid
        return replace(view, grid=Dim3(*(divided(one, value, mark) for one in (grid.x, grid.y, grid.z))),
                       block=Dim3(in_block(block.x), in_block(block.y), in_block(block.z)))  # fmt: skip

    def _extents(self, extents: Dim3) -> tuple[str, ...]:
        made = [to_python(one, self._python) for one in (extents.x, extents.y, extents.z)]
        if None in made:
            return ()
        parts = tuple(part for part in made if part is not None)
        while len(parts) > 1 and parts[-1] == "1":
            parts = parts[:-1]
        return parts

    def _number(self, parameter: str, argument: object) -> str:
        wanted = self._field_name(parameter.upper())
        if (
            isinstance(argument, Name | Arithmetic)
            and (made := to_python(argument, self._python))
            and (not made.isdigit() or argument in self._mapping)
        ):
            return made
        self._fields.setdefault(wanted, number(argument))
        return f"p.{wanted}"

    def _reals(self) -> Iterator[tuple[str, str]]:
        """Yield the other numbers that the host states, or computes from sizes, such as `1.0f / sqrtf(d)`."""
        for parameter, argument in self._passed:
            if parameter.pointer or (parameter, argument) in self._whole:
                continue
            is_bool = self._types.get(parameter.base, parameter.base) == "bool"
            if isinstance(argument, int | float):
                yield parameter.name, str(bool(argument) if is_bool else float(argument))
            elif isinstance(argument, Arithmetic) and not is_bool and (text := to_real(argument, self._python)):
                yield parameter.name, text

    def _unread(self, *translated: tuple[str, ...]) -> str:
        """Return why grid and block could not be read; empty if they could."""
        parts = zip(("grid", "block"), (self._launch.view.grid, self._launch.view.block), translated, strict=True)
        lost = [(what, _written(extents)) for what, extents, made in parts if not made]
        where = f"of the launch on line {self._launch.view.line} could not be read"
        return " and ".join(f"the {what} `{text}` {where}" for what, text in lost)

    def _copied(self) -> Iterator[tuple[str, str]]:
        words = {(True, True): "both", (True, False): "in", (False, True): "out"}
        for parameter, argument in self._passed:
            if isinstance(argument, Pointer) and (argument.buffer.copied_in or argument.buffer.copied_out):
                yield parameter.name, words[argument.buffer.copied_in, argument.buffer.copied_out]

    def _constraints(self) -> Iterator[tuple[str, str, str]]:
        """Yield the divisors that the host code checks, as far as genes occur in them."""
        for one in dict.fromkeys(self._view.requirements):
            match one:
                case Arithmetic("==", (Arithmetic("%", (above, below)), 0)):
                    over, under = to_python(above, self._python), to_python(below, self._python)
                    if over and under and over.startswith("p.") and "c." in under:
                        yield f"{over[2:].lower()}_multiple", f"divides({under}, {over})", "the host code checks it"

    # ---- sizes

    def _sizes(self, dtypes: Mapping[str, str]) -> dict[str, StatedSize]:
        """Return the sizes of the buffers that the host code states."""
        found: dict[str, StatedSize] = {}
        equal = dict(equalities((*self._launch.view.requirements, *self._view.requirements)))
        for parameter, argument in self._passed:
            if not isinstance(argument, Pointer) or parameter.name not in dtypes or argument.offset != 0:
                continue
            buffer = argument.buffer
            total = self._mapping.get(Name(f"{buffer.like or buffer.name}.numel()", "extent"))
            if buffer.shape is None and total:
                found[parameter.name] = StatedSize((total,), f"the tensor {buffer.name}")
                continue
            if buffer.kind == "tensor" and buffer.shape is None and buffer.asked:
                where = f"the tensor {buffer.name}"
                found[parameter.name] = self._stated(axes_of(buffer), equal, where, sure=False)
                continue
            if buffer.kind == "parameter" or (
                buffer.shape is None and buffer.elements is None and buffer.bytes is None
            ):
                continue
            parts: Iterable[Expr]
            if buffer.shape is not None:
                parts, where = buffer.shape, f"the tensor {buffer.name}"
            else:
                where = f"the allocation on line {buffer.line}"
                parts = factors(elements(buffer, DTYPE_BYTES[dtypes[parameter.name]]))
            found[parameter.name] = self._stated(parts, equal, where)
        return found

    def _stated(self, extents: Iterable[Expr], equal: Mapping[Name, Expr], where: str, sure: bool = True) -> StatedSize:
        """Return a size in the draft's terms; without axes if one of them is unknown."""
        parts = [substituted(one, equal.get) for one in extents]
        for value, mark in self._cuts:
            parts = [divided(one, value, mark) for one in parts]
        axes = list(map(self._axis, parts))
        known = tuple(axis for axis in axes if axis is not None)
        return StatedSize(known if len(known) == len(axes) else (), where, sure)

    def _axis(self, extent: Expr) -> str | None:
        """Return the Python text of an extent; a number that only one field has in the file stands for the field."""
        fields = [name for name, value in self._fields.items() if value == extent and value > 1]
        if isinstance(extent, int) and len(fields) == 1:
            return f"p.{fields[0]}"
        return to_python(extent, self._python)


def _written(extents: Dim3) -> str:
    texts = [text_of(one) for one in (extents.x, extents.y, extents.z)]
    while len(texts) > 1 and texts[-1] == "1":
        texts.pop()
    return ", ".join(texts)
