"""Where kernels and studies are found: the working directory, then the installed package.

A kernel folder's `kernel.py` is code that runs: whose may, stands in `evokern.study.trust`. A worker process finds its
kernel by a `WorkerContext`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from evokern.declaration.kernel import Kernel, Problem
from evokern.declaration.kernel_files import CODE
from evokern.errors import RAISED, EvokernError, KernelError, StudyError, nearest
from evokern.files import is_file, is_folder, read_bytes
from evokern.hardware.profiles import Profile
from evokern.study.file import read_study
from evokern.study.settings import Study
from evokern.study.trust import PACKAGE, PACKAGED, check_elsewhere, check_trusted, remember_trust

_LOGGER = logging.getLogger("evokern")
_said_hidden: set[Path] = set()
"""Folders that were said to hide one of the package's."""


def roots() -> tuple[Path, ...]:
    """Return the folders that may hold `kernels/` and `studies/`, in order of precedence."""
    candidates = [Path.cwd(), PACKAGE / "_data", PACKAGE.parent]
    return tuple(root for root in candidates if (root / "kernels").is_dir() or (root / "studies").is_dir())


def kernel_folders() -> dict[str, Path]:
    """Return every kernel folder by name; the working directory hides the package's of the same name."""
    found: dict[str, Path] = {}
    for root in roots():
        for folder in sorted((root / "kernels").glob("*/")):
            if is_file(folder / "kernel.py"):
                found.setdefault(folder.name, folder.resolve())
    return found


def study_files() -> dict[str, Path]:
    """Return every study file by name; the working directory hides the package's of the same name."""
    found: dict[str, Path] = {}
    for root in roots():
        for path in sorted((root / "studies").glob("*.toml")):
            found.setdefault(path.stem, path.resolve())
    return found


def find_kernel_folder(name: str, relative_to: Path | None = None) -> Path:
    """Return a kernel's folder from a name or a path.

    Args:
        name: a kernel's name, its folder, or its `kernel.py` or source file.
        relative_to: folder of the study that names it: a relative path may start there as well as in the working
            directory, and a name that is known nowhere else is looked for in the `kernels/` next to it.

    Raises:
        KernelError: there is no such kernel.
    """
    folders = kernel_folders()
    looks_like_path = "/" in name or name.startswith((".", "~")) or name not in folders
    if looks_like_path:
        for base in (Path.cwd(), *([relative_to] if relative_to else [])):
            path = base / _of_home(name)
            folder = path.parent if is_file(path) else path
            if is_file(folder / "kernel.py"):
                return folder.resolve()
            if is_folder(folder) and "/" in name:
                raise KernelError(f"{folder} has no kernel.py; `evokern init FILE.cu` writes one")
    if name in folders:
        return folders[name]
    own_folder = relative_to.parent / "kernels" / name if relative_to and "/" not in name else None
    if own_folder and is_file(own_folder / "kernel.py"):
        return own_folder.resolve()
    for root in roots():
        if name and is_folder(root / "kernels" / name):
            raise KernelError(f"{root / 'kernels' / name} has no kernel.py; `evokern init FILE.cu` writes one")
    if name in study_files():
        raise KernelError(f"{name!r} is a study, and this takes a kernel: {', '.join(folders)}")
    raise KernelError(f"there is no kernel {name!r}: {nearest(name, folders) or 'no kernels/ folder found here'}")


