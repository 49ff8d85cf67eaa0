"""Compilation of files that also contain host code, such as `main` or the bindings of an extension.

NVRTC compiles device code only. If it rejects a file at a place that is host code, the host code is replaced by spaces,
so that line numbers stay as they are, and the file is compiled again.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import replace

from evokern.compile.isolated import compile_program
from evokern.compile.messages import LAUNCHES
from evokern.compile.records import CompileFailure, Program
from evokern.cuda_source.reader.reader import device_texts
from evokern.declaration.outside_headers import searched_folders
from evokern.declaration.render import Rendered
from evokern.errors import EvokernError

_Texts = tuple[tuple[str, str], ...]
_hosted: set[int] = set()
"""Hashes of the texts that the compiler accepted only without their host code."""


def compile_device_code(rendered: Rendered, architecture: str, line_info: bool = True) -> Program | CompileFailure:
    """Compile a rendered program; if the compiler rejects its host code, compile it without the host code.

    Args:
        rendered: the program.
        architecture: `sm_90` for machine code and PTX, `compute_90` for PTX.
        line_info: whether to include line information.
    """
    known = hash(_texts(rendered)) in _hosted
    program = _compiled(without_host_code(rendered) if known else rendered, architecture, line_info)
    if known or isinstance(program, Program) or program.constraint or LAUNCHES in program.log:
        return program  # a kernel that launches another one would be taken for host code
    device = without_host_code(rendered)
    if not _concerns_host_code(program, rendered, device):
        return program
    again = _compiled(device, architecture, line_info)
    if isinstance(again, Program):
        _hosted.add(hash(_texts(rendered)))
    return replace(again, seconds=again.seconds + program.seconds)


def compilable(rendered: Rendered, architecture: str) -> Rendered:
    """Return a program without its host code if the compiler accepts it only so, else the program itself.

    Raises:
        DeviceError: the compiler cannot be loaded.
    """
    device = without_host_code(rendered)
    if device == rendered:
        return rendered
    compile_device_code(rendered, architecture, line_info=False)
    return device if hash(_texts(rendered)) in _hosted else rendered


def without_host_code(rendered: Rendered) -> Rendered:
    """Return a program with its host code replaced by spaces; the same program if its text cannot be parsed."""
    named = frozenset(word for entry in rendered.entries for word in re.findall(r"[A-Za-z_]\w*", entry))
    try:
        texts = dict(_device_texts(_texts(rendered), searched_folders(rendered.options), named))
    except (EvokernError, RecursionError):  # the compiler reports its error
        return rendered
    return replace(rendered, source=texts.pop(""), headers={**rendered.headers, **texts})


@functools.lru_cache(maxsize=16)
def _device_texts(texts: _Texts, folders: tuple[str, ...], named: frozenset[str]) -> _Texts:
    headers = dict(texts)
    return tuple(device_texts(headers.pop(""), headers, folders, named).items())


def _texts(rendered: Rendered) -> _Texts:
    return (("", rendered.source), *rendered.headers.items())


def _compiled(rendered: Rendered, architecture: str, line_info: bool) -> Program | CompileFailure:
    return compile_program(
        rendered.source, rendered.name, rendered.headers, rendered.options, rendered.entries, architecture, line_info
    )


def _concerns_host_code(failure: CompileFailure, before: Rendered, after: Rendered) -> bool:
    """Return whether an error may result from host code: its line changes, or is not in the program's own files."""
    if before == after:
        return False
    if failure.file is None or failure.line is None:
        return True
    texts = [(b, after.headers.get(name, b)) for name, b in before.headers.items() if _same_file(name, failure.file)]
    if failure.file == before.name:
        texts.append((before.source, after.source))
    return not texts or any(_line(b, failure.line) != _line(a, failure.line) for b, a in texts)


def _same_file(name: str, reported: str) -> bool:
    return name == reported or reported.endswith("/" + name)


def _line(text: str, number: int) -> Iterable[str]:
    return text.split("\n")[number - 1 : number]
