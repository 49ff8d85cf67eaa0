"""Code of operators: the numbers of launches, results and dispatch are those that the kernel declares."""

from __future__ import annotations

import random
import types
from typing import Any

import pytest

from evokern.declaration.feasibility import check, launches_of
from evokern.declaration.genes import Config
from evokern.declaration.kernel import DTYPE_BYTES, Kernel, Problem, Scalar
from evokern.hardware.profiles import CHIPS
from evokern.pack.from_study import describe
from evokern.pack.operator_code import Description, python_code
from evokern.pack.variant import variant_of
from evokern.study.discovery import find_kernel

L4 = CHIPS["l4"]
CASES = (
    ("rmsnorm", "ROWS=64 COLS=1024", {}),
    ("rmsnorm", "ROWS=16 COLS=16384 residual=add dtype=bf16", {"ROW_SUM": "two_launches"}),
    ("attention", "B=2 H=8 S=512 D=64 causal=1", {}),
    ("attention", "B=2 H=8 S=512 D=64", {"SCHEDULE": "persistent", "GRID_BLOCKS": 58, "L2_WINDOW": "k"}),
    ("matmul", "M=64 N=512 K=512", {}),
)  # fmt: skip


def described(kernel: Kernel, *problems: str, package: str = "packed", **changes: Any) -> Description:
    """Return an operator with the default candidate for each problem."""
    config = kernel.space.canonical(Config({**kernel.space.default(), **changes}))
    made = [variant_of(kernel, config, kernel.problem(one), L4, f"default at {one}") for one in problems]
    return describe(kernel, package, tuple(made))


def rules_of(made: Description) -> Any:
    """Return the generated module `rules`."""
    module = types.ModuleType("rules")
    exec(compile(python_code(made), "rules.py", "exec"), module.__dict__)
    return module


def declared_numbers(kernel: Kernel, config: Config, problem: Problem) -> list[int]:
    """Return the numbers of the launches and workspaces as the kernel declares them."""
    numbers: list[int] = []
    for launch in launches_of(kernel, config, problem):
        numbers += [*launch.grid, *launch.block, launch.shared_bytes]
        numbers += [int(a.value) for a in launch.args if isinstance(a, Scalar) and a.dtype[0] in "iu"]
    spaces = [t for t in kernel.workload.tensors(problem, config).values() if t.role == "workspace"]
    return numbers + [t.elements * DTYPE_BYTES[t.dtype] for t in spaces]


@pytest.mark.parametrize(("name", "problem", "changes"), CASES)
def test_launches_are_those_of_the_kernel(name: str, problem: str, changes: dict[str, Any]) -> None:
    """At each shape that a variant takes, the generated numbers are those of `launches` and `tensors`."""
    kernel = find_kernel(name)
    made = described(kernel, problem, **changes)
    rules, variant, rng, taken = rules_of(made), made.variants[0], random.Random(0), 0
    own = {entry.name: int(variant.problem[entry.name]) for entry in made.signature.fields}
    for number in range(2000):
        near = {name: rng.choice([value, value, value + rng.randint(-3, 3), 2 * value]) for name, value in own.items()}
        fields = own if number == 0 else near
        shape = rules.Shape(89, 0, *fields.values())
        if rules.choose(shape) != 0:
            continue
        other = kernel.problem({**variant.problem, **fields})
        assert list(rules.NUMBERS[0](shape)) == declared_numbers(kernel, variant.config, other)
        tensors = kernel.workload.tensors(other, variant.config)
        assert rules.INPUT_SIZES[0](shape) == [t.shape for t in tensors.values() if t.role == "input"]
        assert rules.RESULTS[0](shape) == [t.shape for t in tensors.values() if t.role == "output"]
        assert check(kernel, variant.config, [other], L4, essential=True) is None
        taken += 1
    assert taken > 10
