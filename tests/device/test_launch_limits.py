"""Launches against what their compiled kernel allows, and grids whose blocks meet, on a simulated device."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from paths import DATA

from evokern.analysis.check.soundness import check_kernel
from evokern.compile.build import Target, build
from evokern.compile.records import Built
from evokern.declaration.genes import Config
from evokern.device.sim.jobs import SimSettings, Simulate
from evokern.device.sim.worker import SimWorker
from evokern.errors import KernelError
from evokern.export.banner import Provenance
from evokern.export.standalone import standalone
from evokern.hardware.profiles import chip
from evokern.study.discovery import WorkerContext, load_kernel
from evokern.study.settings import Study, TimingSettings
from evokern.study.trial import Evaluation, Outcome

BOUNDED = load_kernel(DATA / "kernels" / "bounded")
GRID_MEAN = load_kernel(DATA / "kernels" / "grid_mean")
N = {"bounded": BOUNDED.problem("4096"), "grid_mean": GRID_MEAN.problem("20000")}


def _built(genes: dict[str, int | str], *, on: str = "l4") -> Built | Evaluation:
    kernel = BOUNDED if "BOUND" in genes else GRID_MEAN
    return build(kernel, Config(genes), (N[kernel.name],), Target(chip(on), None))


@cache
def _worker() -> SimWorker:
    study = Study("mean", "grid_mean", ("20000",), timing=replace(TimingSettings(), race=0.0))
    context = WorkerContext(GRID_MEAN.folder, (N["grid_mean"],), chip("l4"))
    default = GRID_MEAN.space.default()
    return SimWorker(SimSettings(context, study.gate, study.timing, study.simulation, default, 5))


def _evaluated(barrier: str, blocks: int) -> Evaluation:
    genes: dict[str, int | str] = {"THREADS": 128, "BLOCKS": blocks, "BARRIER": barrier}
    built = _built(genes)
    if isinstance(built, Evaluation):
        return built
    found = _worker().handle(Simulate(Config(genes), built, None, None))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("bound", "threads", "constraint"),
    [(1, 256, ""), (1, 512, "launch_bounds"), (2, 128, ""), (2, 256, "block_size"), (0, 512, "")],
)
def test_a_block_that_the_compiled_code_forbids_is_over_resources(bound: int, threads: int, constraint: str) -> None:
    """Bounds that the source hides behind an #if are found after the compile, with both numbers."""
    found = _built({"THREADS": threads, "BOUND": bound}, on="h200")
    if not constraint:
        assert isinstance(found, Built)
        return
    assert isinstance(found, Evaluation)
    assert (found.outcome, found.evidence["constraint"]) == (Outcome.OVER_RESOURCES, constraint)
    assert f"{threads}" in found.evidence["reason"]
    assert ("needs 512, has 256" if constraint == "launch_bounds" else "(__block_size__), not 256") in found.reason


@pytest.mark.parametrize("barrier", ["grid_sync", "counter"])
def test_a_grid_whose_blocks_meet_is_measured(barrier: str) -> None:
    """All blocks run in the gate, for the counters and on the full-size problem."""
    found = _evaluated(barrier, 58)
    assert found.outcome is Outcome.MEASURED, found.reason
    assert found.evidence["own_problem"]["20000"]["blocks"] == 58


@pytest.mark.parametrize("barrier", ["grid_sync", "counter"])
def test_a_grid_whose_blocks_meet_and_do_not_fit_is_infeasible(barrier: str) -> None:
    """The reason names the blocks, and how many fit on this chip."""
    found = _evaluated(barrier, 2048)
    assert (found.outcome, found.evidence["constraint"]) == (Outcome.INFEASIBLE, "resident_grid")
    assert (found.evidence["needed"], found.evidence["available"]) == (2048, 58 * 12)
    assert "all 2048 must run at once, but NVIDIA L4 holds 696 (58 SMs with 12 blocks each)" in found.evidence["reason"]


def test_a_missing_barrier_of_the_grid_is_a_race() -> None:
    """Without the barrier, blocks read sums that others still write."""
    found = _evaluated("none", 40)
    assert (found.outcome, found.evidence["check"]) == (Outcome.WRONG, "sanitizer:global_race")


def test_only_kernels_that_synchronise_their_grid_are_cooperative() -> None:
    """A barrier that the kernel makes itself needs no cooperative launch."""
    found = {
        barrier: _built({"THREADS": 128, "BLOCKS": 40, "BARRIER": barrier}) for barrier in ("grid_sync", "counter")
    }
    assert all(isinstance(one, Built) for one in found.values())
    assert {name: one.cooperative for name, one in found.items() if isinstance(one, Built)} == {
        "grid_sync": frozenset({(0, "grid_mean")}), "counter": frozenset(),
    }  # fmt: skip


def _exported(genes: dict[str, int | str]) -> str:
    return standalone(GRID_MEAN, Config(genes), N["grid_mean"], chip("l4"), Provenance())


def test_an_export_launches_cooperatively_if_the_kernel_needs_it() -> None:
    """The attribute is there for `grid.sync()`, and only then."""
    genes: dict[str, int | str] = {"THREADS": 128, "BLOCKS": 40}
    assert "attributes[0].id = cudaLaunchAttributeCooperative;" in _exported({**genes, "BARRIER": "grid_sync"})
    assert "cudaLaunchAttributeCooperative" not in _exported({**genes, "BARRIER": "counter"})


def test_a_candidate_that_cannot_be_launched_is_not_exported() -> None:
    """A trial of an older version may have been measured with a grid or a block that no GPU accepts."""
    with pytest.raises(
        KernelError, match=r"cannot be launched on NVIDIA L4 at N=20000: .* holds 696 .*; export another"
    ):
        _exported({"THREADS": 128, "BLOCKS": 2048, "BARRIER": "grid_sync"})


def test_check_names_a_default_candidate_that_cannot_be_launched() -> None:
    """The check of the compiler compares the launch with the compiled code."""
    genes = tuple(replace(gene, default={"THREADS": 512, "BOUND": 1}[gene.name]) for gene in BOUNDED.genes)
    found = next(one for one in check_kernel(replace(BOUNDED, genes=genes)) if one.check == "compiler")
    assert found.ok is False
    assert "allow blocks of at most 256 threads, not 512" in found.detail
