"""Includes that the compiler reaches, because an `#if` may exclude others."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from evokern.compile.build import compile_to_ptx
from evokern.cuda_source import CudaSource, Include
from evokern.declaration.render import Rendered
from evokern.hardware.profiles import Profile

_MARK = "evokern_include_"
_REACHED = re.compile(rf"{_MARK}(\d+)\b")


def active_includes(
    source: CudaSource, asked: Iterable[Include], rendered: Rendered, chip: Profile
) -> tuple[Include, ...]:
    """Return those of some removed includes that the compiler reaches before it stops.

    A warning directive is added after each include, and the compiler's log shows which warnings it reached.

    Args:
        source: a file with its headers; the includes are no longer in its device code.
        asked: the includes.
        rendered: the file's device code with its macros.
        chip: chip to compile for.
    """
    wanted = tuple(asked)
    if not wanted:
        return ()
    texts = {name: text.split("\n") for name, text in ({"": source.device_text} | dict(source.headers)).items()}
    for number, include in enumerate(wanted):
        texts[include.file][include.line - 1] += f"\n#warning {_MARK}{number}"
    joined = {name: "\n".join(lines) for name, lines in texts.items()}
    result = compile_to_ptx(replace(rendered, source=joined.pop(""), headers=joined), chip)
    reached = {int(number) for number in _REACHED.findall(result.log)}
    return tuple(include for number, include in enumerate(wanted) if number in reached)
