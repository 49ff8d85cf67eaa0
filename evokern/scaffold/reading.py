"""Read a kernel from a CUDA file without running it: genes, arguments, types, launch and device code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from evokern.compile.build import compile_to_ptx
from evokern.compile.records import Program
from evokern.cuda_source import CudaSource, KernelFunction, Parameter
from evokern.cuda_source.c_types import ELEMENT_TYPES, NUMBERS, UNSUPPORTED, UNSUPPORTED_TYPES, WHOLE, lanes_of
from evokern.cuda_source.host import names_in, translated
from evokern.cuda_source.mangled import BUILTIN_TYPES
from evokern.cuda_source.reader.finders import dynamic_arrays
from evokern.cuda_source.specialize.conditionals import inline_headers
from evokern.cuda_source.specialize.unreferenced import drop_unreferenced, entry_words
from evokern.declaration.render import Rendered
from evokern.errors import SourceError
from evokern.hardware.profiles import CHIPS, Profile
from evokern.scaffold.buffers import block_of
from evokern.scaffold.genes.confirm import whole_quotients, with_rules
from evokern.scaffold.genes.tunables import device_uses, find_tunables
from evokern.scaffold.plan import DraftArgument, DraftField, Plan, generated_headers
from evokern.scaffold.source_text import device_source
from evokern.scaffold.stated.found_launch import find_launch
from evokern.scaffold.stated.instantiation import Instantiation
from evokern.scaffold.stated.launch import LaunchReader, LaunchText
from evokern.scaffold.stated.sizes import commented_sizes

_PROBE = "\ntemplate <class evokern_T> __global__ void evokern_type() {}\n"


def resolved_types(source: str, names: Iterable[str], options: Sequence[str], chip: Profile) -> dict[str, str]:
    """Return the actual types that type names of a source stand for, for example `__nv_bfloat16` for `floatX`.

    Args:
        source: device code.
        names: types as written in the source.
        options: compiler options, including macros.
        chip: chip to compile for.

    Returns:
        Name → actual type, without structures; empty if the source does not compile.
    """
    asked = sorted({name for name in names if re.fullmatch(r"[\w:]+", name)})
    if not asked:
        return {}
    entries = tuple(f"evokern_type<{name}>" for name in asked)
    rendered = Rendered(source + _PROBE, "kernel.cu", generated_headers(options), tuple(options), entries)
    program = compile_to_ptx(rendered, chip)
    if not isinstance(program, Program):
        return {}
    found: dict[str, str] = {}
    for name, entry in zip(asked, entries, strict=True):
        match = re.search(r"evokern_typeI(?:(\d+)(\w+)|([a-z]))EvvE?", program.lowered.get(entry, ""))
        if match and match[3] in BUILTIN_TYPES:
            found[name] = BUILTIN_TYPES[match[3]]
        elif match and match[1] and match[2][: int(match[1])] in ELEMENT_TYPES:
            found[name] = match[2][: int(match[1])]
    return found


DRAFTED_FOR = (CHIPS["l4"], CHIPS["h100"])
"""Chips for which drafts are compiled and run; the first with the required features (such as clusters) is used."""


@dataclass(frozen=True)
class KernelReading:
    """Facts about one kernel from its file."""

    function: KernelFunction
    plan: Plan
    """Launch and genes; grid and block may be missing."""
    source: str
    """Device code of the kernel and its dependencies, which the generated header can set."""
    launch_line: str = ""
    """Location of the launch that sets grid and block; empty if no launch could be read."""
    unread: str = ""
    """Reason why no launch could be read; empty if one could."""
    literals: Mapping[str, int] = field(default_factory=dict)
    """Field → number that the file's launch passes for it."""
    copied: Mapping[str, str] = field(default_factory=dict)
    """Buffer → `in`, `out` or `both`: how the file copies it before and after the launch."""


