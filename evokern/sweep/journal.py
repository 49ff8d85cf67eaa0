"""What a sweep keeps beside its studies: which slices were decided and what came of them, and who has the folder.

A decision is on disk before its slice begins, so that a sweep that goes on takes the same one.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from evokern.errors import StoreError
from evokern.files import is_file, make_folder, read_text
from evokern.lock_file import holder, is_held_here, let_go, lock, sign

FILE = "sweep.json"
"""The file, in the sweep's folder."""
LOCK = "sweep.lock"
"""The file whose lock says who has the folder."""
VERSION = 1
"""Of the file."""


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
        make_folder(folder)
        file = (folder / LOCK).open("a+", encoding="utf-8")
    except OSError as error:
        raise StoreError(
            f"{folder} cannot be the folder of a sweep: {error.strerror}; name another with --db"
        ) from error
    path = folder.resolve() / LOCK
    with contextlib.closing(file):
        if is_held_here(path) or not lock(file):
            who = holder(file, "another sweep")
            raise StoreError(f"{folder} is in use by {who}; wait for it, or name another folder with --db")
        sign(path, file)
        try:
            yield
        finally:
            let_go(path)
