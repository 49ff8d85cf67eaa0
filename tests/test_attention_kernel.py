"""The attention kernel's declaration and its CUDA source say the same thing."""

import random
import re
import subprocess
from pathlib import Path

import pytest

from evokern.compile.nvrtc import compile_program
from evokern.compile.records import CompileFailure
from evokern.diagnosis import host_compiler
from evokern.discovery import load_kernel
from evokern.feasibility import check
from evokern.profiles import CHIPS
from evokern.render import macros, render

FOLDER = Path(__file__).parents[1] / "kernels" / "attention"
KERNEL = load_kernel(FOLDER)
RULES = re.findall(r"static_assert\((\w+)\(CHOICE\)", (FOLDER / "kernel.cu").read_text())
PROBLEMS = ("2,8,512,64", "1,2,72,64,causal=1", "2,4,300,128", "1,1,1,128,causal=1")


def _drawn(count, seed=0):
    """Return (configuration, problem) pairs, feasible or not, each mma.sync configuration drawn in full."""
    rng = random.Random(seed)
    pairs = []
    for index in range(count):
        config = KERNEL.space.draw(rng)
        pairs.append((config, KERNEL.problem(PROBLEMS[index % len(PROBLEMS)])))
    return pairs


def _choice_fields():
    """Return the macro behind each field of `Choice`, in order."""
    initialiser = re.search(r"Choice CHOICE = \{(.*?)\}", (FOLDER / "kernel.cu").read_text(), re.S)
    return [name.strip() for name in initialiser.group(1).split(",")]


def _evaluate_in_cpp(pairs, folder):
    """Compile choice.h with a table of candidates; return, for each, every rule's verdict and the shared memory."""
    tables = [macros(KERNEL, config, problem) for config, problem in pairs]
    constants = {name: value for name, value in tables[0].items() if value.isdigit() and name not in KERNEL.field_names}
    named = {gene.name for gene in KERNEL.genes} | set(KERNEL.macros(*pairs[0]))
    defines = [f"#define {name} {value}" for name, value in constants.items() if name not in named]
    rows = ["  {" + ", ".join(table[field] for field in _choice_fields()) + "}," for table in tables]
    verdicts = ", ".join(f"{rule}(c)" for rule in RULES)
    lines = [*defines, f'#include "{FOLDER / "choice.h"}"', "#include <cstdio>", "constexpr Choice TABLE[] = {", *rows]
    lines += ["};", "int main() {", "  for (Choice c : TABLE) {", f"    const bool v[] = {{{verdicts}}};"]
    lines += ['    for (bool x : v) std::printf("%d ", x);', '    std::printf("%d\\n", shared_bytes(c));', "  }", "}"]
    (folder / "table.cpp").write_text("\n".join(lines))
    command = [host_compiler(), "-std=c++17", "-o", str(folder / "table"), str(folder / "table.cpp")]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    output = subprocess.run([str(folder / "table")], check=True, capture_output=True, text=True, timeout=60).stdout
    return [[int(word) for word in line.split()] for line in output.splitlines()]


def test_every_static_assert_has_a_constraint_of_its_name():
    """Each rule that the source asserts is a named constraint, so that no candidate reaches the compiler to fail."""
    assert set(RULES) <= {constraint.name for constraint in KERNEL.constraints}
    assert len(RULES) >= 6


@pytest.mark.skipif(host_compiler() is None, reason="needs a C++ compiler")
def test_rules_and_sizes_agree_between_python_and_cuda(tmp_path):
    """For candidates drawn over the whole space, both sides reach the same verdicts and the same shared memory."""
    pairs = _drawn(1500)
    constraints = {constraint.name: constraint for constraint in KERNEL.constraints}
    expected = []
    for config, problem in pairs:
        verdicts = [int(constraints[rule].evaluate(config, problem, None).holds) for rule in RULES]
        expected.append([*verdicts, KERNEL.launches(config, problem)[0].shared_bytes])
    assert expected == _evaluate_in_cpp(pairs, tmp_path)
    assert all(any(row[index] for row in expected) for index in range(len(RULES)))


def test_default_is_feasible_on_every_chip_at_every_length():
    """Nobody starts with a candidate that cannot run."""
    for text in (*PROBLEMS, "4,16,1024,128", "2,8,512,64,causal=1", "1,32,2048,128"):
        for chip in CHIPS.values():
            assert check(KERNEL, KERNEL.space.default(), [KERNEL.problem(text)], chip) is None


@pytest.mark.parametrize("architecture", ["sm_80", "sm_89", "sm_90"])
def test_feasible_candidates_compile(architecture):
    """A sample of feasible candidates, one of each way to multiply at least, compiles without an error."""
    rng = random.Random(architecture)
    tried = set()
    chip = CHIPS["h200"] if architecture == "sm_90" else CHIPS["l4"]
    while len(tried) < 3:
        config = KERNEL.space.draw(rng)
        problem = KERNEL.problem(rng.choice(PROBLEMS))
        if config["TENSOR_CORES"] in tried or check(KERNEL, config, [problem], chip) is not None:
            continue
        tried.add(config["TENSOR_CORES"])
        built = render(KERNEL, config, problem)
        result = compile_program(built.source, built.name, built.headers, built.options, built.entries, architecture)
        assert not isinstance(result, CompileFailure), f"{dict(config)} at {problem}: {result}"
