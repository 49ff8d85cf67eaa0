"""Find kernels and studies: first in the working directory, then in the installed package.

Loading a kernel executes the `kernel.py` in its folder, which not every folder may do. A worker process finds
its kernel through a `WorkerContext`.

A folder below the working directory may run if only the user and root can write to it. The same must be true of its
files and of its parents up to the working directory (compare git's safe.directory). The package's own folders may run.
The user must trust any other folder once; that decision is stored together with the folder's owner.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from evokern.declaration.as_data.declared import declared_kernel, is_declared
from evokern.declaration.as_data.golden import with_values
from evokern.declaration.bounds.derived import with_derived_bounds
from evokern.declaration.kernel import Kernel, Problem, explained
from evokern.declaration.kernel_files import CODE, KernelContent
from evokern.declaration.loading import loading
from evokern.errors import KERNEL_CODE_EXCEPTIONS, EvokernError, KernelError, SpaceError, StudyError, suggestion
from evokern.files import is_file, is_folder, is_utf8, read_bytes, read_text
from evokern.hardware.profiles import Profile
from evokern.ownership import who_else_can_modify
from evokern.study.file import read_study
from evokern.study.settings import Study

PACKAGE = Path(__file__).resolve().parents[1]
PACKAGED = (PACKAGE / "_data" / "kernels", PACKAGE.parent / "kernels")
"""Folders of the packaged kernels: in the wheel, and in a checkout."""


def distrust_reason(folder: Path) -> str:
    """Return a clause that states why a folder's code is not trusted; empty if it is trusted."""
    folder = folder.resolve()
    if any(folder.is_relative_to(root) for root in PACKAGED) or _remembered(folder):
        return ""
    here = Path.cwd().resolve()
    if not folder.is_relative_to(here):
        return "outside the working directory"
    between = [folder, *folder.parents][: len(folder.parts) - len(here.parts) + 1]
    try:
        checked = [who_else_can_modify(path, within=path != folder) for path in (*reversed(between), *_code(folder))]
    except OSError as error:
        return f"and {folder} cannot be read ({error.strerror})"
    return next(filter(None, checked), "")


def is_trusted(folder: Path) -> bool:
    """Return whether a folder's code is trusted."""
    return not distrust_reason(folder)


def check_trusted(folder: Path) -> None:
    """Reject a folder whose code is not trusted.

    Raises:
        KernelError: the folder belongs to another user or is outside the working directory, and is not trusted.
    """
    if why := distrust_reason(folder):
        raise KernelError(f"{folder / 'kernel.py'} is untrusted code, {why}; inspect it, then pass --trust once")


def check_elsewhere(folder: Path, files: Iterable[Path]) -> None:
    """Reject headers that other users can write to, if the folder is trusted only because it belongs to the user.

    Raises:
        KernelError: another user can write to a header.
    """
    if any(folder.is_relative_to(root) for root in PACKAGED) or _remembered(folder):
        return
    for path in files:
        for place in (path.parent, path):
            if why := who_else_can_modify(place):
                raise KernelError(f"{path} is included by kernel {folder}, {why}; inspect it, then pass --trust once")


def remember_trust(folder: Path) -> None:
    """Record that the user trusts a folder's code; the record is valid until the folder's owner changes.

    Raises:
        KernelError: the trust file cannot be written.
    """
    if is_trusted(folder):
        return
    path = _trust_file()
    try:
        owner = folder.stat().st_uid
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "a", encoding="utf-8") as file:
            # JSON keeps any path on one line.
            file.write(json.dumps([str(folder.resolve()), owner]) + "\n")
    except OSError as error:
        raise KernelError(f"cannot remember in {path} that {folder} is trusted: {error.strerror}") from error


def _remembered(folder: Path) -> bool:
    """Return whether the file of trusted folders lists a folder with its current owner, or in the older format."""
    try:
        path = _trust_file()
        if any(who_else_can_modify(place) for place in (path.parent, path)):
            return False
        lines = read_text(path).split("\n")
        owner = folder.stat().st_uid
    except (OSError, UnicodeDecodeError, RuntimeError):  # RuntimeError: the home folder is unknown
        return False
    return str(folder) in lines or json.dumps([str(folder), owner]) in lines


def _trust_file() -> Path:
    state = os.environ.get("XDG_STATE_HOME", "")
    # A relative path is invalid (XDG Base Directory Specification) and would be in the working directory.
    base = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    return base / "evokern" / "trusted_folders"


def _code(folder: Path) -> Iterator[Path]:
    """Yield the code files of a folder, starting with `kernel.py`."""
    for path in (folder / "kernel.py", *sorted(path for path in folder.iterdir() if path.suffix in CODE)):
        yield path
        if path.is_symlink() and path.exists():
            yield path.resolve()


