"""From what a caller hands in, a file, a folder, a text, to sources that can be evaluated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from evokern.declaration.foreign import ForeignSource
from evokern.errors import SourceError

Source = str | Path | ForeignSource
"""A source as a caller gives it: a path; a text, which has several lines; or one that is named already."""
SUFFIX = ".cu"
"""What files of a folder end with that are taken for candidates."""
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
    return ForeignSource(path.name if name is None else name, text.removeprefix("\ufeff"))
