"""Candidates whose launches run in clusters, on a simulated device: gate, prediction, sampled blocks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from paths import DATA

from evokern import simt
from evokern.compile.build import Target, build
from evokern.compile.records import Built
from evokern.declaration.feasibility import launches_of
from evokern.declaration.genes import Config
from evokern.declaration.render import render
from evokern.device.sim.jobs import SimSettings, Simulate
from evokern.device.sim.program import SimulatedProgram, compile_simulated
from evokern.device.sim.worker import SimWorker
from evokern.hardware.profiles import chip
from evokern.simt.time_model.prediction import sample_blocks
from evokern.study.discovery import WorkerContext, load_kernel
from evokern.study.settings import Study, TimingSettings
from evokern.study.trial import Evaluation, Outcome

FOLDER = DATA / "kernels" / "cluster_split"
KERNEL = load_kernel(FOLDER)
PROBLEM = KERNEL.problem("4096,256")
H200 = chip("h200")


def evaluated(split: int, wrong: str, *, best_us: float | None = None) -> Evaluation:
    """Return what a simulated H200 says of a candidate; with ``best_us=0.0`` it would not be the best."""
    study = Study("split", "cluster_split", ("4096,256",), timing=replace(TimingSettings(), race=0.0))
    context = WorkerContext(Path(FOLDER), (PROBLEM,), H200)
    default = KERNEL.space.default()
    worker = SimWorker(SimSettings(context, study.gate, study.timing, study.simulation, default, 5))
    config = Config({"SPLIT": split, "WRONG": wrong})
    built = build(KERNEL, config, (PROBLEM,), Target(H200, None))
    assert isinstance(built, Built), built.reason
    found = worker.handle(Simulate(config, built, None, best_us))
    assert found is not None
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("best_us", [None, 0.0], ids=["best", "not the best"])
@pytest.mark.parametrize("split", [1, 2, 8])
def test_a_split_over_a_cluster_is_measured_and_covered(split: int, best_us: float | None) -> None:
    """Right candidates pass the gate and are timed; all blocks, or clusters that stand for them, cover the output."""
    found = evaluated(split, "nothing", best_us=best_us)
    assert found.outcome is Outcome.MEASURED, found.reason
    own = found.evidence["own_problem"][PROBLEM.key]
    assert (own["covered"], own["judged"], own["blocks"] % split) == (True, True, 0)
    assert (own["blocks"] == own["of"]) == (best_us is None)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("wrong", "check"), [("barrier", "sanitizer:shared_race"), ("end", "sanitizer:cluster_lifetime")]
)
def test_what_is_wrong_between_blocks_is_never_measured(wrong: str, check: str) -> None:
    """A race through another block's shared memory, or its end before the last access, makes a candidate wrong."""
    found = evaluated(4, wrong)
    assert (Outcome.WRONG, check) == (found.outcome, found.evidence["check"])


def _program(split: int) -> SimulatedProgram:
    made = compile_simulated(render(KERNEL, Config({"SPLIT": split, "WRONG": "nothing"}), PROBLEM), H200)
    assert isinstance(made, SimulatedProgram)
    return made


def test_sampled_blocks_are_whole_clusters() -> None:
    """About as many blocks as are asked for, of two clusters at least; without clusters the same ones as ever."""
    for split in (1, 2, 4, 8):
        program = _program(split)
        (launch,) = launches_of(KERNEL, Config({"SPLIT": split, "WRONG": "nothing"}), PROBLEM)
        for wanted in (1, 2, 3, 6, 24):
            blocks = program.sample_blocks(launch, wanted)
            if split == 1:
                assert blocks == sample_blocks(launch.blocks, wanted)
                continue
            clusters = np.array(blocks).reshape(-1, split)
            assert (clusters % 64 == clusters[:, :1]).all() and (clusters // 64 == np.arange(split)).all()
            assert min(wanted, 2) <= len(clusters) <= max(-(-wanted // split), 2)


def test_a_launchs_cluster_reaches_the_machine() -> None:
    """`Launch.cluster` is what the kernel sees in its special registers."""
    kernel = load_kernel(DATA / "kernels" / "attributes")
    problem, config = kernel.problem("512"), Config({"FEATURE": "cluster"})
    program = compile_simulated(render(kernel, config, problem), H200)
    assert isinstance(program, SimulatedProgram)
    (launch,) = launches_of(kernel, config, problem)
    for cluster, expected in (((2, 1, 1), 2.0), (None, 0.0)):
        memory = simt.Memory()
        x = memory.allocate("x", np.ones(512, np.float32), writable=False)
        y = memory.allocate("y", np.zeros(512, np.float32))
        result = program.launch(
            replace(launch, cluster=cluster), {"x": x, "y": y}, memory, instruction_limit=100_000, count=False
        )
        assert result.findings == ()
        assert (y.read() == expected).all()
