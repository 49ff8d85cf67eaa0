"""Reader of a CUDA file and its local headers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from evokern.cuda_source import preprocessor
from evokern.cuda_source.host import HostLaunch, host_launches
from evokern.cuda_source.reader import finders, known_headers
from evokern.cuda_source.reader.entry_point import find_entry
from evokern.cuda_source.reader.host_code import blank, find_host_code
from evokern.cuda_source.reader.records import EntryPoint, HostFunction, Include, KernelFunction, Macro
from evokern.cuda_source.source_file import SourceFile
from evokern.errors import SourceError
from evokern.files import is_file, read_bytes

_TORCH_DEVICE = Path(__file__).parent.parent / known_headers.TORCH_DEVICE
_PASSES = 8  # one removal rarely makes more than one further round necessary


@dataclass(frozen=True)
class CudaSource:
    """Content of a CUDA program: its device code, and the launches in its host code."""

    path: Path | None
    """Path of the file; None for text given directly."""
    text: str
    """Text of the file with ``\\n`` line ends."""
    device_text: str
    """Text with host code blanked, for NVRTC with ``-default-device``; line numbers are unchanged."""
    headers: Mapping[str, str]
    """Local headers with host code blanked, by the name in ``#include``, for NVRTC's in-memory headers."""
    entries: tuple[KernelFunction, ...]
    """The ``__global__`` functions; functions in headers come last."""
    macros: tuple[Macro, ...]
    """Macros of the program; macros in headers come last."""
    host_functions: tuple[HostFunction, ...]
    """Host functions removed from the main file."""
    includes: tuple[Include, ...]
    """All ``#include`` directives with their status."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Text of each file with its host code, by the name in `#include`; the main file's name is empty."""

    @property
    def name(self) -> str:
        """Name of the file for messages and for the compiler."""
        return self.path.name if self.path else "source.cu"

    def keeping(self, names: Iterable[str]) -> CudaSource:
        """Return the program with additional names in the device code, such as types in template arguments."""
        units = {name: SourceFile(name, text) for name, text in self.texts.items()}
        device = _remove_host_code(units, self.includes, names)
        headers = {name: text for name, text in device.items() if name}
        return replace(self, device_text=device[""], headers=headers)

    @cached_property
    def launches(self) -> tuple[HostLaunch, ...]:
        """Kernel launches of the host code."""
        return host_launches(self.texts)

    @property
    def missing_includes(self) -> tuple[Include, ...]:
        """Quoted includes that were not found, the most likely cause of an undefined name."""
        return tuple(include for include in self.includes if include.status == "missing")

    @property
    def suspicious_includes(self) -> tuple[Include, ...]:
        """Removed angle-bracket includes that are not known host headers, another likely cause of an undefined name."""
        return tuple(
            include
            for include in self.includes
            if include.status == "host" and not known_headers.is_host_header(include.name)
        )

    def entry(self, wanted: str | None = None) -> EntryPoint:
        """Find a kernel by name.

        Args:
            wanted: plain name, qualified name, mangled symbol, or template instantiation such as ``k<512, 64>``; None
                selects the only kernel of the file.

        Returns:
            The entry with its symbol, or with a name expression for NVRTC.

        Raises:
            SourceError: if the kernel does not exist or is ambiguous, lacks template arguments, or needs a host
                library.
        """
        return find_entry(wanted, self.entries, lambda: self.launches, self.name, self.text)


def read(
    path_or_text: str | Path, include_dirs: Iterable[str | Path] = (), named: Iterable[str] = (),
    known: Mapping[str, str] = MappingProxyType({}),
) -> CudaSource:  # fmt: skip
    """Read a CUDA file and its local headers.

    Args:
        path_or_text: path, or source text (a string that contains a line end, brace or semicolon).
        include_dirs: directories searched for local headers, after the directory of the file.
        named: additional names to keep in the device code, such as types in template arguments.
        known: texts of headers by the name in `#include`, which are not read from disk.

    Returns:
        The program with host code removed and line numbers unchanged.

    Raises:
        SourceError: if the file does not exist or cannot be read.
    """
    path, text = _load(path_or_text)
    units, found = _with_headers(text, path, [Path(d) for d in include_dirs], known)
    host_code = find_host_code(units.values())
    device = _remove_host_code(units, found, named)
    device_units = [SourceFile(name, device[name]) for name in units]
    return CudaSource(
        path=path,
        text=text,
        device_text=device[""],
        headers={name: content for name, content in device.items() if name},
        entries=tuple(entry for unit in units.values() for entry in finders.entries(unit, host_code)),
        macros=tuple(_unique(macro for unit in device_units for macro in finders.macros(unit))),
        host_functions=tuple(finders.host_functions(units[""], host_code)),
        includes=found,
        texts={name: unit.text for name, unit in units.items()},
    )


