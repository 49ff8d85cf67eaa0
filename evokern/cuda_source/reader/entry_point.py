"""Lookup of a kernel by its plain, qualified or mangled name, or by a template name with arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

from evokern.cuda_source.host import HostLaunch, text_of
from evokern.cuda_source.mangled import BUILTIN_TYPES, mangled_parts
from evokern.cuda_source.reader.records import EntryPoint, KernelFunction
from evokern.errors import SourceError, suggestion

Launches: TypeAlias = Callable[[], Sequence[HostLaunch]]
"""Returns the launches of the file; only messages need them."""


def find_entry(
    wanted: str | None, entries: Sequence[KernelFunction], launches: Launches, file: str, text: str = ""
) -> EntryPoint:
    """Find a kernel by name, as described in `CudaSource.entry`."""
    if not entries:
        if text.rfind("/*") > text.rfind("*/"):
            line = text.count("\n", 0, text.rfind("/*")) + 1
            raise SourceError(f"{file} contains no kernel; the comment that starts on line {line} never ends")
        if "__global__" in text:
            raise SourceError(f"{file} declares kernels but defines none; choose the file with their code")
        raise SourceError(f"{file} contains no __global__ function; choose a file with a kernel")
    if wanted is None:
        own = [entry for entry in entries if not entry.file]
        if not own:
            listed = ", ".join(sorted({f"{entry.qualified} ({entry.file})" for entry in entries}))
            raise SourceError(f"{file} contains no kernel, but its headers do; choose one with --entry: {listed}")
        names = sorted({entry.qualified for entry in own})
        if len(names) > 1:
            raise SourceError(f"{file} contains {len(names)} kernels; choose a kernel with --entry: {', '.join(names)}")
        wanted = names[0]
    wanted = wanted.strip()
    if wanted.startswith("_Z") and not any(entry.name == wanted for entry in entries):
        return _by_symbol(wanted, entries, launches, file)
    if (overload := _overload(wanted, entries)) is not None:
        point = _point(overload, None, launches, overload.qualified)
        return EntryPoint(overload, None, f"(void (*)({_types(overload)})){point.expression or overload.qualified}")
    name, _, arguments = wanted.partition("<")
    matches = _named(name.strip(), entries, file)
    given = arguments.rstrip()[:-1].strip() if arguments.rstrip().endswith(">") else None
    if arguments and given is None:
        raise SourceError(f"missing closing '>' in {wanted!r}")
    entry = _only([e for e in matches if bool(e.template) == (given is not None)] or matches, wanted, file)
    return _point(entry, given, launches, wanted)


_CAST = re.compile(r"\(void \(\*\)\((.*)\)\)([\w:]+)")
"""Name expression of an overloaded kernel."""


def _overload(wanted: str, entries: Sequence[KernelFunction]) -> KernelFunction | None:
    """Return the kernel of a signature such as `k(float* x, int n)` or `k(float*, int)`, or of its name expression."""
    if cast := _CAST.fullmatch(wanted):
        wanted = f"{cast[2]}({cast[1]})"

    def plain(text: str) -> str:
        return re.sub(r"\s+", " ", re.sub(r"\s*([*&,()<>])\s*", r"\1", text)).strip().removeprefix("::")

    for entry in entries:
        signatures = (entry.signature, f"{entry.qualified}({_types(entry)})")
        if not entry.template and plain(wanted) in map(plain, signatures):
            return entry
    return None


def _types(entry: KernelFunction) -> str:
    return ", ".join(p.type for p in entry.parameters)


def _named(name: str, entries: Sequence[KernelFunction], file: str) -> list[KernelFunction]:
    name = name.removeprefix("::")
    matches = [e for e in entries if name in (e.qualified, e.name)] or [
        e for e in entries if e.qualified.endswith(f"::{name}")
    ]
    if not matches:
        known = suggestion(name.rpartition("::")[2], dict.fromkeys(e.qualified for e in entries))
        raise SourceError(f"{file} contains no kernel {name!r}: {known}")
    exact = [e for e in matches if e.qualified == name]
    return exact or matches


def _only(matches: Sequence[KernelFunction], wanted: str, file: str) -> KernelFunction:
    distinct = {entry.signature: entry for entry in matches}
    if len(distinct) > 1:
        listed = "; ".join(f"'{e.signature}' (line {e.line})" for e in distinct.values())
        remedy = "use one of these texts as the name, with --entry"
        if any(e.template for e in distinct.values()):
            remedy = "use the qualified name with template arguments, or rename one kernel"
        raise SourceError(f"{wanted!r} matches {len(distinct)} kernels in {file}: {listed}; {remedy}")
    return matches[0]


def _point(entry: KernelFunction, given: str | None, launches: Launches, wanted: str) -> EntryPoint:
    """Check the template arguments of a kernel and build its name expression."""
    if entry.obstacle:
        raise SourceError(
            f"kernel {entry.qualified} (line {entry.line}) cannot be compiled on its own: {entry.obstacle}"
        )
    if not entry.template:
        if given is not None:
            raise SourceError(f"{wanted!r}: {entry.qualified} (line {entry.line}) is not a template; omit '<{given}>'")
        return EntryPoint(entry, entry.name, None) if entry.extern_c else EntryPoint(entry, None, entry.qualified)
    if given is None:
        if any(p.default is None and not p.type.endswith("...") for p in entry.template):
            raise SourceError(_template_message(entry, launches))
        given = ""
    needed = sum(1 for p in entry.template if p.default is None and "..." not in p.type)
    count = _count(given)
    if count < needed or (count > len(entry.template) and not any("..." in p.type for p in entry.template)):
        listed = ", ".join(f"{p.type} {p.name}".strip() for p in entry.template)
        raise SourceError(
            f"{wanted!r} has {count} template arguments, but {entry.qualified} (line {entry.line}) takes <{listed}>"
        )
    return EntryPoint(entry, None, f"{entry.qualified}<{given}>")


def _template_message(entry: KernelFunction, launches: Launches) -> str:
    listed = ", ".join(" ".join(filter(None, (p.type, p.name))) for p in entry.template)
    seen = [(one, ", ".join(map(text_of, one.template))) for one in launches() if one.kernel == entry.name]
    seen = [(one, text) for one, text in seen if _is_concrete(text)]
    if seen:
        example = f"'{entry.qualified}<{seen[0][1]}>' as on line {seen[0][0].line}"
    else:
        kinds = {"typename": "float", "class": "float", "bool": "true"}
        example = f"'{entry.qualified}<{', '.join(kinds.get(p.type, '64') for p in entry.template)}>'"
    return f"{entry.qualified} (line {entry.line}) is a template <{listed}>; add its arguments, for example {example}"


def _is_concrete(arguments: str) -> bool:
    """Return whether template arguments are numbers and builtin types, which have the same meaning everywhere."""
    known = {"true", "false", "unsigned", "half", "__half", "__nv_bfloat16", "int8_t", *BUILTIN_TYPES.values()}
    return bool(arguments) and all(word in known for word in re.findall(r"[^\W\d]\w*", arguments))


def _count(arguments: str) -> int:
    """Return the number of template arguments: commas outside brackets, plus one."""
    depth = commas = 0
    for character in arguments:
        depth += character in "<([{"
        depth -= character in ">)]}"
        commas += character == "," and depth == 0
    return commas + 1 if arguments.strip() else 0


def _by_symbol(symbol: str, entries: Sequence[KernelFunction], launches: Launches, file: str) -> EntryPoint:
    """Find the kernel of a mangled name (Itanium C++ ABI, section 5.1: names, builtin types, integers)."""
    parts, rest = mangled_parts(symbol)
    if not parts:
        raise SourceError(f"cannot parse the mangled name {symbol!r}; use the kernel's plain name")
    matches = _named("::".join(parts), entries, file)
    if not rest.startswith("I"):
        entry = matches[0]
        if entry.template:
            raise SourceError(_template_message(entry, launches))
        _point(entry, None, launches, symbol)
        return EntryPoint(entry, symbol, None)
    arguments = _mangled_arguments(rest[1:])
    entry = next((e for e in matches if e.template), matches[0])
    if arguments is None:
        raise SourceError(
            f"cannot parse the template arguments in {symbol!r}; write them out: {_template_message(entry, launches)}"
        )
    return _point(entry, ", ".join(arguments), launches, symbol)


def _mangled_arguments(rest: str) -> list[str] | None:
    """Return the template arguments up to the closing ``E`` (types and integers), or None if one is unsupported."""
    found: list[str] = []
    while rest and rest[0] != "E":
        if match := re.match(r"L([a-z])(n?)(\d+)E", rest):
            letter, sign, digits = match.groups()
            value = f"{'-' if sign else ''}{digits}"
            found.append({"b": "true" if digits == "1" else "false"}.get(letter, value))
            rest = rest[match.end() :]
        elif match := re.match(r"(\d+)", rest):
            length = int(match.group(1))
            found.append(rest[match.end() : match.end() + length])
            rest = rest[match.end() + length :]
        elif rest[0] in BUILTIN_TYPES:
            found.append(BUILTIN_TYPES[rest[0]])
            rest = rest[1:]
        else:
            return None
    return found if rest else None
