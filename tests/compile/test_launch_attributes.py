"""Attributes of compiled kernels that restrict their launches."""

from __future__ import annotations

from functools import cache

import pytest

from evokern.compile.isolated import compile_ptx
from evokern.compile.launch_attributes import (
    LaunchAttributes,
    extents,
    grid_excess,
    launch_attributes,
    synchronises_grid,
)
from evokern.compile.records import Program
from evokern.declaration.kernel import Launch
from evokern.hardware.profiles import chip

SOURCE = """
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
__device__ __noinline__ void later(cg::grid_group grid) { grid.sync(); }
__device__ __noinline__ int rank_of(cg::grid_group grid) { return grid.is_valid() + grid.thread_rank(); }
extern "C" {
__global__ void __launch_bounds__(256, 2, 4) bounds(float* p) { p[0] = 1; }
__global__ void __cluster_dims__(2, 1, 1) cluster(float* p) { p[0] = 1; }
__global__ void __cluster_dims__() any_cluster(float* p) { p[0] = 1; }
__global__ void __block_size__((64, 2, 1)) size(float* p) { p[0] = 1; }
__global__ void plain() {}
__global__ void sync(float* p) { p[0] = 1; cg::this_grid().sync(); p[1] = 2; }
__global__ void parts(float* p) {
  auto grid = cg::this_grid(); auto token = grid.barrier_arrive(); p[0] = 1; grid.barrier_wait(std::move(token));
}
__global__ void called(float* p) { p[0] = 1; later(cg::this_grid()); p[1] = 2; }
__global__ void rank(float* p) { auto grid = cg::this_grid(); p[grid.thread_rank()] = grid.is_valid(); }
__global__ void called_rank(float* p) { p[0] = rank_of(cg::this_grid()); }
__global__ void cluster_sync(float* p) { cg::this_cluster().sync(); p[0] = 1; }
__global__ void block_sync(float* p) { cg::this_thread_block().sync(); p[0] = 1; }
}
template <int T> __global__ void __launch_bounds__(T * 2) instance(float* p) { cg::sync(cg::this_grid()); p[0] = 1; }
"""
ENTRIES = (
    "bounds", "cluster", "any_cluster", "size", "plain", "sync", "parts", "called", "rank", "called_rank",
    "cluster_sync", "block_sync", "instance<64>",
)  # fmt: skip


@cache
def _program() -> Program:
    made = compile_ptx(SOURCE, "k.cu", {}, (), ENTRIES, (9, 0))
    assert isinstance(made, Program), made.message
    return made


def _of(entry: str) -> LaunchAttributes:
    return launch_attributes(_program().ptx, _program().lowered[entry])


def test_directives_of_each_entry_are_read() -> None:
    """Bounds, clusters and required blocks belong to their own entry, also to a template's instance."""
    found = {entry: _of(entry) for entry in ENTRIES}
    assert found["bounds"] == LaunchAttributes(max_threads=256, max_cluster=4)
    assert found["cluster"] == LaunchAttributes(cluster=(2, 1, 1), explicit_cluster=True)
    assert found["any_cluster"] == LaunchAttributes(explicit_cluster=True)
    assert found["size"].block == (64, 2, 1)
    assert found["plain"] == found["sync"] == LaunchAttributes()
    assert found["instance<64>"] == LaunchAttributes(max_threads=128)


def test_a_barrier_of_the_grid_is_not_a_rank_a_cluster_or_a_block() -> None:
    """Only kernels that use the workspace of a cooperative launch need one."""
    found = {entry for entry in ENTRIES if synchronises_grid(_program().ptx, _program().lowered[entry])}
    assert found == {"sync", "parts", "called", "instance<64>"}


@pytest.mark.parametrize(
    ("entry", "grid", "block", "cluster", "constraint"),
    [
        ("bounds", (8,), (256,), None, ""),
        ("bounds", (8,), (16, 16), None, ""),
        ("bounds", (8,), (257,), None, "launch_bounds"),
        ("bounds", (8,), (32, 16), None, "launch_bounds"),
        ("bounds", (8,), (8, 8, 8), None, "launch_bounds"),
        ("bounds", (8,), (32,), (4,), ""),
        ("bounds", (8,), (32,), (8,), "cluster_blocks"),
        ("size", (8,), (64, 2), None, ""),
        ("size", (8,), (128,), None, "block_size"),
        ("cluster", (8,), (32,), None, ""),
        ("cluster", (7,), (32,), None, "cluster"),
        ("cluster", (8,), (32,), (4,), "cluster_size"),
        ("any_cluster", (8,), (32,), (2,), ""),
        ("any_cluster", (8,), (32,), None, "cluster_size"),
        ("plain", (8,), (1024,), None, ""),
    ],
)
def test_a_launch_against_the_attributes(
    entry: str, grid: tuple[int, ...], block: tuple[int, ...], cluster: tuple[int, ...] | None, constraint: str
) -> None:
    """A launch that a GPU rejects is named by the attribute; every other launch is allowed."""
    over = _of(entry).violated_by(Launch(entry, grid, block, (), cluster=cluster))  # type: ignore[arg-type]
    assert (over.constraint if over else "") == constraint


def test_a_grid_whose_blocks_meet_must_fit_on_the_chip() -> None:
    """The reason names the blocks, the limit and how it comes about."""
    launch = Launch("k", (349,), (256,), ())  # type: ignore[arg-type]
    over = grid_excess(launch, 6, chip("l4"))
    assert over is not None
    assert (over.constraint, over.need.needed, over.need.available) == ("resident_grid", 349, 348)
    assert "all 349 must run at once, but NVIDIA L4 holds 348 (58 SMs with 6 blocks each)" in over.reason
    assert grid_excess(Launch("k", (348,), (256,), ()), 6, chip("l4")) is None  # type: ignore[arg-type]


def test_extents_as_text() -> None:
    """Trailing ones are left out, but never all of them."""
    assert [extents(one) for one in ((1, 1, 1), (64, 2, 1), (4, 1, 2))] == ["1", "64 x 2", "4 x 1 x 2"]
