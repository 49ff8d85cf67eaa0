"""The path of the matrix product for few rows: right at every tail, free of races, and faults in it are caught."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from edited_kernel import edited_kernel
from paths import KERNELS

from evokern.declaration.feasibility import check, feasible_space, launches_of
from evokern.declaration.genes import Config, Value
from evokern.declaration.kernel import Kernel, Problem
from evokern.declaration.small_problems import gate_problems
from evokern.device.sim.jobs import SimSettings
from evokern.device.sim.worker import SimWorker
from evokern.gate import RunFailed
from evokern.hardware.profiles import CHIPS
from evokern.study.discovery import WorkerContext, load_kernel
from evokern.study.settings import GateSettings, SimulationSettings, TimingSettings
from evokern.study.trial import Outcome

KERNEL = load_kernel(KERNELS / "matmul")
Genes = dict[str, Value]
REGISTERS: Genes = {"LOAD": "registers", "WARPS_K": 2}
ROW: Genes = {"LANES": "row"}
PADDED: Genes = {"EXTENT": "padded"}
SPLIT: Genes = {"SPLIT_K": 2, "MERGE": "ticket", "WARPS_K": 2}


def _candidate(kernel: Kernel, **choices: Value) -> Config:
    return kernel.space.canonical({**kernel.space.default(), "PATH": "skinny", "WARPS_K": 2, **choices})


def _worker(kernel: Kernel, problem: Problem) -> SimWorker:
    context = WorkerContext(kernel.folder, (problem,), CHIPS["l4"])
    return SimWorker(
        SimSettings(context, GateSettings(), TimingSettings(), SimulationSettings(), kernel.space.default())
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("problem", "choices"),
    [
        ("1,72,136,layout=nt", {"WARP_COLUMNS": 16, "DEPTH": 64}),
        ("1,72,136", PADDED | {"PRODUCTS": "fma", "WEIGHT_POLICY": "normal"}),
        ("3,40,520,layout=nt,dtype=bf16", PADDED | REGISTERS | {"PRODUCTS": "fma", "WARP_COLUMNS": 16, "STAGES": 4}),
        ("3,40,520,dtype=bf16", REGISTERS | SPLIT | {"PRODUCTS": "fma", "FRAGMENTS": "in_place", "STAGES": 2}),
        ("8,136,264,dtype=bf16", REGISTERS | {"STAGES": 2, "WARP_COLUMNS": 128}),
        ("16,136,264,layout=nt", SPLIT | {"WARP_COLUMNS": 32, "WARPS_ACROSS": 2, "WEIGHT_POLICY": "evict_first"}),
        ("16,136,520", SPLIT | {"STAGES": 2, "FRAGMENTS": "in_place"}),
        ("64,72,296,layout=nt,dtype=bf16", {"WARP_COLUMNS": 32, "SPLIT_K": 4, "WARPS_K": 1}),
        ("100,72,136,layout=nt", PADDED | {"WARP_COLUMNS": 16, "WARPS_ACROSS": 4, "FRAGMENTS": "in_place"}),
        ("128,40,72,layout=nt", {"FRAGMENTS": "in_place", "WARPS_K": 1, "WARP_COLUMNS": 32, "STAGES": 2}),
        ("64,40,72", {"FRAGMENTS": "in_place", "WARPS_K": 1, "STAGES": 2}),
        ("5,37,67,layout=nt", PADDED | REGISTERS | SPLIT | {"VECTOR": 1, "WARP_COLUMNS": 16, "STAGES": 2}),
        ("5,37,67,dtype=bf16", REGISTERS | {"VECTOR": 1, "STAGES": 2, "SPLIT_K": 2, "WARPS_K": 1}),
        ("5,66,130,layout=nt", {"VECTOR": 2, "WARP_COLUMNS": 16, "WEIGHT_POLICY": "evict_first"}),
        ("5,68,132", {"VECTOR": 4, "STAGES": 2}),
        ("3,72,200", {"PRODUCTS": "fma", "WARP_COLUMNS": 32}),
        ("16,72,200,dtype=bf16", REGISTERS | {"WARP_COLUMNS": 32, "WARPS_ACROSS": 2, "WEIGHT_POLICY": "no_allocate"}),
        ("16,136,264,dtype=bf16", REGISTERS | {"STAGES": 2, "WARPS_K": 4}),
        ("5,70,130", PADDED | SPLIT | {"WARP_COLUMNS": 32, "VECTOR": 2, "STAGES": 2}),
        ("1,72,1096,layout=nt", REGISTERS | ROW | {"PRODUCTS": "fma", "WARP_COLUMNS": 16, "DEPTH": 64, "STAGES": 2}),
        (
            "3,37,1091,layout=nt",
            PADDED | REGISTERS | ROW | SPLIT | {"PRODUCTS": "fma", "VECTOR": 1, "DEPTH": 32, "STAGES": 2},
        ),
        (
            "2,40,2056,layout=nt,dtype=bf16",
            ROW | {"PRODUCTS": "fma", "WARP_COLUMNS": 32, "WARPS_ACROSS": 2, "DEPTH": 32},
        ),
        ("16,136,264,layout=nt", ROW | {"DEPTH": 64, "STAGES": 2, "WARP_COLUMNS": 32}),
        ("5,72,520,layout=nt,dtype=bf16", ROW | {"DEPTH": 128, "WARP_COLUMNS": 16, "WEIGHT_POLICY": "evict_first"}),
        ("24,40,328,layout=nt", ROW | SPLIT | {"DEPTH": 64, "WARP_COLUMNS": 32, "WARPS_ACROSS": 2, "WARPS_K": 1}),
        (
            "9,38,330,layout=nt",
            PADDED | ROW | {"DEPTH": 64, "WARP_COLUMNS": 16, "VECTOR": 2, "WEIGHT_POLICY": "normal"},
        ),
        ("16,136,264", ROW | {"DEPTH": 64, "STAGES": 2, "WARP_COLUMNS": 32}),
        ("5,72,520,dtype=bf16", ROW | {"DEPTH": 128, "WARP_COLUMNS": 32, "WEIGHT_POLICY": "evict_first"}),
        (
            "24,152,328",
            ROW | SPLIT | {"DEPTH": 64, "STAGES": 2, "WARP_COLUMNS": 64, "WARPS_ACROSS": 2, "WARPS_K": 1},
        ),
        ("1,36,1004", ROW | {"DEPTH": 64, "STAGES": 2, "WARP_COLUMNS": 128, "VECTOR": 4}),
        ("9,38,330", PADDED | ROW | {"DEPTH": 64, "WARP_COLUMNS": 32, "VECTOR": 2, "WEIGHT_POLICY": "normal"}),
    ],
)
def test_right_and_without_a_race_on_the_ptx_machine(problem: str, choices: Genes) -> None:
    """Each way through the path passes the gate at shapes with tails, and the sanitizer finds nothing."""
    p = KERNEL.problem(problem)
    config = _candidate(KERNEL, **choices)
    assert check(KERNEL, config, [p], CHIPS["l4"], essential=True) is None
    verdict = _worker(KERNEL, p)._check(config, p)
    assert verdict.passed, verdict.evidence


NT: Genes = {"WARP_COLUMNS": 16, "STAGES": 2}
NARROW: Genes = {"WARP_COLUMNS": 32, "STAGES": 2}
RING: Genes = {"LANES": "row", "WARP_COLUMNS": 32, "STAGES": 2, "DEPTH": 64}
ROW_FMA: Genes = NT | {"LANES": "row", "PRODUCTS": "fma", "LOAD": "registers"}
FAULTS = [
    # depths of a lane, columns past the last one, the tail of K, rows past the last one
    ("skinny.cuh", "2ll * depth;", "1ll * depth;", "5,40,264,layout=nt", NT),
    (
        "skinny.cuh",
        "(WHOLE_BLOCKS ? j : min(j, extent.n() - 1 - first)) * extent",
        "j * extent",
        "5,37,264,layout=nt",
        NT | REGISTERS | {"VECTOR": 1},
    ),
    ("skinny.cuh", "min(column + further, extent.n() - ACCESS)", "column + further", "5,72,264", {"STAGES": 2}),
    ("skinny.cuh", "inside = WHOLE_STEPS || depth < left;", "inside = true;", "5,40,72,layout=nt", NT),
    (
        "skinny.cuh",
        "row && (WHOLE_STEPS || depth < left));",
        "row);",
        "5,72,72",
        {"STAGES": 2, "LOAD": "registers"},
    ),
    ("skinny.cuh", "MMA ? WHOLE_TILES || i * 8 + group < rows : EXACT || i < rows;", "true;", "5,40,264,layout=nt", NT),
    ("skinny.cuh", "which % RUN * PIECE_ROWS + element / RUN", "which % RUN + element / RUN", "5,72,264", NARROW),
    ("skinny.cuh", "depth % PIECE_ROWS * RUN + j % RUN", "j % RUN", "5,72,264", NARROW),
    # words of the fragments, sums of the lanes
    ("skinny.cuh", "j % 2 ? 0x7632 : 0x5410", "j % 2 ? 0x5410 : 0x7632", "5,72,264", {"STAGES": 2}),
    ("skinny.cuh", "a.v[i][quarter][half + 1]);", "a.v[i][quarter][half]);", "5,40,264,layout=nt", NT),
    ("skinny.cuh", "(j + k) % 2 * 2 + odd]", "(j + k) % 2 + 2 * odd]", "5,40,264,layout=nt", NT),
    ("skinny.cuh", "quad_sum(v[i][j])", "v[i][j]", "3,40,264,layout=nt", NT | {"PRODUCTS": "fma"}),
    (
        "skinny.cuh",
        "fmaf(high, high2float(x),",
        "fmaf(high, low2float(x),",
        "3,72,264",
        {"STAGES": 2, "PRODUCTS": "fma"},
    ),
    # the ring
    (
        "skinny.cuh",
        "cp_async_wait_group<STAGES - 1>();  // of",
        "cp_async_wait_group<STAGES>();  // of",
        "5,40,520,layout=nt",
        NT,
    ),
    ("skinny.cuh", "slot == STAGES - 1 ? 0", "slot == STAGES ? 0", "5,40,520,layout=nt", NT),
    ("skinny.cuh", "if constexpr (ASYNC) __syncthreads();", "", "16,40,1032,layout=nt", NT | {"WARPS_K": 4}),
    # long pieces of rows: what lanes exchange, its places, tails
    (
        "row_ring.cuh",
        "cp_async_wait_group<STAGES - 1>();\n    __syncwarp",
        "cp_async_wait_group<STAGES>();\n    __syncwarp",
        "5,40,520,layout=nt",
        RING,
    ),
    ("skinny.cuh", "return j * 8 + group;", "return group * LANE_COLUMNS + j;", "5,40,520,layout=nt", RING),
    ("skinny.cuh", "ROW_LANES ? warp_sum(v[i][j]) :", "", "3,40,2056,layout=nt", ROW_FMA),
    ("row_ring.cuh", "row % 8 : row / 2 % 4)) * 16", "row % 4 : row / 2 % 4)) * 8", "5,40,520,layout=nt", RING),
    (
        "row_ring.cuh",
        "row < extent.m()) && (WHOLE_STEPS || part * VECTOR < left_a)",
        "row < extent.m())",
        "5,40,72,layout=nt",
        RING,
    ),
    ("row_ring.cuh", "WHOLE_STEPS || (NT ? part * VECTOR : first) < left;", "true;", "5,40,72,layout=nt", RING),
    ("row_ring.cuh", "(WHOLE_TILES || row < extent.m()) &&", "", "5,40,520,layout=nt", RING),
    ("row_ring.cuh", "min(first + row, columns - 1)", "first + row", "5,38,520,layout=nt", RING | {"VECTOR": 2}),
    (
        "row_ring.cuh",
        "k * 2 + lane / 8 % 2));\n        rows",
        "k * 2 + lane / 16));\n        rows",
        "5,40,520,layout=nt",
        RING,
    ),
    # the same where pieces are columns of one depth
    ("row_ring.cuh", "row % 8 : row / 2 % 4)) * 16", "row % 8 : row)) * 16", "5,40,520", RING),
    ("row_ring.cuh", "WHOLE_STEPS || (NT ? part * VECTOR : first) < left;", "true;", "5,72,72", RING),
    ("row_ring.cuh", "left = K - depth0 - row;", "left = K - depth0;", "5,72,76", RING | {"VECTOR": 4}),
    ("row_ring.cuh", "min(part * VECTOR, columns - VECTOR)", "part * VECTOR", "5,40,520", RING),
    ("row_ring.cuh", "(NT ? 2 : ROW_BYTES), next_a", "2, next_a", "5,72,520", RING),
    ("row_ring.cuh", "lane / 16 * 8 + lane % 8, tile * 2", "lane % 16, tile * 2", "5,72,520", RING),
    # the merges
    (
        "skinny.cuh",
        "warp_n * COLUMNS) * 4);\n  __syncthreads();",
        "warp_n * COLUMNS) * 4);",
        "5,40,264,layout=nt",
        NT,
    ),
    ("split_k.cuh", "== SPLIT_K - 1;", "== 0;", "5,2056,136,layout=nt", NT | SPLIT),
    (
        "split_k.cuh",
        "atomicInc(&tickets[tile], SPLIT_K - 1)",
        "atomicInc(&tickets[tile], 99)",
        "5,40,264,layout=nt",
        NT | SPLIT,
    ),
    (
        "split_k.cuh",
        "if (split == blockIdx.y) continue;",
        "if (split == 0) continue;",
        "5,40,264,layout=nt",
        NT | SPLIT,
    ),
    ("split_k.cuh", "  __threadfence();  // what", "  // what", "5,40,264,layout=nt", NT | SPLIT),
]


@pytest.mark.parametrize(
    ("name", "right", "broken", "problem", "choices"),
    # A third of them in each run of all tests; the others take another minute.
    [pytest.param(*one, marks=pytest.mark.slow if n % 3 else pytest.mark.thorough) for n, one in enumerate(FAULTS)],
)
def test_a_fault_is_caught(name: str, right: str, broken: str, problem: str, choices: Genes, tmp_path: Path) -> None:
    """One change of the text, and the gate or the sanitizer turns a candidate away that is right without it."""
    kernel = edited_kernel(tmp_path, "matmul", f"matmul/{name}", right, broken)
    p = kernel.problem(problem)
    config = _candidate(kernel, **choices)
    assert check(kernel, config, [p], CHIPS["l4"], essential=True) is None
    try:
        assert not _worker(kernel, p)._check(config, p).passed
    except RunFailed as failed:
        assert failed.outcome in (Outcome.WRONG, Outcome.CRASHED)


@pytest.mark.parametrize(("path", "entry"), [("tiled", "matmul"), ("skinny", "matmul_skinny")])
def test_a_ticket_saves_the_second_launch(path: str, entry: str) -> None:
    """With the merge by ticket a split is one launch over the same grid, with the same workspace."""
    p = KERNEL.problem("16,4096,4096,layout=nt")
    two = KERNEL.space.canonical({**KERNEL.space.default(), "PATH": path, "SPLIT_K": 4})
    one = KERNEL.space.canonical({**two, "MERGE": "ticket"})
    first, second = launches_of(KERNEL, two, p)
    (only,) = launches_of(KERNEL, one, p)
    assert (first.entry, second.entry, only) == (entry, "add_partial_sums", first)
    assert KERNEL.workload.buffers(p, one)["partial"] == KERNEL.workload.tensors(p, two)["partial"]


@pytest.mark.parametrize(
    ("problem", "choices", "constraint"),
    [
        ("129,4096,4096,layout=nt", {}, "skinny_rows"),
        ("16,4096,4096", {"WARP_COLUMNS": 16}, "skinny_columns"),
        ("9,4096,4096", {"PRODUCTS": "fma"}, "fma_rows"),
        ("2,4096,4096", {"LANES": "row", "DEPTH": 64, "PRODUCTS": "fma"}, "row_lanes"),
        ("16,4096,4096", {"LANES": "row", "DEPTH": 64, "WARP_COLUMNS": 16}, "skinny_columns"),
        ("16,4096,4096", {"LANES": "row", "DEPTH": 64, "WARP_COLUMNS": 32, "WARPS_K": 4}, None),
        ("16,4096,4096,layout=nt", {"LANES": "row"}, "row_ring"),
        ("16,4096,4096", {"WEIGHT_POLICY": "no_allocate"}, "async_policy"),
        (
            "1,4096,4096,layout=nt",
            {"PRODUCTS": "fma", "WEIGHT_POLICY": "evict_first", "WARP_COLUMNS": 128},
            "policy_register",
        ),
        ("64,4096,4096", {"LOAD": "registers", "STAGES": 8}, "skinny_registers"),
        ("16,4096,4096", {"VECTOR": 4}, "widest_vectors"),
        ("16,4100,4096", {"VECTOR": 4}, None),
        ("1,4096,4096,layout=nt", {"WARP_COLUMNS": 16, "WARPS_K": 1, "STAGES": 2, "SPLIT_K": 1}, "bytes_in_flight"),
        ("64,4096,4096,layout=nt", {"WARP_COLUMNS": 16}, "rows_from_cache"),
        ("16,4096,64", {"WARPS_K": 16, "STAGES": 2}, "warps_have_steps"),
        ("16,4096,4096", {"WARPS_K": 16, "DEPTH": 64, "STAGES": 8, "WARP_COLUMNS": 32}, "stages_have_steps"),
        ("16,4096,4096,layout=nt", {"WARP_COLUMNS": 32, "WARPS_K": 8}, None),
        ("1,14336,4096,layout=nt,dtype=bf16", {"WARPS_K": 8, "LOAD": "registers", "STAGES": 2}, None),
    ],
)
def test_what_the_path_cannot_do_or_should_not_is_named(problem: str, choices: Genes, constraint: str | None) -> None:
    """What needs more than there is, or is slow by its nature, is turned away before any compile, by a name."""
    violation = check(KERNEL, _candidate(KERNEL, **choices), [KERNEL.problem(problem)], CHIPS["h200"])
    assert (violation and violation.constraint) == constraint


@pytest.mark.parametrize("problem", ["1,4096,4096", "1,14336,4096,layout=nt", "3,4096,14336,layout=nt"])
@pytest.mark.parametrize("name", ["l4", "h200"])
def test_every_candidate_for_few_rows_can_be_judged(problem: str, name: str) -> None:
    """What is feasible at a large K finds a small problem that it can run, so that a simulated search may try it."""
    p, rng = KERNEL.problem(problem), random.Random(0)
    space = feasible_space(KERNEL, [p], CHIPS[name], {"PATH": ("skinny",)})
    drawn = list(filter(space.feasible, (space.draw(rng) for _ in range(4000))))
    assert len(drawn) > 30
    assert all(gate_problems(KERNEL, config, [p], CHIPS[name]) for config in drawn[:200])


def test_more_tiles_than_tickets_are_refused() -> None:
    """A split of a large C by tickets is infeasible where the counters do not suffice; a second launch has no limit."""
    p = KERNEL.problem("8192,8192,4096")
    config = KERNEL.space.canonical({**KERNEL.space.default(), "SPLIT_K": 2, "MERGE": "ticket"})
    assert check(KERNEL, config, [p], CHIPS["h200"]) is None  # 64 x 64 tiles
    violation = check(KERNEL, config, [KERNEL.problem("8193,8192,4096")], CHIPS["h200"])
    assert violation is not None and violation.constraint == "tickets"
    assert check(KERNEL, config.replace(MERGE="launch"), [KERNEL.problem("8193,8192,4096")], CHIPS["h200"]) is None
