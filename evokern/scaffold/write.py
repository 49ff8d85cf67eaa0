"""Read the input of `init`, and write `kernels/NAME/` and `studies/NAME.toml` for it.

The user completes each `TODO` and confirms each `guess`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from evokern.cuda_source import CudaSource, read
from evokern.cuda_source.lexer import TokenStream, without_comments
from evokern.cuda_source.preprocessor import nested
from evokern.errors import SourceError, UsageError
from evokern.files import is_file, link_outside, read_bytes, write_bytes, write_text
from evokern.scaffold.declaration_text import kernel_py, reference_h, study_toml
from evokern.scaffold.draft import Draft, draft
from evokern.scaffold.source_text import with_definitions
from evokern.scaffold.torch_task.task import DraftedTask, draft_task, is_task
from evokern.scaffold.tuner.draft import draft_of
from evokern.scaffold.tuner.request import is_script
from evokern.scaffold.tuner.t1 import from_t1, is_t1, run_script

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


_TAKEN = "{target} already exists; choose another name with --name, or replace it with --force"


_MARK = re.compile(r"(?:#|//) (TODO|guess): (.*)")
"""A mark in a draft, and its text."""
_OWN = ("reference.h", "reference.py", "task.py", "golden.npz")
"""Files that some drafts have, and others of the same name lack."""


@dataclass(frozen=True)
class Wanted:
    """Wishes of the user for a draft."""

    name: str | None = None
    """Kernel name; None for the file's stem."""
    entry: str | None = None
    """Name of the `__global__` function, if the file has several."""
    include: Sequence[Path] = ()
    """Folders for the file's own headers, searched after the file's folder."""
    define: Sequence[str] = ()
    """Macros that the build of a CUDA file defines, as NAME=VALUE."""
    arguments: Sequence[str] = ()
    """Command-line arguments of a tuning script."""
    trust: bool = False
    """Whether Python code may run: a tuning script up to `tune_kernel`, or a KernelBench task."""
    force: bool = False
    """Whether to replace an existing draft."""
    complete: Callable[[Draft], Draft] | None = None
    """Function that completes the draft, with a reference and an example; None without them."""


@dataclass(frozen=True)
class Scaffold:
    """Written files, and the steps that remain for the user."""

    name: str
    """Name of the kernel."""
    files: tuple[Path, ...]
    """Paths of the written files."""
    confirm: tuple[str, ...]
    """Points for the user to complete or confirm, one sentence each."""
    compiles: bool = True
    """Whether the source compiles; otherwise the first point is the compiler's first error."""


def scaffold(path: Path, root: Path, wanted: Wanted) -> Scaffold:
    """Write a kernel folder and a study for one kernel of a CUDA file, tuning script, T1 file or torch task.

    Args:
        path: input file; its kind is detected from its content.
        root: folder for `kernels/NAME/` and `studies/NAME.toml`.
        wanted: wishes of the user.

    Raises:
        SourceError: the file or its kernel cannot be read.
        UsageError: the folder or the study exists already, or the name is invalid.
    """
    text = text_of(path)
    name = kernel_name(path, root, wanted)
    if wanted.define and (is_t1(text) or is_script(text) or is_task(text)):
        raise UsageError(f"{path} is not a CUDA file, so -D {wanted.define[0]} has no effect; omit it")
    if wanted.arguments and not is_script(text):
        given = " ".join(wanted.arguments)
        raise UsageError(f"{path} is not a tuning script, so the arguments {given} have no use; omit them")
    if is_task(text):
        _check_trust(path, "would run in a subprocess", wanted)
        if wanted.complete is not None:
            raise UsageError(
                f"{path} is a KernelBench task with its own reference and sizes; omit --reference and --example"
            )
        return write_task(draft_task(path, name), text, name, root, force=wanted.force)
    if is_t1(text):
        made = draft_of(from_t1(text, path))
    elif is_script(text):
        _check_trust(path, "would run up to its call to tune_kernel", wanted)
        made = draft_of(run_script(path.resolve(), wanted.arguments, wanted.entry))
    else:
        check_language(path, text)
        source = with_definitions(read(path, wanted.include), wanted.define)
        made = draft(source, wanted.entry)
        if made.compile_error:
            check_balance(source, path.name)
    made = made if wanted.complete is None else wanted.complete(made)
    made = made if made.stated is None else replace(made, same_as_default=False)
    return write(made, name, path.name, root, force=wanted.force)


def _check_trust(path: Path, runs: str, wanted: Wanted) -> None:
    if not wanted.trust:
        raise UsageError(f"{path} is a Python program, which {runs}; inspect it and pass --trust")


