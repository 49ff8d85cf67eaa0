"""The attention kernel's declaration and its CUDA source say the same thing."""

import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from edited_kernel import edited_kernel
from paths import KERNELS

from evokern import simt
from evokern.compile.build import tensors_of
from evokern.compile.nvrtc import compile_program
from evokern.compile.records import CompileFailure
from evokern.declaration.feasibility import check, launches_of
from evokern.declaration.render import render
from evokern.device.sim.arguments import drawn
from evokern.device.sim.jobs import SimSettings
from evokern.device.sim.program import ordered
from evokern.device.sim.worker import SimWorker
from evokern.gate.data import torch_dtype
from evokern.hardware.profiles import CHIPS
from evokern.study.discovery import WorkerContext, load_kernel
from evokern.study.settings import GateSettings, SimulationSettings, TimingSettings

FOLDER = KERNELS / "attention"
KERNEL = load_kernel(FOLDER)
WGMMA = {"TENSOR_CORES": "wgmma", "BLOCK_M": 64, "WARPS_M": 4}
BULK = {"PATH": "bulk", "Q_LOCATION": "shared", "ROW_SUM": "add", "GROUPS": 1, "TURNS": "free", "TILE_N": 64}
TURNS = BULK | {"GROUPS": 2, "TURNS": "alternate"}
PERSISTENT = {"SCHEDULE": "persistent", "GRID_BLOCKS": 58}
DIRECT = {"KV_BUFFERS": "resident", "QK_PATH": "direct", "BLOCK_N": 16, "KEY_SPLITS": 8, "BLOCK_M": 32, "WARPS_M": 2}
PROBLEMS = ("2,8,512,64", "1,2,72,64,causal=1", "2,4,300,128,dtype=bf16", "1,1,1,128,causal=1")


def test_default_is_feasible_on_every_chip_at_every_length():
    """Nobody starts with a candidate that cannot run."""
    for text in (*PROBLEMS, "4,16,1024,128", "2,8,512,64,causal=1", "1,32,2048,128"):
        for chip in CHIPS.values():
            assert check(KERNEL, KERNEL.space.default(), [KERNEL.problem(text)], chip) is None


