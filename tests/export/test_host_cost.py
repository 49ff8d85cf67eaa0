"""Cost of the check in exported programs: inputs are drawn once, and a sample costs as much as its elements."""

from __future__ import annotations

import re
import resource
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from paths import DATA, KERNELS

from evokern.doctor import host_compiler
from evokern.export.banner import Provenance
from evokern.export.sampled_check import SampledField, sampled_fields
from evokern.hardware.profiles import CHIPS
from evokern.study.discovery import load_kernel

pytestmark = pytest.mark.skipif(host_compiler() is None, reason="no C++ compiler on PATH")
STANDALONE = import_module("evokern.export.standalone")  # the package has a function of this name
STUBS = "static void no_kernel(int*) {}\n"
COUNTERS = """#include <cstdlib>
#include <new>
static size_t allocated = 0, drawn = 0;
void* operator new(size_t bytes) { return allocated += bytes, std::malloc(bytes); }
void operator delete(void* at) noexcept { std::free(at); }
void operator delete(void* at, size_t) noexcept { std::free(at); }
"""
SAMPLE = "std::vector<Expected> expected = run_reference(shape, inputs, picked);"
COMPARED = """
    std::fprintf(stderr, "drawn %zu allocated %zu\\n", drawn, allocated);
    if (inputs[0].values.size() + inputs[1].values.size() < 10000) {
      const Expected all = run_reference(shape, inputs, {})[0], &some = expected[0];
      for (size_t i = 0; i < some.places.size(); i++)
        if (some.values[i] != all.values[some.places[i]] || some.magnitudes[i] != all.magnitudes[some.places[i]])
          std::fprintf(stderr, "different\\n");
      std::fprintf(stderr, "compared %zu\\n", some.places.size());
    }
"""
"""Statements after the reference of a sample; for small inputs, they compare it with the reference of all."""


def product(problem: str) -> str:
    """Return the exported matrix product, whose kernel does nothing."""
    kernel = load_kernel(KERNELS / "matmul")
    config = kernel.space.default()
    made = STANDALONE.standalone_program(kernel, config, kernel.problem(problem), CHIPS["h200"], Provenance())
    bodies = made.section.declarations.replace(";", " { return reinterpret_cast<const void*>(no_kernel); }")
    return STUBS + made.text.replace(made.section.text, bodies)


def built(text: str, folder: Path) -> Path:
    """Build a program with the compiler's default options, which do not optimise."""
    source, binary = folder / "best.cpp", folder / "best"
    source.write_text(text, encoding="utf-8")
    options = ["-std=c++17", "-w", f"-I{DATA / 'fake_cuda'}", "-include", "utility", "-DFAKE_KERNEL_TYPES=int*"]
    command = [str(host_compiler()), *options, "-DFAKE_KERNEL_COUNT=1", str(source), "-o", str(binary)]
    subprocess.run(command, check=True, capture_output=True)
    return binary


@pytest.mark.thorough
@pytest.mark.parametrize("fields", [("M", "N"), ("M",)])
def test_a_sample_costs_as_much_as_its_elements(
    fields: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference of a sample allocates memory for its own rows and columns only, and no copy of an input.

    Inputs that the sample needs completely, such as b for rows of c, are not copied either. Values and magnitudes are
    those of the reference for all elements. Every input is drawn once, for all input sets.
    """

    def chosen(*given: Any) -> tuple[SampledField, ...]:
        return tuple(one for one in sampled_fields(*given) if one.name in fields)

    monkeypatch.setattr(STANDALONE, "sampled_fields", chosen)
    text = COUNTERS + product("512,512,512")
    for name in ("WHOLE_S", "SAMPLE_S", "TIMED_S"):  # the first sample is the last
        text, count = re.subn(rf"(constexpr double {name} = )[\d.]+", r"\g<1>-1.0", text)
        assert count == 1
    assert text.count(SAMPLE) == text.count("normal(random)") == 1
    text = text.replace(SAMPLE, f"allocated = 0;\n    {SAMPLE}{COMPARED}")
    text = text.replace("normal(random)", "(drawn++, normal(random))")
    binary = built(text, tmp_path)
    small = subprocess.run([str(binary), "16,24,40"], capture_output=True, text=True)
    assert "compared" in small.stderr and "different" not in small.stderr
    m, n, k = 8, 4096, 1024
    large = subprocess.run([str(binary), f"{m},{n},{k}"], capture_output=True, text=True)
    found = re.search(r"^drawn (\d+) allocated (\d+)$", large.stderr, re.MULTILINE)
    assert found is not None
    assert int(found[1]) == m * k + k * n
    elements = k + k if "N" in fields else k + n  # read from a and b, or read from a and written to c
    assert int(found[2]) < 64 * elements < k * n


@pytest.mark.slow
def test_a_large_product_is_checked_in_seconds(tmp_path: Path) -> None:
    """The complete host part takes some seconds without options that optimise, and compares thousands of elements."""
    binary = built(product("200,5120,13824"), tmp_path)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([str(binary)], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime - before.ru_utime < 20
    found = re.search(r"^checked: a sample, (\d+) of 200 M, (\d+) of 5120 N;", done.stdout, re.MULTILINE)
    assert found is not None, done.stdout + done.stderr
    assert int(found[1]) * int(found[2]) >= 1000
