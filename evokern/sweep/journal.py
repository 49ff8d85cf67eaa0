"""Journal of a sweep: its time slices with their results, and the lock of the sweep's folder.

The decision for a slice is stored before the slice starts, so that a resumed sweep continues with it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

from evokern.declaration.field_types import is_whole
from evokern.errors import StoreError
from evokern.files import is_file, make_folder, open_own, read_text, why_not_own
from evokern.lock_file import forget, holder, is_held_here, lock, write_holder
from evokern.wording import unreadable_text

FILE = "sweep.json"
"""Name of the journal file in the sweep's folder."""
LOCK = "sweep.lock"
"""Name of the lock file in the sweep's folder."""
VERSION = 1
"""Format version of the journal file."""


@dataclass(frozen=True)
class SweepSlice:
    """Time slice of a sweep: a study to search, up to a number of trials."""

    study: str
    """Name of the study."""
    first: int
    """Number of evaluated trials at the decision."""
    last: int | None
    """Number of evaluated trials at which the slice ends; None if the study's own limit comes first."""
    why: str
    """Reason for choosing this study."""
    before_us: float | None
    """Best time at the decision in µs; None if there was none."""
    before_s: float
    """Study time at the decision in seconds."""
    after_us: float | None = None
    """Best time after the slice in µs."""
    seconds: float | None = None
    """Duration of the slice in seconds; None until it has ended."""

    @property
    def rate(self) -> float:
        """Improvement per second: log(best before / best after) / seconds.

        It is infinite if the slice found the first correct candidate. It is 0 if there is no correct candidate, or if
        the best one was refuted during the slice.
        """
        if self.after_us is None or self.seconds is None:
            return 0.0
        if self.before_us is None:
            return math.inf
        return max(0.0, math.log(self.before_us / self.after_us)) / max(self.seconds, 1e-3)


def _slice_of(entry: Mapping[str, Any]) -> SweepSlice:
    """Return the slice of an entry of the file.

    Raises:
        KeyError: a value is missing.
        ValueError: a value has another type, a time is not positive and finite, or a count is negative.
    """
    if not isinstance(entry, dict):
        raise ValueError(f"a slice is {entry!r}, not an object")
    hints = get_type_hints(SweepSlice)
    optional = {one.name for one in fields(SweepSlice) if one.default is not MISSING}
    found = SweepSlice(**{name: entry[name] for name in hints if name in entry or name not in optional})
    for name, hint in hints.items():
        value = getattr(found, name)
        if not isinstance(value, hint | int if float in (hint, *get_args(hint)) else hint) or isinstance(value, bool):
            raise ValueError(f"{name} is {value!r}")
        if isinstance(value, (int, float)) and not (0 <= value < math.inf and (value or not name.endswith("_us"))):
            raise ValueError(f"{name} is {value!r}")
    return found


@dataclass
class Journal:
    """Decisions of a sweep, in order; each change is on disk when the call that makes it returns."""

    folder: Path
    """Folder of the sweep."""
    device: str | None = None
    """Device of the last run's `--device`, which replaces the devices in the file."""
    slices: tuple[SweepSlice, ...] = ()
    """All slices, in the order of their decisions."""

    @classmethod
    def of(cls, folder: Path) -> Journal:
        """Return the journal of a folder; empty if the folder has none.

        Raises:
            StoreError: the file cannot be read.
        """
        path = folder / FILE
        if not is_file(path):
            return cls(folder)
        try:
            table = json.loads(read_text(path))
            if not isinstance(table, dict) or not isinstance(table.get("slices"), list):
                raise ValueError("it is not an object with a list `slices`")
            if not is_whole(table["version"]):
                raise ValueError(f"version is {table['version']!r}")
            if table["version"] > VERSION:
                raise StoreError(f"{path} is from a newer evokern (version {table['version']}); use that version")
            slices = tuple(_slice_of(one) for one in table["slices"])
            if not isinstance(table["device"], str | None):
                raise ValueError(f"device is {table['device']!r}")
            return cls(folder, table["device"], slices)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise StoreError(
                f"{path} cannot be read ({unreadable_text(error)}); remove it. The studies are not affected; "
                "only the order of the slices is decided again"
            ) from error

    @property
    def open_slice(self) -> SweepSlice | None:
        """Slice that was started but has not ended, or None."""
        return self.slices[-1] if self.slices and self.slices[-1].seconds is None else None

    def done(self, study: str) -> list[SweepSlice]:
        """Return the completed time slices of a study."""
        return [one for one in self.slices if one.study == study and one.seconds is not None]

    def opened(self, device: str | None) -> None:
        """Store the device of a run."""
        self.device = device
        self._write()

    def decide(self, decision: SweepSlice) -> None:
        """Store a decision before its slice starts."""
        self.slices = (*self.slices, decision)
        self._write()

    def conclude(self, after_us: float | None, seconds: float) -> SweepSlice:
        """Store the result of the last decision."""
        over = replace(self.slices[-1], after_us=after_us, seconds=seconds)
        self.slices = (*self.slices[:-1], over)
        self._write()
        return over

    def _write(self) -> None:
        table = {"version": VERSION, "device": self.device, "slices": [asdict(one) for one in self.slices]}
        path, fresh = self.folder / FILE, self.folder / f"{FILE}.new"
        try:
            fresh.unlink(missing_ok=True)  # left by a killed process, or a link
            with open_own(fresh) as file:
                json.dump(table, file, indent=1, allow_nan=False)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
            with _directory(self.folder) as directory:
                os.fsync(directory)
        except OSError as error:
            raise StoreError(
                f"cannot write {path}: {error.strerror}; free some space, or choose another folder with --db"
            ) from error


@contextmanager
def _directory(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def sweep_lock(folder: Path) -> Iterator[None]:
    """Lock a sweep's folder, and create it if necessary; the system releases the lock when the process ends.

    Raises:
        StoreError: another sweep holds the lock, or the folder cannot be created.
    """
    try:
        make_folder(folder)
        file = open_own(folder / LOCK)
    except OSError as error:
        if why := why_not_own(folder / LOCK):
            raise StoreError(
                f"{folder} cannot be locked with {folder / LOCK}: {why}; remove it, or choose another folder with --db"
            ) from error
        raise StoreError(
            f"{folder} cannot be the sweep's folder: {error.strerror}; choose another folder with --db"
        ) from error
    path = folder.resolve() / LOCK
    with contextlib.closing(file):
        if is_held_here(path) or not lock(file):
            who = holder(file, "another sweep")
            raise StoreError(f"{folder} is in use by {who}; wait until it ends, or choose another folder with --db")
        write_holder(path, file)
        try:
            yield
        finally:
            forget(path)
