"""What a CUDA file tells about genes, tensors and launches, and what has to be guessed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from evokern.cuda_source import ELEMENT_TYPES, CudaSource, EntryPoint, KernelFunction, LaunchSite, Macro
from evokern.errors import SourceError
from evokern.scaffold.expression import extents, to_python

_WHOLE = {"int", "unsigned", "unsigned int", "int32_t", "uint32_t", "size_t", "std::size_t", "long", "long long",
          "int64_t", "uint64_t", "std::int64_t", "unsigned long long"}  # fmt: skip
_REAL = {"float": "f32", "double": "f64"}


@dataclass(frozen=True)
class GuessedGene:
    """A macro that becomes a parameter."""

    name: str
    """The macro."""
    values: tuple[int, ...]
    """Its value and its neighbours."""
    default: int
    """The value in the file; 1 where the file gives none."""
    known: bool
    """Whether the file gave the value."""


@dataclass(frozen=True)
class GuessedTensor:
    """A pointer parameter."""

    name: str
    """Its name."""
    dtype: str
    """evokern's name of the element type."""
    role: str
    """`input` for pointers to const, else `output`."""
    sure: bool
    """Whether the element type was recognised."""


@dataclass(frozen=True)
class Guess:
    """Everything that the written files hold."""

    entry: EntryPoint
    genes: tuple[GuessedGene, ...]
    tensors: tuple[GuessedTensor, ...]
    fields: tuple[str, ...]
    arguments: tuple[str, ...]
    """Python text of each launch argument."""
    grid: str
    block: str
    shared: str
    from_launch: str
    """The launch in the file that grid and block come from; empty when they are guesses."""


def guess(source: CudaSource, entry_name: str | None) -> Guess:
    """Take from a file what it tells about one of its kernels.

    Raises:
        SourceError: the kernel is not there, is ambiguous, or takes what evokern cannot pass.
    """
    point = source.entry(entry_name)
    entry = point.entry
    types = _template_types(point)
    launch = _launch(source, entry)
    genes = tuple(_genes(source))
    tensors = tuple(_tensors(entry, types))
    if not tensors:
        raise SourceError(f"{entry.signature} takes no pointer, so there is nothing to compute into")
    whole = (p for p in entry.parameters if not p.pointer and types.get(p.base, p.base) in _WHOLE)
    fields = tuple(p.name.upper() for p in whole) or ("N",)
    names = _names(source, genes, entry, launch)
    locals_ = dict(launch.definitions) if launch else {}
    grid = extents(launch.grid, names, locals_) if launch else None
    block = extents(launch.block, names, locals_) if launch else None
    shared = to_python(launch.shared, names, locals_) if launch else None
    complete = launch is not None and grid is not None and block is not None
    block = block or _bounded_block(entry, names)
    return Guess(
        entry=point,
        genes=genes,
        tensors=tensors,
        fields=fields,
        arguments=tuple(_arguments(entry, launch, types)),
        grid=grid or f"ceil_div(p.{fields[0]}, {block})",
        block=block,
        shared=shared or "0",
        from_launch=f"line {launch.line}" if launch and complete else "",
    )


def _genes(source: CudaSource) -> Iterator[GuessedGene]:
    """Numeric macros that device code uses, except the warp's size, which no choice can change."""
    code = re.sub(r"^[ \t]*#[^\n]*", " ", "\n".join([source.device_text, *source.headers.values()]), flags=re.M)
    used = set(re.findall(r"[A-Za-z_]\w*", re.sub(r"//[^\n]*|/\*.*?\*/", " ", code, flags=re.S)))
    for macro in source.macros:
        if macro.function_like or macro.name not in used or re.fullmatch(r"\w*WARP_?SIZE\w*", macro.name):
            continue
        if macro.kind in ("defined", "default") and macro.number is not None and macro.number >= 0:
            yield GuessedGene(macro.name, neighbours(macro.number), macro.number, True)
        elif macro.kind == "required":
            yield GuessedGene(macro.name, (1,), 1, False)


def neighbours(number: int) -> tuple[int, ...]:
    """Return a value with the ones a tuner would try beside it: halves and doubles, or on and off."""
    if number in (0, 1):
        return (0, 1) if number == 0 else (1, 2, 4)
    lower = number // 2 if number % 2 == 0 else number - 1
    return tuple(sorted({lower, number, 2 * number}))


