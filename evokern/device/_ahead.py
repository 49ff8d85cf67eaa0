"""Compiles ahead of what is asked: compile workers that would idle take what the sampler may propose next.

A search has few candidates in flight while it knows little, fewer than there are cores, and the device waits for
compilers. What is compiled ahead and not asked for costs time of cores that had nothing to do, and changes no answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evokern.declaration.genes import Config
from evokern.workers.jobs import JobPool, JobResult

FIRST_KEY = -2
"""Key of the first compile ahead, and the others' below it: no trial's number, nor that of a job run alone."""
MOST_KEPT = 64
"""Programs that are kept until they are asked for; of more the oldest are dropped."""


class CompileAhead:
    """Guesses that are being compiled, or are compiled; all but `want` is for the pipeline's thread."""

    def __init__(self, compilers: JobPool, workers: int, deadline_s: float) -> None:
        """Begin with no guess.

        Args:
            compilers: answers a `Config` with a `Built` or an `Evaluation`.
            workers: how many compiles run at a time, those that were asked for among them.
            deadline_s: seconds of a compile.
        """
        self._compilers = compilers
        self._workers = workers
        self._deadline_s = deadline_s
        self._wanted: Sequence[Config] = ()
        self._running: dict[int, Config] = {}
        self._trials: dict[Config, int] = {}
        self._kept: dict[Config, JobResult] = {}
        self._failed: set[Config] = set()
        self._key = FIRST_KEY

    def want(self, configs: Sequence[Config]) -> None:
        """Take the latest guesses, the likeliest first; earlier ones that are not begun are forgotten."""
        self._wanted = tuple(configs)

    def feed(self, asked: int) -> None:
        """Begin what idle workers can take.

        Args:
            asked: candidates that were asked for and are not answered: a worker is left to each, so that none waits.
        """
        for config in self._wanted:
            if asked + len(self._running) >= self._workers:
                return
            if config in self._kept or config in self._failed or config in self._running.values():
                continue
            self._running[self._key] = config
            self._compilers.submit(self._key, config, self._deadline_s)
            self._key -= 1

    def asked(self, number: int, config: Config) -> JobResult | bool:
        """Return a trial's compile if it is there, else whether it has begun, so that `finished` returns it.

        Args:
            number: the trial.
            config: its candidate.
        """
        self._wanted = tuple(other for other in self._wanted if other != config)
        if config in self._kept:
            return replace(self._kept.pop(config), key=number)
        begun = config in self._running.values()
        if begun:
            self._trials[config] = number
        return begun

    def finished(self, result: JobResult) -> JobResult | None:
        """Return the compile of a trial that was asked for meanwhile, None where it is kept or has to be repeated."""
        config = self._running.pop(result.key)
        number = self._trials.pop(config, None)
        if result.status != "done":  # what it died of is told by the trial's own compile, if it comes to that
            self._failed.add(config)
            if number is not None:
                self._compilers.submit(number, config, self._deadline_s)
            return None
        if number is not None:
            return replace(result, key=number)
        self._kept[config] = result
        if len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return None
