"""Write `kernels/NAME/` and `studies/NAME.toml`; the user completes each `WRITE` and confirms each `# guess:`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from evokern.cuda_source import read
from evokern.errors import UsageError
from evokern.files import link_outside, read_text, write_bytes, write_text
from evokern.scaffold.declaration_text import kernel_py, reference_h, study_toml
from evokern.scaffold.draft import Draft, draft
from evokern.scaffold.source_text import with_definitions
from evokern.scaffold.torch_task.task import DraftedTask, draft_task, is_task
from evokern.scaffold.tuner.draft import draft_of
from evokern.scaffold.tuner.request import from_t1, is_script, is_t1
from evokern.scaffold.tuner.script import run_script

_TAKEN = "{target} already exists; choose another name with --name, or remove it"


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


def scaffold(
    path: Path,
    root: Path,
    name: str | None = None,
    entry: str | None = None,
    include: Sequence[Path] = (),
    define: Sequence[str] = (),
    *,
    trust: bool = False,
    arguments: Sequence[str] = (),
) -> Scaffold:
    """Write a kernel folder and a study for one kernel of a CUDA file, tuning script, T1 file or torch task.

    Args:
        path: input file; its kind is detected from its content.
        root: folder for `kernels/NAME/` and `studies/NAME.toml`.
        name: kernel name; None for the file's stem.
        entry: name of the `__global__` function, if the file has several.
        include: folders for the file's own headers, searched after the file's folder.
        define: macros that the build of a CUDA file defines, as NAME=VALUE.
        arguments: command-line arguments of a tuning script.
        trust: whether Python code may run: a tuning script up to `tune_kernel`, or a KernelBench task.

    Raises:
        SourceError: the file or its kernel cannot be read.
        UsageError: the folder or the study exists already, or the name is invalid.
    """
    name = kernel_name(path, root, name)
    text = _text_of(path)
    if define and (is_t1(text) or is_script(text) or is_task(text)):
        raise UsageError(f"{path} is not a CUDA file, so -D {define[0]} has no effect; omit it")
    if arguments and not is_script(text):
        raise UsageError(
            f"{path} is not a tuning script, so the arguments {' '.join(arguments)} have no use; omit them"
        )
    if is_t1(text):
        return write(draft_of(from_t1(text, path)), name, path.name, root)
    if is_script(text):
        if not trust:
            raise UsageError(
                f"{path} is a Python program, which would run up to its call to tune_kernel; inspect it and pass "
                "--trust"
            )
        return write(draft_of(run_script(path.resolve(), arguments, entry)), name, path.name, root)
    if is_task(text):
        if not trust:
            raise UsageError(
                f"{path} is a Python program, which would run in a subprocess; inspect it and pass --trust"
            )
        return write_task(draft_task(path, name), text, name, root)
    return write(draft(with_definitions(read(path, include), define), entry), name, path.name, root)


def _text_of(path: Path) -> str:
    """Return a file's text, from which its kind is detected; empty if the file cannot be read."""
    try:
        return read_text(path, "replace")
    except OSError:
        return ""


def kernel_name(path: Path, root: Path, name: str | None) -> str:
    """Return the name of a new kernel.

    Raises:
        UsageError: the name is invalid or taken.
    """
    name = name or re.sub(r"\W", "_", path.stem).lstrip("_0123456789").rstrip("_")
    if not name.isidentifier():
        raise UsageError(f"{name!r} is not a valid kernel name; use letters, digits and _ with --name")
    for target in (root / "kernels" / name, root / "studies" / f"{name}.toml"):
        if target.exists():
            raise UsageError(_TAKEN.format(target=target))
    return name


def write(made: Draft, name: str, origin: str, root: Path) -> Scaffold:
    """Write a draft as a kernel folder and a study.

    Args:
        made: draft to write.
        name: kernel name.
        origin: source of the draft, for its docstring.
        root: as in `scaffold`.
    """
    texts = {
        "kernel.cu": made.source,
        "kernel.py": kernel_py(name, origin, made),
        **({} if made.same_as_default else {"reference.h": reference_h(made)}),
    }
    written = _written(name, root, texts, study_toml(name, made), tuple(_to_confirm(made)), made.files)
    return replace(written, compiles=not made.compile_error)


def write_task(made: DraftedTask, task: str, name: str, root: Path) -> Scaffold:
    """Write a drafted torch task, with the task's file next to its declaration.

    Args:
        made: draft to write.
        task: text of the task's file.
        name: kernel name.
        root: as in `scaffold`.
    """
    texts = {"kernel.cu": made.kernel_cu, "kernel.py": made.kernel_py, "task.py": task}
    confirm = (
        "kernel.cu: write the kernel, or evaluate other sources with this signature using `evokern evaluate`",
        "kernel.py: write `launches` for your kernel, and confirm the number of operations per call",
        *made.notes,
    )
    return _written(name, root, texts, made.study, confirm)


def _written(
    name: str,
    root: Path,
    texts: Mapping[str, str],
    study: str,
    confirm: tuple[str, ...],
    data: Mapping[str, bytes] = MappingProxyType({}),
) -> Scaffold:
    """Write a kernel's files (name → text or data) and its study."""
    folder, study_path = root / "kernels" / name, root / "studies" / f"{name}.toml"
    if why := link_outside(folder) or link_outside(study_path.parent):
        raise UsageError(f"{why}; remove the link, or run the command in another folder")
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:  # created concurrently by another `init`
        raise UsageError(_TAKEN.format(target=folder)) from error
    study_path.parent.mkdir(exist_ok=True)
    files = {**{folder / file: text for file, text in texts.items()}, study_path: study}
    for target, text in files.items():
        write_text(target, text)
    for file, content in data.items():
        write_bytes(folder / file, content)
    return Scaffold(name, (*files, *(folder / file for file in data)), confirm)


def _reference_note(made: Draft) -> str:
    if not made.same_as_default:
        return "kernel.py: write `reference`; reference.h: write the same computation in double precision"
    if made.golden:
        return (
            "kernel.py: candidates are compared with the script's `answer` for its inputs, and elsewhere with the "
            "default candidate; write `reference` to check other inputs against a known result"
        )
    return (
        "kernel.py: candidates are only compared with the default candidate; write `reference` to check them against a "
        "known result"
    )


def _to_confirm(made: Draft) -> list[str]:
    plan = made.plan
    notes = [f"the source does not compile: {made.compile_error}"] if made.compile_error else []
    notes += made.faults
    notes.append(_reference_note(made))
    guessed = [tensor.name for tensor in made.tensors if tensor.why]
    notes.append("kernel.py: confirm shapes and roles of " + ", ".join(tensor.name for tensor in made.tensors))
    if guessed and len(guessed) < len(made.tensors):
        notes[-1] += f" (guesses: {', '.join(guessed)})"
    elif guessed:
        notes[-1] += f" ({'all are guesses' if len(guessed) > 1 else 'a guess'})"
    if plan.genes:
        notes.append("kernel.py: confirm the values of " + ", ".join(gene.name for gene in plan.genes))
    else:
        notes.append("kernel.cu: nothing is tunable yet; replace a number with a macro and declare it as a Parameter")
    if made.launch_guess:
        notes.append(f"kernel.py: confirm grid, block and shared memory in `launches`: {made.launch_guess}")
    numbers = [a.name for a in plan.arguments if not a.is_tensor and a.why]
    if numbers:
        notes.append("kernel.py: confirm the numbers passed for " + ", ".join(numbers))
    notes += made.notes
    notes.append("kernel.py: confirm the number of operations per call")
    if not made.same_as_default:
        notes.append("the study: confirm the problem")
    return notes