_LOGGER = logging.getLogger("evokern")
_said_hidden: set[Path] = set()
_said_name: set[Path] = set()
"""Folders for which the user was already warned that they hide a packaged kernel."""


def roots() -> tuple[Path, ...]:
    """Return the folders that may contain `kernels/` or `studies/`, in order of precedence."""
    candidates = [Path.cwd(), PACKAGE / "_data", PACKAGE.parent]
    return tuple(root for root in candidates if (root / "kernels").is_dir() or (root / "studies").is_dir())


def kernel_folders() -> dict[str, Path]:
    """Return all kernel folders by name; the working directory takes precedence over the package."""
    found: dict[str, Path] = {}
    for root in roots():
        for folder in sorted((root / "kernels").glob("*/")):
            if is_file(folder / "kernel.py"):
                found.setdefault(folder.name, folder.resolve())
    return found


def study_files() -> dict[str, Path]:
    """Return all study files by name; the working directory takes precedence over the package."""
    found: dict[str, Path] = {}
    for root in roots():
        for path in sorted((root / "studies").glob("*.toml")):
            found.setdefault(path.stem, path.resolve())
    return found


def find_kernel_folder(name: str, relative_to: Path | None = None) -> Path:
    """Return a kernel's folder from its name or a path.

    Args:
        name: name of a kernel, or path to its folder, its `kernel.py` or its source file.
        relative_to: folder of the study. Relative paths are resolved in the working directory, and then in this
            folder. Unknown names are also looked up in the `kernels/` folder next to it.

    Raises:
        KernelError: there is no such kernel.
    """
    folders = kernel_folders()
    looks_like_path = "/" in name or name.startswith((".", "~")) or name not in folders
    if looks_like_path:
        for base in (Path.cwd(), *([relative_to] if relative_to else [])):
            path = base / _expand_home(name)
            folder = path.parent if is_file(path) else path
            if is_file(folder / "kernel.py"):
                return folder.resolve()
            if is_folder(folder) and "/" in name:
                raise KernelError(f"{folder} has no kernel.py; create one with `evokern init FILE.cu`")
    if name in folders:
        return folders[name]
    own_folder = relative_to.parent / "kernels" / name if relative_to and "/" not in name else None
    if own_folder and is_file(own_folder / "kernel.py"):
        return own_folder.resolve()
    for root in roots():
        if name and is_folder(root / "kernels" / name):
            raise KernelError(f"{root / 'kernels' / name} has no kernel.py; create one with `evokern init FILE.cu`")
    if name in study_files():
        raise KernelError(f"{name!r} is a study, but a kernel is needed: {', '.join(folders)}")
    raise KernelError(f"there is no kernel {name!r}: {_file_hint(name) or suggestion(name, folders) or _NO_KERNELS}")


def _expand_home(name: str) -> Path:
    """Return a path with `~` expanded, unless the user is unknown."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def load_kernel(folder: Path, content: KernelContent | None = None, *, keep: bool = False) -> Kernel:
    """Run a folder's `kernel.py` and return its `kernel`.

    The executed text is the text that the digest covers; `__pycache__` is not used, because it may contain another.

    Args:
        folder: the kernel's folder.
        content: content to use instead of the current files; without files, only its headers outside the kernel apply.
        keep: whether the kernel keeps the content that its files have now, so that later edits have no effect on it.

    Raises:
        KernelError: the file is missing, is a link to a file outside its folder, raises an exception, or has no
            module-level `kernel`.
    """
    if content is not None and is_declared(content):
        return declared_kernel(folder, content)
    path = folder / "kernel.py"
    if not is_utf8(path):
        raise KernelError(f"the path {folder} is not UTF-8, so it cannot be stored; rename the folder")
    given = {file.path.absolute(): file.content for file in content.files} if content else {}
    text = given[folder.resolve() / "kernel.py"] if given else _declaration(path)
    name = f"_evokern_kernel_{folder.name}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise KernelError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with loading(folder, given):
            exec(compile(text, str(path), "exec", dont_inherit=True), module.__dict__)
    except (KernelError, SpaceError) as error:
        if str(path) in str(error):
            raise
        raise type(error)(f"{path}{_line_in(error, path).rstrip(',')}: {error}") from error
    except EvokernError:
        raise
    except KERNEL_CODE_EXCEPTIONS as error:
        line = _line_in(error, path)
        raise KernelError(f"{path}{line} {explained(error)}") from error
    kernel = getattr(module, "kernel", None)
    if not isinstance(kernel, Kernel):
        raise KernelError(f"{path} has no module-level `kernel = Kernel(...)`")
    loaded = replace(kernel, folder=folder.resolve(), content=None)
    if given:
        loaded = replace(loaded, content=content)
        return _completed(loaded)
    if not is_file(folder / kernel.source):
        raise KernelError(f"{folder} lacks {kernel.source}, the source file named in kernel.py")
    now = loaded.read_content()
    if text not in [file.content for file in now.files if file.name == "kernel.py"]:
        raise KernelError(f"{path} changed while it was read; run the command again")
    if content:
        now = KernelContent(now.files, content.outside)
    return _completed(replace(loaded, content=now) if keep or content else loaded)


def _completed(kernel: Kernel) -> Kernel:
    """Return a loaded kernel with golden values and derived bounds."""
    kernel = with_values(kernel)
    return kernel if kernel.workload.tolerance else with_derived_bounds(kernel)


def _declaration(path: Path) -> bytes:
    """Return the content of a `kernel.py`.

    Raises:
        KernelError: the file is missing, cannot be read, or is a link to a file outside its folder.
    """
    if not is_file(path):
        raise KernelError(f"{path.parent} has no kernel.py")
    real = path.resolve()
    if real.parent != path.parent.resolve():
        raise KernelError(f"{path} is a link to {real}, outside its folder; copy the file into the folder")
    try:
        return read_bytes(real)
    except OSError as error:
        raise KernelError(f"cannot read {path}: {error.strerror}") from error


@dataclass(frozen=True)
class WorkerContext:
    """Data, sent as a pickle, that a worker process needs for evaluating a study's candidates."""

    folder: Path
    """Folder of the kernel."""
    problems: tuple[Problem, ...]
    """Problems of the study, in order."""
    profile: Profile
    """Chip profile: resource limits, compilation target, peak rates."""
    content: KernelContent | None = field(default=None, repr=False)
    """Content of the kernel when the study's session began; None for the current files of the folder."""

    @classmethod
    def of(cls, kernel: Kernel, problems: tuple[Problem, ...], profile: Profile) -> WorkerContext:
        """Return the context of a loaded kernel, including the content of its files."""
        return cls(kernel.folder, problems, profile, kernel.content)

    def kernel(self) -> Kernel:
        """Load the kernel.

        Raises:
            KernelError: `kernel.py` is missing or raises an exception.
        """
        return load_kernel(self.folder, self.content)


