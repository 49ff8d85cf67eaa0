"""A device that needs no GPU and no candidate: what each one takes is made up by a test."""

from __future__ import annotations

from collections.abc import Sequence

from evokern.device import Answer, Request, StartReport, Task
from evokern.device._pipeline import Pipeline
from evokern.hardware.profiles import CHIPS, Profile
from evokern.study.trial import Evaluation


class InstantH200:
    """An H200 that answers at once; what it was handed is kept."""

    identity, predicted, window, at_once, diagnoses, verifiable = "NVIDIA H200", False, 4, 1, False, False
    profile: Profile = CHIPS["h200"]

    def __init__(self, **faults: Exception) -> None:
        """Make it.

        Args:
            faults: what `start` raises, and what `submit` raises at its fourth candidate.
        """
        self.environment: dict[str, object] = {}
        """What `start` reports of itself."""
        self.tasks: list[Task] = []
        self.requests: list[Request] = []
        self.closed = 0
        self._faults = faults
        self._ready: list[Answer] = []

    def evaluation(self, request: Request) -> Evaluation:
        """Return what a candidate comes to."""
        raise NotImplementedError

    def start(self, task: Task) -> StartReport:
        """Keep the task."""
        if "start" in self._faults:
            raise self._faults["start"]
        self.tasks.append(task)
        return StartReport(environment=self.environment)

    def submit(self, request: Request) -> None:
        """Evaluate a candidate."""
        if "submit" in self._faults and len(self.requests) == 3:
            raise self._faults["submit"]
        self.requests.append(request)
        self._ready.append(Answer(request.number, self.evaluation(request)))

    def poll(self, timeout_s: float) -> Sequence[Answer]:
        """Return what was evaluated since the last call."""
        ready, self._ready = self._ready, []
        return ready

    def busy_s(self) -> float:
        """Nothing is held."""
        return 0.0

    def close(self) -> None:
        """Count how often it is closed."""
        self.closed += 1


class PipelineDevice:
    """What a device does with candidates that a pipeline moves: whoever derives from it makes that in `start`."""

    pipeline: Pipeline | None = None

    def submit(self, request: Request) -> None:
        """Accept one candidate."""
        assert self.pipeline is not None
        self.pipeline.submit(request)

    def poll(self, timeout_s: float) -> Sequence[Answer]:
        """Return the answers that are ready."""
        assert self.pipeline is not None
        return self.pipeline.poll(timeout_s)

    def busy_s(self) -> float:
        """Nothing is held."""
        return 0.0

    def close(self) -> None:
        """Stop the pipeline; the pools stay their owner's."""
        if self.pipeline is not None:
            self.pipeline.close()
            self.pipeline = None
