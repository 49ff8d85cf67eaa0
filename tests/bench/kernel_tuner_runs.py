"""Repeats of Kernel Tuner's strategies, in its own simulation mode over the same recordings."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.records import Recording, Run

STRATEGIES = ("adaptive_tabu_greywolf", "hybrid_vndx", "genetic_algorithm", "diff_evo")
"""The best four of Kernel Tuner 1.5 on these spaces."""


class Simulation:
    """One recording, prepared for `tune_kernel(..., simulation_mode=True)`."""

    def __init__(self, recording: Recording, folder: Path) -> None:
        raw = recording.path.read_bytes()
        content = json.loads(gzip.decompress(raw) if recording.path.suffix == ".gz" else raw)
        # Single samples are not asked for, and reading them anew for each repeat takes longer than the search.
        for record in content["cache"].values():
            record.pop("times", None)
        self._content = content
        self._keys: tuple[str, ...] = tuple(content["tune_params_keys"])
        self._file = folder / f"{recording.name}.json"
        self._file.write_text(json.dumps(content))
        self._members = {tuple(record[key] for key in self._keys) for record in content["cache"].values()}
        self._position = {
            tuple(str(config[key]) for key in self._keys): i for i, config in enumerate(recording.configs)
        }
        self._recording = recording

    def run(self, strategy: str, seed: int, evaluations: int) -> Run:
        """Tune once with a strategy."""
        from kernel_tuner import tune_kernel

        random.seed(seed)
        np.random.seed(seed)
        content = self._content
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            results, _ = tune_kernel(
                content["kernel_name"],
                f"void {content['kernel_name']}() {{}}",
                _size(content["problem_size"]),
                [],
                content["tune_params"],
                restrictions=self._allowed,
                strategy=strategy,
                strategy_options={"max_fevals": min(evaluations, len(self._members))},
                cache=str(self._file),
                simulation_mode=True,
                lang="C",
                quiet=True,
                objective=content.get("objective", "time"),
            )
        evaluated: dict[int, None] = {}
        for result in results:
            position = self._position.get(tuple(str(result[key]) for key in self._keys))
            if position is not None:
                evaluated[position] = None
        own_s = sum(float(result.get("strategy_time", 0.0)) for result in results) / 1000
        return Run(strategy, self._recording.name, seed, tuple(evaluated), own_s)

    def _allowed(self, params: dict[str, Any]) -> bool:
        return tuple(params[key] for key in self._keys) in self._members


def _size(given: Any) -> Any:
    return tuple(given) if isinstance(given, list) else given
