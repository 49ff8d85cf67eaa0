"""The matrix product's declaration and its CUDA source say the same thing, and each way through it is right."""

from __future__ import annotations

import pickle
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from edited_kernel import edited_kernel
from engine_helpers import share_of_allowed
from paths import KERNELS

from evokern.compile.nvrtc import compile_program
from evokern.compile.records import CompileFailure
from evokern.declaration.feasibility import check, feasible_space
from evokern.declaration.genes import Value
from evokern.declaration.kernel import Kernel, Problem
from evokern.declaration.render import render
from evokern.device.sim.jobs import SimSettings
from evokern.device.sim.worker import SimWorker
from evokern.gate import RunFailed
from evokern.gate.data import torch_dtype
from evokern.hardware.profiles import CHIPS, Profile
from evokern.study.discovery import WorkerContext, load_kernel
from evokern.study.settings import GateSettings, SimulationSettings, TimingSettings
from evokern.study.trial import Outcome

FOLDER = KERNELS / "matmul"
KERNEL = load_kernel(FOLDER)
WGMMA: dict[str, Value] = {"TENSOR_CORES": "wgmma", "WARPS_M": 4}
PRODUCERS: dict[str, Value] = {"LOAD": "producer_warps"}
TURNS: dict[str, Value] = WGMMA | {"TILES": 2, "BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "WARPS_N": 1, "STAGES": 3}
BULK: dict[str, Value] = {"PATH": "bulk", "TILE_N": 64, "STAGES": 2}
PROBLEMS = ("4096,4096,4096", "144,160,96,dtype=bf16", "33,35,37,layout=nt", "1,8,72,dtype=bf16,layout=nt")


@pytest.mark.thorough
@pytest.mark.parametrize(("chip", "ways"), [pytest.param("a100", 2, marks=pytest.mark.slow), ("l4", 2), ("h200", 5)])
def test_feasible_candidates_compile(chip: str, ways: int) -> None:
    """A sample of feasible candidates, one of each way to load and multiply, compiles without an error or a spill."""
    rng = random.Random(chip)
    problem = KERNEL.problem("4096,4096,4096")
    tried = set()
    while len(tried) < ways:
        config = KERNEL.space.draw(rng)
        way = config["PATH"], config["LOAD"], config["TENSOR_CORES"]
        if way in tried or check(KERNEL, config, [problem], CHIPS[chip]) is not None:
            continue
        tried.add(way)
        built = render(KERNEL, config, problem)
        architecture = CHIPS[chip].architecture + built.architecture_suffix
        result = compile_program(built.source, built.name, built.headers, built.options, built.entries, architecture)
        assert not isinstance(result, CompileFailure), f"{dict(config)}: {result}"
        assert result.uses[built.entries[0]].spill_bytes == 0, dict(config)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("problem", "choices"),
    [
        ("144,160,96", {}),
        ("144,160,96,dtype=bf16", {}),
        ("144,160,96,layout=nt", {}),
        ("72,48,200,layout=nt,dtype=bf16", {"BLOCK_N": 64, "STAGES": 4, "BLOCK_K": 64, "EPILOGUE": "shared"}),
        (
            "40,72,72,layout=nt",
            {"FRAGMENTS": "in_place", "BLOCK_M": 32, "BLOCK_N": 64, "BLOCK_K": 16, "WARPS_M": 1, "SPLIT_K": 2},
        ),
        ("40,36,52,layout=nt", {"VECTOR": 4, "BLOCK_M": 64, "BLOCK_N": 64, "SMEM_LAYOUT": "padded"}),
        (
            "33,35,37,layout=nt",
            {"LOAD": "registers", "STAGES": 2, "VECTOR": 1, "BLOCK_M": 32, "BLOCK_N": 64, "WARPS_M": 1},
        ),
        ("72,136,200,layout=nt", WGMMA | {"BLOCK_K": 64, "STAGES": 3, "EPILOGUE": "shared"}),
        ("136,72,72,layout=nt,dtype=bf16", WGMMA | {"BLOCK_M": 64, "BLOCK_N": 64, "STAGES": 4}),
        (
            "33,35,37,dtype=bf16",
            {"LOAD": "registers", "STAGES": 2, "VECTOR": 1, "BLOCK_M": 32, "BLOCK_N": 64, "WARPS_M": 1},
        ),
        (
            "72,72,200,dtype=bf16",
            {"SPLIT_K": 4, "BLOCK_M": 32, "BLOCK_N": 64, "SMEM_LAYOUT": "plain", "EPILOGUE": "shared"},
        ),
        ("72,136,200,dtype=bf16", WGMMA | {"BLOCK_K": 64, "STAGES": 3, "EPILOGUE": "shared"}),
        ("72,48,200", {"BLOCK_N": 64, "STAGES": 4, "BLOCK_K": 64}),
        ("40,72,72", {"FRAGMENTS": "in_place", "BLOCK_M": 32, "BLOCK_N": 64, "BLOCK_K": 16, "WARPS_M": 1}),
        ("40,36,52", {"VECTOR": 4, "BLOCK_M": 64, "BLOCK_N": 64, "SMEM_LAYOUT": "padded", "EPILOGUE": "shared"}),
        ("33,35,37", {"LOAD": "registers", "STAGES": 2, "VECTOR": 1, "BLOCK_M": 32, "BLOCK_N": 64, "WARPS_M": 1}),
        ("40,40,72", {"LOAD": "registers", "STAGES": 2, "FRAGMENTS": "in_place", "BLOCK_M": 64, "BLOCK_N": 64}),
        ("72,72,200", {"SPLIT_K": 4, "BLOCK_M": 32, "BLOCK_N": 64, "SMEM_LAYOUT": "plain"}),
        ("40,72,72", {"ACCUMULATOR": "fp16", "BLOCK_M": 32, "BLOCK_N": 64}),
        ("40,264,72", {"BLOCK_M": 32, "BLOCK_N": 256, "WARPS_M": 1, "EPILOGUE": "shared", "RASTER": "columns"}),
        ("72,136,200", WGMMA | {"BLOCK_K": 64, "STAGES": 3, "EPILOGUE": "shared"}),
        # Five and six tiles in turn, two or four a block: the last block has fewer.
        (
            "72,152,88",
            {
                "TILES": 4,
                "SHAPE": "compiled",
                "BLOCK_M": 64,
                "BLOCK_N": 64,
                "STAGES": 4,
                "EPILOGUE": "shared",
                "RASTER": "rows",
            },
        ),
        (
            "136,40,56,layout=nt",
            {"TILES": 2, "SHAPE": "compiled", "FRAGMENTS": "in_place", "BLOCK_M": 32, "BLOCK_N": 64, "WARPS_M": 1},
        ),
        ("72,328,72,layout=nt", WGMMA | {"TILES": 4, "BLOCK_M": 64, "BLOCK_N": 64, "STAGES": 4, "BLOCK_K": 64}),
        (
            "136,136,24",
            WGMMA | {"TILES": 8, "BLOCK_M": 64, "BLOCK_N": 64, "WARPS_N": 1, "STAGES": 3, "EPILOGUE": "shared"},
        ),
        (
            "72,264,200",
            WGMMA | {"BLOCK_M": 64, "BLOCK_N": 256, "WARPS_N": 1, "FRAGMENTS": "in_place", "STAGES": 2, "SPLIT_K": 2},
        ),
        # Four warps that only load, or only store, or both; one tile a block or several.
        ("200,136,264", TURNS | PRODUCERS | {"FRAGMENTS": "in_place", "EPILOGUE": "shared"}),
        ("200,136,264", TURNS | PRODUCERS | {"STAGES": 4, "EPILOGUE": "store_warps", "SHAPE": "compiled"}),
        ("200,72,136,dtype=bf16", TURNS | {"EPILOGUE": "store_warps"}),
        ("136,152,88", {"BLOCK_M": 32, "BLOCK_N": 64, "WARPS_M": 1, "TILES": 2, "EPILOGUE": "store_warps"}),
        ("136,72,520,layout=nt", TURNS | PRODUCERS | {"TILES": 1, "STAGES": 5, "WARPS_M": 8, "BLOCK_M": 128}),
        ("136,72,72", WGMMA | {"WARPS_M": 8, "BLOCK_N": 128, "WARPS_N": 1, "BLOCK_K": 16, "VECTOR": 4, "STAGES": 4}),
        (
            "33,67,37",
            WGMMA
            | {"BLOCK_M": 64, "LOAD": "registers", "STAGES": 2, "VECTOR": 1, "FRAGMENTS": "in_place", "WARPS_N": 1},
        ),
        # Tensor copies: tails on each side, clusters, warpgroups that take tiles in turn, sums in parts.
        ("136,72,200", BULK | {"GRID_BLOCKS": 132, "CLUSTER_M": 2}),
        ("72,136,136,layout=nt,dtype=bf16", BULK | {"CLUSTER_N": 2, "TILE_N": 80}),
        ("136,136,200,layout=nt", BULK | {"SCHEDULE": "alternating", "GRID_BLOCKS": 132}),
        ("72,136,72", BULK | {"ROW_OPERAND": "b", "TILE_N": 80, "CONSUMER_M": 128}),
        ("64,64,328", BULK | {"SPLITS": 3, "CONSUMERS": 1, "CONSUMER_M": 128}),
        (
            "136,64,136,dtype=bf16",
            BULK | {"SPLITS": 2, "MERGE_PARTS": "cluster", "TILE_N": 96, "ROW_OPERAND": "b", "CONSUMERS": 1},
        ),
    ],
)
def test_right_and_without_a_race_on_the_ptx_machine(problem: str, choices: dict[str, Value]) -> None:
    """Each way through the kernel passes the gate at tiles with tails, and the sanitizer finds nothing."""
    p = KERNEL.problem(problem)
    default = KERNEL.space.default()
    config = KERNEL.space.canonical({**default, **choices})
    half = config["ACCUMULATOR"] == "fp16"  # sums of large products are beyond its precision
    gate = GateSettings(input_sets=("normal", "equal_rows", "denormal")) if half else GateSettings()
    chip = CHIPS["h200" if config["TENSOR_CORES"] == "wgmma" or config["PATH"] == "bulk" else "l4"]
    assert check(KERNEL, config, [p], chip, essential=True) is None
    verdict = _worker(KERNEL, p, chip, gate)._check(config, p)
    assert verdict.passed, verdict.evidence
    if half:  # a study may require the precision of float32
        strict = _worker(KERNEL, p, chip, replace(gate, precision="f32"))._check(config, p)
        assert (strict.passed, strict.evidence["check"]) == (False, "tolerance")
    assert verdict.report["relative_error"] < (2e-3 if half else torch.finfo(torch_dtype(str(p["dtype"]))).eps / 2)