@pytest.mark.thorough
@pytest.mark.parametrize(("chip", "ways"), [pytest.param("a100", 3, marks=pytest.mark.slow), ("l4", 3), ("h200", 4)])
def test_feasible_candidates_compile(chip, ways):
    """A sample of feasible candidates, one of each way to multiply that the chip has, compiles without an error."""
    rng = random.Random(chip)
    tried = set()
    chip = CHIPS[chip]
    while len(tried) < ways:
        config = KERNEL.space.draw(rng)
        problem = KERNEL.problem(rng.choice(PROBLEMS))
        if config["TENSOR_CORES"] in tried or check(KERNEL, config, [problem], chip) is not None:
            continue
        tried.add(config["TENSOR_CORES"])
        built = render(KERNEL, config, problem)
        architecture = chip.architecture + built.architecture_suffix
        result = compile_program(built.source, built.name, built.headers, built.options, built.entries, architecture)
        assert not isinstance(result, CompileFailure), f"{dict(config)} at {problem}: {result}"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("problem", "choices"),
    [
        ("1,1,200,64", {}),
        ("1,1,72,64,causal=1", {"KEY_SPLITS": 4, "WARPS_M": 1, "BLOCK_M": 16, "BLOCK_N": 16, "MERGE": "fp32"}),
        (
            "1,1,256,64",
            {"KV_BUFFERS": "resident", "BLOCK_N": 64, "WARPS_M": 2, "KEY_WALK": "rotated", "LENGTH": "steps"},
        ),
        ("1,1,72,128,causal=1", {"KEY_SPLITS": 1, "STAGES": 1, "LOOP_ORDER": "plain", "KV_LOAD": "vector16"}),
        ("1,2,100,64", DIRECT),
        (
            "1,1,40,128,causal=1",
            {"KV_BUFFERS": "resident", "QK_PATH": "direct", "LOOKAHEAD": 1, "BLOCK_M": 16, "WARPS_M": 1},
        ),
        ("1,1,200,64", {"WARP_ROLES": "loaders", "STAGES": 3, "LOAD_WARPS": 2}),
        ("1,1,40,64", {"LENGTH": "runtime", "SCHEDULE": "persistent", "GRID_BLOCKS": 58, "ROW_SUM": "add"}),
        ("1,1,72,64,causal=1", {"TENSOR_CORES": "wmma", "SMEM_LAYOUT": "padded"}),
        ("1,1,24,64", {"TENSOR_CORES": "none", "BLOCK_M": 32, "SOFTMAX": "shared", "STAGES": 1}),
        ("1,1,200,64", WGMMA | {"LENGTH": "steps", "KEY_SPLITS": 2}),
        (
            "1,1,136,128,causal=1",
            WGMMA | {"LOOP_ORDER": "plain", "Q_LOCATION": "shared", "KEY_SPLITS": 1, "ROW_SUM": "add"},
        ),
        (
            "1,1,256,64",
            WGMMA | {"KV_BUFFERS": "resident", "BLOCK_M": 128, "WARPS_M": 8, "EXP": "f16x2", "LENGTH": "steps"},
        ),
        ("1,1,200,64,causal=1", WGMMA | {"WARP_ROLES": "loaders", "STAGES": 3, "KEY_SPLITS": 1, "RESCALE": "always"}),
        ("1,1,72,128", WGMMA | {"KV_LOAD": "vector16", "BLOCK_N": 64, "LENGTH": "runtime", "Q_LOCATION": "shared"}),
        ("1,1,200,64,dtype=bf16", {}),
        ("1,1,72,64,causal=1,dtype=bf16", {"KEY_SPLITS": 1, "STAGES": 1, "LOOP_ORDER": "plain", "ROW_SUM": "add"}),
        ("1,2,100,64,dtype=bf16", DIRECT),
        ("1,1,72,64,causal=1,dtype=bf16", {"TENSOR_CORES": "wmma", "SMEM_LAYOUT": "padded"}),
        ("1,1,24,64,dtype=bf16", {"TENSOR_CORES": "none", "BLOCK_M": 32, "SOFTMAX": "shared", "STAGES": 1}),
        ("1,1,136,128,causal=1,dtype=bf16", WGMMA | {"LOOP_ORDER": "plain", "Q_LOCATION": "shared", "MERGE": "fp32"}),
        # Tensor copies: tails, alternating warpgroups, and persistent blocks with one or two tasks.
        ("1,1,200,128", TURNS | {"RESCALE": "lazy"}),
        ("1,1,264,64,causal=1,dtype=bf16", TURNS | {"STAGES": 3, "ROW_SUM": "ones_mma"}),
        ("1,1,200,64,causal=1", BULK | {"GROUPS": 3, "TILE_N": 80, "LENGTH": "steps"}),
        (
            "1,30,72,64,causal=1",
            BULK | PERSISTENT | {"GRID_ORDER": "heads_fast", "MIN_BLOCKS": 3},
        ),
        ("1,30,72,128", BULK | PERSISTENT | {"Q_LOCATION": "registers"}),
        # Divided tasks, with pieces inside a task and pieces that end one; the second has whole tasks, too.
        ("1,3,200,64", BULK | PERSISTENT | {"TAIL": "divided"}),
        ("1,31,100,64", BULK | PERSISTENT | {"TAIL": "divided", "GRID_ORDER": "heads_fast", "LENGTH": "runtime"}),
    ],
)
def test_right_and_without_a_race_on_the_ptx_machine(problem, choices):
    """Each way through the kernel agrees with the float64 reference, and the sanitizer finds nothing."""
    assert _error_on_the_ptx_machine(problem, choices) < torch.finfo(_dtype(KERNEL.problem(problem))).eps / 2


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("problem", "choices"),
    [
        ("1,1,200,64", {}),
        ("1,1,104,64,causal=1", {"KEY_SPLITS": 4, "WARPS_M": 1, "BLOCK_M": 16, "BLOCK_N": 16, "LENGTH": "runtime"}),
        ("1,1,128,64", {"KV_BUFFERS": "resident", "BLOCK_N": 16, "KEY_SPLITS": 4, "WARPS_M": 2, "EXP": "f16x2"}),
        ("1,1,72,128,causal=1", {"KEY_SPLITS": 1, "STAGES": 1, "LOOP_ORDER": "plain", "ROW_SUM": "add"}),
        (
            "1,1,96,64",
            {"SCHEDULE": "persistent", "GRID_BLOCKS": 58, "BLOCK_M": 32, "WARPS_M": 2, "Q_LOCATION": "shared"},
        ),
        ("1,1,256,64", WGMMA | {"Q_LOCATION": "shared", "ROW_SUM": "add"}),
        ("1,1,200,64,causal=1,dtype=bf16", TURNS),
        ("1,1,136,128", BULK | {"ROW_SUM": "ones_mma", "LENGTH": "runtime"}),
        pytest.param("1,1,200,64,dtype=bf16", {}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("magnitude", [1, 8])
def test_a_block_that_overflows_begins_anew(problem, choices, magnitude):
    """With RESCALE=restart, scores far above those of the first step leave the answer as right as small ones do."""
    roundoff = torch.finfo(_dtype(KERNEL.problem(problem))).eps / 2
    assert _error_on_the_ptx_machine(problem, {"RESCALE": "restart"} | choices, magnitude) < 2 * roundoff


@pytest.mark.parametrize(
    ("problem", "length"),
    [("1,1,40,64", "runtime"), ("1,1,128,64,causal=1", "static"), ("1,1,40,64", "steps")],
    ids=["short", "causal", "steps"],
)
def test_a_split_without_keys_weighs_nothing_in_a_block_that_begins_anew(problem, length):
    """A row of q that is no number makes its block begin anew; the others keep their answers."""
    choices = {"RESCALE": "restart", "KEY_SPLITS": 4, "WARPS_M": 1, "BLOCK_M": 16, "BLOCK_N": 16, "LENGTH": length}
    got, expected = _answers_on_the_ptx_machine(problem, choices, broken_row=3)
    assert got.isnan().any(-1).nonzero().tolist() == [[0, 0, 3]]
    others = torch.arange(got.shape[2]) != 3
    assert (got - expected)[:, :, others].norm() < 2e-3 * expected[:, :, others].norm()


@pytest.mark.parametrize(
    ("choices", "constraint"),
    [
        ({"PV_ACC": "fp16"}, "bf16_sums"),
        ({"EXP": "f16x2"}, "bf16_exponents"),
        ({"TENSOR_CORES": "none", "SCORE_BUFFER": "half", "BLOCK_M": 32, "BLOCK_N": 16}, "bf16_sums"),
    ],
)
def test_what_has_no_bf16_is_a_named_constraint(choices, constraint):
    """A way through fp16 is infeasible before any compile where the tensors are bf16, and stays feasible at fp16."""
    config = KERNEL.space.with_changes(KERNEL.space.default(), choices)
    half, brain = (KERNEL.problem(f"2,8,512,64,dtype={dtype}") for dtype in ("f16", "bf16"))
    assert check(KERNEL, config, [half], CHIPS["l4"]) is None
    violation = check(KERNEL, config, [brain], CHIPS["l4"])
    assert violation is not None and violation.constraint == constraint


def test_a_chip_without_bf16_is_a_named_constraint():
    """Compute capability 7.5 has no bf16."""
    turing = replace(CHIPS["l4"], compute_capability=(7, 5))
    violation = check(KERNEL, KERNEL.space.default(), [KERNEL.problem("2,8,512,64,dtype=bf16")], turing)
    assert violation is not None and violation.constraint == "bf16_instructions"
    assert check(KERNEL, KERNEL.space.default(), [KERNEL.problem("2,8,512,64")], turing) is None


@pytest.mark.parametrize("name", ["attention", "attention_fp8"])
@pytest.mark.parametrize("causal", [0, 1])
def test_the_reference_of_a_few_heads_at_a_time_is_that_of_all(name, causal, monkeypatch):
    """Scores of two heads at once, of four, of six: the same elements but for the order of additions."""
    kernel = load_kernel(KERNELS / name)
    p = kernel.problem(f"B=2 H=3 S=72 D=64 causal={causal}")
    tensors = {n: t for n, t in tensors_of(kernel, kernel.space.default(), p).items() if t.given}
    given = {n: data.double() for n, _, data in drawn(tensors, "normal", 1)}
    scope = kernel.workload.reference.__globals__
    assert "SCORES_AT_ONCE" in scope
    answers = []
    for heads in (2, 4, 6):
        monkeypatch.setitem(scope, "SCORES_AT_ONCE", heads * 72**2)
        answers.append(kernel.workload.reference(p, given)["o"])
        assert answers[-1].shape == (2, 3, 72, 64)
    for answer in answers[1:]:
        torch.testing.assert_close(answer, answers[0], rtol=1e-12, atol=1e-14)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "right", "broken"),
    [
        pytest.param(
            "attention/kernel.cu", "ONES = 0x3F803F80u", "ONES = 0x3C003C00u", marks=pytest.mark.slow
        ),  # fp16's
        ("attention/softmax.cuh", "(KEY_TAIL && key >= length)", "(KEY_TAIL && key > length)"),
        pytest.param("common/mma.cuh", "f32.bf16.bf16.f32", "f32.f16.f16.f32", marks=pytest.mark.slow),
        # Four bits of every other element of a partial output.
        pytest.param("common/half.cuh", "a & 0xFFFF0000u", "a & 0xFFF00000u", marks=pytest.mark.slow),
    ],
)
def test_a_fault_of_bf16_is_caught(name, right, broken, tmp_path):
    """One change of the text, and the gate turns the default candidate away."""
    kernel = edited_kernel(tmp_path, "attention", name, right, broken)
    problem = kernel.problem("1,1,72,64,dtype=bf16")
    context = WorkerContext(kernel.folder, (problem,), CHIPS["l4"])
    settings = SimSettings(context, GateSettings(), TimingSettings(), SimulationSettings(), kernel.space.default())
    assert not SimWorker(settings)._check(kernel.space.default(), problem).passed


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("right", "broken"),
    [
        ("    mbarrier_wait(exchange().full, phase);\n", ""),
        ("    mbarrier_wait(empty(), phase ^ 1);\n", ""),
        ("announce(TILE_BYTES, phase)", "announce(TILE_BYTES / 2, phase)"),
        ("    mbarrier_wait(query.full, query_phase);\n", ""),
        ("    keys.release(at.lane);\n    mask_edges(s, step", "    mask_edges(s, step"),
        ("  fence_proxy_async();\n", ""),
        ("  if (IN_TURN && group + 1 == GROUPS) turn.pass();\n", ""),
        ("first_row + 64 * group, 0, head);\n    }", "first_row, 0, head);\n    }"),
    ],
)
def test_a_fault_of_tensor_copies_is_caught(right, broken, tmp_path):
    """One change of the text, and the launch has a finding, does not end, or gives wrong answers."""
    kernel = edited_kernel(tmp_path, "attention", "attention/ring_loop.cuh", right, broken)
    result, got, expected = _launched(kernel, "1,1,264,64", TURNS)
    assert result.findings or not result.completed or not (got - expected).norm() < 0.01 * expected.norm()


