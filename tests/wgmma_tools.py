"""Canonical layouts of `wgmma` operands spelled out element by element, and a kernel that multiplies what they hold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SWIZZLE_MODE = {8: 1, 4: 2, 2: 3, 1: 0}
"""16-byte chunks in the swizzle's width -> bits 62 and 63 of a descriptor."""


@dataclass(frozen=True)
class Layout:
    """Where the elements of an operand stand in shared memory, after the figures of PTX ISA 9.7.15.5.1.2.

    An atom is eight lines of `width` chunks of eight elements; in a line of a swizzled atom, chunks stand in the order
    that its place among the 128-byte rows of the atom says. Along K (K-major) or along M or N (MN-major) runs a line.
    """

    transposed: bool
    """MN-major."""
    width: int
    """Chunks of a line: 8, 4, 2, or 1 without a swizzle."""
    extent: int
    """Rows of A or columns of B."""
    depth: int = 64
    """K."""
    base: int = 0
    """Where it begins in shared memory, bytes."""

    @property
    def atom(self) -> int:
        """Bytes of an atom."""
        return 128 * self.width

    @property
    def beside(self) -> int:
        """Bytes from an atom to the next along its lines: with a gap, to tell the two offsets apart."""
        other = self.depth if self.transposed else self.extent
        return other // 8 * self.below + self.atom

    @property
    def below(self) -> int:
        """Bytes from an atom to the next across its lines."""
        return 2 * self.atom

    @property
    def size(self) -> int:
        """Bytes that it takes, gaps included."""
        along = self.extent if self.transposed else self.depth
        return self.beside * -(-along // (8 * self.width))

    def address(self, mn: int, k: int) -> int:
        """Return the address of an element."""
        along, across = (mn, k) if self.transposed else (k, mn)
        atom, inside = divmod(along, 8 * self.width)
        group, line = divmod(across, 8)
        chunk = inside // 8 ^ (line * self.width // 8 if self.width > 1 else 0)
        within = line * 16 * self.width + chunk * 16 + inside % 8 * 2
        return self.base + atom * self.beside + group * self.below + within

    def descriptor(self, step: int) -> int:
        """Return the descriptor of 16 of K."""
        leading, stride = self.beside, self.below
        if self.transposed:
            start = 2 * step * self.below
            if self.width == 1:
                leading, stride = self.below, self.beside
        else:
            atom, chunk = divmod(2 * step, self.width)
            start = atom * self.beside + chunk * 16
            if self.width > 1:
                leading = 16  # not used
        fields = (self.base + start) >> 4 | leading >> 4 << 16 | stride >> 4 << 32
        return fields | SWIZZLE_MODE[self.width] << 62

    def fill(self, image: np.ndarray, matrix: np.ndarray) -> None:
        """Write a matrix [extent, depth] of 16-bit elements into an image of shared memory."""
        for mn in range(self.extent):
            for k in range(self.depth):
                image[self.address(mn, k) // 2] = matrix[mn, k]


KERNEL = r"""
typedef unsigned long long Descriptor;
extern "C" __global__ void __launch_bounds__(THREADS) product(const uint4* image, int pieces, const Descriptor* a,
                                                              const Descriptor* b, const unsigned* fragments, int steps,
                                                              int add_first, unsigned* sums) {
  extern __shared__ __align__(1024) uint4 shared[];
  const int t = threadIdx.x;
  for (int i = t; i < pieces; i += THREADS) shared[i] = image[i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  const Descriptor base = (unsigned)__cvta_generic_to_shared(shared) >> 4;
  unsigned d[COUNT];
  for (int i = 0; i < COUNT; i++) d[i] = sums[(blockIdx.x * COUNT + i) * THREADS + t];
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll 1
  for (int step = 0; step < steps; step++) {
    const Descriptor to_a = a[step] + base, to_b = b[step] + base;
    const unsigned* f = fragments + step * 4 * THREADS + t;
    asm volatile("{ .reg .pred add; setp.ne.s32 add, %FLAG, 0; INSTRUCTION }"
                 : OUTPUTS : "r"(add_first + step), "l"(to_b), FACTOR : "memory");
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned PENDING;" ::: "memory");
  }
  asm volatile("wgmma.wait_group.sync.aligned 0;" : OUTPUTS :: "memory");
  for (int i = 0; i < COUNT; i++) sums[(blockIdx.x * COUNT + i) * THREADS + t] = d[i];
}
"""


def kernel(
    columns: int, d_type: str = "f32", kind: str = "f16", *, in_registers: bool = False, a_turned: bool = False,
    b_turned: bool = False, signs: tuple[int, int] = (1, 1), pending: int = 0, threads: int = 128,
) -> str:  # fmt: skip
    """Return a kernel `product` of one warpgroup or more: sums += A B, with the operands' places given in memory."""
    count = columns // (4 if d_type == "f16" else 2)
    names = ", ".join(f"%{i}" for i in range(count))
    flag = count
    left = "{" + ", ".join(f"%{flag + 2 + i}" for i in range(4)) + "}" if in_registers else f"%{flag + 2}"
    turned = f"{int(b_turned)}" if in_registers else f"{int(a_turned)}, {int(b_turned)}"
    name = f"wgmma.mma_async.sync.aligned.m64n{columns}k16.{d_type}.{kind}.{kind}"
    text = f"{name} {{{names}}}, {left}, %{flag + 1}, add, {signs[0]}, {signs[1]}, {turned};"
    factor = ", ".join(f'"r"(f[{i} * THREADS])' for i in range(4)) if in_registers else '"l"(to_a)'
    words = {
        "INSTRUCTION": text, "%FLAG": f"%{flag}", "OUTPUTS": ", ".join(f'"+r"(d[{i}])' for i in range(count)),
        "FACTOR": factor, "COUNT": str(count), "THREADS": str(threads), "PENDING": str(pending),
    }  # fmt: skip
    source = KERNEL
    for word, meaning in words.items():
        source = source.replace(word, meaning)
    return source


def fragments_of(matrix: np.ndarray) -> np.ndarray:
    """Return A [64, depth] as registers [steps, 4, 128 threads], by the figure of the fragment for A."""
    steps = matrix.shape[1] // 16
    words = np.zeros((steps, 4, 128, 2), np.uint16)
    for step in range(steps):
        for thread in range(128):
            warp, lane = divmod(thread, 32)
            for i in range(8):
                row = 16 * warp + lane // 4 + (8 if i in (2, 3, 6, 7) else 0)
                column = lane % 4 * 2 + i % 2 + (8 if i >= 4 else 0)
                words[step, i // 2, thread, i % 2] = matrix[row, 16 * step + column]
    return words.view(np.uint32)[..., 0]


def sums_of(registers: np.ndarray, columns: int, d_type: str) -> np.ndarray:
    """Return D [64, columns] from registers [count, 128 threads], by the figure of the fragment for D."""
    matrix = np.zeros((64, columns), np.float16 if d_type == "f16" else np.float32)
    each = 2 if d_type == "f16" else 1
    values = np.ascontiguousarray(registers)[..., None].view(matrix.dtype)
    for thread in range(128):
        warp, lane = divmod(thread, 32)
        for i in range(columns // 2):
            row = 16 * warp + lane // 4 + 8 * (i // 2 % 2)
            matrix[row, 8 * (i // 4) + lane % 4 * 2 + i % 2] = values[i // each, thread, i % each]
    return matrix