def test_blocks_may_have_different_numbers_of_steps(tmp_path: Path) -> None:
    """The end of a product orders its reads also if another block still multiplies; steps beyond K multiply zeros."""
    steps = "steps = (split + 1) * all / SPLITS - first_step"
    kernel = edited_kernel(tmp_path, "matmul", "matmul/bulk.cuh", steps, f"{steps} + (tile + 1) / 2 % 2")
    problem = kernel.problem("64,256,64")
    config = kernel.space.canonical({**kernel.space.default(), **BULK, "CONSUMERS": 1, "GRID_BLOCKS": 132})
    assert _worker(kernel, problem, CHIPS["h200"], GateSettings())._check(config, problem).passed


def _worker(kernel: Kernel, problem: Problem, chip: Profile, gate: GateSettings) -> SimWorker:
    context = WorkerContext(kernel.folder, (problem,), chip)
    return SimWorker(SimSettings(context, gate, TimingSettings(), SimulationSettings(), kernel.space.default()))


def test_what_has_no_bf16_is_a_named_constraint() -> None:
    """Sums in fp16, and compute capability 7.5, are infeasible before any compile; fp16 is not touched."""
    half, brain = (KERNEL.problem(f"1024,1024,1024,dtype={dtype}") for dtype in ("f16", "bf16"))
    default = KERNEL.space.default()
    short = KERNEL.space.with_changes(default, {"ACCUMULATOR": "fp16"})
    turing = replace(CHIPS["l4"], compute_capability=(7, 5))
    assert check(KERNEL, short, [half], CHIPS["l4"]) is None and check(KERNEL, default, [half], turing) is None
    violations = check(KERNEL, short, [brain], CHIPS["l4"]), check(KERNEL, default, [brain], turing)
    assert [violation and violation.constraint for violation in violations] == ["bf16_sums", "bf16_instructions"]
    assert check(KERNEL, default, [brain], CHIPS["l4"]) is None


