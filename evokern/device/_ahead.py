"""Compiling ahead: idle compile workers build the likely next proposals.

At first, a search has few candidates in flight, often fewer than there are cores, so the device waits for compilers.
Compiling ahead uses idle cores only and changes no result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evokern.declaration.genes import Config
from evokern.workers.jobs import JobPool, JobResult

FIRST_KEY = -2
"""Key of the first compile ahead; later keys are lower. They never equal a trial number or the key of a single job."""
MAX_KEPT = 64
"""Maximum number of unused programs to keep; the oldest are dropped."""


class CompileAhead:
    """Queue of candidates to compile ahead. Another thread than the pipeline's may call only `replace_candidates`."""

    def __init__(self, compilers: JobPool, workers: int, deadline_s: float) -> None:
        """Create the queue without candidates.

        Args:
            compilers: pool that compiles a `Config` to a `Built`, or returns an `Evaluation`.
            workers: maximum number of concurrent compiles, including those of submitted trials.
            deadline_s: timeout of one compile, in seconds.
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

    def replace_candidates(self, configs: Sequence[Config]) -> None:
        """Replace the list of likely candidates, the likeliest first."""
        self._wanted = tuple(configs)

    def feed(self, asked: int) -> None:
        """Start compiles on idle workers.

        Args:
            asked: submitted candidates without a result; one worker stays reserved for each.
        """
        for config in self._wanted:
            if asked + len(self._running) >= self._workers:
                return
            if config in self._kept or config in self._failed or config in self._running.values():
                continue
            self._running[self._key] = config
            self._compilers.submit(self._key, config, self._deadline_s)
            self._key -= 1

    def claim(self, number: int, config: Config) -> JobResult | bool:
        """Return the finished compile of a trial, or whether it is in progress; `finished` returns it later."""
        self._wanted = tuple(other for other in self._wanted if other != config)
        if config in self._kept:
            return replace(self._kept.pop(config), key=number)
        begun = config in self._running.values()
        if begun:
            self._trials[config] = number
        return begun

    def finished(self, result: JobResult) -> JobResult | None:
        """Return the result if its trial was submitted meanwhile; None if it is kept for later or must be repeated."""
        config = self._running.pop(result.key)
        number = self._trials.pop(config, None)
        if result.status != "done":  # the trial's own compile reports the cause
            self._failed.add(config)
            if number is not None:
                self._compilers.submit(number, config, self._deadline_s)
            return None
        if number is not None:
            return replace(result, key=number)
        self._kept[config] = result
        if len(self._kept) > MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        return None
