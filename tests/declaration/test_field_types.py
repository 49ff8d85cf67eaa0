"""Mistakes in `kernel.py`: each is reported by the name of the field or function, and none is a bug of evokern."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from evokern import (
    Constraint,
    Kernel,
    Launch,
    Mutation,
    Parameter,
    ProblemField,
    Slice,
    Tensor,
    Tolerance,
    Workload,
    i32,
)
from evokern.declaration.feasibility import launches_of
from evokern.declaration.kernel import Baseline, VectorAccess, explained
from evokern.errors import EvokernError, KernelError

WORKLOAD: Mapping[str, Any] = {
    "tensors": lambda p, c: {"x": Tensor("f32", (p.N,)), "y": Tensor("f32", (p.N,), "output")},
    "reference": lambda p, t: {"y": t["x"]},
    "tolerance": {"y": Tolerance(0.0, 1e-6)},
    "flops": lambda p: p.N,
    "bytes": lambda p: 8 * p.N,
}
KERNEL: Mapping[str, Any] = {
    "name": "k",
    "genes": (Parameter("B", (32, 64)),),
    "fields": (ProblemField("N"),),
    "launches": lambda c, p: [Launch("k", p.N, c.B, ("x", "y", i32(p.N)))],
    "workload": Workload(**WORKLOAD),
}


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (lambda: Tensor("f32", (4,), "outputs"), "unknown role 'outputs' of a tensor: did you mean 'output'"),  # type: ignore[arg-type]
        (lambda: Tensor("f32", (4,), "workspace", "zeros"), "unknown initial 'zeros' of a tensor: did you mean 'zero'"),  # type: ignore[arg-type]
        (lambda: Tensor("f32", 4), r"shape is the number 4; use a tuple, for example \(4,\)"),  # type: ignore[arg-type]
        (lambda: Tensor("f32", ("N",)), "entry 1 of shape is 'N'; use a whole number"),  # type: ignore[arg-type]
        (lambda: Tensor("f32", (4 / 2,)), r"entry 1 of shape is 2\.0; use a whole number \(a // b divides"),  # type: ignore[arg-type]
        (lambda: Tensor("f32", (True,)), "entry 1 of shape is True; use a whole number"),
        (lambda: Tensor("f32", (4,), scale="big"), "scale is 'big'; use a number"),  # type: ignore[arg-type]
        (lambda: Tolerance(0.0, 0.0, {"f16": 3}), r"by_dtype\['f16'\] is 3; use a Tolerance"),  # type: ignore[dict-item]
        (lambda: Baseline("torch", None), "run is None; use a function"),  # type: ignore[arg-type]
        (lambda: Slice({"x": "0"}), r"axes\['x'\] is '0'; use the number of an axis"),  # type: ignore[dict-item]
        (lambda: Slice("x"), "axes is 'x'; use a mapping"),  # type: ignore[arg-type]
        (lambda: Launch(None, 1, 32, ()), "entry is None; use a non-empty string"),  # type: ignore[arg-type]
        (lambda: Launch("k", 1, 32, "xy"), "args is the string 'xy'; use a tuple"),  # type: ignore[arg-type]
        (lambda: Launch("k", 1, 32, (), shared_bytes=1.5), "shared_bytes is 1.5; use a whole number"),  # type: ignore[arg-type]
        (lambda: Launch("k", 1, 32, (), l2_window="x"), "l2_window is 'x'; use an L2Window"),  # type: ignore[arg-type]
        (lambda: Constraint("c", True, "reason"), "holds is True; use a function"),  # type: ignore[arg-type]
        (lambda: VectorAccess("x", 16, 4), "stride_bytes is 4; use a tuple"),  # type: ignore[arg-type]
        (lambda: ProblemField("N", choices="ab"), "choices is 'ab'; use a tuple"),  # type: ignore[arg-type]
        (lambda: ProblemField("N", most="9"), "most is '9'; use a whole number"),  # type: ignore[arg-type]
        (lambda: Parameter("B", 8), "values is 8; use a tuple.*put a comma after a single one"),  # type: ignore[arg-type]
        (lambda: Parameter("B", (1.5, 2)), "entry 1 of values is 1.5"),  # type: ignore[arg-type]
        (lambda: Mutation("B", ("a",), when={"C": 1}), r"when\['C'\] is 1; use a tuple"),  # type: ignore[dict-item]
        (lambda: Mutation("B", ("a",), min_compute_capability={"a": 9.0}), r"use a pair such as \(9, 0\)"),  # type: ignore[dict-item]
        (lambda: Parameter("B", (8,), relieves=3), "relieves is 3; use a tuple of memory"),  # type: ignore[arg-type]
        (lambda: Parameter("B", (8, 9), for_chips=("l4",)), "for_chips is .*; use a mapping"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_a_wrong_type_is_reported_by_the_field(build: Callable[[], object], told: str) -> None:
    """The message names the field, the value and the accepted values."""
    with pytest.raises(EvokernError, match=told):
        build()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"tolerance": Tolerance(0.0, 0.0)}, "tolerance is Tolerance.*; use a mapping"),
        ({"tolerance": {"y": 1e-6}}, r"tolerance\['y'\] is 1e-06; use a Tolerance"),
        ({"flops": 17}, "flops is 17; use a function"),
        ({"slices": Slice({"x": 0})}, "slices is Slice.*put a comma after a single one"),
        ({"slices": ({"x": 0},)}, "entry 1 of slices"),
        ({"small_problems": "1024"}, "small_problems is '1024'; use a tuple"),
        ({"small_problems": (1024,)}, "entry 1 of small_problems is 1024; use a problem as text"),
        ({"baselines": ("x",)}, "entry 1 of baselines is 'x'"),
    ],
)
def test_a_workload_checks_its_fields(change: Mapping[str, Any], told: str) -> None:
    """So does the kernel; see `test_a_kernel_checks_its_fields`."""
    with pytest.raises(KernelError, match=told):
        Workload(**{**WORKLOAD, **change})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"name": 3}, "name is 3"),
        ({"genes": ("B",)}, "entry 1 of genes is 'B'; use a Parameter or a Mutation"),
        ({"fields": ProblemField("N")}, "fields is ProblemField.*put a comma after a single one"),
        ({"constraints": ("c",)}, "entry 1 of constraints is 'c'"),
        ({"options": "-O3"}, "options is '-O3'; use a tuple"),
        ({"options": (3,)}, "entry 1 of options is 3"),
        ({"macros": {"X": 1}}, "macros is .*; use a function"),
        ({"architecture_suffix": "a"}, "architecture_suffix is 'a'; use a function"),
        ({"deterministic": "no"}, "deterministic is 'no'; use True or False"),
        ({"workload": {}}, "workload is {}; use a Workload"),
    ],
)
def test_a_kernel_checks_its_fields(change: Mapping[str, Any], told: str) -> None:
    """A field of the wrong type is an error when the kernel is declared."""
    with pytest.raises(KernelError, match=told):
        Kernel(**{**KERNEL, **change})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"launches": lambda c, p: Launch("k", 1, 1, ())}, "launches is Launch.*put a comma after a single one"),
        ({"launches": lambda c, p: [None]}, "entry 1 of launches is None; use a Launch"),
        ({"launches": lambda c, p: [Launch("k", gird=1, block=1, args=())]},  # type: ignore[call-arg]
         "launches passes Launch the unknown argument 'gird': did you mean 'grid'"),
    ],
)  # fmt: skip
def test_a_result_of_the_wrong_type_is_reported_by_the_function(change: Mapping[str, Any], told: str) -> None:
    """What a declared function returns is checked where it is called."""
    kernel = Kernel(**{**KERNEL, **change})
    with pytest.raises(KernelError, match=told):
        launches_of(kernel, kernel.space.default(), kernel.problem("8"))


def test_results_of_the_other_functions_are_checked() -> None:
    """Buffers, macros, suffixes and numbers too; a copy of a kernel checks them once."""
    workload = Workload(**{**WORKLOAD, "tensors": lambda p, c: {"x": ("f32", 4)}, "flops": lambda p: "x"})
    kernel = Kernel(**{**KERNEL, "workload": workload, "macros": lambda c, p: {"X": None},
                       "architecture_suffix": lambda c: "b"})  # fmt: skip
    kernel = replace(kernel, name="other")
    problem, config = kernel.problem("8"), kernel.space.default()
    for call, told in (
        (lambda: kernel.workload.tensors(problem, config), r"tensors\['x'\] is .*; use a Tensor"),
        (lambda: kernel.workload.flops(problem), "flops returned 'x'; return a number"),
        (lambda: kernel.macros(config, problem), r"macros\['X'\] is None; use a whole number or a string"),
        (lambda: kernel.architecture_suffix(config), "architecture_suffix returned 'b'"),
    ):
        with pytest.raises(KernelError, match=told):
            call()


def test_an_unknown_argument_comes_with_the_nearest_one() -> None:
    """Other exceptions are quoted as they are."""
    with pytest.raises(TypeError) as raised:
        Workload(**{**WORKLOAD, "bites": 1})
    assert explained(raised.value).startswith("passes Workload the unknown argument 'bites': did you mean 'bytes'?")
    assert explained(TypeError("no")) == "raised TypeError: no"