def _of_home(name: str) -> Path:
    """Return a path whose `~` is the user's own folder; one of a user who is not known stands for itself."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def load_kernel(folder: Path) -> Kernel:
    """Run a folder's `kernel.py` and return its `kernel`.

    What runs is the text that the digest is over: no `__pycache__` is read, whose file may be of another text.

    Raises:
        KernelError: the file is missing, leads out of its folder, raises, or has no module-level `kernel`.
    """
    path = folder / "kernel.py"
    text = _declaration(path)
    name = f"_evokern_kernel_{folder.name}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise KernelError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        exec(compile(text, str(path), "exec", dont_inherit=True), module.__dict__)
    except EvokernError:
        raise
    except RAISED as error:
        line = _line_in(error, path)
        raise KernelError(f"{path}{line} raised {type(error).__name__}: {error}") from error
    kernel = getattr(module, "kernel", None)
    if not isinstance(kernel, Kernel):
        raise KernelError(f"{path} declares no module-level `kernel = Kernel(...)`")
    if not is_file(folder / kernel.source):
        raise KernelError(f"{folder} lacks {kernel.source}, the source that its kernel.py names")
    loaded = replace(kernel, folder=folder.resolve())
    if text not in [file.content for file in loaded.files() if file.name == "kernel.py"]:
        raise KernelError(f"{path} changed while it was read; run the command again")
    return loaded


def _declaration(path: Path) -> bytes:
    """Return the text of a `kernel.py`.

    Raises:
        KernelError: there is none, it cannot be read, or it is a link to a file outside its folder.
    """
    if not is_file(path):
        raise KernelError(f"{path.parent} has no kernel.py")
    real = path.resolve()
    if real.parent != path.parent.resolve():
        raise KernelError(f"{path} is a link to {real}, outside its folder; put the file itself there")
    try:
        return read_bytes(real)
    except OSError as error:
        raise KernelError(f"cannot read {path}: {error.strerror}") from error


@dataclass(frozen=True)
class WorkerContext:
    """What a process needs to know of a study before it can work on a candidate: it travels there as it is."""

    folder: Path
    """The kernel's folder."""
    problems: tuple[Problem, ...]
    """The study's problems, in order."""
    profile: Profile
    """The chip: limits that a candidate must keep, what to compile for, peak rates."""

    def kernel(self) -> Kernel:
        """Load the kernel.

        Raises:
            KernelError: its `kernel.py` raises, or is gone.
        """
        return load_kernel(self.folder)


def _line_in(error: BaseException, path: Path) -> str:
    line = 0
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == str(path):
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return f", line {line}," if line else ""


def find_kernel(name: str, relative_to: Path | None = None, *, trust: bool = False) -> Kernel:
    """Find and load a kernel.

    Raises:
        KernelError: there is none, it is unsound, or its folder is not trusted yet.
    """
    folder = find_kernel_folder(name, relative_to)
    if trust:
        remember_trust(folder)
    check_trusted(folder)
    if "/" not in name:
        _say_hidden(folder)
    kernel = load_kernel(folder)
    check_elsewhere(folder, (file.path for file in kernel.files() if not file.path.is_relative_to(folder)))
    return kernel


def _say_hidden(folder: Path) -> None:
    """Say, once, that a folder of the working directory stands for one of the package's that has another code."""
    for root in PACKAGED:
        packaged = root / folder.name
        if folder.is_relative_to(root) or folder in _said_hidden:
            return
        if is_file(packaged / "kernel.py") and not _same_files(folder, packaged):
            _said_hidden.add(folder)
            _LOGGER.warning("%s hides the kernel %s that comes with evokern (%s)", folder, folder.name, packaged)
            return


def _same_files(one: Path, two: Path) -> bool:
    first, second = (
        {path.name: read_bytes(path) for path in folder.iterdir() if path.suffix in CODE and is_file(path)}
        for folder in (one, two)
    )
    return first == second


def find_study(name: str) -> Study:
    """Find and read a study from a name or a path to its TOML file.

    Raises:
        StudyError: there is none, or it is unsound.
    """
    path = _of_home(name)
    if path.suffix == ".toml" or "/" in name:
        if not is_file(path):
            raise StudyError(f"there is no study file {name}; `evokern list` names the studies that there are")
        return read_study(path)
    known = study_files()
    if name not in known:
        if name in kernel_folders():
            raise StudyError(f"{name!r} is a kernel, and this takes a study: {_studies_of(name)}")
        raise StudyError(f"there is no study {name!r}: {nearest(name, known) or 'no studies/ folder found here'}")
    return read_study(known[name])


def _studies_of(kernel: str) -> str:
    """Return the names of the studies that search a kernel, or how to get one."""
    found = []
    for name, path in study_files().items():
        try:
            if read_study(path).kernel == kernel:
                found.append(name)
        except StudyError:  # `evokern list` says what is wrong with it
            continue
    return ", ".join(found) or f'none searches it yet; write one, studies/{kernel}.toml, with kernel = "{kernel}"'


def kernel_of(study: Study, *, trust: bool = False) -> Kernel:
    """Find and load the kernel that a study names; a relative path may start from the study's file."""
    relative_to = study.path.parent if study.path else None
    return find_kernel(study.kernel, relative_to, trust=trust)
