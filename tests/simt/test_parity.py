"""The parity kernels without a GPU: each runs clean, and what an H200 answered is what the PTX machine answers.

`data/parity/h200.json` holds a hash of every row that a GPU must reproduce bit by bit, as one NVIDIA H200 gave it
(`record_parity.py` writes it on a machine with a GPU).
"""

from __future__ import annotations

import json

import numpy as np
import parity_tools
import pytest
from parity_candidates import CANDIDATES, FOLDERS
from parity_tools import PARITY, Case, cases, described, different, edges, fingerprint, pattern, simulate, values

from evokern.declaration.feasibility import check
from evokern.hardware.profiles import chip
from evokern.study.discovery import load_kernel

ALL = cases()
RECORDED = json.loads((PARITY / "h200.json").read_text())
GROUPS = "approximations async atomics conversions floats halves integers matrix memory warps wmma"


@pytest.mark.thorough
@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_clean_and_equal_to_the_h200_results(case: Case) -> None:
    """The kernel runs without a finding, and every exactly defined row has the bits that the hardware gave."""
    result, after = simulate(case, case.buffers())
    assert result.findings == ()
    assert result.completed
    rows = {name: fingerprint(case, name, kind, row) for name, kind, row in case.results(after)}
    expected = RECORDED.get(case.name, {})
    assert expected == {name: rows[name] for name in expected}


def test_every_group_has_its_kernels() -> None:
    """Each group of instructions is there, with hundreds of rows in all."""
    assert set(GROUPS.split()) == {case.file for case in ALL}
    assert sum(len(case.rows) for case in ALL if not case.variant) >= 500
    assert len({case.name for case in ALL}) == len(ALL)


def test_every_operand_pair_is_tested() -> None:
    """In every kernel with two operands each pair of edges meets, and no pattern depends on chance."""
    assert np.isnan(values("f32", edges("f32"))).any()
    seen = set()
    for case in ALL:
        places = {argument.pattern: number for number, argument in enumerate(case.arguments)}
        if not {"0", "1"} <= set(places):
            continue
        made = case.buffers()
        kind = case.arguments[places["0"]].kind
        met = set(zip(made[places["0"]].tolist(), made[places["1"]].tolist(), strict=True))
        known = edges(kind).tolist()
        assert [] == [(a, b) for a in known for b in known if (a, b) not in met], case.name
        seen.add(kind)
    assert seen == {"u16", "u32", "u64", "f16", "bf16", "f32", "f64"}
    assert pattern("f16", "near", 3, seed=4).tolist() == pattern("f16", "near", 3, seed=4).tolist()


def test_a_single_wrong_bit_is_seen() -> None:
    """The comparison of exact rows fails on one bit, and a tolerance admits its bound and no more."""
    exact = next(case for case in ALL if case.name == "floats-singles")
    row = np.arange(8, dtype=np.uint32)
    assert different(exact, exact.rows[0], "f32", row, row).size == 0
    assert different(exact, exact.rows[0], "f32", row, row ^ np.uint32(4 * (np.arange(8) == 5))).tolist() == [5]
    assert "row: 1 of 8 differ" in described(exact, "row", "f32", np.array([5]), row, row)
    bound = next(case for case in ALL if case.name == "approximations-of_everything")
    _, after = simulate(bound, bound.buffers())
    rows = {name: row for name, _, row in bound.results(after)}
    ex2 = rows["ex2.approx.f32"]
    finite = (values("f32", ex2) > 1e-30) & (values("f32", ex2) < 1e30) & ((ex2 & 0x7FFFFF) < 0x7FFFF0)
    assert different(bound, "ex2.approx.f32", "f32", ex2, ex2 + finite.astype(np.uint32) * np.uint32(2)).size == 0
    beyond = different(bound, "ex2.approx.f32", "f32", ex2, ex2 + finite.astype(np.uint32) * np.uint32(4))
    assert beyond.size > 0.5 * finite.sum()


def test_sums_of_tensor_cores_have_a_bound_that_bites() -> None:
    """A product with one wrong factor lies outside what the order of a sum can change."""
    case = next(case for case in ALL if case.name == "matrix-mma_f16_f32-1")
    clean, wrong = case.buffers(), case.buffers()
    wrong[1][::16] ^= 0x200
    (_, expected), (_, got) = simulate(case, clean), simulate(case, wrong)
    for (name, kind, row), (_, _, other) in zip(case.results(expected), case.results(got), strict=True):
        assert different(case, name, kind, row, other).size > row.size / 8


def test_splitmix() -> None:
    """The generator gives the numbers of its reference implementation for seed 0."""
    assert parity_tools.words(0, 3).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@pytest.mark.parametrize(("name", "problem", "changes"), CANDIDATES)
def test_candidates_can_run(name: str, problem: str, changes: dict[str, object]) -> None:
    """The repository's kernels are compared in candidates that they have, and that an H200 can run."""
    kernel = load_kernel(FOLDERS[name])
    config = kernel.space.canonical({**kernel.space.default(), **changes})
    assert check(kernel, config, [kernel.problem(problem)], chip("h200"), essential=True) is None
    assert {gene: config[gene] for gene in changes} == changes