@pytest.mark.parametrize(
    ("name", "right", "broken"),
    [
        (
            "kernel.cu",
            "b(matrix_b, NT ? at.column : depth0, NT ? depth0 : at.column, NT ? N : K, NT ? K : N)",
            "b(matrix_b, NT ? at.column : depth0, NT ? depth0 : at.column, NT ? K : N, NT ? N : K)",
        ),  # the extents of B, taken for each other
        ("kernel.cu", "tile += gridDim.x, tile_left", "tile += 1, tile_left"),  # loads of another tile than is stored
        ("mma_loop.cuh", "chunk_b = lane / 8 % 2;", "chunk_b = lane / 16;"),  # depths and columns of fragments
        ("mma_loop.cuh", "tile_b + n * 16 *", "tile_b + n * 8 *"),  # columns of C twice, others never
        ("tiles.cuh", "(ALONG_ROWS ? part * VECTOR : i * ROWS_AT_ONCE) < left", "true"),  # the tail of K is not cleared
        pytest.param("tiles.cuh", "min(row, rows - row0 - 1) : row", "row : row", marks=pytest.mark.slow),
        pytest.param("wgmma_loop.cuh", "warp_n * (2 * BLOCK_K)", "warp_n * BLOCK_K", marks=pytest.mark.slow),
        pytest.param("wgmma_loop.cuh", "columns.at(k * 32)", "columns.at(k * 64)", marks=pytest.mark.slow),
        pytest.param("wgmma_loop.cuh", "wgmma_accumulate<0>", "wgmma_accumulate<1>", marks=pytest.mark.slow),
    ],
)
def test_a_fault_of_the_layout_is_caught(name: str, right: str, broken: str, tmp_path: Path) -> None:
    """One change of the text, and the gate or the sanitizer turns a candidate at nt away."""
    kernel = edited_kernel(tmp_path, "matmul", f"matmul/{name}", right, broken)
    wgmma = {**WGMMA, "BLOCK_M": 64, "BLOCK_K": 32} if name.startswith("wgmma") else {}
    config = kernel.space.canonical({**kernel.space.default(), "BLOCK_M": 64, "BLOCK_N": 64, "TILES": 2, **wgmma})
    problem = kernel.problem("72,136,88,layout=nt")
    worker = _worker(kernel, problem, CHIPS["h200" if wgmma else "l4"], GateSettings())
    try:
        assert not worker._check(config, problem).passed
    except RunFailed as failed:
        assert failed.outcome in (Outcome.WRONG, Outcome.CRASHED)


