"""A matrix product as libraries write it for Hopper is clean and right, and its usual faults are named.

Tensor copies fill a ring of swizzled tiles, one of them for both blocks of a cluster; a warpgroup multiplies; registers
move from the loaders to it; tiles of the result leave by tensor copies.
"""

from __future__ import annotations

import numpy as np
import pytest
from paths import DATA
from simt_tools import module_of

from evokern import simt
from evokern.hardware.tensor_map import TensorMap

SOURCE = (DATA / "bulk_product.cu").read_text()
M, N, K = 128, 128, 256
DEFECTS = {
    1: ("shared_race", "tma", "is read by"),
    2: ("proxy_fence", "cp.async.bulk.tensor.2d.global", "was written by"),
    3: ("async_not_waited", "cp.async.bulk.tensor.2d.global", "overwritten before the wait"),
    4: ("cluster_lifetime", "arrive_remote", "may have exited already"),
    5: ("transaction_bytes", "expect", "20480 bytes are announced for phase 0, but copies bring 16384"),
}
"""Number of a defect → kind of its finding, text of the line or of the call there, part of what it says."""


def run(defect: int) -> tuple[simt.LaunchResult, bool]:
    """Run the product; return the result, and whether the product is right."""
    memory, rng = simt.Memory(), np.random.default_rng(1)
    left, right = (rng.integers(-4, 5, (rows, K)).astype(np.float16) for rows in (M, N))
    a, b = memory.allocate("a", left, writable=False), memory.allocate("b", right, writable=False)
    c = memory.allocate("c", np.zeros((M, N), np.float32), initialised=False)
    maps = [
        TensorMap(dtype="f16", shape=(K, M), strides=(2 * K,), box=(64, 64), swizzle="128B").packed(a.address),
        TensorMap(dtype="f16", shape=(K, N), strides=(2 * K,), box=(64, 32), swizzle="128B").packed(b.address),
        TensorMap(dtype="f32", shape=(N, M), strides=(4 * N,), box=(64, 64)).packed(c.address),
    ]
    args = [*map(np.void, maps), np.int32(N // 64), np.int32(K)]
    spec = simt.LaunchSpec("gemm", (M // 64, 1, 1), (256, 1, 1), dynamic_shared=3 * 2 * 8192 + 4 * 64 * 64 + 48)
    module = module_of(SOURCE, (f"-DBUG={defect}",), "compute_90a")
    result = simt.launch(module, spec, args, memory, simt.LaunchOptions(source=SOURCE, instruction_limit=4_000_000))
    expected = left.astype(np.float32) @ right.astype(np.float32).T
    return result, np.array_equal(c.read().view(np.float32).reshape(M, N), expected)


def test_the_product_is_right_and_clean() -> None:
    """The ring, the multicast, the release by one thread of a warpgroup and the stores leave nothing to report."""
    result, right = run(0)
    assert (result.findings, result.completed, right) == ((), True, True)


@pytest.mark.parametrize("defect", DEFECTS)
def test_usual_faults_of_the_product(defect: int) -> None:
    """Each fault is named with its kind and line."""
    kind, text, told = DEFECTS[defect]
    lines = SOURCE.splitlines()
    found = [
        (one.kind, [one.source, *(lines[line - 1] for _, line in one.called_from)], one.hint)
        for one in run(defect)[0].findings
    ]
    assert any(one[0] == kind and any(text in line for line in one[1]) and told in one[2] for one in found), found
