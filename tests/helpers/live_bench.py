"""A live device on one of the tests' kernels; run as a script, it searches until it is killed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from paths import DATA

from evokern.declaration.feasibility import feasible_space
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel
from evokern.device.contract import Request, StartReport, Task
from evokern.device.gpu.live import LiveDevice, open_live
from evokern.study.discovery import load_kernel
from evokern.study.settings import Study
from evokern.study.trial import Evaluation


class Bench:
    """A started device, and what it answered."""

    def __init__(self, name: str, *problems: str, **settings: object) -> None:
        self.kernel: Kernel = load_kernel(DATA / "kernels" / name)
        self.problems = tuple(self.kernel.problem(text) for text in problems)
        self.study = replace(Study("test", str(self.kernel.folder), problems), **settings)  # type: ignore[arg-type]
        self.device: LiveDevice = open_live("auto")
        self.report = StartReport()
        self.steps: list[str] = []
        """What the device told of its start."""
        self.next_number = 0

    def __enter__(self) -> Bench:
        try:
            self.report = self.device.start(self._task())
        except BaseException:
            self.device.close()
            raise
        return self

    def _task(self) -> Task:
        return Task(self.kernel, self.problems, self.study, on_step=lambda step: self.steps.append(step.text))

    def __exit__(self, *_: object) -> None:
        self.device.close()

    def config(self, **changes: str | int) -> Config:
        """The default candidate with changes."""
        return self.kernel.space.with_changes(self.kernel.space.default(), changes)

    def feasible(self) -> list[Config]:
        """Every feasible candidate."""
        space = feasible_space(self.kernel, self.problems, self.device.profile)
        return [config for config in space.grid() if space.feasible(config)]

    def submit(self, config: Config, elite_us: float | None = None) -> int:
        """Submit one candidate and return its number."""
        self.next_number += 1
        self.device.submit(Request(self.next_number - 1, config, elite_us))
        return self.next_number - 1

    def run(self, configs: Sequence[Config], elite_us: float | None = None, limit_s: float = 120) -> list[Evaluation]:
        """Submit candidates and wait for all their answers."""
        numbers = [self.submit(config, elite_us) for config in configs]
        found: dict[int, Evaluation] = {}
        end = time.monotonic() + limit_s
        while len(found) < len(configs) and time.monotonic() < end:
            found |= {answer.number: answer.evaluation for answer in self.device.poll(1.0)}
        return [found[number] for number in numbers]

    def forget(self) -> None:
        """Forget what was measured, so that the same candidate is measured again."""
        assert self.device._pipeline is not None
        self.device._pipeline._duplicate_groups.clear()


def main() -> None:
    """Search until killed, with one candidate that never ends; print the workers' processes once it hangs."""
    with Bench("faulty", "3000") as bench:
        bench.run([bench.config(VARIANT=number) for number in range(5)])
        bench.submit(bench.config(FAULT="endless"))
        bench.device.poll(1.0)
        print(*bench.device.processes, flush=True)
        time.sleep(100)


if __name__ == "__main__":
    main()
