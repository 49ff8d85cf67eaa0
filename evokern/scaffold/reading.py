"""Read a kernel from a CUDA file without running it: genes, arguments, launch and device code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from evokern.cuda_source import (
    ELEMENT_TYPES,
    UNSUPPORTED,
    UNSUPPORTED_TYPES,
    CudaSource,
    EntryPoint,
    KernelFunction,
    LaunchSite,
    Macro,
    Parameter,
)
from evokern.cuda_source.specialize.conditionals import inline_headers
from evokern.cuda_source.specialize.unreferenced import drop_unreferenced, entry_words
from evokern.errors import SourceError
from evokern.hardware.profiles import CHIPS
from evokern.scaffold import resolve
from evokern.scaffold.blocks import block_of, neighbours
from evokern.scaffold.expression import outer_parts, to_python
from evokern.scaffold.launch_text import WHOLE, LaunchText, constant_names, find_launch, read_launch
from evokern.scaffold.plan import DraftArgument, DraftField, DraftGene, Plan, unused_name
from evokern.scaffold.source_text import device_source
from evokern.scaffold.stated_sizes import allocated_sizes

DRAFTED_FOR = (CHIPS["l4"], CHIPS["h100"])
"""Chips for which drafts are compiled and run; the first with the required features (such as clusters) is used."""
LARGEST_GENE = 1024
"""Maximum value of a macro that becomes a gene; larger values are problem sizes."""
_REAL = {"float": "f32", "double": "f64", "half": "f16", "__half": "f16", "__nv_bfloat16": "bf16",
         "nv_bfloat16": "bf16", "bool": "bool"}  # fmt: skip


@dataclass(frozen=True)
class KernelReading:
    """Facts about one kernel from its file."""

    function: KernelFunction
    plan: Plan
    """Launch and genes; grid and block may be missing."""
    source: str
    """Device code of the kernel and its dependencies, with an `#error` for each missing macro."""
    launch_line: str = ""
    """Location of the launch that sets grid and block; empty if no launch could be read."""
    unread: str = ""
    """Reason why no launch could be read; empty if one could."""
    literals: Mapping[str, int] = field(default_factory=dict)
    """Field → number that the file's launch passes for it."""


def read_kernel(source: CudaSource, wanted: str | None) -> KernelReading:
    """Read one kernel from a CUDA file.

    Raises:
        SourceError: the kernel is missing, is ambiguous, or has unsupported arguments.
    """
    function = _with_pointers(source, _function(source, wanted))
    site = find_launch(source, function)
    plain = {*ELEMENT_TYPES, *WHOLE, *_REAL, *(one.name for one in function.template)}
    for parameter in function.parameters:
        if parameter.base in UNSUPPORTED_TYPES:
            raise SourceError(f"{function.signature} takes {parameter.type} {parameter.name}, but {UNSUPPORTED}")
    values = [one for one in function.parameters if not one.pointer and one.base not in plain]
    if not any(parameter.pointer for parameter in function.parameters):
        if values:
            raise _by_value(function, values[0])
        deduced = [p for p in function.parameters if p.base in plain - {*ELEMENT_TYPES, *WHOLE, *_REAL}]
        if deduced:
            raise SourceError(
                f"{function.signature}: the type of {deduced[0].name} is a template argument, but a drafted kernel "
                "passes only pointers and numbers; change the kernel's parameters, or check an instance with "
                "`evokern sanitize --entry`"
            )
        raise SourceError(f"{function.signature} takes no pointer, so it cannot return a result")
    point = _with_arguments(source, function, wanted, site)
    named = entry_words([point.expression or function.name])
    text = drop_unreferenced(inline_headers(source.device_text, source.headers), [function.name], named)
    macros = tuple(_numeric_macros(source, text))
    has_sizes = any(not p.pointer and p.base in WHOLE for p in function.parameters)
    sizes = {m.name: m.number or 0 for m in macros if not has_sizes and (m.number or 0) > LARGEST_GENE}
    genes = [_macro_gene(macro) for macro in macros if (macro.number or 0) <= LARGEST_GENE]
    entry, template_genes, given = _entry(point, source, site, text)
    written = {g.name: str(g.default) for g in (*genes, *template_genes)}
    text = device_source(text, [m for m in macros if m.number is not None or m.kind == "required"], sizes,
                         {g.name for g in genes})  # fmt: skip
    types = _types(function, point, text, written | {n: str(v) for n, v in sizes.items()})
    names = constant_names(source) | {gene.name: f"c.{gene.name}" for gene in genes} | given
    names |= {name: f"p.{name}" for name in sizes}
    fields = _fields(function, sizes, types)
    launch = None
    if site:
        names |= _passed(function, site, names, types)
        known = {name: int(value) for name, value in constant_names(source).items() if value.isdigit()}
        launch = read_launch(site, names, text, known)
    unread = _unread(site, launch)
    block, block_genes = block_of(function, launch, names, text, unread)
    macros_of = {name: f"p.{name}" for name in sizes}
    arguments = tuple(_arguments(function, site, types, launch, {**names, **_variables(launch, block_genes)}))
    plan = Plan(
        entry=entry,
        genes=(*genes, *template_genes, *block_genes),
        fields=fields,
        arguments=arguments,
        grid=launch.grid if launch else (),
        block=block,
        shared=_shared(source, function, launch, block),
        cluster=_cluster(function, names),
        macros=macros_of,
        constants=constants_of(text, types),
        stated=allocated_sizes(source, function, site, arguments, names),
    )
    literals = dict(sizes.items())
    return KernelReading(function, plan, text, f"line {site.line}" if site and not unread else "", unread, literals)


