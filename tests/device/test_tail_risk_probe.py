"""What sampled blocks say of a candidate whose errors come near the tolerance, on a problem with few blocks."""

from __future__ import annotations

import random

import pytest
from paths import KERNELS

from evokern.compile.build import Target, build, tensors_of
from evokern.compile.records import Built
from evokern.device.sim.program import BuiltPrograms
from evokern.device.sim.tail_risk import MOST_BLOCKS, TailRiskProbe
from evokern.gate.comparison import tolerances
from evokern.hardware.profiles import chip
from evokern.study.discovery import load_kernel
from evokern.study.settings import SimulationSettings

ROUNDS_EACH_STEP = {
    "KV_BUFFERS": "resident",
    "Q_LOCATION": "shared",
    "PV_ACC": "fp16",
    "ROW_SUM": "add",
    "RESCALE": "on_change",
    "BLOCK_M": 32,
    "WARPS_M": 2,
    "KEY_SPLITS": 1,
    "BLOCK_N": 128,
    "LOOKAHEAD": 1,
}
"""One row in ten thousand of equal elements is beyond the tolerance: two checks of a hundred turn it away."""


@pytest.mark.parametrize("seed", range(4))
def test_a_problem_with_few_blocks_is_drawn_again_until_the_answer_is_sure(
    seed: int,
) -> None:
    """Its eight blocks have 256 rows: eight peaks, from which no tail can be told."""
    kernel, l4 = load_kernel(KERNELS / "attention"), chip("l4")
    problem = kernel.problem("1,2,128,64")
    config = kernel.space.canonical({**kernel.space.default(), **ROUNDS_EACH_STEP})
    built = build(kernel, config, [problem], Target(l4, None))
    assert isinstance(built, Built)
    probe = TailRiskProbe(kernel, l4, SimulationSettings(), tolerances(kernel, None, None), seed)
    program, launch = BuiltPrograms(kernel, l4).parsed(built.program(problem), config), built.build(problem).launches[0]
    assert launch.blocks == 8
    found = probe._sampled(
        problem, tensors_of(kernel, config, problem), "equal_rows", program, launch, random.Random(seed)
    )["o"]
    assert found is not None
    assert found.decided or found.units == MOST_BLOCKS * config["BLOCK_M"]