def device_only(source: str) -> str:
    """Return the device code of a text without local headers, with the host code replaced by spaces.

    Args:
        source: CUDA C++ text.

    Returns:
        The device code with unchanged line numbers. A second call does not change the result.
    """
    return device_texts(source)[""]


def device_texts(
    source: str, headers: Mapping[str, str] = MappingProxyType({}), include_dirs: Iterable[str | Path] = (),
    named: Iterable[str] = (),
) -> dict[str, str]:  # fmt: skip
    """Return the device code of a text and of the headers that it includes, with the host code replaced by spaces.

    Local headers that do not exist remain in the code, so that the compiler reports them.

    Args:
        source: CUDA C++ text.
        headers: texts of headers by the name in `#include`.
        include_dirs: directories of further headers.
        named: additional names to keep, such as types in template arguments.

    Returns:
        Name in `#include`, or "" for the source → device code with unchanged line numbers.
    """
    units, found = _with_headers(_normal(source), None, [Path(d) for d in include_dirs], headers)
    known = [replace(one, status="device") if one.status == "missing" else one for one in found]
    return _remove_host_code(units, known, named)


def _normal(text: str) -> str:
    """Convert line ends to line feeds, and remove a byte order mark and white space after a backslash at a line end."""
    return re.sub(r"\\[ \t]+\n", r"\\\n", text.removeprefix("\ufeff").replace("\r\n", "\n"))


def _load(path_or_text: str | Path) -> tuple[Path | None, str]:
    if isinstance(path_or_text, str) and any(mark in path_or_text for mark in "\n{;"):
        return None, _normal(path_or_text)
    path = Path(path_or_text)
    try:
        content = read_bytes(path)
    except FileNotFoundError:
        raise SourceError(f"no CUDA file at {path}; check the path") from None
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from None
    return path, _decode(content)


def _decode(content: bytes) -> str:
    """Decode a file as UTF-8, or else as Latin-1, which accepts every byte."""
    try:
        return _normal(content.decode("utf-8"))
    except UnicodeDecodeError:
        return _normal(content.decode("latin-1"))


def _with_headers(
    text: str, path: Path | None, include_dirs: list[Path], texts: Mapping[str, str] = MappingProxyType({})
) -> tuple[dict[str, SourceFile], tuple[Include, ...]]:
    """Read a file and the local headers that it includes, directly or indirectly; `texts` has contents by name.

    Raises:
        SourceError: if an include name refers to two different files.
    """
    units: dict[str, SourceFile] = {"": SourceFile("", text)}
    places: dict[str, Path | None] = {"": path}
    found: list[Include] = []
    waiting = [""]
    while waiting:
        name = waiting.pop(0)
        unit, place = units[name], places[name]
        for directive in preprocessor.includes(unit.stream):
            own = [place.parent] if place and directive.quoted else []
            device = known_headers.is_device_header(directive.name)
            replaced = device or known_headers.is_host_part(directive.name)
            header = (
                None if replaced else next(filter(is_file, (d / directive.name for d in (*own, *include_dirs))), None)
            )
            if directive.name in texts:
                status = "local"
                if directive.name not in units:
                    units[directive.name] = SourceFile(directive.name, _normal(texts[directive.name]))
                    places[directive.name] = None
                    waiting.append(directive.name)
            elif header is None:
                missing = directive.quoted and not known_headers.is_host_header(directive.name)
                status = "device" if device else "missing" if missing else "host"
            else:
                status = "local"
                if directive.name not in units:
                    units[directive.name] = SourceFile(directive.name, _load(header)[1])
                    places[directive.name] = header
                    waiting.append(directive.name)
                elif (known := places[directive.name]) and known.resolve() != header.resolve():
                    raise SourceError(
                        f'"{directive.name}" refers to both {known} and {header} '
                        f"(line {unit.line(directive.index)} of {name or path}); rename one of the two headers"
                    )
            found.append(Include(directive.name, directive.quoted, status, unit.line(directive.index), name))
    return units, tuple(found)