def test_memory_of_q_that_is_released_too_early_is_found(tmp_path):
    """The sanitizer names the text whose copies overwrote rows of Q on an H200; no other check sees this fault."""
    release = "  if constexpr (Q_LOCATION == Q_LOCATION_REGISTERS) query.release(at.lane);\n"
    kernel = edited_kernel(tmp_path, "attention", "attention/ring_loop.cuh", release, "")
    text, prepare = tmp_path / "attention/ring_loop.cuh", "    q.prepare(at);\n"
    text.write_text(text.read_text().replace(prepare, prepare + release))
    choices = BULK | PERSISTENT | {"Q_LOCATION": "registers"}
    for kernel_, kinds in ((kernel, {"early_release"}), (KERNEL, set())):
        result, _, _ = _launched(kernel_, "1,60,64,64", choices, blocks=(0,))
        assert {finding.kind for finding in result.findings} == kinds


@cache
def _compiled(folder, config, problem, architecture):
    """Return the PTX of a candidate, which inputs of every magnitude share."""
    built = render(load_kernel(folder), config, problem)
    architecture += built.architecture_suffix
    return compile_program(
        built.source, built.name, built.headers, built.options, built.entries, architecture, line_info=True
    )


def _error_on_the_ptx_machine(problem, choices, magnitude=1):
    """Return the error relative to the reference; q and k are `magnitude` times as large as a normal draw."""
    got, expected = _answers_on_the_ptx_machine(problem, choices, magnitude)
    return float((got - expected).norm() / expected.norm())


