"""What a sweep keeps beside its studies: which slices were decided and what came of them, and who has the folder.

A decision is on disk before its slice begins, so that a sweep that goes on takes the same one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from evokern.errors import StoreError
from evokern.files import is_file, read_text

FILE = "sweep.json"
"""The file, in the sweep's folder."""
LOCK = "sweep.lock"
"""The file whose lock says who has the folder."""
VERSION = 1
"""Of the file."""
_held: set[Path] = set()
"""Folders that this process has: POSIX locks do not keep a process from itself."""


@dataclass(frozen=True)
class SweepSlice:
    """One decision: a study goes on up to a number of trials."""

    study: str
    """Name of the study."""
    first: int
    """Evaluated trials when it was decided."""
    last: int | None
    """Evaluated trials at which it pauses; None where the study's own end comes before."""
    why: str
    """Why this study."""
    before_us: float | None
    """Its best when it was decided, µs; None without one."""
    before_s: float
    """Its study time then, seconds."""
    after_us: float | None = None
    """Its best after, µs."""
    seconds: float | None = None
    """How long the slice took; None until it is over."""

    @property
    def rate(self) -> float:
        """Improvement per second: log(best before / best after) / seconds.

        Infinite for the first right candidate; 0 where nothing right is known, or the best was refuted meanwhile.
        """
        if self.after_us is None or self.seconds is None:
            return 0.0
        if self.before_us is None:
            return math.inf
        return max(0.0, math.log(self.before_us / self.after_us)) / max(self.seconds, 1e-3)


@dataclass
class Journal:
    """The decisions of a sweep, in order; every change is on disk when the call returns."""

    folder: Path
    """The sweep's folder."""
    device: str | None = None
    """The device that stands for those of the file, as the last run was told."""
    slices: tuple[SweepSlice, ...] = ()
    """What was decided."""

    @classmethod
    def of(cls, folder: Path) -> Journal:
        """Return the journal of a folder; an empty one where it has none.

        Raises:
            StoreError: the file cannot be read.
        """
        path = folder / FILE
        if not is_file(path):
            return cls(folder)
        try:
            table = json.loads(read_text(path))
            if table["version"] > VERSION:
                raise StoreError(f"{path} is of a newer evokern (version {table['version']}); use that one")
            names = {field.name for field in fields(SweepSlice)}
            slices = tuple(SweepSlice(**{k: v for k, v in one.items() if k in names}) for one in table["slices"])
            return cls(folder, table["device"], slices)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise StoreError(
                f"{path} cannot be read ({type(error).__name__}: {error}); remove it: the studies stay as they are, "
                "only the order of the slices is decided anew"
            ) from error

    @property
    def open_slice(self) -> SweepSlice | None:
        """The decision whose slice is not over; None where all are."""
        return self.slices[-1] if self.slices and self.slices[-1].seconds is None else None

    def done(self, study: str) -> list[SweepSlice]:
        """Return the slices of a study that are over."""
        return [one for one in self.slices if one.study == study and one.seconds is not None]

    def opened(self, device: str | None) -> None:
        """Keep what a run was told."""
        self.device = device
        self._write()

    def decide(self, decision: SweepSlice) -> None:
        """Keep a decision, before its slice begins."""
        self.slices = (*self.slices, decision)
        self._write()

    def conclude(self, after_us: float | None, seconds: float) -> SweepSlice:
        """Keep what came of the last decision."""
        over = replace(self.slices[-1], after_us=after_us, seconds=seconds)
        self.slices = (*self.slices[:-1], over)
        self._write()
        return over

    def _write(self) -> None:
        table = {"version": VERSION, "device": self.device, "slices": [asdict(one) for one in self.slices]}
        path, fresh = self.folder / FILE, self.folder / f"{FILE}.new"
        try:
            with fresh.open("w", encoding="utf-8") as file:
                json.dump(table, file, indent=1, allow_nan=False)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
            with _directory(self.folder) as directory:
                os.fsync(directory)
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}; make room or name another --db") from error


@contextmanager
def _directory(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def sweep_lock(folder: Path) -> Iterator[None]:
    """Hold a sweep's folder, which is made where it is missing; the system lets go of it when the process ends.

    Raises:
        StoreError: another sweep has it, or it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("a+", encoding="utf-8")
    except (OSError, ValueError) as error:
        told = "it is a file" if folder.is_file() else getattr(error, "strerror", None) or error
        raise StoreError(f"{folder} cannot be the folder of a sweep: {told}; name another with --db") from error
    key = folder.resolve()
    with contextlib.closing(file):
        try:
            if key in _held:
                raise BlockingIOError
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreError(
                f"{folder} is in use by {_holder(file)}; wait for it, or name another folder with --db"
            ) from None
        _held.add(key)
        try:
            file.truncate(0)
            command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
            now = time.strftime("%Y-%m-%d %H:%M:%S")
            json.dump({"pid": os.getpid(), "host": socket.gethostname(), "command": command, "since": now}, file)
            file.flush()
            yield
        finally:
            _held.discard(key)


def _holder(file: Any) -> str:
    try:
        file.seek(0)
        who = json.loads(file.read())
        return f"`{who['command']}` (process {who['pid']} on {who['host']}, since {who['since']})"
    except (ValueError, KeyError, TypeError, RecursionError, OSError):
        return "another sweep"