def test_rows_of_b_fit_narrower_warps_at_nt() -> None:
    """Panels of 64 columns are the other layout's: at nt a warpgroup may take fewer, and nn says why it may not."""
    config = KERNEL.space.canonical({**KERNEL.space.default(), **WGMMA, "BLOCK_M": 64, "BLOCK_N": 64})
    plain, weights = (KERNEL.problem(f"1024,1024,1024,layout={layout}") for layout in ("nn", "nt"))
    violation = check(KERNEL, config, [plain], CHIPS["h200"])
    assert violation is not None and violation.constraint == "wgmma_columns"
    assert check(KERNEL, config, [weights], CHIPS["h200"]) is None


@pytest.mark.parametrize(
    ("problem", "first"),
    [
        ("3072,768,3072", {"ROW_OPERAND": "b", "TILE_N": 144, "SPLITS": 1}),  # 132 tiles
        ("200,5120,13824", {"ROW_OPERAND": "b", "TILE_N": 208, "SPLITS": 3}),  # few rows of zeros
        ("7944,304,3008", {"CONSUMER_M": 64, "TILE_N": 160, "CLUSTER_M": 2}),  # rows of B are not aligned
        ("4096,4096,256", {"SCHEDULE": "alternating", "GRID_BLOCKS": 132}),  # stores take long
    ],
)
def test_tiles_to_try_first_follow_from_the_problem(problem: str, first: dict[str, Value]) -> None:
    """They are feasible, and only chips with tensor copies have any."""
    p = KERNEL.problem(problem)
    assert KERNEL.starting_points_for([p], CHIPS["l4"]) == KERNEL.space.starting_points
    space = feasible_space(KERNEL, [p], CHIPS["h200"])
    configs = space.starting_configs()[: len(space.starting_points) - len(KERNEL.space.starting_points)]
    assert len(configs) >= 10 and all(map(space.feasible, configs))
    assert {name: configs[0][name] for name in first} == first


