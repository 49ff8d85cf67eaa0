"""`evokern cache`: show, limit or clear the cache of compiled programs on disk."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from evokern.cli._command import command
from evokern.cli._output import Output
from evokern.errors import MAX_INTEGER, UsageError
from evokern.wording import count_noun

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


@command(
    "cache",
    examples="""
    evokern cache
    evokern cache --cap 4GB
    evokern cache --clear
    """,
)
def cache(
    output: Output,
    clear: Annotated[bool, typer.Option("--clear", help="Delete all cached programs.")] = False,
    cap: Annotated[
        str | None,
        typer.Option(
            "--cap",
            metavar="SIZE",
            help="Set the size limit of the cache, such as 500MB or 4GB, now and for later commands.",
        ),
    ] = None,
) -> None:
    """Show, limit or clear the cache of compiled programs.

    The cache only saves compile time; clearing it deletes no results. By default, it is in the user's cache folder. The
    environment variable EVOKERN_CACHE sets another folder, or disables the cache if its value is `off`.
    """
    from evokern.compile.cache import CompileCache, default_directory

    limit = None if cap is None else parse_size(cap)
    directory = default_directory()
    if directory is None:
        raise UsageError("EVOKERN_CACHE is off, so there is no cache; unset the variable, or set it to a folder")
    programs = CompileCache(directory)
    dropped = programs.clear() if clear else 0
    if limit is not None:
        programs.set_cap(limit)
    info = programs.info()
    if output.json:
        facts = {"programs": info.programs, "bytes": info.bytes, "cap_bytes": info.cap_bytes, "dropped": dropped}
        output.print_json({"directory": str(info.directory), **facts})
        return
    if clear:
        output.print_line(f"deleted {count_noun(dropped, 'program')}")
    megabytes, capped = info.bytes / 10**6, info.cap_bytes / 10**6
    output.print_line(
        f"{info.directory}: {count_noun(info.programs, 'program')}, {megabytes:.1f} MB of at most {capped:.0f} MB"
    )


def parse_size(text: str) -> int:
    """Parse a size in bytes, such as `500MB`, `4GiB` or a plain number.

    Raises:
        UsageError: the text is not a valid size.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?i?b?)", text.strip().lower())
    unit = match[2] if match else None
    if match and unit is not None:
        unit = unit if unit in _UNITS else unit + "b"
        size = float(match[1]) * _UNITS.get(unit, 0)
        if size > MAX_INTEGER:
            raise UsageError(f"size {text!r} is too large; use, for example, 500MB, 4GB or 2GiB")
        if unit in _UNITS:
            return int(size)
    raise UsageError(f"{text!r} is not a valid size; use, for example, 500MB, 4GB or 2GiB")
