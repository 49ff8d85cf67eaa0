"""A recorded space in the form of each tool: a table for evokern, a cache for Kernel Tuner, T4 for the score."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from evokern.declaration.genes import Config
from evokern.device.recorded.recording import read_recording, value_of
from evokern.device.recorded.table import Table

TIMES = {
    "compilation": "compile_time",
    "runtimes": "times",
    "framework": "framework_time",
    "search_algorithm": "strategy_time",
    "validation": "verification_time",
}
"""T4 names of the time components counted by the community's score, with Kernel Tuner's names (ms)."""


@dataclass(frozen=True)
class Recorded:
    """A recorded space."""

    name: str
    """Name of the file."""
    content: dict[str, Any]
    """Kernel Tuner cache."""
    table: Table
    """The same for evokern; its clock counts the same components as the community's score."""
    keys: dict[Config, str]
    """Keys in the cache by configuration."""

    def record(self, config: Config) -> dict[str, Any]:
        """Return the cache entry of a configuration."""
        found: dict[str, Any] = self.content["cache"][self.keys[config]]
        return found

    def t4(self, config: Config) -> dict[str, Any]:
        """Return the T4 result of a configuration."""
        record = self.record(config)
        ran = isinstance(record["time"], int | float)
        return {
            "configuration": {name: record[name] for name in self.content["tune_params_keys"]},
            "objectives": ["time"],
            "times": {part: record.get(key, [] if part == "runtimes" else 0.0) for part, key in TIMES.items()},
            "invalidity": "correct" if ran else "runtime",
            "correctness": 1,
            "measurements": [{"name": "time", "value": record["time"], "unit": "ms"}],
        }

    @property
    def optimum(self) -> Config:
        """Configuration with the shortest time."""
        ran = {config: answer.time_us for config, answer in self.table.answers.items() if answer.time_us}
        return min(ran, key=ran.__getitem__)

    def filled(self, configs: list[Config], evaluations: int) -> list[Config]:
        """Return a number of configurations; a search that stopped at the optimum is filled with others."""
        if self.optimum not in configs[:evaluations]:
            return configs[:evaluations]
        return list(dict.fromkeys((*configs, *self.table.answers)))[:evaluations]

    def seconds(self, config: Config) -> float:
        """Return the duration of an evaluation in seconds, as counted by the community's score."""
        parts = self.t4(config)["times"].values()
        return sum(sum(part) if isinstance(part, list) else part for part in parts) / 1000


@cache
def load(path: Path) -> Recorded:
    """Return a recorded space, cached per process."""
    raw = path.read_bytes()
    content = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    table = read_recording(path)
    names = [gene.name for gene in table.genes]
    plain = {
        key: Config({name: value_of(record[name]) for name in names})
        for key, record in content["cache"].items()
        if record["time"] != "InvalidConfig"
    }
    found = Recorded(table.name, content, table, {config: key for key, config in plain.items()})
    return replace(found, table=replace(table, seconds={config: found.seconds(config) for config in table.answers}))
