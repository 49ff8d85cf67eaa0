"""Cache of compiled programs on disk, addressed by a digest of all compiler inputs.

The key is a digest of source, headers, options, entries, compiler version and architecture. A program is written to a
temporary file and renamed, so other processes read either the complete file or nothing. Reading a file updates its
modification time. When the cache exceeds its size limit, the least recently read files are removed.

A file contains one line of JSON, then machine code and PTX; reading it executes nothing. A digest of key and content
detects damage but not forgery. The cache therefore refuses folders and files that other users can write, because their
content would be launched on the GPU.
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
from evokern.files import write_text
from evokern.ownership import who_else_can_modify, why_foreign_state

DEFAULT_CAP_BYTES = 1 << 30
"""Default size limit of the cache."""
_MAGIC = b"evokern program 4\n"
_PUTS_PER_TRIM = 64


def default_directory() -> Path | None:
    """Return the cache folder: EVOKERN_CACHE or, if unset, the user's cache folder; None if EVOKERN_CACHE is `off`."""
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
    """Return the key of a program: a digest of everything that its compilation depends on."""
    parts = [source, sorted(headers.items()), list(options), list(entries), architecture, compiler]
    return hashlib.sha256(json.dumps(parts, ensure_ascii=True).encode()).hexdigest()


def _file(key: str, program: Program) -> bytes:
    """Return the content of a cache file: magic, digest, a line of JSON, machine code, PTX."""
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
    """Return the program in a cache file, or None if the content is damaged or belongs to another key."""
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
    except (ValueError, TypeError, KeyError, AttributeError):  # written by a version with other fields
        return None


def _content_digest(key: str, content: bytes) -> bytes:
    """Return a digest of key and content, which also detects a file stored under another key."""
    return hashlib.sha256(key.encode() + b"\n" + content).digest()


@dataclass(frozen=True)
class CacheInfo:
    """Contents and size limit of a cache."""

    directory: Path
    """Folder of the cache."""
    programs: int
    """Number of programs."""
    bytes: int
    """Total size of the programs."""
    cap_bytes: int
    """Size above which the least recently read programs are removed."""


class CompileCache:
    """A folder of compiled programs, shared by any number of processes."""

    def __init__(self, directory: Path) -> None:
        """Open a cache and create its folder if needed.

        Raises:
            UsageError: the folder cannot be created or written, or other users can write to it.
        """
        self.directory = directory
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            (directory / "programs").mkdir(mode=0o700, exist_ok=True)
            with tempfile.TemporaryFile(dir=directory):
                pass
        except OSError as error:
            raise UsageError(
                f"cannot write to the compile cache {directory}: {error.strerror}; "
                "set EVOKERN_CACHE to a writable folder, or to `off` to disable the cache"
            ) from error
        for folder in (directory.resolve(), directory / "programs"):
            if why := who_else_can_modify(folder):
                raise UsageError(
                    f"unsafe compile cache {directory}: its programs run on the GPU without further checks, {why}; "
                    "run `chmod go-w` on this folder, set EVOKERN_CACHE to your own folder, or set EVOKERN_CACHE=off"
                )
        self._puts = 0

    def get(self, key: str) -> Program | None:
        """Return the program with this key, or None if it is missing, damaged, or writable by another user."""
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
        """Store a program. A failed write, for example on a full disk, is ignored: the next run compiles it again."""
        path = self._path(key)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            temporary.unlink(missing_ok=True)  # left by a killed process with the same id
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
        """Size above which the least recently read programs are removed."""
        try:
            return int((self.directory / "cap_bytes").read_text())
        except (OSError, ValueError):
            return DEFAULT_CAP_BYTES

    def set_cap(self, cap_bytes: int) -> None:
        """Set the size limit, also for later processes, and trim the cache.

        Raises:
            UsageError: the limit is negative or cannot be written.
        """
        if cap_bytes < 0:
            raise UsageError(f"invalid cache size limit {cap_bytes}; use 0 or more bytes")
        try:
            write_text(self.directory / "cap_bytes", str(cap_bytes))
        except OSError as error:
            raise UsageError(f"cannot write to {self.directory / 'cap_bytes'}: {error.strerror}") from error
        self.trim()

    def info(self) -> CacheInfo:
        """Return the number, size and limit of the programs in the cache."""
        sizes = [size for _, size, _ in self._files()]
        return CacheInfo(self.directory, len(sizes), sum(sizes), self.cap_bytes)

    def clear(self) -> int:
        """Remove all programs and return their number."""
        count = 0
        for _, _, path in list(self._files()):
            path.unlink(missing_ok=True)
            count += 1
        return count

    def trim(self) -> None:
        """Remove the least recently read programs until the rest fits the size limit."""
        files = sorted(self._files())
        total, cap = sum(size for _, size, _ in files), self.cap_bytes
        for _, size, path in files:
            if total <= cap:
                return
            path.unlink(missing_ok=True)
            total -= size

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        for path in (self.directory / "programs").glob("*/*"):
            # Another process may be removing files.
            with contextlib.suppress(OSError):
                status = path.stat()
                yield status.st_mtime, status.st_size, path

    def _path(self, key: str) -> Path:
        return self.directory / "programs" / key[:2] / key[2:]


def default_cache() -> CompileCache | None:
    """Open the cache in `default_directory`; return None if the cache is disabled.

    Raises:
        UsageError: the folder cannot be created or written, or other users can write to it.
    """
    folder = default_directory()
    return None if folder is None else CompileCache(folder)