def _answers_on_the_ptx_machine(problem, choices, magnitude=1, *, broken_row=None):
    """Return the answer and the reference, of inputs whose row `broken_row` of q is NaN."""
    result, got, expected = _launched(KERNEL, problem, choices, magnitude, broken_row)
    assert result.findings == ()
    return got, expected


def _launched(kernel, problem, choices, magnitude=1, broken_row=None, blocks=None):
    """Return the result of a launch, of all or of some blocks, on the PTX machine, its answer, and the reference."""
    p = kernel.problem(problem)
    config = kernel.space.canonical({**kernel.space.default(), **choices})
    chip = CHIPS["h200" if "wgmma" in config.values() or config["PATH"] == "bulk" else "l4"]
    assert check(kernel, config, [p], chip, essential=True) is None
    program = _compiled(kernel.folder, config, p, chip.architecture.replace("sm_", "compute_"))
    torch.manual_seed(0)
    shape = (p.B, p.H, p.S, p.D)
    scales = {"q": magnitude, "k": magnitude, "v": 1}
    inputs = {name: (torch.randn(shape, dtype=torch.float64) * scale).to(_dtype(p)) for name, scale in scales.items()}
    if broken_row is not None:
        inputs["q"][:, :, broken_row] = torch.nan
    memory = simt.Memory()
    bits = {name: tensor.view(torch.int16).numpy() for name, tensor in inputs.items()}
    buffers = {name: memory.allocate(name, array, writable=False) for name, array in bits.items()}
    buffers["o"] = memory.allocate("o", np.full(shape, -1, np.int16), initialised=False)  # NaN of either type
    for name, tensor in kernel.workload.tensors(p, config).items():
        if tensor.role == "workspace":
            buffers[name] = memory.allocate(name, np.full(tensor.shape, np.nan, np.float32), initialised=False)
    (launch,) = launches_of(kernel, config, p)
    result = simt.launch(
        simt.parse(program.ptx),
        simt.LaunchSpec(
            program.lowered[launch.entry], launch.grid, launch.block, dynamic_shared=launch.shared_bytes, blocks=blocks
        ),
        ordered(launch, buffers),
        memory,
    )
    expected = kernel.workload.reference(p, {name: tensor.double() for name, tensor in inputs.items()})["o"]
    return result, torch.from_numpy(buffers["o"].read()).view(_dtype(p)).double(), expected


def _dtype(problem):
    """Return torch's dtype of a problem's tensors."""
    return torch_dtype(problem["dtype"])
