"""`python tests/bench/proposal_cost.py`: measure the time of a proposal, amortised over windows of 8, and the memory.

The exit code is 1 if a limit is exceeded. Limits at 1,000 and 5,000 trials: 3 and 8 ms for 12 genes, 6 and 10 ms for
the space of a study; 300 MB. Times are process times, but a busy machine increases them, too.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

from evokern.declaration.feasibility import check, feasible_space  # noqa: E402
from evokern.declaration.genes import Config, Mutation, Parameter  # noqa: E402
from evokern.declaration.space import Space  # noqa: E402
from evokern.hardware.profiles import chip  # noqa: E402
from evokern.samplers import Explain, History, Sampler, make_sampler  # noqa: E402
from evokern.samplers.contract import TrialResult  # noqa: E402
from evokern.study.discovery import find_study, kernel_of  # noqa: E402
from evokern.study.trial import Outcome  # noqa: E402

WINDOW = 8
"""Trials in flight, and minimum number of proposals to average over."""
MEMORY_MB = 300
"""Memory limit of the process."""


@dataclass(frozen=True)
class Case:
    """A space with the limits for its proposals."""

    name: str
    """Name of the space."""
    space: Space
    """Genes of the space."""
    explain: Explain
    """Function that names the violated constraint of a configuration."""
    limits_ms: dict[int, float]
    """Limit of the mean time over the following windows in ms, by number of trials."""


def twelve_genes() -> Case:
    """Return a case with three code choices and nine numbers under one product."""
    genes = (*(Mutation(f"M{i}", ("a", "b", "c")) for i in range(3)),)
    genes = (*genes, *(Parameter(f"P{i}", (1, 2, 4, 8, 16)) for i in range(9)))
    return Case("12 genes", Space(genes, lambda c: c.P0 * c.P1 <= 64), lambda c: "product", {1000: 3.0, 5000: 8.0})


def of_study(name: str, chip_name: str) -> Case:
    """Return the space of a study, under a chip's limits."""
    study = find_study(name)
    kernel, limits = kernel_of(study), chip(chip_name)
    problems = [kernel.problem(problem) for problem in study.problems]

    def explain(config: Config) -> str:
        violation = check(kernel, config, problems, limits)
        return violation.constraint if violation else "infeasible"

    space = feasible_space(kernel, problems, limits, study.genes)
    return Case(f"{name} on {chip_name}", space, explain, {1000: 6.0, 5000: 10.0})


def landscape(space: Space) -> Callable[[Config], float]:
    """Return an artificial log(time) with an effect per value and a few interactions."""
    draws = random.Random(5)
    worth = {(gene.name, value): 0.2 * abs(draws.gauss(0, 1)) for gene in space.genes for value in gene.values}
    pairs = [tuple(draws.sample(space.genes, 2)) for _ in range(12)]
    joint = {(a.name, b.name, x, y): 0.15 * draws.random() for a, b in pairs for x in a.values for y in b.values}

    def log_time(c: Config) -> float:
        alone = sum(worth[name, value] for name, value in c.items())
        return alone + sum(joint[a.name, b.name, c[a.name], c[b.name]] for a, b in pairs)

    return log_time


def measure(case: Case, most: int, steps: int) -> bool:
    """Search to each limit's trial number and print the cost of proposals; return whether all limits hold."""
    sampler: Sampler = make_sampler("evo", case.space, {}, 1, WINDOW, case.explain)
    history, log_time, kept = History(case.space), landscape(case.space), True
    spent: list[float] = []
    marks = [*range(500, most + 1, 500)]
    for number in range(marks[-1] + steps):
        if number >= WINDOW:
            config = history.pending[number - WINDOW]
            history.tell(TrialResult(number - WINDOW, config, Outcome.MEASURED, log_time(config)))
        begun = time.process_time()
        proposal = sampler.propose(history, number)
        spent.append(1000 * (time.process_time() - begun))
        assert proposal is not None
        history.commit(number, proposal)
        told = number + 1 - steps
        if told in marks:
            mean, worst = sum(spent[-steps:]) / steps, max(spent[-steps:])
            limit = case.limits_ms.get(told, math.inf)
            kept &= mean <= limit
            said = f", at most {limit:g}" if told in case.limits_ms else ""
            print(f"{case.name}, {told} trials: {mean:.2f} ms a proposal{said} (longest {worst:.1f})", flush=True)
    return kept


def main() -> int:
    """Measure both spaces and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--study", default="attention-s512", help="study whose space is measured in addition to 12 genes"
    )
    parser.add_argument("--chip", default="h200", help="chip whose limits apply")
    parser.add_argument("--trials", type=int, default=5000, help="length of both searches, a multiple of 500")
    parser.add_argument("--steps", type=int, default=20 * WINDOW, help="proposals that a cost is averaged over")
    given = parser.parse_args()
    if given.trials < 500 or given.steps < WINDOW:
        parser.error(f"--trials {given.trials} --steps {given.steps}: give at least 500 and {WINDOW}")
    cases = (twelve_genes(), of_study(given.study, given.chip))
    kept = min([measure(case, given.trials, given.steps) for case in cases])  # measure all cases, even if one fails
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"memory {memory_mb:.0f} MB, at most {MEMORY_MB}")
    return 0 if kept and memory_mb <= MEMORY_MB else 1


if __name__ == "__main__":
    sys.exit(main())
