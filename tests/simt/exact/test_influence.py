"""The input that a differing element counts wrongly is named, if it is exactly one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from exact_mutants import Change, changed_in_one_candidate
from paths import KERNELS

from evokern.compile.build import tensors_of
from evokern.device.sim.algebra import Prover
from evokern.device.sim.algebra.influence import InfluenceSearch
from evokern.device.sim.algebra.runs import Slices
from evokern.hardware.profiles import CHIPS
from evokern.study.discovery import load_kernel, remember_trust

Weights = dict[int, int]
"""Key → how often a row counts it."""


def _attention(change: Callable[[Weights], object], causal: int = 0, head: int = 1) -> str:
    """Search in an attention whose candidate counts the keys of row 20 of head 1 otherwise."""
    remember_trust(KERNELS / "attention")
    kernel = load_kernel(KERNELS / "attention")
    problem, config = kernel.problem(f"2,3,31,64,causal={causal}"), kernel.space.default()
    tensors, row = tensors_of(kernel, config, problem), 20
    runs = 0

    def value(candidate: bool, slices: Mapping[str, Slices]) -> object:
        """Return the terms of the element: each is a key's part of K and of V with its number."""
        nonlocal runs
        runs += 1
        names = {}
        for name in ("q", "k", "v"):
            shape = tensors[name].shape
            own = np.arange(np.prod(shape))
            names[name] = (slices[name].of(own, own + own.size, shape) if name in slices else own).reshape(shape)
        keys = dict.fromkeys(range(row + 1 if causal else 31), 1)
        if candidate:
            change(keys)
        at = head if candidate else 1
        terms = [(tuple(names["k"][1, at, key]), names["v"][1, at, key, 7], count) for key, count in keys.items()]
        return tuple(names["q"][1, 1, row]), frozenset(terms)

    def changes(candidate: bool, slices: Mapping[str, Slices]) -> bool:
        return value(candidate, slices) != value(candidate, {})

    element = int(np.ravel_multi_index((1, 1, row, 7), tensors["o"].shape))
    text = InfluenceSearch(kernel, config, problem, ("o", element), changes).text()
    assert runs < 120
    return text


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("key", [0, 11, 20])
def test_one_key(causal: int, key: int) -> None:
    """A key that is left out, or counted twice, is named with its head; the query is not."""
    where = f"k[1, 1, {key}, :] and v[1, 1, {key}, "
    assert _attention(lambda keys: keys.pop(key), causal).startswith(f"it leaves out {where}")
    twice = _attention(lambda keys: keys.update({key: 2}), causal)
    assert twice.startswith(f"it counts {where}")
    assert twice.endswith("for example twice")


def test_other_mistakes_are_not_told() -> None:
    """Two wrong keys, or another weight of all keys, are not a single input; the keys of another head are."""
    assert not _attention(lambda keys: (keys.pop(3), keys.pop(9)))
    assert not _attention(lambda keys: keys.update(dict.fromkeys(keys, 2)))
    assert not _attention(lambda keys: None)
    other = _attention(lambda keys: None, head=2)
    assert other == "it depends on k[1, 2, :, :] and v[1, 2, :, :], the default candidate's does not"


ROW = "first_row + at.row(m, i / 2)"
CASES = {
    "rmsnorm": (
        Change("kernel.cu", "squares = sum_of_squares(span, read, keep);",
               "squares = sum_of_squares(span, read, keep); if (group == 1 && threadIdx.x == 5) "
               "{ const float v = low2float(read(0, 0).word[0]); squares -= v * v; }"),
        {"ROW_STEPS": 2}, "3,264", "it leaves out x[1, 40]",
    ),
    "matmul": (
        Change("mma_loop.cuh", "if (k == 0) pipeline.load_next();",
               "if (k == 0) pipeline.load_next(); if (step == 1 && k == 1 && threadIdx.x == 5) "
               "now.a[0][0] &= 0xffff0000u;"),
        {"STAGES": 2}, "24,16,72", "it leaves out a[1, 50] and b[50, 0]",
    ),
    "attention": (
        Change("softmax.cuh", f"hidden[i] = (KEY_TAIL && key >= length) || (CAUSAL && key > {ROW});",
               f"hidden[i] = key >= length || (blockIdx.y == 1 && key == 70 && {ROW} == 5);"),
        {"KV_LOAD": "vector16"}, "1,2,75,64", "it leaves out k[0, 1, 70, :] and v[0, 1, 70, :]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ["rmsnorm", pytest.param("matmul", marks=pytest.mark.slow),
                                  pytest.param("attention", marks=pytest.mark.slow)])  # fmt: skip
def test_a_dropped_term_of_a_kernel_is_named(tmp_path: Path, name: str) -> None:
    """An element of a row of a normalisation, a column of a product, one key of one row of one head."""
    change, genes, problem, text = CASES[name]
    remember_trust(KERNELS / name)
    space = load_kernel(KERNELS / name).space
    config = space.canonical({**space.default(), **genes})
    kernel = changed_in_one_candidate(name, config, change, tmp_path)
    prover = Prover(kernel, CHIPS["h200"])
    (found,) = prover.at(config, kernel.problem(problem), time.monotonic() + 120).verdicts
    assert (found.verdict, found.detail) == ("different", text)
