"""From what a caller hands in, a file, a folder, a text, to sources that can be evaluated."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from evokern.declaration.foreign import Extent, ForeignSource, LaunchGeometry
from evokern.errors import SourceError, nearest

Source = str | Path | ForeignSource
"""A source as a caller gives it: a path; a text, which has several lines; or one that is named already."""
SUFFIX = ".cu"
"""What files of a folder end with that are taken for candidates."""
LAUNCH_SUFFIX = ".toml"
"""What the file ends with that stands beside a source of that name, and says how this one is launched."""
LAUNCH_KEYS = ("grid", "block", "smem", "set")
"""What it may say, as the options of those names do."""
MOST_BYTES = 8 << 20
"""Bytes of a source; the largest single kernel files that people write have a hundredth of it."""


def given_source(given: Source, number: int = 0) -> ForeignSource:
    """Return one source.

    Args:
        given: a path, the text itself (a `str` with a line end in it), or a source that has a name already.
        number: position among others, from 0; it names a text.

    Raises:
        SourceError: there is no such file, or it is too large.
    """
    if isinstance(given, ForeignSource):
        return given
    if isinstance(given, str) and "\n" in given:
        if len(given) > MOST_BYTES:
            raise SourceError(f"source {number} has {len(given):,} characters; at most {MOST_BYTES:,} are taken")
        return ForeignSource(f"source_{number}.cu", given)
    if not isinstance(given, (str, Path)):
        raise SourceError(f"source {number} is a {type(given).__name__}; give a path or the text of a CUDA file")
    return _read(Path(given).expanduser())


def sources_of(paths: Iterable[Path]) -> Iterator[ForeignSource]:
    """Return the sources of files and folders, a folder's `.cu` files by name.

    Every path is looked at before the first source is read, so that a mistake is told before anything is evaluated.

    Raises:
        SourceError: a path does not exist, or a folder holds no `.cu` file.
    """
    files: list[tuple[Path, str]] = []
    for given in paths:
        path = given.expanduser()
        if path.is_dir():
            inside = sorted(one for one in path.iterdir() if one.suffix == SUFFIX and one.is_file())
            if not inside:
                raise SourceError(f"{given} holds no {SUFFIX} file; give a folder of candidates, or one file")
            files += [(one, one.name) for one in inside]
        else:
            _require_file(path)
            files.append((path, path.name))
    # Two folders may hold files of one name: then results are told apart by the whole path.
    names = [name for _, name in files]
    return (_read(path, name if names.count(name) == 1 else str(path)) for path, name in files)


def _require_file(path: Path) -> None:
    if not path.is_file():
        if path.is_dir():
            raise SourceError(f'the source {path} is a folder; hand in its files: sorted(Path("{path}").glob("*.cu"))')
        kind = "is no regular file" if path.exists() else "does not exist"
        raise SourceError(f"the source {str(path)[:200]} {kind}; give a CUDA file, or a folder of them")


def _read(path: Path, name: str | None = None) -> ForeignSource:
    try:
        _require_file(path)
        if path.stat().st_size > MOST_BYTES:
            raise SourceError(f"the source {path} has {path.stat().st_size:,} bytes; at most {MOST_BYTES:,} are taken")
        text = path.read_bytes().decode("utf-8", errors="replace")
    except (OSError, ValueError) as error:
        raise SourceError(f"cannot read the source {str(path)[:200]}: {error}") from error
    genes, geometry = _launch_beside(path.with_suffix(LAUNCH_SUFFIX))
    return ForeignSource(path.name if name is None else name, text.removeprefix("\ufeff"), genes, geometry)


def _launch_beside(path: Path) -> tuple[Mapping[str, Any], LaunchGeometry]:
    """Return the genes and the launch that a file beside a source asks for; nothing where there is no such file.

    Raises:
        SourceError: it cannot be read, or says what it cannot say.
    """
    if not path.is_file():
        return {}, LaunchGeometry()
    try:
        with path.open("rb") as file:
            told = tomllib.loads(file.read(MOST_BYTES).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(
            f"cannot read {path}, which stands beside a source and is taken for its launch: {error}; mend or rename it"
        ) from error
    for key in told:
        if key not in LAUNCH_KEYS:
            wrong = f"{path} stands beside a source, and {key!r} is nothing that a launch has"
            raise SourceError(f"{wrong}: {nearest(key, LAUNCH_KEYS)}; mend or rename it")
    smem, genes = told.get("smem"), told.get("set", {})
    if smem is not None and not (type(smem) is int and smem >= 0):
        raise SourceError(f"{path}: smem = {smem!r:.80} is no number of bytes; write one that is 0 or more")
    if not isinstance(genes, dict) or not all(isinstance(value, (str, int)) for value in genes.values()):
        raise SourceError(f"{path}: set = {genes!r:.80} is no table of genes; write [set] and a line GENE = value each")
    return genes, LaunchGeometry(_extent(path, "grid", told), _extent(path, "block", told), smem)


def _extent(path: Path, key: str, told: Mapping[str, Any]) -> Extent | None:
    given = told.get(key)
    if given is None:
        return None
    listed = given if isinstance(given, list) else [given]
    if not 1 <= len(listed) <= 3 or not all(type(one) is int and one >= 1 for one in listed):
        raise SourceError(
            f"{path}: {key} = {given!r:.80} is no extent; write one to three positive numbers, as [64, 2]"
        )
    x, y, z = (*listed, 1, 1)[:3]
    return (x, y, z)
