"""Bounds in exported programs: C++ functions give the same bound for each element as the gate."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from paths import ROOT

from evokern import Attention, LayerNorm, Softmax
from evokern.declaration.bounds import ErrorBound
from evokern.declaration.kernel import Problem, Tensor
from evokern.doctor import host_compiler
from evokern.export import checked
from evokern.export.banner import Provenance
from evokern.export.bound_check import SOURCES, BoundFunction, bound_function, exported_limit
from evokern.export.sampled_check import SampledField, sampled_fields
from evokern.export.standalone import standalone_program
from evokern.export.trace import trace
from evokern.hardware.profiles import CHIPS
from evokern.study.discovery import load_kernel

WHOLE_CHECKS = checked._whole_checks  # tests/conftest.py replaces it while tests run
MAIN = """#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>
struct Expected { std::vector<double> values, magnitudes; };
%s
int main() {
  std::vector<double> vectors[%d];
  for (std::vector<double>& one : vectors) {
    size_t count;
    if (std::scanf("%%zu", &count) != 1) return 1;
    one.resize(count);
    for (double& value : one) if (std::scanf("%%lf", &value) != 1) return 1;
  }
  Expected expected{vectors[0], vectors[1]};
  %s;
  for (const double value : expected.magnitudes) std::printf("%%.17g\\n", value);
}
"""
NORMED = LayerNorm(24, weight="w", bias="b")
CASES: dict[str, tuple[ErrorBound, dict[str, tuple[int, ...]]]] = {
    "attention": (Attention(16, 20, probabilities="f16", merge="f16"), dict.fromkeys("qkv", (2, 3, 20, 16))),
    "cross attention": (
        Attention(16, 20, scale=lambda p: 0.5), {"q": (2, 7, 16), "k": (2, 20, 16), "v": (2, 20, 8)}
    ),
    "softmax": (Softmax(24), {"x": (5, 24)}),
    "layernorm": (NORMED, {"x": (5, 24), "w": (24,), "b": (24,)}),
    "layernorm in one pass": (replace(NORMED, one_pass=True, weight=None, bias=None), {"x": (5, 24)}),
}  # fmt: skip


def result_of(bound: ErrorBound, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
    if isinstance(bound, Attention):
        scale = bound.scale(Problem({})) if bound.scale else given["q"].shape[-1] ** -0.5
        return torch.softmax(given["q"] @ given["k"].transpose(-1, -2) * scale, -1) @ given["v"]
    if isinstance(bound, Softmax):
        return torch.softmax(given["x"], -1)
    return torch.nn.functional.layer_norm(given["x"], given["x"].shape[-1:])


def in_cpp(
    function: BoundFunction, values: list[torch.Tensor], shapes: Mapping[str, tuple[int, ...]], folder: Path
) -> list[float]:
    """Return what the function computes, in a program made of it."""
    names = [name for name in function.operands if name is not None]
    vectors = {name: f"vectors[{names.index(name) + 2}]" for name in names}
    operands = ["std::vector<double>()" if name is None else vectors[name] for name in function.operands]
    extents = [str(shapes[name][axis]) for name, axis in function.extents]
    call = ", ".join(["expected", *operands, *extents, *map(repr, (*function.numbers, *function.factors))])
    source, binary = folder / "bound.cpp", folder / "bound"
    source.write_text(MAIN % (SOURCES[function.name], len(values), f"{function.name}({call})"))
    build = [str(host_compiler()), "-std=c++17", "-Wall", "-Werror", "-o", str(binary), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    text = "\n".join(f"{one.numel()} " + " ".join(map(repr, one.flatten().tolist())) for one in values)
    done = subprocess.run([str(binary)], input=text, check=True, capture_output=True, text=True)
    return [float(line) for line in done.stdout.split()]


@pytest.mark.skipif(host_compiler() is None, reason="no C++ compiler on PATH")
@pytest.mark.parametrize("name", [*CASES])
def test_a_function_computes_the_bound_of_the_gate(name: str, tmp_path: Path) -> None:
    """Every element's bound is that of `ErrorBound.combined`, on inputs of different sizes in each row."""
    bound, shapes = CASES[name]
    random = torch.Generator().manual_seed(1)
    given = {key: torch.randn(shape, generator=random, dtype=torch.float64) for key, shape in shapes.items()}
    first = next(iter(given.values()))
    first *= torch.logspace(-2, 2, first.shape[-2], dtype=torch.float64)[:, None]
    problem, tensors = Problem({}), {key: Tensor("f16", shape) for key, shape in shapes.items()}
    factors = bound.factors(problem, None, dict.fromkeys(shapes, 16))
    result = result_of(bound, given)
    magnitudes = bound.magnitudes(problem, given, result, lambda t: result_of(bound, t))
    wanted = bound.combined(factors, magnitudes).expand(result.shape)
    function = bound_function(bound, problem, factors, tensors, ())
    assert function is not None
    weighted = result_of(bound, {k: v.abs() if k in function.absolute else v for k, v in given.items()})
    values = [result, weighted, *(given[key] for key in function.operands if key is not None)]
    found = torch.tensor(in_cpp(function, values, shapes, tmp_path), dtype=torch.float64)
    assert torch.allclose(found, wanted.flatten(), rtol=1e-9, atol=0)


def test_a_bound_without_a_function_stays_a_constant() -> None:
    """Functions of kernel.py, and samples along an axis that the bound reads whole, have no C++ function."""
    problem, factors = Problem({}), (1.0,) * 4
    tensors = {name: Tensor("f16", (2, 3, 20, 16)) for name in "qkv"}
    plain = Attention(16, 20)

    def able(bound: ErrorBound, *sampled: SampledField) -> bool:
        return bound_function(bound, problem, factors, tensors, sampled) is not None

    assert able(plain) and able(plain, SampledField("H", 1, dict.fromkeys("qkv", 1)), SampledField("Q", 1, {"q": 2}))
    assert not able(plain, SampledField("S", 1, dict.fromkeys("qkv", 2)))
    assert not able(replace(plain, operands=lambda p, t: t, attend=lambda p, t: t["q"]))
    fp8 = load_kernel(ROOT / "kernels" / "attention_fp8")
    limit = exported_limit(fp8, fp8.space.default(), fp8.problem("2,8,512,64"), fp8.workload.tolerance, "o")
    assert (limit.function, limit.constant > 0) == (None, True)


@pytest.mark.thorough
@pytest.mark.skipif(host_compiler() is None, reason="no C++ compiler on PATH")
def test_the_exported_attention_computes_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program calls the function on all heads or the picked ones, and its host part compiles."""
    kernel = load_kernel(ROOT / "kernels" / "attention")
    config, problem, chip = kernel.space.default(), kernel.problem("2,8,512,64"), CHIPS["l4"]
    sampled = sampled_fields(kernel, config, problem, trace(kernel, config, problem, chip))
    assert {one.name for one in sampled} == {"B", "H"}
    program = standalone_program(kernel, config, problem, chip, Provenance())
    assert "attention_bound(expected[0], (picked.empty() ? inputs[0].values : part_0)" in program.text
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, *more: None if name == "nvcc" else which(name, *more))
    checks = WHOLE_CHECKS(program, "attention", lambda text: None, False)
    assert "host part compiled with" in checks.in_words()
