"""Crosswise times: candidates of a sweep's studies, each measured at the problems of the other studies.

The times are stored in the sweep's folder, so that packing again measures nothing and writes the same package.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evokern.analysis import candidates
from evokern.analysis.candidates import TrialUnderTest, device_for, running_device
from evokern.declaration.genes import Config
from evokern.errors import StoreError
from evokern.files import is_file, read_text, write_whole

FILE = "crosswise.json"
"""Name of the file with the times, in the sweep's folder."""
VERSION = 1
"""Version of the file's format."""


@dataclass(frozen=True)
class ProblemTimes:
    """Times at one problem, from one session of the device."""

    candidates: Mapping[str, float | None]
    """Key of a candidate (`config_key`) → time in µs; None if it failed there."""
    baselines: Mapping[str, float]
    """Baseline → time in µs, for the correct ones."""


class CrosswiseTimes:
    """File with crosswise times."""

    def __init__(self, folder: Path) -> None:
        """Read the file, if there is one.

        Raises:
            StoreError: the file cannot be read, or was written by another version.
        """
        self._path = folder / FILE
        self._entries: dict[str, Any] = {}
        if is_file(self._path):
            try:
                table = json.loads(read_text(self._path))
                known = table["version"] == VERSION
                self._entries = dict(table["problems"]) if known else {}
            except (ValueError, LookupError, TypeError) as error:
                raise StoreError(f"{self._path} is damaged ({error}); delete it to measure again") from error
            if not known:
                raise StoreError(
                    f"{self._path} has version {table['version']}, not {VERSION}; delete it to measure again"
                )

    def at(self, subject: TrialUnderTest, configs: Sequence[Config], report: Callable[[str], None]) -> ProblemTimes:
        """Return the times of candidates at a study's problem; those that are not stored are measured first.

        Raises:
            DeviceError: the study's device is not available.
            UsageError: the file cannot be written.
        """
        record = subject.record
        place = hashlib.sha256(
            "\0".join((record.device, subject.kernel.digest(), *record.problems, str(record.timing_rule))).encode()
        ).hexdigest()
        entry = self._entries.get(place, {"problem": record.in_words(record.problems[0]), "times": {}, "baselines": {}})
        missing = [config for config in configs if config_key(config) not in entry["times"]]
        if missing:
            report(f"measuring {len(missing)} candidates at {entry['problem']} on {record.device}")
            device = device_for(record, None)
            with running_device(device, subject.task()) as started:
                evaluations = candidates.evaluate(device, missing)
            for config, one in zip(missing, evaluations, strict=True):
                entry["times"][config_key(config)] = one.time_us if one.passed_gate else None
            entry["baselines"] |= {
                b.name: b.timings[0].median_us for b in started.baselines if b.timings and not b.error
            }
            self._entries[place] = entry
            text = json.dumps({"version": VERSION, "problems": self._entries}, indent=1, sort_keys=True)
            write_whole(self._path, text.encode())
        times = {config_key(config): entry["times"][config_key(config)] for config in configs}
        return ProblemTimes(times, entry["baselines"])


def config_key(config: Config) -> str:
    """Return the key of a candidate in the file."""
    return " ".join(f"{name}={value}" for name, value in config.items())
