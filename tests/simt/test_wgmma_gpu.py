"""What the PTX machine makes of warpgroup products is what a GPU makes of them."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_launcher import Answer, Job, launch_all
from wgmma_tools import BLOCKS, Layout, Product

from evokern.compile.nvrtc import compile_program
from evokern.compile.records import Program
from evokern.hardware.driver import probe

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240)]

SHARED = Layout(False, 8, 64)
PRODUCTS = {
    **{f"n{n}": Product(n, a=SHARED, integers=True) for n in (8, 64, 72, 128, 256)},
    **{f"registers_n{n}": Product(n, integers=True) for n in (8, 64, 256)},
    **{f"f16_n{n}": Product(n, "f16", a=SHARED, integers=True) for n in (8, 64, 256)},
    **{
        f"{'m' if a else 'k'}{'n' if b else 'k'}_major_{16 * width}": Product(
            128, a=Layout(a, width, 64), b=Layout(b, width, 128), integers=True
        )
        for a in (False, True)
        for b in (False, True)
        for width in (8, 4, 2, 1)
    },
    "signs": Product(64, a=SHARED, signs=(-1, 1), add_first=False, integers=True),
    "in_flight": Product(128, a=SHARED, pending=1, integers=True),
    "random": Product(128, a=SHARED),
    "random_f16": Product(128, "f16"),
    "random_bf16": Product(128, kind="bf16"),
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    """Every product on the GPU, in one process."""
    if probe().gpus[0].compute_capability != (9, 0):
        pytest.skip("wgmma is an instruction of compute capability 9.0 alone")
    jobs = []
    for name, product in PRODUCTS.items():
        program = compile_program(product.source, "product.cu", {}, (), ["product"], "sm_90a")
        assert isinstance(program, Program), program
        symbol, grid = program.lowered["product"], (BLOCKS, 1, 1)
        jobs.append(Job(name, program.cubin, symbol, grid, (128, 1, 1), product.arguments, shared=product.shared))
    given, _ = launch_all(jobs, tmp_path_factory.mktemp("wgmma"))
    return dict(zip(PRODUCTS, given, strict=True))


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_the_same(name: str, answers: dict[str, Answer]) -> None:
    """Products of small integers agree bit for bit, those of random numbers within four steps' last places."""
    product, answer = PRODUCTS[name], answers[name]
    assert answer.error == ""
    got = product.matrices(answer.buffers[-1])
    expected, result = product.simulate()
    assert result.findings == ()
    if product.integers:
        np.testing.assert_array_equal(got, expected)
        return
    # Sums stay below 64; the hardware cuts what lies below the 23rd to 25th bit of the largest (README of the machine).
    last = 2.0**-10 * 32 if product.d_type == "f16" else 2.0**-23 * 64
    assert np.abs(got.astype(np.float64) - expected).max() <= 4 * last
