"""What CUDA's headers and users write beyond plain C runs as on the chip, or is refused by name and line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from paths import DATA
from simt_tools import module_of

from evokern import simt
from evokern.compile.isolated import compile_ptx
from evokern.compile.records import Program
from evokern.errors import SourceError

SHUFFLES = (DATA / "simt" / "shuffles.cu").read_text()
PROGRAMMATIC = (DATA / "simt" / "programmatic.cu").read_text()
REFUSED = (DATA / "simt" / "refused.cu").read_text()
LANES = np.arange(32)
SOURCES = [
    np.full(32, 3),
    np.where(LANES >= 2, LANES - 2, LANES),
    np.where(LANES < 30, LANES + 2, LANES),
    LANES ^ 5,
    LANES ^ 5,
]
"""Where each of the shuffles of `every_shuffle` reads."""


def compiled(source: str, capability: tuple[int, int] = (8, 9)) -> simt.Module:
    """Compile as evokern does, with its header stand-ins and prelude."""
    program = compile_ptx(source, "kernel.cu", {}, (), (), capability)
    assert isinstance(program, Program), program
    return simt.parse(program.ptx)


@pytest.fixture(scope="module")
def shuffles() -> simt.Module:
    return compiled(SHUFFLES)


@pytest.mark.parametrize(
    ("entry", "kind", "width"),
    [("half1", "f16", 1), ("half2x", "f16", 2), ("brain1", "bf16", 1), ("brain2", "bf16", 2)],
)
def test_shuffles_of_half_types(shuffles: simt.Module, entry: str, kind: str, width: int) -> None:
    """Every `__shfl` of half, half2, bf16 and bf16x2 moves the value of the lane that it names."""
    memory = simt.Memory()
    out = memory.allocate("out", np.zeros(5 * 32 * width, np.uint16))
    result = simt.launch(
        shuffles, simt.LaunchSpec(entry, (1, 1, 1), (32, 1, 1)), [out], memory, simt.LaunchOptions(source=SHUFFLES)
    )
    assert (result.findings, result.completed) == ((), True)
    bits = out.read()
    floats = bits.view(np.float16) if kind == "f16" else (bits.astype(np.uint32) << 16).view(np.float32)
    values = floats.reshape(5, 32, width)
    for part in range(width):
        np.testing.assert_array_equal(np.array(SOURCES) + 64 * part, values[:, :, part])


def test_the_warp_size_is_a_number_of_ptx(shuffles: simt.Module) -> None:
    """`warpSize` in an expression, and `WARP_SZ` of inline assembly."""
    memory = simt.Memory()
    out = memory.allocate("out", np.zeros(64, np.int32))
    simt.launch(
        shuffles, simt.LaunchSpec("sizes", (1, 1, 1), (64, 1, 1)), [out], memory, simt.LaunchOptions(source=SHUFFLES)
    )
    np.testing.assert_array_equal(np.arange(64) // 32 * 1000 + 32, out.read())


def launched(entry: str, *arrays: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """Run a kernel of `programmatic.cu`, which must be without findings."""
    memory = simt.Memory()
    buffers = [memory.allocate(f"argument {number}", array) for number, array in enumerate(arrays)]
    module = compiled(PROGRAMMATIC, (9, 0))
    result = simt.launch(
        module, simt.LaunchSpec(entry, (1, 1, 1), (64, 1, 1)), buffers, memory, simt.LaunchOptions(source=PROGRAMMATIC)
    )
    assert (result.findings, result.completed) == ((), True)
    return [buffer.read() for buffer in buffers]


def test_programmatic_dependent_launches() -> None:
    """The two calls of programmatic dependent launch compile without a header and change no result."""
    out, given = launched("dependent", np.zeros(64, np.float32), np.arange(64, dtype=np.float32))
    np.testing.assert_array_equal(given + 1, out)


def test_cache_policies_are_hints() -> None:
    """Policies in their four forms, and loads, stores, copies and atomics that take one, do what they do without."""
    x = np.arange(256, dtype=np.float32)
    out, _, total = launched("policies", np.zeros(256, np.float32), x, np.zeros(2, np.float32))
    t = np.arange(64)
    np.testing.assert_array_equal(x.reshape(64, 4).sum(1) + x[4 * t] + t, out[:64])
    np.testing.assert_array_equal(np.stack([x[4 * t + 1], x[4 * t + 2]], 1).reshape(-1), out[64:192])
    np.testing.assert_array_equal([64, 64], total)


@pytest.mark.parametrize(
    ("entry", "line", "what"),
    [
        ("texture", "tex2D", "textures are not simulated"),
        ("surface", "surf2Dwrite", "surfaces are not simulated"),
        ("recursive", "n < 2", "recursive call to ackermann"),
        ("allocates", "malloc(", "malloc on the device is not simulated"),
        ("news", "new float", "malloc on the device is not simulated"),
    ],
)
def test_refusals_name_what_and_where(entry: str, line: str, what: str) -> None:
    """What the machine does not execute is refused before it runs, by name and line; other kernels still run."""
    module = module_of(REFUSED, ("-default-device", "--std=c++17"))
    number = next(n for n, text in enumerate(REFUSED.splitlines(), 1) if line in text)
    with pytest.raises(SourceError, match=rf"^line {number} of kernel\.cu: {what}"):
        module.check(entry)
    module.check("plain")


def test_a_shared_address_below_its_array_wraps_with_its_offset() -> None:
    """The compiler may form a base below address 0 and add the rest as an offset: 32-bit addresses wrap."""
    source = """
template <int Offset>
__device__ float read(float* out) {
  __shared__ float row[64];
  row[threadIdx.x] = threadIdx.x;
  __syncthreads();
  float found;
  const unsigned base = (unsigned)__cvta_generic_to_shared(row) + 4 * threadIdx.x - 4;
  asm volatile("ld.shared.f32 %0, [%1+%2];" : "=f"(found) : "r"(base), "n"(Offset));
  return found;
}
extern "C" __global__ void own(float* out) { out[threadIdx.x] = read<4>(out); }
extern "C" __global__ void below(float* out) { out[threadIdx.x] = read<0>(out); }
"""
    module = module_of(source)
    memory = simt.Memory()
    out = memory.allocate("out", np.zeros(64, np.float32))
    result = simt.launch(
        module, simt.LaunchSpec("own", (1, 1, 1), (64, 1, 1)), [out], memory, simt.LaunchOptions(source=source)
    )
    assert (result.findings, result.completed) == ((), True)
    np.testing.assert_array_equal(np.arange(64), out.read())
    found = simt.launch(
        module, simt.LaunchSpec("below", (1, 1, 1), (64, 1, 1)), [out], memory, simt.LaunchOptions(source=source)
    ).findings
    assert [(finding.kind, finding.count) for finding in found] == [("out_of_bounds", 1)]
