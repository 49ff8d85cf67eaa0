"""Headers outside a kernel that the compiler finds by itself: through `-I`, an absolute path, or the working directory.

evokern neither stores these headers nor sends them to other hosts. It records their SHA-256 digests, because a changed
header makes another program from the same source.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from evokern.files import Stamp, is_file, read_bytes, stamp_of

_GAP = r"(?:[ \t]|/\*.*?\*/)*"
_NAMED = re.compile(
    rf'(?:^{_GAP}#{_GAP}(?:include(?:_next)?\b|define\b{_GAP}\w+)|\b__has_include{_GAP}\(){_GAP}(?:"([^"\n]+)"|<([^>\n]+)>)',
    re.MULTILINE,
)
"""Quoted and bracketed names that may be headers: in `#include`, in `__has_include`, and as values of macros."""
_MACRO_INCLUDE = re.compile(rf"^{_GAP}#{_GAP}include(?:_next)?\b{_GAP}[A-Za-z_]", re.MULTILINE)
_SUFFIXES = frozenset({".cuh", ".h", ".hh", ".hpp", ".hxx", ".inc", ".inl", ".ipp", ".cu"})
_SEARCHED = ("-I", "--include-path")
_FORCED = ("-include", "--pre-include")
_DEFINED = ("-D", "--define-macro")

_Read = tuple[Stamp, str, str]
_READ: dict[Path, _Read] = {}
"""Headers read before: the stamp when they were read, their digest and their text."""


def outside_headers(texts: Iterable[str], options: Sequence[str], known: Collection[str] = ()) -> dict[Path, str]:
    """Return the headers that the compiler may read from disk: absolute path → SHA-256 digest.

    Conditions are not evaluated, and a name counts in every folder that has it. A header may therefore be listed
    although the compiler does not read it. Names that a macro builds are not known; if a file includes a macro, all
    headers of the searched folders count.

    Args:
        texts: the source and the headers that evokern passes to the compiler itself.
        options: compiler options; relative paths are relative to the working directory.
        known: names of the headers that evokern passes; the compiler does not look for them on disk.
    """
    folders = [Path(folder) for folder in searched_folders(options)]
    forced = "".join(f'#include "{name}"\n' for name in _values(options, _FORCED))
    defined = "".join(f"#define {value.replace('=', ' ', 1)}\n" for value in _values(options, _DEFINED))
    waiting = [(Path(), text) for text in (*texts, forced, defined)]
    found: dict[Path, str] = {}
    while waiting:
        base, text = waiting.pop()
        for path in dict.fromkeys(_candidates(base, folders, text, known)):
            place = path.absolute()
            if place not in found and is_file(place) and (read := _read(place)):
                found[place] = read[1]
                waiting.append((place.parent, read[2]))
    return found


def searched_folders(options: Sequence[str]) -> tuple[str, ...]:
    """Return the folders in which the compiler looks for headers, as given by `-I`."""
    return tuple(_values(options, _SEARCHED))


def _candidates(base: Path, folders: Sequence[Path], text: str, known: Collection[str]) -> Iterator[Path]:
    """Yield the paths that a file's includes may mean."""
    text = text.replace("\\\n", "")
    for quoted, bracketed in _NAMED.findall(text):
        name = quoted or bracketed
        if name not in known:
            yield from (folder / name for folder in ((base, *folders) if quoted else folders))
            if Path(name).is_absolute():
                yield Path(name)
    if _MACRO_INCLUDE.search(text):
        for folder in folders:
            yield from (path for path in _listed(folder) if path.suffix in _SUFFIXES)


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _read(path: Path) -> _Read | None:
    """Return a header's stamp, digest and text; None if it cannot be read, which the compiler reports."""
    stamp = stamp_of(path)
    before = _READ.get(path)
    if before and before[0] == stamp:
        return before
    try:
        content = read_bytes(path)
    except OSError:
        return None
    _READ[path] = (stamp, hashlib.sha256(content).hexdigest(), content.decode(errors="replace"))
    return _READ[path]


def _values(options: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the values of some options, which follow directly, after `=`, or as the next option."""
    found = []
    for option, following in zip(options, (*options[1:], ""), strict=False):
        for name in names:
            if option == name:
                found.append(following)
            elif option.startswith(f"{name}="):
                found.append(option[len(name) + 1 :])
            elif len(name) == 2 and option.startswith(name):
                found.append(option[2:])
    return [value for value in found if value]
