"""Unroll factors that are genes: nvcc expands no macro in `#pragma unroll`."""

from __future__ import annotations

from evokern.cuda_source.specialize.specialize import self_contained, specialize

SOURCE = """
__global__ void k(float* y) {
#pragma unroll UNROLL
  for (int i = 0; i < 8; i++) y[i] = i;
  # pragma unroll (2 * UNROLL)
  for (int i = 0; i < 8; i++) y[i] += i;
}
"""


def test_an_unroll_factor_becomes_a_number() -> None:
    """The exported source contains the value, and defines no macro for it."""
    for text in (
        specialize(SOURCE, {"UNROLL": 4}, lambda text: None, {}, ["k"]),
        self_contained(SOURCE, {"UNROLL": 4}, {}, ["k"]),
    ):
        assert "#pragma unroll 4\n" in text and "unroll (2 * 4)\n" in text and "#define UNROLL" not in text