def read_kernel(source: CudaSource, wanted: str | None) -> KernelReading:
    """Read one kernel from a CUDA file.

    Raises:
        SourceError: the kernel is missing, is ambiguous, or has unsupported arguments.
    """
    function = _with_pointers(source, _function(source, wanted))
    _check_parameters(function)
    found_launch = find_launch(source, function, wanted)
    point = source.entry(wanted or function.qualified) if not function.template or "<" in (wanted or "") else None
    named = entry_words([Instantiation(source, function, wanted, found_launch).concrete])
    if any(not re.search(rf"\b{word}\b", source.device_text) for word in named):
        source = source.keeping(named)  # a type that only template arguments name
    text = drop_unreferenced(inline_headers(source.device_text, source.headers), [function.name], named)
    has_sizes = any(not p.pointer and p.base in WHOLE for p in function.parameters)
    uses = device_uses(text)
    view = found_launch.view if found_launch else None
    parts = (view.grid, view.block, view.shared) if view else ()
    found = find_tunables(
        source, text, uses, has_sizes=has_sizes, launch_words=_words(parts), block_words=_words(parts[1:])
    )
    instance = Instantiation(source, function, wanted, found_launch, found.names)
    genes, names = (*found.genes, *instance.genes.values()), {**found.names, **instance.names}
    macros = [gene.name for gene in found.genes if gene.as_ == "macro"]
    text = device_source(found.edited(text), [*macros, *found.macros], generated=bool(found.genes or found.sizes))
    numbers = {macro: found.sizes[field.removeprefix("p.")] for macro, field in found.macros.items()}
    options = Plan("", genes, (), (), (), ()).defines({**numbers, **{gene.name: gene.default for gene in genes}}, {})
    types = _types(function, instance, text, options)
    whole = [p.name.upper() for p in function.parameters if not p.pointer and types.get(p.base, p.base) in WHOLE]
    launch = LaunchText(fields=tuple(DraftField(name) for name in dict.fromkeys(whole)))
    if found_launch:
        dtypes = {p.name: ELEMENT_TYPES.get(types.get(p.base, p.base), "f32") for p in function.parameters if p.pointer}
        reader = LaunchReader(found_launch, function, names, types, text)
        launch = reader.read(dtypes, instance.hosts, instance.literals(found.genes))
    sized = [*launch.fields, *instance.fields.values(), *(DraftField(name) for name in found.sizes)]
    fields = {field.name: field for field in sized or [DraftField("N")]}
    block, block_genes = block_of(function, launch, names, text)
    known = {**names, **launch.named, **{name: f"p.{name}" for name in fields}}
    commented, rows = commented_sizes(source, function, view, {word.lower(): text for word, text in known.items()})
    stated = dict(launch.stated)
    for name, one in commented.items():
        if not (other := stated.get(name)) or not other.axes or (one.sure and not other.sure):
            stated[name] = one
    plan = Plan(
        entry=function.name if point is not None and point.symbol else instance.entry,
        genes=(*genes, *block_genes),
        fields=(*fields.values(), *rows),
        arguments=tuple(_arguments(function, types, launch)),
        grid=launch.grid,
        block=block,
        shared=_shared(text, launch, block),
        cluster=_cluster(function, names) or launch.cluster,
        macros=found.macros,
        constraints=launch.constraints,
        constants=constants_of(text, types),
        stated=stated,
    )
    quotients = [one for one in (*plan.block, *found.names.values()) if "//" in one]
    plan = with_rules(plan, whole_quotients(quotients), "the file divides these numbers")
    conditions = [made for one in uses.assertions if (made := translated(one, names, uses.bodies))]
    plan = with_rules(plan, conditions, "a static_assert in the file requires it")
    line = f"line {view.line}" if view and not launch.unread else ""
    return KernelReading(function, plan, text, line, launch.unread, {**launch.literals, **found.sizes}, launch.copied)


def _check_parameters(function: KernelFunction) -> None:
    """Reject a kernel with parameters for which evokern has no buffers, or without a pointer to results."""
    for parameter in function.parameters:
        if parameter.base in UNSUPPORTED_TYPES:
            raise SourceError(f"{function.signature} takes {parameter.type} {parameter.name}, but {UNSUPPORTED}")
    if any(parameter.pointer for parameter in function.parameters):
        return
    template = {one.name for one in function.template}
    for parameter in function.parameters:
        if parameter.base not in {*ELEMENT_TYPES, *template}:
            raise _by_value(function, parameter)
    for parameter in function.parameters:
        if parameter.base in template - {*ELEMENT_TYPES}:
            raise SourceError(
                f"{function.signature}: the type of {parameter.name} is a template argument, but a drafted kernel "
                "passes only pointers and numbers; change the kernel's parameters, or check an instance with "
                "`evokern sanitize --entry`"
            )
    raise SourceError(f"{function.signature} takes no pointer, so it cannot return a result")


def _words(parts: Iterable[object]) -> set[str]:
    """Return the identifiers in parts of a launch, including those in the definitions of macros."""
    waiting = list(parts)
    found: set[str] = set()
    while waiting:
        for name in names_in(waiting.pop()):
            if name.text not in found:
                found.add(name.text)
                waiting.append(name.value)
    return found


def _with_pointers(source: CudaSource, function: KernelFunction) -> KernelFunction:
    """Return a kernel whose parameters of a type such as `typedef float *F_` count as pointers."""
    found = re.findall(r"\btypedef\s+([^;{}()]+?)\s*\*\s*(?:__restrict__\s+)?(\w+)\s*;", source.text)
    found += [(kind, name) for name, kind in re.findall(r"\busing\s+(\w+)\s*=\s*([^;{}()]+?)\s*\*\s*;", source.text)]
    targets = {name: kind for kind, name in found if "*" not in kind}
    parameters = []
    for one in function.parameters:
        kind = targets.get(one.base) if not one.pointer else None
        base = re.sub(r"\bconst\b", " ", kind or "").strip()
        made = replace(one, base=" ".join(base.split()), pointer=True, const="const" in (kind or "").split())
        parameters.append(made if kind else one)
    return replace(function, parameters=tuple(parameters))