def _unread(site: LaunchSite | None, launch: LaunchText | None) -> str:
    """Return why a launch does not state grid and block, or an empty string if it does."""
    if site is None or launch is None:
        return "the file does not launch the kernel"
    lost = [(what, text) for what, text, made in (("grid", site.grid, launch.grid), ("block", site.block, launch.block))
            if not made]  # fmt: skip
    return " and ".join(
        f"the {what} `{text}` of the launch on line {site.line} could not be read" for what, text in lost
    )


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


def _numeric_macros(source: CudaSource, text: str) -> Iterator[Macro]:
    """Yield numeric macros in the kernel's code, except masks and the warp size, which cannot change.

    Macros of the compiler, and those that depend on the platform (defined in several branches), cannot change either.
    """
    code = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)
    # A macro on the command line would also replace a template parameter of the same name.
    given = re.findall(r"\btemplate\s*<([^{;]*?)>", code)
    shadowed = {word for parameters in given for word in re.findall(r"(\w+)\s*(?:=[^,]*)?(?:,|$)", parameters)}
    used = set(re.findall(r"[A-Za-z_]\w*", re.sub(r"^[ \t]*#[ \t]*(?:define|undef)[ \t]+\w+", "#", code, flags=re.M)))
    for macro in source.macros:
        if (
            macro.function_like
            or macro.name not in used
            or macro.name in shadowed
            or macro.name.startswith("__")
            or len(re.findall(rf"^[ \t]*#[ \t]*define[ \t]+{macro.name}\b", code, re.MULTILINE)) > 1
            or re.fullmatch(r"\w*WARP_?(SIZE|SZ)\w*", macro.name, re.I)
        ):
            continue
        masked = re.match(r"\(?\s*0[xX]", macro.value or "")
        if (
            macro.kind in ("defined", "default") and macro.number is not None and macro.number >= 0 and not masked
        ) or macro.kind == "required":
            yield macro


def _macro_gene(macro: Macro) -> DraftGene:
    if macro.number is None:
        return DraftGene(macro.name, (1,), 1, "the file contains no value; list the possible values")
    return DraftGene(macro.name, neighbours(macro.number), macro.number, "half and double the file's value")