def _remove_host_code(
    units: Mapping[str, SourceFile], found: Sequence[Include], named: Iterable[str] = ()
) -> dict[str, str]:
    """Blank host code until nothing changes, because one removal can make others necessary."""
    gone = {(include.file, include.name) for include in found if include.status in ("host", "missing")}
    kept = frozenset(named)
    texts = {name: unit.text for name, unit in units.items()}
    current = dict(units)
    for _ in range(_PASSES):
        host_code = find_host_code(current.values(), kept)
        texts = {
            name: blank(
                unit,
                host_code.dropped[name],
                [d.index for d in preprocessor.includes(unit.stream) if (name, d.name) in gone],
            )
            for name, unit in current.items()
        }
        if all(texts[name] == unit.text for name, unit in current.items()):
            break
        current = {name: SourceFile(name, content) for name, content in texts.items()}
    return _with_half_types(units, current, texts, found, kept)


def _with_half_types(
    originals: Mapping[str, SourceFile],
    units: Mapping[str, SourceFile],
    texts: dict[str, str],
    found: Sequence[Include],
    named: frozenset[str],
) -> dict[str, str]:
    """Include the headers of half types and of torch's device types in place of a removed header that included them.

    The replacement is one line, because line numbers must not change: the header of the type that device code uses, or
    a header for all types.
    """
    words = {token.text for unit in units.values() for token in unit.stream.tokens if token.kind == "word"} | named
    words |= {word for unit in units.values() for d in unit.definitions for word in preprocessor.words(d.value)}
    words -= {name for unit in units.values() for leaf in unit.leaves for name in leaf.names}
    torch = bool(words & known_headers.TORCH_GLOBALS) or any(map(_names_torch_type, units.values()))
    needed = {
        header for header, names in known_headers.HALF_TYPES.items() if any(re.fullmatch(names, word) for word in words)
    }
    for name in list(texts):
        here = [include for include in found if include.file == name]
        lacking = sorted(needed - {include.name for include in here})
        gone = {include.line for include in here if include.status in ("host", "missing")}
        if (lacking or torch) and gone:
            header = f"<{lacking[0] if len(lacking) == 1 else known_headers.BOTH_HALF_TYPES}>"
            lines = texts[name].split("\n")
            lines[_least_conditional(originals[name], gone) - 1] = (
                f'#include "{known_headers.TORCH_DEVICE}"' if torch else f"#include {header}"
            )
            texts[name] = "\n".join(lines)
            if torch:
                texts[known_headers.TORCH_DEVICE] = _TORCH_DEVICE.read_text()
    return texts


def _names_torch_type(unit: SourceFile) -> bool:
    """Return whether a file uses a type of torch that device code can use."""
    tokens = unit.stream.tokens
    return any(
        scope.text == "::" and known_headers.is_torch_type(namespace.text, name.text)
        for namespace, scope, name in zip(tokens, tokens[1:], tokens[2:], strict=False)
    )


def _least_conditional(unit: SourceFile, lines: Iterable[int]) -> int:
    """Return the first of the given ``#include`` lines with the lowest nesting of conditionals."""
    depths = {unit.line(index): len(around) for index, _, around in preprocessor.nested(unit.stream)}
    return min(lines, key=lambda line: (depths.get(line, 0), line))


def _unique(found: Iterable[Macro]) -> list[Macro]:
    """Keep each name once; definitions take precedence over requirements."""
    kept: dict[str, Macro] = {}
    for macro in found:
        if macro.name not in kept or (kept[macro.name].kind == "required" != macro.kind):
            kept[macro.name] = macro
    return list(kept.values())