def kernel_name(path: Path, root: Path, wanted: Wanted) -> str:
    """Return the name of a new kernel.

    Raises:
        UsageError: the name is invalid or taken.
    """
    name = wanted.name or re.sub(r"\W", "_", path.stem).lstrip("_0123456789").rstrip("_")
    if not name.isidentifier():
        raise UsageError(f"{name!r} is not a valid kernel name; use letters, digits and _ with --name")
    for target in (root / "kernels" / name, root / "studies" / f"{name}.toml"):
        if target.exists() and not wanted.force:
            raise UsageError(_TAKEN.format(target=target))
    return name


def write(made: Draft, name: str, origin: str, root: Path, *, force: bool = False) -> Scaffold:
    """Write a draft as a kernel folder and a study.

    Args:
        made: draft to write.
        name: kernel name.
        origin: source of the draft, for its docstring.
        root: as in `scaffold`.
        force: whether to replace an existing draft.
    """
    texts = {"kernel.cu": made.source, "kernel.py": kernel_py(name, origin, made)}
    if made.stated is not None:
        texts |= made.stated.files
    elif not made.same_as_default:
        texts["reference.h"] = reference_h(made)
    notes = [f"the source does not compile: {made.compile_error}"] if made.compile_error else []
    notes += made.faults
    if made.same_as_default:
        notes.append(_reference_note(made))
    if not made.plan.genes:
        notes.append("kernel.cu: nothing is tunable yet; replace a number with a macro and declare it as a Parameter")
    notes += made.notes
    written = _written(name, root, texts, study_toml(name, made), notes, force=force, data=made.files)
    return replace(written, compiles=not made.compile_error)


def write_task(made: DraftedTask, task: str, name: str, root: Path, *, force: bool = False) -> Scaffold:
    """Write a drafted torch task, with the task's file next to its declaration.

    Args:
        made: draft to write.
        task: text of the task's file.
        name: kernel name.
        root: as in `scaffold`.
        force: whether to replace an existing draft.
    """
    texts = {"kernel.cu": made.kernel_cu, "kernel.py": made.kernel_py, "task.py": task}
    return _written(name, root, texts, made.study, made.notes, force=force)


def _written(
    name: str,
    root: Path,
    texts: Mapping[str, str],
    study: str,
    notes: Sequence[str],
    *,
    force: bool,
    data: Mapping[str, bytes] = MappingProxyType({}),
) -> Scaffold:
    """Write a kernel's files (name → text or data) and its study, and remove what an earlier draft left."""
    folder, study_path = root / "kernels" / name, root / "studies" / f"{name}.toml"
    if why := link_outside(folder) or link_outside(study_path.parent):
        raise UsageError(f"{why}; remove the link, or run the command in another folder")
    try:
        folder.mkdir(parents=True, exist_ok=force)
    except FileExistsError as error:  # a file, or created concurrently by another `init`
        remedy = f"{folder} is a file; remove it" if force else _TAKEN.format(target=folder)
        raise UsageError(remedy) from error
    study_path.parent.mkdir(exist_ok=True)
    for left in (folder / old for old in _OWN if old not in texts and old not in data):
        if is_file(left):
            left.unlink()
    files = {**{folder / file: text for file, text in texts.items()}, study_path: study}
    for target, text in files.items():
        write_text(target, text)
    for file, content in data.items():
        write_bytes(folder / file, content)
    return Scaffold(name, (*files, *(folder / file for file in data)), tuple(_to_do(files, root, notes)))


def _reference_note(made: Draft) -> str:
    if made.golden:
        return (
            "kernel.py: candidates are compared with the script's `answer` for its inputs, and elsewhere with the "
            "default candidate; write `reference` to check other inputs against a known result"
        )
    return (
        "kernel.py: candidates are only compared with the default candidate; write `reference` to check them against a "
        "known result"
    )


def _to_do(files: Mapping[Path, str], root: Path, notes: Sequence[str]) -> Iterator[str]:
    """Yield the steps that remain: notes, then each `TODO` with file and line, then the guesses by reason."""
    yield from notes
    guesses: dict[tuple[Path, str], list[tuple[int, str]]] = {}
    for path, text in files.items():
        for number, line in enumerate(text.split("\n"), 1):
            if (mark := _MARK.search(line)) is None:
                continue
            if mark[1] == "TODO":
                yield f"{path.relative_to(root)}:{number}: {mark[2]}"
                continue
            code = line[: mark.start()]
            keyword = re.match(r"\s*(\w+)\s*=", code)
            subject = keyword or re.search(r'"([^"]+)"', code) or re.search(r"(\w+)", code)
            named = subject[1] if subject else "grid and block"
            guesses.setdefault((path, mark[2]), []).append((number, named))
    for (path, why), places in guesses.items():
        lines = ", ".join(str(number) for number, _ in places)
        names = ", ".join(dict.fromkeys(name for _, name in places))
        yield f"{path.relative_to(root)}:{lines}: confirm {names}: {why}"
