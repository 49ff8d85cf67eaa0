"""Contenders: evokern's samplers, and Kernel Tuner's strategies in its simulation mode."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import random
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from nearest import predict_in_numpy
from recorded import Recorded, load

from evokern.declaration.genes import Config
from evokern.sampler_benchmark import Settings
from evokern.sampler_benchmark.results import Curve, one_repeat
from evokern.study.trial import Trial

KERNEL_TUNER = "kernel_tuner:"
"""Prefix of the names of Kernel Tuner's strategies."""


def evaluated(path: Path, contender: str, seed: int, evaluations: int) -> list[Config]:
    """Return the configurations that one search evaluates, in order.

    Args:
        path: File of the recorded space.
        contender: Name of a sampler, or `kernel_tuner:` and the name of a strategy.
        seed: Seed of the search.
        evaluations: Number of unique evaluations, including failed ones.
    """
    space = load(path)
    if contender.startswith(KERNEL_TUNER):
        return _kernel_tuner(space, contender.removeprefix(KERNEL_TUNER), seed, evaluations)
    curve = _UntilOptimum(space.optimum)
    with contextlib.suppress(_Found):
        one_repeat(space.table, Settings(str(path), evaluations), contender, seed, curve)
    return space.filled(curve.configs, evaluations)


class _Found(Exception):  # noqa: N818 (a signal that ends a search normally)
    """Signal that the optimum was evaluated; later evaluations do not change any figure."""


class _UntilOptimum(Curve):
    def __init__(self, optimum: Config) -> None:
        super().__init__()
        self._optimum = optimum

    def record(self, trial: Trial, elapsed_s: float) -> None:
        super().record(trial, elapsed_s)
        if trial.config == self._optimum:
            raise _Found


@cache
def _cache_file(name: str) -> str:
    folder = tempfile.mkdtemp(prefix="evokern-bench-")
    return str(Path(folder) / f"{name}.json")


def _kernel_tuner(space: Recorded, strategy: str, seed: int, evaluations: int) -> list[Config]:
    import kernel_tuner

    file = Path(_cache_file(space.name))
    if not file.exists():
        # Skip the single samples, which are not needed and take longer to read than the search.
        cache = {
            key: {k: v for k, v in record.items() if k != "times"} for key, record in space.content["cache"].items()
        }
        file.write_text(json.dumps({**space.content, "cache": cache}), encoding="utf-8")
    params = {gene.name: list(gene.values) for gene in space.table.genes}
    members = {tuple(config.values()) for config in space.table.answers}

    def allowed(chosen: Any) -> bool:
        return tuple(chosen[name] for name in params) in members

    predict_in_numpy()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    logging.disable(logging.WARNING)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        results, _ = kernel_tuner.tune_kernel(
            space.content["kernel_name"],
            f'extern "C" __global__ void {space.content["kernel_name"]}(float* x) {{}}',
            space.content["problem_size"],
            [np.zeros(1, np.float32)],
            params,
            restrictions=allowed,
            lang="CUDA",
            cache=str(file),
            simulation_mode=True,
            quiet=True,
            strategy=strategy,
            strategy_options={"max_fevals": evaluations},
            seed=seed,
        )
    order = dict.fromkeys(Config({name: result[name] for name in params}) for result in results)
    return space.filled([config for config in order if config in space.table.answers], evaluations)
