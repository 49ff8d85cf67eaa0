"""Compilation of files that also contain host code, such as `main` or the bindings of an extension.

NVRTC compiles device code only. If it rejects a file because of host code, spaces replace the host code, and the file
is compiled again. Line numbers do not change.
"""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from evokern.compile.isolated import compile_program
from evokern.compile.records import LAUNCHES, CompileFailure, Program
from evokern.cuda_source.declarations import Collision, collisions
from evokern.cuda_source.reader.reader import device_texts
from evokern.declaration.kernel_files import GENERATED, searched_folders
from evokern.declaration.render import Rendered
from evokern.errors import EvokernError

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*$")
_NO_NAME = "expected an identifier"
"""Part of the compiler's message at a line whose name is replaced by a number."""
_SHOWN = 60
"""Maximum length of a quoted line."""
_REDEFINED = "incompatible redefinition of macro"
"""Part of the compiler's warning at a `#define` that replaces the value of a `-D` option."""
_NESTED = 20
"""Maximum depth of macros in the value of a macro."""
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
    program = _compile_device_code(rendered, architecture, line_info)
    if isinstance(program, CompileFailure):
        return _with_collision(program, rendered)
    return _redefined(program, rendered) if _REDEFINED in program.log else program


def _compile_device_code(rendered: Rendered, architecture: str, line_info: bool) -> Program | CompileFailure:
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


def macro_collisions(rendered: Rendered, failure: CompileFailure | None = None) -> dict[str, tuple[Collision, ...]]:
    """Return the names of each file's device code that a macro with a number replaces: file → names.

    Args:
        rendered: the program.
        failure: the error that the compiler reports, whose line may show more names.
    """
    device, macros = without_host_code(rendered), rendered.macros
    replacing = [name for name in macros if not _IDENTIFIER.match(_resolved(name, macros))]
    found = {}
    for name, text in {rendered.name: device.source, **device.headers}.items():
        here = failure is not None and _NO_NAME in failure.message and _same_file(name, failure.file or "")
        if name != GENERATED:
            found[name] = tuple(collisions(text, replacing, failure.line if here and failure else None))
    return {name: names for name, names in found.items() if names}


def collision_text(file: str, collision: Collision) -> str:
    """Return a sentence about a collision with its remedy."""
    name, text = collision.name, textwrap.shorten(collision.text, _SHOWN, placeholder=" …")
    if collision.defines:
        return f"{file}:{collision.line}: {text!r} replaces the value that evokern gives to {name}; remove this line"
    return (
        f"{file}:{collision.line}: {name} is a macro, which replaces this name in {text!r}; rename one of the two, "
        f'or declare the gene with as_="template" if it is the argument of a template'
    )


def _resolved(name: str, macros: Mapping[str, str]) -> str:
    """Return the value of a macro after the replacement of macros in it."""
    for _ in range(_NESTED):
        if name not in macros:
            break
        name = macros[name]
    return name


def _with_collision(failure: CompileFailure, rendered: Rendered) -> CompileFailure:
    """Name a macro that replaces a name of the source, if the compiler expects other text at a line."""
    if failure.constraint or failure.line is None or "expected" not in failure.message:
        return failure
    places = macro_collisions(rendered, failure).items()
    found = [(file, one) for file, names in places for one in names if not one.defines]
    here = [(f, one) for f, one in found if _same_file(f, failure.file or "") and one.line == failure.line] or found
    if here:
        file, collision = here[0]
        message = f"{collision_text(file, collision)} (compiler: {failure.message})"
        return replace(failure, message=message, file=file, line=collision.line)
    quoted = failure.log.partition("\n")[2].partition("\n")[0]
    own = {rendered.name, *rendered.headers}
    names = () if any(_same_file(name, failure.file or "") for name in own) else rendered.macros
    for name in names:  # of a header of the compiler
        if re.search(rf"\b{name}\b", quoted):
            text = (
                f"{name} is a macro, which replaces this name in {quoted.strip()!r} of a header; rename the gene {name}"
            )
            return replace(failure, message=f"{text} (compiler: {failure.message})")
    return failure


def _redefined(program: Program, rendered: Rendered) -> Program | CompileFailure:
    """Refuse a program whose source replaces the value of a macro, so that every candidate would be the same."""
    for file, names in macro_collisions(rendered).items():
        for one in names:
            if one.defines:
                return CompileFailure(program.log, collision_text(file, one), file, one.line, seconds=program.seconds)
    return program


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


_ARCHITECTURE = re.compile(r"-{1,2}(?:arch|gpu-architecture)\b")


def split_options(options: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the options that NVRTC accepts, and the others; an option and its value may be two words.

    An option for the architecture counts as one of the others, because evokern sets it for each chip.
    """
    kept: list[str] = []
    dropped: list[str] = []
    waiting = list(options)
    while waiting:
        words = [waiting.pop(0)]
        while waiting and (not waiting[0].startswith("-") or (len(words) == 1 and _passes_on(words[0]))):
            words.append(waiting.pop(0))
        if _accepts(words):
            kept += words
        else:
            dropped.append(" ".join(words))
    return tuple(kept), tuple(dropped)


def _passes_on(option: str) -> bool:
    """Return whether an option passes the next word to another tool, as `-Xcompiler -fopenmp` does."""
    return option.startswith("-X") and "=" not in option


def _accepts(words: Sequence[str]) -> bool:
    if _ARCHITECTURE.match(words[0]):
        return False
    built = compile_program("", "options.cu", {}, words, (), "compute_80")
    return not (isinstance(built, CompileFailure) and built.message.startswith("nvrtc: error:"))
