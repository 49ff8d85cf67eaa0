"""Input file of `init`: its text, or one sentence that says why it cannot be drafted and what to do."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from evokern.cuda_source import CudaSource
from evokern.cuda_source.lexer import TokenStream, without_comments
from evokern.cuda_source.preprocessor import nested
from evokern.errors import SourceError
from evokern.files import read_bytes

_CLOSER = {"(": ")", "[": "]", "{": "}"}
_HIP = re.compile(r"[<\"](hip/[\w./]+)[>\"]")
_CUDA_FILES = (".cu", ".cuh")


def text_of(path: Path) -> str:
    """Return the text of an input file.

    Raises:
        SourceError: the file cannot be read, is empty, or contains no text.
    """
    if path.is_dir():
        found = sorted(one.name for one in path.iterdir() if one.suffix in _CUDA_FILES)
        listed = f" in it: {', '.join(found[:8])}" if found else ""
        raise SourceError(f"{path} is a folder; name a file{listed}")
    try:
        content = read_bytes(path)
    except FileNotFoundError:
        raise SourceError(f"there is no file {path}; check the path") from None
    except PermissionError:
        raise SourceError(f"{path} cannot be read: permission denied; change it with `chmod u+r {path}`") from None
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}; name a regular file") from None
    if not content.strip():
        raise SourceError(f"{path} is empty; name a file with a kernel")
    if b"\0" in content:
        raise SourceError(f"{path} is a binary file; name the source file with the kernel")
    return content.decode("utf-8-sig", "replace").replace("\r\n", "\n").replace("\r", "\n")


def check_language(path: Path, text: str) -> None:
    """Reject a file of another language than CUDA.

    Raises:
        SourceError: the message names the language and the remedy.
    """
    code = without_comments(text)
    if path.suffix == ".py":
        try:
            ast.parse(text)
        except (SyntaxError, ValueError) as error:
            line = f", line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else f": {error}"
            raise SourceError(f"{path} is not valid Python{line}; correct it") from error
        raise SourceError(
            f"{path} is a Python file that neither imports kernel_tuner nor defines Model, get_inputs and "
            "get_init_inputs; name the CUDA file, a tuning script or a KernelBench task"
        )
    if path.suffix == ".json":
        raise SourceError(
            f"{path} is not a T1 file, which has ConfigurationSpace and KernelSpecification; name the CUDA file"
        )
    if "__global__" not in code and re.search(r"\b(?:__)?kernel\s+(?:__attribute__\s*\(\(.*?\)\)\s*)?void\b", code):
        raise SourceError(
            f"{path} is an OpenCL file, and evokern takes CUDA; rewrite the kernel with __global__, blockIdx and "
            "threadIdx"
        )
    header = _hip_header(text)
    if header or path.suffix == ".hip":
        why = f"includes {header}" if header else "has the suffix .hip"
        raise SourceError(
            f"{path} {why}, so it is a HIP file, and evokern takes CUDA; replace HIP's headers and names in a .cu "
            "file, for example hip/hip_runtime.h by cuda_runtime.h"
        )


def _hip_header(text: str) -> str:
    """Return a HIP header that a file includes unconditionally; empty if there is none."""
    for _, token, around in nested(TokenStream(text)):
        if token.directive == "include" and not around and (found := _HIP.search(token.text)):
            return found[1]
    return ""


def check_balance(source: CudaSource, name: str) -> None:
    """Reject a file with an unmatched bracket outside conditionals; called if the file does not compile.

    Raises:
        SourceError: the message names the bracket and its line.
    """
    stream = TokenStream(source.text)
    open_: list[tuple[str, int]] = []
    for _, token, around in nested(stream):
        if token.kind != "punct" or around:
            continue
        if token.text in _CLOSER:
            open_.append((token.text, token.start))
        elif token.text in _CLOSER.values():
            if not open_ or _CLOSER[open_[-1][0]] != token.text:
                line = stream.line(token.start)
                raise SourceError(f"{name}:{line}: the {token.text!r} closes nothing; correct the file")
            open_.pop()
    if open_:
        text, start = open_[-1]
        raise SourceError(f"{name}:{stream.line(start)}: the {text!r} is never closed; correct the file")