def _function(source: CudaSource, wanted: str | None) -> KernelFunction:
    """Find the kernel, including templates without arguments."""
    try:
        return source.entry(wanted).entry
    except SourceError:
        bare = (wanted or "").partition("<")[0].strip()
        templates = [
            e for e in source.entries if e.template and (e.name == bare or (not wanted and len(source.entries) == 1))
        ]
        if not templates or "<" in (wanted or "") or templates[0].obstacle:
            raise
        return templates[0]


def _types(function: KernelFunction, instance: Instantiation, text: str, options: Sequence[str]) -> dict[str, str]:
    """Return a map of C types as written to actual types, for template parameters and names that the source defines."""
    found = instance.types
    unknown = {found.get(p.base, p.base) for p in function.parameters}
    unknown = {name for name in unknown if name not in ELEMENT_TYPES}
    resolved = next(filter(None, (resolved_types(text, unknown, options, chip) for chip in DRAFTED_FOR)), {})
    return {name: resolved.get(part, part) for name, part in found.items()} | resolved


def constants_of(text: str, types: Mapping[str, str]) -> tuple[DraftArgument, ...]:
    """Return the `__constant__` arrays without an initialiser, which the host fills.

    Args:
        text: device code.
        types: type names → actual types.
    """
    found = re.findall(r"__constant__\s+([^;=(){}]*?)\b(\w+)\s*((?:\[[^;=]*\])?)\s*;", text)
    made = []
    for kind, name, _ in found:
        base = " ".join(re.sub(r"\b(?:static|const|extern|volatile)\b", " ", kind).split())
        dtype = ELEMENT_TYPES.get(types.get(base, base))
        if dtype:
            made.append(DraftArgument(name, dtype, None))
    return tuple(made)


def _shared(text: str, launch: LaunchText, block: tuple[str, ...]) -> str:
    """Return the launch's dynamic shared memory, or else 4 bytes per thread if device code has a dynamic array."""
    if launch.shared and (launch.shared != "0" or launch.grid):
        return launch.shared
    return " * ".join(["4", *block]) if dynamic_arrays(text) else "0"


def _cluster(function: KernelFunction, names: Mapping[str, str]) -> tuple[str, ...]:
    """Return a kernel's required cluster as Python text; empty if there is none or it cannot be translated.

    The compiler also reports it as numbers: see `evokern.scaffold.draft.with_cluster`.
    """
    extents = [translated(text, names) for text in function.cluster_dims]
    while len(extents) > 1 and extents[-1] == "1":
        extents.pop()
    return tuple(text for text in extents if text) if all(extents) else ()


def _arguments(function: KernelFunction, types: Mapping[str, str], launch: LaunchText) -> Iterator[DraftArgument]:
    """Yield the kernel's parameters, with numbers from the file's launch."""
    for position, parameter in enumerate(function.parameters):
        base = types.get(parameter.base, parameter.base)
        name = parameter.name or f"argument{position}"
        stated = launch.numbers.get(parameter.name)
        if parameter.of_pointers:
            raise SourceError(
                f"{function.signature}: {parameter.type} {name} points to pointers, but evokern passes only pointers "
                "to numbers; change the kernel's parameters to one pointer for each array"
            )
        if parameter.pointer:
            dtype = ELEMENT_TYPES.get(base)
            why = "" if dtype else f"unknown element type {parameter.base}"
            yield DraftArgument(name, dtype or "f32", None, why, lanes_of(base))
        elif base in WHOLE:
            yield DraftArgument(name, WHOLE[base], stated or f"p.{name.upper()}")
        elif base in NUMBERS:
            value = "True" if base == "bool" else "1.0"
            why = "" if stated else "the file's launch passes a variable"
            yield DraftArgument(name, NUMBERS[base], stated or value, why)
        else:
            raise _by_value(function, parameter)


def _by_value(function: KernelFunction, parameter: Parameter) -> SourceError:
    what = f"{function.signature}: {parameter.type} {parameter.name}"
    if "..." in parameter.type:
        return SourceError(f"{what} is a parameter pack, but a drafted kernel has a fixed number of parameters")
    return SourceError(
        f"{what} is neither a pointer nor a number, but a drafted kernel passes only those; change the kernel's "
        "parameters, or, if it is a structure, check it with `evokern sanitize --arg struct:[…]`"
    )
