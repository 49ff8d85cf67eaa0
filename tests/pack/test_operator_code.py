"""Code of operators: the numbers of launches, results and dispatch are those that the kernel declares."""

from __future__ import annotations

import ctypes
import random
import re
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch  # noqa: F401 (the library refers to its symbols)
from packed import described
from paths import ROOT

from evokern.declaration.feasibility import check, launches_of
from evokern.declaration.genes import Config
from evokern.declaration.kernel import DTYPE_BYTES, Kernel, Problem, Scalar
from evokern.hardware.profiles import CHIPS
from evokern.pack.from_study import describe
from evokern.pack.library import build_library
from evokern.pack.operator_code import Description, cpp_code, python_code
from evokern.pack.tree import CAPABILITY, MODE, Split, Tree, TreeLeaf
from evokern.study.discovery import find_kernel

L4 = CHIPS["l4"]
OPERATOR_H = (ROOT / "evokern/pack/package/operator.h").read_text()
CASES = (
    ("rmsnorm", "ROWS=64 COLS=1024", {}),
    ("rmsnorm", "ROWS=16 COLS=16384 residual=add dtype=bf16", {"ROW_SUM": "two_launches"}),
    ("attention", "B=2 H=8 S=512 D=64 causal=1", {}),
    ("attention", "B=2 H=8 S=512 D=64", {"SCHEDULE": "persistent", "GRID_BLOCKS": 58, "L2_WINDOW": "k"}),
    ("matmul", "M=64 N=512 K=512", {}),
)  # fmt: skip


TIMED = """
#include <chrono>
extern "C" __attribute__((visibility("default"))) double choose_ns(const int64_t* values, int count, int rounds) {
  double best = 1e9;
  volatile int kept = 0;
  for (int round = 0; round < rounds; round++) {
    const auto began = std::chrono::steady_clock::now();
    for (int i = 0; i < count; i++) kept = choose(reinterpret_cast<const Shape*>(values)[i]);
    const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - began;
    best = std::min(best, spent.count() / count);
  }
  return best;
}
"""


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


def test_a_tree_reads_the_same_in_cpp_and_python(tmp_path: Path) -> None:
    """A random tree over all fields chooses the same in `operator.so` and `rules.py` on 10,000 shapes."""
    kernel, rng = find_kernel("rmsnorm"), random.Random(5)
    made = described(kernel, "ROWS=64 COLS=1024", "ROWS=64 COLS=512", "ROWS=64 COLS=1024 dtype=bf16", package="grown")

    def tree(depth: int) -> Tree:
        if depth == 0:
            return TreeLeaf(tuple(rng.sample(range(3), rng.randint(0, 3))))
        rows, elements = 2 ** rng.randint(0, 14), 2 ** rng.randint(10, 24)
        tests = [(("ROWS",), rows), (("COLS",), 600), (("ROWS", "COLS"), elements), ((MODE,), 0), ((CAPABILITY,), 88)]
        fields, most = rng.choice(tests)
        return Split(fields, most, tree(depth - 1), tree(depth - 1))

    made = replace(made, tree=tree(5))
    built = build_library({"operator.h": OPERATOR_H, "operator.cpp": cpp_code(made) + TIMED})
    if built.data is None:
        pytest.skip(built.text)
    (tmp_path / "operator.so").write_bytes(built.data)
    library, rules = ctypes.CDLL(str(tmp_path / "operator.so")), rules_of(made)
    found, shapes = set(), []
    for _ in range(10_000):
        shapes.append(
            rules.Shape(
                rng.choice([89, 89, 75]), rng.randint(0, 1), rng.randint(1, 2**15), rng.choice([512, 1024, 999])
            )
        )
    for shape in shapes:
        chosen = rules.choose(shape)
        assert library.evokern_choose((ctypes.c_int64 * 4)(*shape)) == chosen
        found.add(chosen)
    assert len(found) > 2
    library.choose_ns.restype = ctypes.c_double
    values = (ctypes.c_int64 * (4 * len(shapes)))(*(one for shape in shapes for one in shape))
    spent_ns = library.choose_ns(values, len(shapes), 20)
    print(f"{spent_ns:.1f} ns for a decision")
    assert spent_ns < 500  # 100 on a machine that does nothing else


def test_text_of_a_database_stays_text() -> None:
    """A study's name cannot end a comment, a docstring or a literal of the generated code."""
    kernel = find_kernel("rmsnorm")
    title = 'trial 1 of x"""\n#error here\nimport os; os.abort() # \\'
    made = describe(kernel, "hostile", (replace(described(kernel, "ROWS=64 COLS=1024").variants[0], title=title),))
    assert rules_of(made).VARIANTS[0]["title"] == title
    assert "\nimport os" not in python_code(made).replace(repr(title), "")
    assert not re.search(r"^\s*#error|^import", cpp_code(made), re.MULTILINE)