def _line_in(error: BaseException, path: Path) -> str:
    line = 0
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == str(path):
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return f", line {line}," if line else ""


_NO_KERNELS = "no kernels/ folder found here"


def _file_hint(name: str) -> str:
    """Return what to do with a CUDA file; empty for other names."""
    if Path(name).suffix not in (".cu", ".cuh"):
        return ""
    return f"it is a CUDA file; draft a kernel folder with `evokern init {name}`, or run `evokern sanitize {name}`"


def find_kernel(name: str, relative_to: Path | None = None, *, trust: bool = False) -> Kernel:
    """Find and load a kernel.

    Raises:
        KernelError: the kernel is missing or invalid, or its folder is not trusted.
    """
    folder = find_kernel_folder(name, relative_to)
    if trust:
        remember_trust(folder)
    check_trusted(folder)
    if "/" not in name:
        _warn_hidden(folder)
    kernel = load_kernel(folder, keep=True)
    check_elsewhere(folder, (file.path for file in kernel.files() if not file.path.is_relative_to(folder)))
    if kernel.name != folder.name and folder not in _said_name:
        _said_name.add(folder)
        text = "%s names the kernel %r, but its folder is %r; commands and studies use the folder's name"
        _LOGGER.warning(text, folder / "kernel.py", kernel.name, folder.name)
    return kernel


def _warn_hidden(folder: Path) -> None:
    """Warn once if a folder in the working directory hides a packaged kernel with different code."""
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
        StudyError: the study is missing or invalid.
    """
    path = _expand_home(name)
    if path.suffix == ".toml" or "/" in name:
        if not is_file(path):
            raise StudyError(f"there is no study file {name}; `evokern list` shows the available studies")
        return read_study(path)
    known = study_files()
    if name not in known:
        if name in kernel_folders():
            raise StudyError(f"{name!r} is a kernel, but a study is needed: {_studies_of(name)}")
        raise StudyError(
            f"there is no study {name!r}: "
            f"{_file_hint(name) or suggestion(name, known) or 'no studies/ folder found here'}"
        )
    return read_study(known[name])


def _studies_of(kernel: str) -> str:
    """Return the names of a kernel's studies, or instructions for creating one."""
    found = []
    for name, path in study_files().items():
        try:
            if read_study(path).kernel == kernel:
                found.append(name)
        except StudyError:  # `evokern list` reports it
            continue
    return ", ".join(found) or f'none exists yet; create studies/{kernel}.toml with kernel = "{kernel}"'


def kernel_of(study: Study, *, trust: bool = False) -> Kernel:
    """Find and load the kernel of a study; a relative path may be relative to the folder of the study's file."""
    relative_to = study.path.parent if study.path else None
    return find_kernel(study.kernel, relative_to, trust=trust)