def _template_types(point: EntryPoint) -> dict[str, str]:
    """Template parameter → the type given for it, as in `gemm<__half, 8>`; nested templates are not taken apart."""
    _, _, given = (point.expression or "").partition("<")
    parts = [part.strip() for part in given.removesuffix(">").split(",")]
    if any(mark in given.removesuffix(">") for mark in "<(") or len(parts) > len(point.entry.template):
        return {}
    pairs = zip(point.entry.template, parts, strict=False)
    return {parameter.name: part for parameter, part in pairs if parameter.type in ("typename", "class")}


def _tensors(entry: KernelFunction, types: Mapping[str, str]) -> Iterator[GuessedTensor]:
    for parameter in entry.parameters:
        if parameter.pointer:
            dtype = ELEMENT_TYPES.get(types.get(parameter.base, parameter.base))
            role = "input" if parameter.const else "output"
            yield GuessedTensor(parameter.name, dtype or "f32", role, dtype is not None)


def _arguments(entry: KernelFunction, launch: LaunchSite | None, types: Mapping[str, str]) -> Iterator[str]:
    """Python text of each argument; a number that the file's own launch passes is taken over."""
    passed = launch.arguments if launch else ("",) * len(entry.parameters)
    for parameter, argument in zip(entry.parameters, passed, strict=True):
        base = types.get(parameter.base, parameter.base)
        if parameter.pointer:
            yield f'"{parameter.name}"'
        elif base in _WHOLE:
            wide = base not in ("int", "unsigned", "unsigned int", "int32_t", "uint32_t")
            yield f"{'i64' if wide else 'i32'}(p.{parameter.name.upper()})"
        elif base in _REAL:
            literal = re.fullmatch(r"([-+]?\d+\.?\d*(?:[eE][-+]?\d+)?)[fF]?", argument)
            yield f'Scalar("{_REAL[base]}", {float(literal[1]) if literal else 1.0})'
        else:
            raise SourceError(
                f"{entry.signature}: {parameter.type} {parameter.name} is passed by value; "
                "evokern passes pointers and numbers only, so change the kernel to take those"
            )


def _launch(source: CudaSource, entry: KernelFunction) -> LaunchSite | None:
    """The first launch of the kernel in the file whose arguments are those of the kernel."""
    for launch in source.launches:
        if launch.kernel.rpartition("::")[2] == entry.name and len(launch.arguments) == len(entry.parameters):
            return launch
    return None


def _names(
    source: CudaSource, genes: tuple[GuessedGene, ...], entry: KernelFunction, launch: LaunchSite | None
) -> Mapping[str, str]:
    """C name → Python: numeric constants and macros, genes, and what the launch passes for the kernel's numbers."""
    names = {macro.name: str(macro.number) for macro in source.macros if _is_number(macro)}
    names |= {macro.name: "ceil_div" for macro in source.macros if _rounds_up(macro)}
    names |= {c.name: c.expression for c in source.constants if re.fullmatch(r"\d+", c.expression)}
    names |= {gene.name: f"c.{gene.name}" for gene in genes}
    if launch:
        for parameter, argument in zip(entry.parameters, launch.arguments, strict=True):
            # One variable passed for several parameters does not tell which of them the grid follows.
            once = launch.arguments.count(argument) == 1 and re.fullmatch(r"[A-Za-z_]\w*", argument)
            if not parameter.pointer and parameter.base in _WHOLE and once:
                names[argument] = f"p.{parameter.name.upper()}"
    return names


def _rounds_up(macro: Macro) -> bool:
    """Whether a macro with two arguments is a / b, rounded up: `(((a) + (b) - 1) / (b))`."""
    bare = re.sub(r"[\s()]", "", macro.value or "")
    return macro.function_like and re.fullmatch(r"(?!\d)(\w+)\+(?!\d)(\w+)-1/\2", bare) is not None


def _is_number(macro: Macro) -> bool:
    return macro.number is not None and not macro.function_like


def _bounded_block(entry: KernelFunction, names: Mapping[str, str]) -> str:
    """The threads that launch bounds name, or 256."""
    text = to_python(entry.launch_bounds[0], names, {}) if entry.launch_bounds else None
    return text or "256"