def test_baselines_compute_what_the_layout_says() -> None:
    """The product of torch, or its linear layer, gives what the reference gives, for both layouts and dtypes."""
    torch.manual_seed(0)
    for text in ("24,40,56", "24,40,56,layout=nt", "24,40,56,dtype=bf16", "24,40,56,dtype=bf16,layout=nt"):
        problem = KERNEL.problem(text)
        tensors = KERNEL.workload.buffers(problem, KERNEL.space.default())
        dtype = torch_dtype(tensors["a"].dtype)
        inputs = {name: torch.randn(tensors[name].shape).to(dtype) for name in "ab"}
        for baseline in KERNEL.workload.baselines[:2]:
            found = baseline.run(problem, inputs)["c"]
            assert (found.dtype, tuple(found.shape)) == (dtype, tensors["c"].shape)
            assert float(share_of_allowed(KERNEL, problem, inputs, "c", found).max()) <= 1


def test_cublaslt_is_preferred_only_during_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process keeps the library that it preferred, also after an error."""

    class OnGpu(torch.Tensor):
        is_cuda = True

    told: list[str | None] = []

    def preferred(library: str | None = None) -> str:
        told.append(library)
        return "before"

    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", preferred)
    problem, run = KERNEL.problem("24,40,56"), KERNEL.workload.baselines[1].run
    a, b = (torch.ones(shape, dtype=torch.float16).as_subclass(OnGpu) for shape in ((24, 56), (56, 40)))
    assert run(problem, {"a": a, "b": b})["c"].shape == (24, 40)
    with pytest.raises(RuntimeError):
        run(problem, {"a": a, "b": a})
    assert told == [None, "cublaslt", "before"] * 2


def test_a_problem_without_a_layout_is_known_by_the_same_key() -> None:
    """Studies, draws and reports know problems by their key: that of the layout of before stays what it was."""
    plain, weights = KERNEL.problem("4096,4096,4096"), KERNEL.problem("4096,4096,4096,layout=nt")
    assert (plain.key, plain["layout"]) == ("4096,4096,4096,dtype=f16", "nn")
    assert weights.key == "4096,4096,4096,dtype=f16,layout=nt"
    for problem in (plain, weights, pickle.loads(pickle.dumps(weights)), weights.changed({"K": 8})):
        assert KERNEL.problem(problem.key) == problem == KERNEL.problem(str(problem))
    assert plain != weights and KERNEL.problem({**plain}) == plain


@pytest.mark.parametrize("broken", [False, True])
def test_descriptors_leave_the_rank_out(broken: bool, tmp_path: Path) -> None:
    """In a cluster addresses hold their block's rank, which would lengthen a descriptor's way between panels."""
    launch = "        min_blocks=c.MIN_BLOCKS,\n"
    kernel = edited_kernel(tmp_path, "matmul", "matmul/kernel.py", launch, f"{launch}        cluster=(2, 1, 1),\n")
    if broken:
        header = tmp_path / "common" / "wgmma.cuh"
        text = header.read_text(encoding="utf-8")
        assert text.count("(address & 0x3ffff) / 16") == 1
        header.write_text(text.replace("(address & 0x3ffff) / 16", "address / 16"), encoding="utf-8")
    problem = kernel.problem("144,256,96")
    config = kernel.space.canonical({**kernel.space.default(), **WGMMA, "WARPS_N": 1, "BLOCK_K": 64})
    worker = _worker(kernel, problem, CHIPS["h200"], GateSettings())
    if broken:
        with pytest.raises(RunFailed, match=r"uninitialised at line \d+ of \.\./common/wgmma\.cuh"):
            worker._check(config, problem)
    else:
        assert worker._check(config, problem).passed


@pytest.mark.parametrize(
    ("name", "right", "broken", "choices"),
    [
        # a tile of C before it is stored, or after; a stage before it is there, or read; what wgmma may not see yet
        ("kernel.cu", "named_barrier_sync<THREADS + STORE_THREADS>(C_FREE);", ";", {"EPILOGUE": "store_warps"}),
        ("kernel.cu", "named_barrier_sync<THREADS + STORE_THREADS>(C_FULL);", "", {"EPILOGUE": "store_warps"}),
        ("kernel.cu", "blockIdx.x + own * gridDim.x", "blockIdx.x + own", {"EPILOGUE": "store_warps"}),
        (
            "kernel.cu",
            "named_barrier_sync<THREADS + PRODUCER_THREADS>(STAGE_FULL + awaited);",
            "",
            PRODUCERS,
        ),
        (
            "kernel.cu",
            "named_barrier_sync<THREADS + PRODUCER_THREADS>(STAGE_FREE + stage);",
            ";",
            PRODUCERS,
        ),
        ("kernel.cu", "cp_async_wait_group<LAG>();", "", PRODUCERS),
        ("kernel.cu", "      fence_proxy_async();\n      named_barrier", "      named_barrier", PRODUCERS),
        ("wgmma_loop.cuh", "if (!AHEAD || step > 0) pipeline", "pipeline", PRODUCERS),
        (
            "kernel.cu",
            "        sync_compute_warps();\n        StagedTile",
            "        __syncthreads();\n        StagedTile",
            PRODUCERS,
        ),
        # Tensor copies: a missing wait, wrong bytes, parts or turns, a tile stored before it is written.
        pytest.param(
            "bulk.cuh",
            "      mbarrier_wait(shared + FULL + 8 * place.stage, place.parity);\n",
            "",
            BULK,
            marks=pytest.mark.slow,
        ),
        ("bulk.cuh", "mbarrier_wait(empty, place.parity ^ 1);", "", BULK),
        ("bulk.cuh", "mbarrier_arrive_expect(full, STAGE);", "mbarrier_arrive_expect(full, A_STAGE);", BULK),
        pytest.param(
            "bulk.cuh",
            "mbarrier_arrive_expect(full, STAGE);",
            "mbarrier_arrive_expect(full, 2 * STAGE);",
            BULK,
            marks=pytest.mark.slow,
        ),
        pytest.param("bulk.cuh", "      fence_proxy_async();\n", "", BULK, marks=pytest.mark.slow),
        pytest.param(
            "bulk.cuh",
            "if (threadIdx.x % 128 == 0) piece == 0 && (PLACES >= STORES || STORES % 2) ? bulk_wait_read<0>() : "
            "bulk_wait_read<1>();",
            "",
            BULK,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "bulk.cuh",
            "named_barrier_sync<256>(TURN + warpgroup);",
            "",
            BULK | {"SCHEDULE": "alternating"},
            marks=pytest.mark.slow,
        ),
        pytest.param("bulk.cuh", "SOURCES * TEAM / 32)", "TEAM / 32)", BULK | {"CLUSTER_M": 2}, marks=pytest.mark.slow),
        pytest.param("bulk.cuh", "y + part * (HEIGHT / SHARERS)", "y", BULK | {"CLUSTER_M": 2}, marks=pytest.mark.slow),
    ],
)
def test_a_fault_among_specialised_warps_is_caught(
    name: str, right: str, broken: str, choices: dict[str, Value], tmp_path: Path
) -> None:
    """A barrier, a wait or a fence less, or a barrier of all where some wait elsewhere, and it is turned away."""
    kernel = edited_kernel(tmp_path, "matmul", f"matmul/{name}", right, broken)
    p, chip = kernel.problem("200,136,264"), CHIPS["h200"]
    base = {"GRID_BLOCKS": 132} if choices.get("PATH") == "bulk" else TURNS | {"EPILOGUE": "shared"}
    config = kernel.space.canonical({**kernel.space.default(), **base, **choices})
    assert check(kernel, config, [p], chip, essential=True) is None
    try:
        assert not _worker(kernel, p, chip, GateSettings())._check(config, p).passed
    except RunFailed as failed:
        assert failed.outcome in (Outcome.WRONG, Outcome.CRASHED, Outcome.HUNG)
