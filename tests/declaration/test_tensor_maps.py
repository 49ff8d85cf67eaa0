"""Tensor maps as launch arguments: feasibility, identity, simulation, export, and the rules of the driver."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from gpu_tools import find_tool
from paths import DATA, KERNELS

from evokern import Launch, Tensor, TileMap
from evokern.compile.build import Target, build
from evokern.compile.records import Built
from evokern.declaration.feasibility import check, launches_of
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel
from evokern.device.sim.jobs import SimSettings, Simulate
from evokern.device.sim.worker import SimWorker
from evokern.errors import KernelError
from evokern.export.banner import Provenance
from evokern.export.standalone import standalone
from evokern.export.trace import trace
from evokern.hardware.profiles import CHIPS, chip
from evokern.hardware.tensor_map import DTYPE_BYTES, FILLS, SWIZZLES, TensorMap
from evokern.study.discovery import WorkerContext, load_kernel
from evokern.study.settings import Study
from evokern.study.trial import Outcome

H100 = chip("h100")


@pytest.fixture
def mapped(tmp_path: Path) -> Kernel:
    """The kernel whose tiles arrive and leave by the copy engine, next to the headers of the package."""
    for name, folder in (("mapped", DATA / "kernels" / "mapped"), ("common", KERNELS / "common")):
        shutil.copytree(folder, tmp_path / name)
    return load_kernel(tmp_path / "mapped")


def candidate(rows: int = 8, columns: int = 32, swizzle: str = "128B") -> Config:
    """Return a candidate of the kernel."""
    return Config({"ROWS": rows, "COLUMNS": columns, "SWIZZLE": swizzle})


def test_a_map_takes_axes_and_type_from_its_tensor(mapped: Kernel) -> None:
    """The host describes the map in the order of the driver, with strides in bytes."""
    (launch,) = launches_of(mapped, candidate(), mapped.problem("100,72"))
    assert [one.tensor for one in launch.maps] == ["x", "y"] and launch.tensor_names == ("x", "y")
    assert launch.maps[0].described == TensorMap(
        dtype="f32", shape=(72, 100), strides=(288,), box=(32, 8), swizzle="128B"
    )
    part = TileMap("q", (1, 8, 64), shape=(6, 20, 64), strides=(3200, 128)).of(Tensor("bf16", (6, 25, 128)))
    assert part.described == TensorMap(dtype="bf16", shape=(64, 20, 6), strides=(256, 6400), box=(64, 8, 1))


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        (TileMap("x", (8,)), "has 2 axes, 1 box sizes and 1 strides"),
        (TileMap("x", (8, 8), shape=(100, 80)), "ends after its last element, 7199"),
        (TileMap("x", (8, 8), shape=(100, 40), strides=(184,)), "ends after its last element, 7199"),
        (TileMap("z", (8, 8)), "has a tensor map of 'z'"),
    ],
)
def test_a_map_that_does_not_fit_its_tensor_is_the_kernels_fault(mapped: Kernel, argument: TileMap, told: str) -> None:
    """The message names the map and what contradicts its tensor."""
    other = replace(mapped, launches=lambda c, p: [Launch("mapped", 1, 128, (argument,))])
    with pytest.raises(KernelError, match="kernel mapped") as raised:
        launches_of(other, candidate(), other.problem("100,72"))
    assert told in str(raised.value)
    with pytest.raises(KernelError, match="unknown swizzle '256B'"):
        TileMap("x", (8, 8), swizzle="256B")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "problem", "told"),
    [
        (candidate(), "100,72", ""),
        (candidate(512, 2, "none"), "100,72", "tensor map of 'x': the box size 512 is not between 1 and 256"),
        (candidate(8, 2, "none"), "100,72", "a row of the box has 8 bytes, not a multiple of 16"),
        (candidate(8, 32, "64B"), "100,72", "a row of the box has 128 bytes, but swizzle 64B allows at most 64"),
        (candidate(), "100,70", "the stride 280 is not a multiple of 16 bytes"),
    ],
)
def test_a_map_that_the_driver_refuses_is_infeasible(mapped: Kernel, config: Config, problem: str, told: str) -> None:
    """Without a driver, feasibility states the rule and the value."""
    found = check(mapped, config, [mapped.problem(problem)], H100)
    assert (str(found) if found else "").endswith(told) and (found is None) == (told == "")


def test_older_chips_have_no_tensor_maps(mapped: Kernel) -> None:
    """The compute capability is the reason, not the map."""
    found = check(mapped, candidate(), [mapped.problem("100,72")], CHIPS["l4"])
    assert found is not None and found.constraint == "compute_capability"


def test_box_and_swizzle_are_part_of_the_identity(mapped: Kernel) -> None:
    """Candidates with the same machine code and other maps differ; a second build of a candidate does not."""
    problem = mapped.problem("100,72")

    def identity(swizzle: str) -> str:
        built = build(mapped, candidate(8, 8, swizzle), [problem], Target(H100, None))
        assert isinstance(built, Built), built.reason
        return built.fingerprint

    assert identity("32B") == identity("32B")
    assert identity("32B") != identity("none")


def test_exported_programs_make_their_maps(mapped: Kernel) -> None:
    """The program encodes the maps for the shape of a call; an operator is refused with the reason."""
    problem = mapped.problem("100,72")
    traces = trace(mapped, candidate(), problem, H100)
    assert not traces.pinned
    assert [guard.python() for guard in traces.guards] == ["((4 * shape.n) % 16) == 0"]
    program = standalone(mapped, candidate(), problem, H100, Provenance())
    assert "CUtensorMap argument_0;" in program and program.count("static bool encode_tensor_map") == 1
    assert "argument_0_shape[] = {static_cast<cuuint64_t>(shape.n), static_cast<cuuint64_t>(shape.m)};" in program


def test_a_simulated_device_times_candidates_with_maps(mapped: Kernel) -> None:
    """Two candidates are right and timed, although their first launches place the arguments in memory."""
    problem, default = mapped.problem("100,72"), mapped.space.default()
    study = Study("maps", "mapped", ("100,72",))
    context = WorkerContext(mapped.folder, (problem,), H100)
    worker = SimWorker(SimSettings(context, study.gate, study.timing, study.simulation, default, 5))
    for config in (candidate(), candidate(16, 8, "32B")):
        built = build(mapped, config, [problem], Target(H100, None))
        assert isinstance(built, Built), built.reason
        found = worker.handle(Simulate(config, built, None, None))
        assert found is not None and found.outcome is Outcome.MEASURED, found


def random_map(rng: random.Random) -> TensorMap:
    """Return a map that is close to the driver's rules, on either side."""
    rank, dtype = rng.randint(1, 5), rng.choice(list(DTYPE_BYTES))
    size, box = DTYPE_BYTES[dtype], [rng.choice([1, 2, 4, 8, 16, 32, 64, 128, 256, 257, 3, 24]) for _ in range(rank)]
    shape = [rng.choice([1, 7, 8, 64, 100, 4096, 1 << 20]) for _ in range(rank)]
    shape[-1] = rng.choice([shape[-1], shape[-1], 1 << 32, (1 << 32) + 1])
    strides, along = [], size * shape[0]
    for extent in shape[1:]:
        strides.append(along if rng.random() < 0.2 else -(-along // 16) * 16)
        along = min(strides[-1] * extent, 1 << 41)  # the driver's strides have 64 bits, and its limit is 2^40
    steps = tuple(rng.choice([1, 1, 1, 2, 8, 9]) for _ in range(rank)) if rng.random() < 0.2 else (1,) * rank
    return TensorMap(
        dtype=dtype, shape=tuple(shape), strides=tuple(strides), box=tuple(box), steps=steps,
        swizzle=rng.choice(["none", *SWIZZLES]), fill=rng.choice(["zeros", *FILLS]),
    )  # fmt: skip


@pytest.mark.gpu
def test_the_rules_are_those_of_the_driver() -> None:
    """The driver accepts 2,000 random maps exactly if no rule refuses them."""
    import torch

    from evokern.device.gpu.cuda import encoded_map
    from evokern.gate.check import RunFailed

    data = torch.empty(1 << 20, device="cuda")
    rng, contradicted, refused = random.Random(3), [], 0
    for _ in range(2000):
        made, offset = random_map(rng), rng.choice([0, 0, 0, 16, 8])
        reasons = made.refusals(data.data_ptr() + offset)
        refused += bool(reasons)
        try:
            encoded_map(made, data.data_ptr() + offset)
            accepted = True
        except RunFailed:
            accepted = False
        if accepted == bool(reasons):
            contradicted.append((made, offset, reasons))
    assert contradicted == []
    assert 200 < refused < 1800


@pytest.mark.gpu
@pytest.mark.skipif(find_tool("nvcc") is None, reason="nvcc is not installed")
def test_an_exported_program_with_maps_passes(mapped: Kernel, tmp_path: Path) -> None:
    """The program builds without -lcuda and finds its results correct."""
    import subprocess

    program = standalone(mapped, candidate(), mapped.problem("100,72"), H100, Provenance())
    source = tmp_path / "best.cu"
    source.write_text(program)
    subprocess.run(
        [
            str(find_tool("nvcc")),
            "-std=c++17",
            "-gencode=arch=compute_90a,code=sm_90a",
            "-o",
            tmp_path / "best",
            source,
        ],
        check=True,
    )
    told = subprocess.run([tmp_path / "best"], check=True, capture_output=True, text=True).stdout
    assert "PASS" in told