def _with_arguments(
    source: CudaSource, function: KernelFunction, wanted: str | None, site: LaunchSite | None
) -> EntryPoint:
    """Return the entry with template arguments: those requested, those in the file, or guesses."""
    if not function.template or "<" in (wanted or ""):
        return source.entry(wanted or function.qualified)
    given = _split(site.template_arguments) if site else []
    heads = re.findall(r"\btemplate\s*<([^{;()]*?)>\s*(?!class|struct|using)\w", source.text)
    deduced = {"scalar_t"} | {word for head in heads for word in re.findall(r"(\w+)\s*(?:=[^,]*)?(?:,|$)", head)}
    deduced -= {*constant_names(source), *dict(site.definitions if site else ())}
    given = [
        _default_argument(p.type, p.default) if word in deduced else word
        for p, word in zip(function.template, given, strict=False)
    ] + given[len(function.template) :]  # a host template or torch's dispatch decides such an argument
    given += [_default_argument(p.type, p.default) for p in function.template[len(given) :]]
    return EntryPoint(function, None, f"{function.qualified}<{', '.join(given)}>")


def _default_argument(kind: str, default: str | None) -> str:
    if default is not None:
        return default
    return "float" if kind in ("typename", "class") else "true" if kind == "bool" else "32"


def _split(arguments: str) -> list[str]:
    """Split template arguments at their outermost commas."""
    return [part for part in outer_parts(arguments, angles=True) if part]


def _entry(
    point: EntryPoint, source: CudaSource, site: LaunchSite | None, text: str
) -> tuple[str, list[DraftGene], dict[str, str]]:
    """Return the kernel name for `Launch`, the genes of its template, and the Python text for the launch's names."""
    function = point.entry
    if not point.expression or not function.template or "<" not in point.expression:
        return (function.name if point.symbol else point.expression or function.qualified), [], {}
    given = _split(point.expression.partition("<")[2].removesuffix(">"))
    values = constant_names(source)
    locals_ = dict(site.definitions) if site else {}
    genes: list[DraftGene] = []
    names: dict[str, str] = {}
    written: list[str] = []
    for parameter, argument in zip(function.template, given, strict=False):
        word = locals_.get(argument, argument).strip().strip("()")
        word = values.get(word, word).rstrip("uUlL")
        word = _worked_out(word, values)
        whole = parameter.type not in ("typename", "class") and "..." not in parameter.type
        if whole and (word.isdigit() or word in ("true", "false")):
            number = int(word) if word.isdigit() else int(word == "true")
            flag = parameter.type.replace("const", "").strip() == "bool"
            # The gene becomes a macro, which must not replace a word of the source.
            gene = unused_name(f"T_{parameter.name or len(written)}", text)
            why = "" if flag else "half and double the file's value"
            values_of = (0, 1) if flag else neighbours(number)
            genes.append(DraftGene(gene, values_of, number, why, f"template parameter {parameter.name}"))
            written.append("{c." + gene + "}")
            names[parameter.name] = f"c.{gene}"
            if re.fullmatch(r"[A-Za-z_]\w*", argument):
                names[argument] = f"c.{gene}"
        else:
            written.append(argument)
    written += given[len(written) :]
    return f"{function.qualified}<{', '.join(written)}>", genes, names


def _worked_out(text: str, names: Mapping[str, str]) -> str:
    """Return the value of an expression such as `256 / 4`, or other text unchanged."""
    made = to_python(text, names, {})
    try:
        return str(Plan("", (), (), (), (), ()).value(made, {}, {})) if made else text
    except (ZeroDivisionError, ValueError, NameError, TypeError, AttributeError):
        return text


def _types(function: KernelFunction, point: EntryPoint, text: str, defines: Mapping[str, str]) -> dict[str, str]:
    """Return a map of C types as written to actual types, for template parameters and names that the source defines."""
    _, _, given = (point.expression or "").partition("<")
    parts = _split(given.removesuffix(">"))
    found = {p.name: part for p, part in zip(function.template, parts, strict=False) if p.type in ("typename", "class")}
    unknown = {found.get(p.base, p.base) for p in function.parameters}
    unknown = {name for name in unknown if name not in ELEMENT_TYPES and name not in WHOLE and name not in _REAL}
    options = tuple(f"-D{name}={value}" for name, value in defines.items())
    resolved = next(filter(None, (resolve.types(text, unknown, options, chip) for chip in DRAFTED_FOR)), {})
    return {name: resolved.get(part, part) for name, part in found.items()} | resolved


