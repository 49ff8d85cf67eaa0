"""Compiled programs on disk, addressed by everything that decides them.

The key is a digest of source, headers, options, entries, compiler version and architecture. A program is written to a
temporary file and renamed, so that readers in other processes see all of it or nothing. Reading touches the file, and
the files longest unread go first when the size cap is passed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evokern.compile.records import Program
from evokern.errors import UsageError

DEFAULT_CAP_BYTES = 1 << 30
"""Size cap of a cache whose user set none."""
_MAGIC = b"evokern program 2\n"
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
            UsageError: the folder cannot be created or written.
        """
        self.directory = directory
        try:
            (directory / "programs").mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=directory):
                pass
        except OSError as error:
            raise UsageError(
                f"cannot write the compile cache {directory}: {error.strerror}; "
                "set EVOKERN_CACHE to a folder that can be written, or to off"
            ) from error
        self._puts = 0

    def get(self, key: str) -> Program | None:
        """Return the program at an address, or None when it is not there (or was damaged)."""
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        digest, payload = data[len(_MAGIC) : len(_MAGIC) + 32], data[len(_MAGIC) + 32 :]
        if not data.startswith(_MAGIC) or hashlib.sha256(payload).digest() != digest:
            path.unlink(missing_ok=True)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        program: Program = pickle.loads(payload)
        return program

    def put(self, key: str, program: Program) -> None:
        """Keep a program. A full disk is no error: the program is compiled again next time."""
        payload = pickle.dumps(replace(program, seconds=0.0), protocol=5)
        path = self._path(key)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(exist_ok=True)
            temporary.write_bytes(_MAGIC + hashlib.sha256(payload).digest() + payload)
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
