"""Mutants that an earlier choice of problems or an earlier rule missed are found."""

from __future__ import annotations

from pathlib import Path

import pytest
from exact_mutants import EARLIER, Change, changed_in_one_candidate, is_changed, judged_mutant
from paths import KERNELS

from evokern.analysis.check.folder import studies_of
from evokern.analysis.verify.under_test import CandidateUnderTest
from evokern.declaration.small_problems import edge_problems, gate_problems
from evokern.device.sim.full_size_check import OwnProblemCheck
from evokern.device.sim.full_size_runs import OwnProblemRuns
from evokern.gate.comparison import tolerances
from evokern.hardware.profiles import CHIPS
from evokern.study.discovery import load_kernel, remember_trust
from evokern.study.settings import SimulationSettings

MISSED = {
    "a tail that no row had": (
        "rmsnorm", {"ROW_STEPS": 2}, "8192,8192",
        Change("row.cuh", "if (span.has(first + j)) {", "if (span.has(first)) {"), "different",
    ),
    "a load beyond the keys": (
        "attention", {"TENSOR_CORES": "none", "KV_LOAD": "vector16", "SOFTMAX": "shared", "BLOCK_M": 64, "BLOCK_N": 16},
        "2,8,512,64",
        Change("tile_path.cuh", "if (step < steps && thread >= 0) {", "if (step < steps || thread >= 0) {"), "fault",
    ),
    "a fence between blocks": (
        "matmul", {"PATH": "skinny", "SPLIT_K": 8, "MERGE": "ticket", "WARPS_K": 2}, "16,4096,4096,layout=nt",
        Change("split_k.cuh", "__threadfence();", ";"), EARLIER,
    ),
    "a mask of the first keys": (
        "attention_fp8", {"BLOCK_M": 32, "WARPS_M": 1, "KEY_SPLITS": 1}, "2,8,512,64",
        Change("forward.cuh", "mask_edges(s, keys.first_key(0), first_row, keys.length, at);", ";"), "different",
    ),
    "a row of tiles": (
        "matmul", {"PATH": "bulk", "CONSUMERS": 1, "CLUSTER_M": 2}, "64,4096,4096",
        Change("", "row = tile_m * RASTER_M, column = tile_n * RASTER_N;", "row = tile_m, column = tile_n * RASTER_N;"),
        "different",
    ),
    "a column of whole tiles": (
        "matmul", {"PATH": "skinny", "WARP_COLUMNS": 32, "WARPS_ACROSS": 2, "WARPS_K": 1, "DEPTH": 64},
        "1,4096,4096",
        Change("skinny.cuh", "WHOLE_BLOCKS ? 2 * column", "WHOLE_BLOCKS ? column"),
        EARLIER,
    ),
    "an overflow": (
        "attention", {"BLOCK_M": 16, "WARPS_M": 1, "BLOCK_N": 128}, "2,8,512,64",
        Change("../common/attention_softmax.cuh", "rows.reference[m][1] = quad_max(top[1]) * scale;",
               "rows.reference[m][1] = quad_max(top[1]) + scale;"), EARLIER,
    ),
}  # fmt: skip


def test_problems_at_the_edges_of_tiles() -> None:
    """All fields are smaller than tiles of 32, or the grid has several blocks along one of them."""
    for name, text, expected in (
        ("matmul", "144,160,96", ["6,8,8", "36,40,24", "512,64,32", "64,512,32"]),
        ("attention", "1,2,72,64", ["1,2,3,64", "1,2,18,64", "4,2,32,64", "1,8,32,64", "1,2,256,64"]),
    ):
        remember_trust(KERNELS / name)
        kernel = load_kernel(KERNELS / name)
        found = edge_problems(kernel, kernel.space.default(), kernel.problem(text), CHIPS["h200"])
        assert [*found] == [kernel.problem(one) for one in expected]


def test_a_problem_keeps_the_work_of_a_block() -> None:
    """The grid becomes smaller before the loops of a block take fewer rounds."""
    for name, text, smallest, genes in (
        ("attention", "2,8,512,64", "1,1,512,64", {"LENGTH": "runtime"}),
        ("matmul", "16,16,4096", "8,8,4096", {}),
    ):
        remember_trust(KERNELS / name)
        kernel = load_kernel(KERNELS / name)
        config, chip = kernel.space.canonical({**kernel.space.default(), **genes}), CHIPS["h200"]
        runs = OwnProblemRuns(kernel, chip, SimulationSettings(), tolerances(kernel, None, None), 0)
        assert kernel.problem(smallest) in OwnProblemCheck(runs).smaller(config, kernel.problem(text))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if case[0] == "rmsnorm" else pytest.mark.slow) for name, case in MISSED.items()],
)
def test_a_mutant_that_was_missed_is_found(tmp_path: Path, name: str) -> None:
    """The proof, the gate or the sanitizer finds it at the problems that a search and `verify` choose."""
    kernel_name, genes, text, change, verdict = MISSED[name]
    remember_trust(KERNELS / kernel_name)
    original = load_kernel(KERNELS / kernel_name)
    config = original.space.canonical({**original.space.default(), **genes})
    kernel, problem, chip = (
        changed_in_one_candidate(kernel_name, config, change, tmp_path),
        original.problem(text),
        CHIPS["h200"],
    )
    subject = CandidateUnderTest(kernel, config, next(studies_of(original)), (problem,), chip, 0)
    small = gate_problems(kernel, config, (problem,), chip)
    assert is_changed(subject, (*small, problem))
    found = judged_mutant(subject, small)
    assert found.verdict == verdict, found