def _fields(function: KernelFunction, sizes: Mapping[str, int], types: Mapping[str, str]) -> tuple[DraftField, ...]:
    whole = [p.name.upper() for p in function.parameters if not p.pointer and types.get(p.base, p.base) in WHOLE]
    return tuple(DraftField(name) for name in dict.fromkeys(whole)) + tuple(DraftField(name) for name in sizes) or (
        DraftField("N"),
    )


def _passed(
    function: KernelFunction, site: LaunchSite, names: Mapping[str, str], types: Mapping[str, str]
) -> dict[str, str]:
    """Return a map of the launch's variables that are passed for the kernel's numbers to fields."""
    found: dict[str, str] = {}
    for parameter, argument in zip(function.parameters, site.arguments, strict=True):
        # A variable passed for several parameters does not show which of them the grid depends on.
        once = site.arguments.count(argument) == 1 and re.fullmatch(r"[A-Za-z_]\w*", argument)
        whole = not parameter.pointer and types.get(parameter.base, parameter.base) in WHOLE
        if whole and once and argument not in names:
            found[argument] = f"p.{parameter.name.upper()}"
    return found


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


def _shared(source: CudaSource, function: KernelFunction, launch: LaunchText | None, block: tuple[str, ...]) -> str:
    """Return the launch's dynamic shared memory, or else 4 bytes per thread if the kernel has a dynamic array."""
    if launch and launch.shared and (launch.shared != "0" or launch.grid):
        return launch.shared
    dynamic = any(array.dynamic and array.function == function.name for array in source.shared)
    return " * ".join(["4", *block]) if dynamic else "0"


def _cluster(function: KernelFunction, names: Mapping[str, str]) -> tuple[str, ...]:
    """Return a kernel's required cluster as Python text; empty if there is none or it cannot be translated.

    The compiler also reports it as numbers: see `evokern.scaffold.draft.with_cluster`.
    """
    extents = [to_python(text, names, {}) for text in function.cluster_dims]
    while len(extents) > 1 and extents[-1] == "1":
        extents.pop()
    return tuple(text for text in extents if text) if all(extents) else ()


def _variables(launch: LaunchText | None, block_genes: tuple[DraftGene, ...]) -> dict[str, str]:
    if launch is None:
        return {}
    return {gene.name.lower(): f"c.{gene.name}" for gene in block_genes}


def _arguments(
    function: KernelFunction,
    site: LaunchSite | None,
    types: Mapping[str, str],
    launch: LaunchText | None,
    names: Mapping[str, str],
) -> Iterator[DraftArgument]:
    """Yield the kernel's parameters, with numbers from the file's launch."""
    passed = site.arguments if site else ("",) * len(function.parameters)
    for position, (parameter, argument) in enumerate(zip(function.parameters, passed, strict=True)):
        base = types.get(parameter.base, parameter.base)
        name = parameter.name or f"argument{position}"
        if parameter.of_pointers:
            raise SourceError(
                f"{function.signature}: {parameter.type} {name} points to pointers, but evokern passes only pointers "
                "to numbers; change the kernel's parameters to one pointer for each array"
            )
        if parameter.pointer:
            dtype = ELEMENT_TYPES.get(base)
            yield DraftArgument(name, dtype or "f32", None, "" if dtype else f"unknown element type {parameter.base}")
        elif base in WHOLE:
            gene = names.get(argument, "")
            expression = gene if gene.startswith("c.") else f"p.{name.upper()}"
            yield DraftArgument(name, WHOLE[base], expression)
        elif base in _REAL:
            literal = re.fullmatch(r"([-+]?\d*\.?\d*(?:[eE][-+]?\d+)?)[fF]?", argument)
            number = {"true": "True", "false": "False"}.get(argument) or (literal and literal[1])
            value = (number or "True") if base == "bool" else str(float(number or 1.0))
            yield DraftArgument(name, _REAL[base], value, "" if number else "the file's launch passes a variable")
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
