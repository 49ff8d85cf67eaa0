"""Parts of an exported program with code of the kernel folder: the kernel, and its reference.

Code of the folder may use any name and define any macro. Therefore, each part restores the macros that it changes. The
rest of the program uses the kernel only through functions in the kernel's part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from evokern.cuda_source import preprocessor
from evokern.cuda_source.lexer import TokenStream
from evokern.cuda_source.source_file import SourceFile
from evokern.cuda_source.specialize.conditionals import conditionals, inline_headers
from evokern.cuda_source.specialize.layout import plain_lines
from evokern.declaration.kernel import Kernel
from evokern.declaration.render import read_source
from evokern.errors import KernelError
from evokern.export.declared_state import RestoredVariable
from evokern.export.trace import Traces
from evokern.files import is_file, read_text

_OWN_NAMES = ("main", "evokern", "evokern_check", "evokern_reference")
"""Global names of an exported program."""
_REFERENCE_TITLE = "reference.h"


@dataclass(frozen=True)
class KernelSection:
    """The kernel in an exported program, with the functions through which the launcher uses it."""

    text: str
    """Text of the section."""
    device_text: str
    """Text before the functions; the macros of the kernel are still defined at its end, for names of kernels."""
    declarations: str
    """Declarations of the functions, with which the rest of the program compiles without the section."""
    entries: tuple[str, ...]
    """Launched kernels, in the order of their functions."""


def kernel_section(
    code: str, macros: Iterable[str], traces: Traces, restored: Sequence[RestoredVariable]
) -> KernelSection:
    """Return the section of a kernel.

    Args:
        code: source of the kernel, specialised to the candidate.
        macros: macros that `code` defines for the candidate.
        traces: launches and buffers.
        restored: variables that are restored before each call.
    """
    entries = tuple(dict.fromkeys(launch.entry for launch in traces.launches))
    constants = [name for name, tensor in traces.tensors.items() if tensor.role == "constant"]
    heads, bodies = [], []
    for index, entry in enumerate(entries):
        heads.append(f"const void* {entry_function(index)}()")
        bodies.append([f"return reinterpret_cast<const void*>({entry});"])
    for index, name in enumerate(constants):
        values, size, stream = "const void* evokern_values", "size_t evokern_bytes", "cudaStream_t evokern_stream"
        heads.append(f"cudaError_t evokern_copy_{index}({values}, {size}, {stream})")
        arguments = f"::{name}, evokern_values, evokern_bytes, 0, cudaMemcpyDeviceToDevice, evokern_stream"
        bodies.append([f"return cudaMemcpyToSymbolAsync({arguments});"])
    for index, variable in enumerate(restored):
        heads.append(f"cudaError_t evokern_restore_{index}(cudaStream_t evokern_stream)")
        bodies.append(list(variable.statements()))
    functions = [
        f"static {head} {{ {body[0]} }}" if len(body) == 1 else "\n".join([f"static {head} {{", *body, "}"])
        for head, body in zip(heads, bodies, strict=True)
    ]
    bridge = [
        "#ifndef __CUDACC_RTC__  // functions through which the launcher uses the kernel",
        *(definition for variable in restored if (definition := variable.definition())),
        *functions,
        "#endif",
    ]
    before, behind = _isolation(code, frozenset(macros))
    device = "\n".join([*before, code.strip(), ""])
    return KernelSection(
        "\n".join([device, *bridge, *behind]), device, "\n".join(f"{head};" for head in heads), entries
    )


def entry_function(index: int) -> str:
    """Return the name of the function that returns the address of a kernel."""
    return f"evokern_entry_{index}"


def _isolation(text: str, own: frozenset[str] = frozenset()) -> tuple[list[str], list[str]]:
    """Return lines for before and after a text, so that it changes no macro and defines no name of the program.

    Args:
        text: the text.
        own: macros that are not defined before the text.
    """
    stream = TokenStream(text)
    words = {token.text for token in stream.tokens if token.kind == "word"}
    changed = dict.fromkeys(definition.name for definition in preprocessor.definitions(stream))
    used = [name for name in _OWN_NAMES if name in words and name not in changed]
    kept = [name for name in changed if name not in own]
    before = [
        *(f'#pragma push_macro("{name}")' for name in kept),
        *(f"#define {name} {name}_of_kernel" for name in used),
    ]
    undefined = (*used, *(name for name in changed if name in own))
    return before, [*(f"#undef {name}" for name in undefined), *(f'#pragma pop_macro("{name}")' for name in kept)]


def reference_section(kernel: Kernel) -> str:
    """Return the C++ reference in a namespace of its own, after the headers that it includes.

    Raises:
        KernelError: the kernel's reference.h cannot be read.
    """
    headers = {name: plain_lines(text) for name, text in read_source(kernel)[1].items()}
    headers[_REFERENCE_TITLE] = plain_lines(_read(kernel, _REFERENCE_TITLE))
    waiting = _quoted(headers[_REFERENCE_TITLE])
    while waiting := waiting - headers.keys():
        name = waiting.pop()
        if kernel.file_text(name) is not None or is_file(kernel.folder / name):
            headers[name] = plain_lines(_read(kernel, name))
            waiting |= _quoted(headers[name])
    text = inline_headers(f'#include "{_REFERENCE_TITLE}"\n', headers)
    text = text.removeprefix(f"// ---- {_REFERENCE_TITLE}\n")
    outside, inside = _includes_first(text)
    before, behind = _isolation(text)
    wrapped = ["namespace evokern_reference {", "", inside.strip(), "", "}  // namespace evokern_reference"]
    return "\n".join([*before, outside.strip(), *wrapped, *behind]).strip()


def _quoted(text: str) -> set[str]:
    return {include.name for include in preprocessor.includes(TokenStream(text)) if include.quoted}


def _read(kernel: Kernel, name: str) -> str:
    """Return the text of a file as it was when the kernel was loaded."""
    path, loaded = kernel.folder / name, kernel.file_text(name)
    if loaded is not None:
        return loaded
    try:
        return read_text(path)
    except OSError as error:
        raise KernelError(
            f"cannot read {path}: {error.strerror}; the exported program needs it to check its results"
        ) from error
    except UnicodeDecodeError as error:
        raise KernelError(f"cannot read {path}: {error}; save it as UTF-8") from error


def _includes_first(text: str) -> tuple[str, str]:
    """Split a text into its directives up to the last ``#include`` before any code, and the rest.

    An ``#include`` after code moves to the first part, with the conditional around it.
    """
    unit = SourceFile("", text)
    tokens = unit.stream.tokens
    includes = [include.index for include in preprocessor.includes(unit.stream)]
    code = next((index for index, token in enumerate(tokens) if token.kind != "directive"), len(tokens))
    blocks = [(one.branches[0], one.end) for one in conditionals(unit)]

    def block(index: int) -> tuple[int, int]:
        return next(((first, last) for first, last in blocks if first <= index <= last), (index, index))

    ahead = [last for index in includes if (last := block(index)[1]) < code]
    position = tokens[max(ahead)].end if ahead else 0
    first, rest = [text[:position]], []
    for begin, last in dict.fromkeys(block(index) for index in includes if tokens[index].start >= position):
        rest.append(text[position : tokens[begin].start])
        first.append(text[tokens[begin].start : tokens[last].end])
        position = tokens[last].end
    return "\n".join(first), "".join([*rest, text[position:]])
