"""Compiled programs on disk, addressed by everything that decides them.

The key is a digest of source, headers, options, entries, compiler version and architecture. A program is written to a
temporary file and renamed, so that readers in other processes see all of it or nothing. Reading touches the file, and
the files longest unread go first when the size cap is passed.

A file holds a line of JSON, then machine code and PTX as they are: reading it runs nothing. A digest over address and
content finds damage, and no forgery, so that nothing is read or kept where others may write: what lies there would be
launched on the GPU.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from evokern.compile.records import EntryUse, Program
from evokern.errors import UsageError
from evokern.ownership import why_foreign, why_foreign_state

DEFAULT_CAP_BYTES = 1 << 30
"""Size cap of a cache whose user set none."""
_MAGIC = b"evokern program 4\n"
_PUTS_PER_TRIM = 64


def default_directory() -> Path | None:
    """Return where programs are kept: EVOKERN_CACHE, else the user's cache folder; None when EVOKERN_CACHE is `off`."""
    chosen = os.environ.get("EVOKERN_CACHE", "")
    if chosen.lower() == "off":
        return None
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "evokern"


def program_key(
    source: str,
    headers: Mapping[str, str],
    options: Sequence[str],
    entries: Sequence[str],
    architecture: str,
    compiler: str,
) -> str:
    """Return the address of a program: a digest of everything that decides it."""
    parts = [source, sorted(headers.items()), list(options), list(entries), architecture, compiler]
    return hashlib.sha256(json.dumps(parts, ensure_ascii=True).encode()).hexdigest()


def _file(key: str, program: Program) -> bytes:
    """Return a cache file's content: magic, digest, a line of JSON, machine code, PTX."""
    ptx = program.ptx.encode("utf-8", "surrogatepass")
    head = {
        "lowered": dict(program.lowered),
        "uses": {name: asdict(use) for name, use in program.uses.items()},
        "log": program.log,
        "constants": list(program.constants),
        "cubin_bytes": len(program.cubin),
        "ptx_bytes": len(ptx),
    }
    content = json.dumps(head).encode() + b"\n" + program.cubin + ptx
    return _MAGIC + _content_digest(key, content) + content


def _program(key: str, data: bytes) -> Program | None:
    """Return the program of a cache file's content, None where that is none of this address."""
    start = len(_MAGIC) + hashlib.sha256().digest_size
    content = data[start:]
    if not data.startswith(_MAGIC) or _content_digest(key, content) != data[len(_MAGIC) : start]:
        return None
    line, _, code = content.partition(b"\n")
    try:
        head = json.loads(line)
        cubin, ptx = code[: head["cubin_bytes"]], code[head["cubin_bytes"] :]
        if len(ptx) != head["ptx_bytes"]:
            return None
        uses = {name: EntryUse(**use) for name, use in head["uses"].items()}
        text = ptx.decode("utf-8", "surrogatepass")
        return Program(cubin, dict(head["lowered"]), uses, head["log"], text, tuple(head["constants"]))
    except (ValueError, TypeError, KeyError, AttributeError):  # of a version that keeps other facts
        return None


def _content_digest(key: str, content: bytes) -> bytes:
    """The address counts, so that a file at another address is damage as well."""
    return hashlib.sha256(key.encode() + b"\n" + content).digest()


@dataclass(frozen=True)
class CacheInfo:
    """What a cache holds."""

    directory: Path
    """Where it is."""
    programs: int
    """Number of programs."""
    bytes: int
    """Their size."""
    cap_bytes: int
    """Size above which the programs longest unread are dropped."""


class CompileCache:
    """A folder of compiled programs, shared by any number of processes."""

    def __init__(self, directory: Path) -> None:
        """Open a cache, creating its folder.

        Raises:
            UsageError: the folder cannot be created or written, or others may write it.
        """
        self.directory = directory
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            (directory / "programs").mkdir(mode=0o700, exist_ok=True)
            with tempfile.TemporaryFile(dir=directory):
                pass
        except OSError as error:
            raise UsageError(
                f"cannot write the compile cache {directory}: {error.strerror}; "
                "set EVOKERN_CACHE to a folder that can be written, or to off"
            ) from error
        for folder in (directory.resolve(), directory / "programs"):
            if why := why_foreign(folder):
                raise UsageError(
                    f"the programs in the compile cache {directory} would be launched as they are, {why}; "
                    "`chmod go-w` it, or set EVOKERN_CACHE to a folder of your own, or to off"
                )
        self._puts = 0

    def get(self, key: str) -> Program | None:
        """Return the program at an address, or None when it is not there, was damaged, or is somebody else's."""
        path = self._path(key)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as file:
                own = not why_foreign_state(os.fstat(descriptor), path)
                data = file.read() if own else b""
        except OSError:
            return None
        program = _program(key, data)
        if program is None:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return program

    def put(self, key: str, program: Program) -> None:
        """Keep a program. A full disk is no error: the program is compiled again next time."""
        path = self._path(key)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            temporary.unlink(missing_ok=True)  # of a process of this number that was killed
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(_file(key, program))
            temporary.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            return
        self._puts += 1
        if self._puts % _PUTS_PER_TRIM == 0:
            self.trim()

    @property
    def cap_bytes(self) -> int:
        """Size above which the programs longest unread are dropped."""
        try:
            return int((self.directory / "cap_bytes").read_text())
        except (OSError, ValueError):
            return DEFAULT_CAP_BYTES

    def set_cap(self, cap_bytes: int) -> None:
        """Set the size cap, for every later process too, and trim.

        Raises:
            UsageError: the cap is negative or cannot be written.
        """
        if cap_bytes < 0:
            raise UsageError(f"the cache's size cap cannot be {cap_bytes}; give a number of bytes of at least 0")
        try:
            (self.directory / "cap_bytes").write_text(str(cap_bytes))
        except OSError as error:
            raise UsageError(f"cannot write {self.directory / 'cap_bytes'}: {error.strerror}") from error
        self.trim()

    def info(self) -> CacheInfo:
        """Return what the cache holds."""
        sizes = [size for _, size, _ in self._files()]
        return CacheInfo(self.directory, len(sizes), sum(sizes), self.cap_bytes)

    def clear(self) -> int:
        """Drop every program and return how many there were."""
        count = 0
        for _, _, path in list(self._files()):
            path.unlink(missing_ok=True)
            count += 1
        return count

    def trim(self) -> None:
        """Drop the programs longest unread until the rest fits the cap."""
        files = sorted(self._files())
        total, cap = sum(size for _, size, _ in files), self.cap_bytes
        for _, size, path in files:
            if total <= cap:
                return
            path.unlink(missing_ok=True)
            total -= size

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        for path in (self.directory / "programs").glob("*/*"):
            # Another process may trim at the same time.
            with contextlib.suppress(OSError):
                status = path.stat()
                yield status.st_mtime, status.st_size, path

    def _path(self, key: str) -> Path:
        return self.directory / "programs" / key[:2] / key[2:]


def default_cache() -> CompileCache | None:
    """Open the cache in `default_directory`; None where none is kept.

    Raises:
        UsageError: the folder cannot be created or written, or others may write it.
    """
    folder = default_directory()
    return None if folder is None else CompileCache(folder)
