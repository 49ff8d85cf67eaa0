"""`evokern cache`: the compiled programs kept on disk."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from evokern.cli._command import command
from evokern.cli._output import Output
from evokern.errors import MOST_NUMBER, UsageError

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
    clear: Annotated[bool, typer.Option("--clear", help="Drop every program.")] = False,
    cap: Annotated[
        str | None, typer.Option("--cap", metavar="SIZE", help="Keep at most SIZE, for example 500MB or 4GB.")
    ] = None,
) -> None:
    """Show, cap or clear the cache of compiled programs.

    It lives where EVOKERN_CACHE says (`off` switches it off), else in the user's cache folder, and only saves compile
    time: dropping it loses no result.
    """
    from evokern.compile.cache import CompileCache, default_directory

    limit = None if cap is None else parse_size(cap)
    directory = default_directory()
    if directory is None:
        raise UsageError("EVOKERN_CACHE is off, so there is no cache; unset it or name a folder")
    programs = CompileCache(directory)
    dropped = programs.clear() if clear else 0
    if limit is not None:
        programs.set_cap(limit)
    info = programs.info()
    if output.json:
        facts = {"programs": info.programs, "bytes": info.bytes, "cap_bytes": info.cap_bytes, "dropped": dropped}
        output.emit({"directory": str(info.directory), **facts})
        return
    if clear:
        output.say(f"dropped {dropped} programs")
    megabytes, capped = info.bytes / 10**6, info.cap_bytes / 10**6
    output.say(f"{info.directory}: {info.programs} programs, {megabytes:.1f} MB of at most {capped:.0f} MB")


def parse_size(text: str) -> int:
    """Return bytes from `500MB`, `4GiB` or a plain number.

    Raises:
        UsageError: the text is no size.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?i?b?)", text.strip().lower())
    unit = match[2] if match else None
    if match and unit is not None:
        unit = unit if unit in _UNITS else unit + "b"
        size = float(match[1]) * _UNITS.get(unit, 0)
        if size > MOST_NUMBER:
            raise UsageError(f"{text!r} is more than any disk holds; write for example 500MB, 4GB or 2GiB")
        if unit in _UNITS:
            return int(size)
    raise UsageError(f"{text!r} is no size; write for example 500MB, 4GB or 2GiB")
