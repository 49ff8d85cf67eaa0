"""Canonical layouts of `wgmma` operands spelled out element by element, and a kernel that multiplies what they hold."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from simt_tools import module_of

from evokern import simt
from evokern.simt import numerics

BLOCKS = 2
"""Blocks of a product's launch, which differ in what they add to."""
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


def bits(kind: str, shape: tuple[int, ...], seed: int, *, integers: bool = False) -> np.ndarray:
    """Return random numbers of a type as bit patterns; integers are from -4 to 4."""
    random = np.random.default_rng(seed)
    values = random.integers(-4, 5, shape).astype(np.float64) if integers else random.standard_normal(shape)
    with numerics.ignore_float_warnings():
        return numerics.encode(kind, values).view(np.uint16 if kind != "f32" else np.uint32)


def numbers(kind: str, patterns: np.ndarray) -> np.ndarray:
    """Return bit patterns as float64."""
    with numerics.ignore_float_warnings():
        return numerics.decode(kind, patterns.view(numerics.STORAGE[kind])).astype(np.float64)


@dataclass(frozen=True)
class Product:
    """A product of 64 rows over a depth of 64, with everything about its operands."""

    columns: int
    d_type: str = "f32"
    kind: str = "f16"
    a: Layout | None = None
    """Layout of A, wherever it begins; None for registers."""
    b: Layout | None = None
    """Layout of B; None for K-major with the widest swizzle."""
    add_first: bool = True
    """Whether the first step adds to what the sums were."""
    signs: tuple[int, int] = (1, 1)
    pending: int = 0
    integers: bool = False
    """Factors and sums are small integers, so that every order of adding up gives the same."""

    @cached_property
    def layouts(self) -> tuple[Layout | None, Layout]:
        """Layouts of A and B, A behind B."""
        b = self.b or Layout(False, 8, self.columns)
        base = -(-b.size // 1024) * 1024
        return None if self.a is None else Layout(self.a.transposed, self.a.width, 64, base=base), b

    @property
    def source(self) -> str:
        """CUDA source."""
        a, b = self.layouts
        return kernel(
            self.columns, self.d_type, self.kind, in_registers=a is None, a_turned=bool(a and a.transposed),
            b_turned=b.transposed, signs=self.signs, pending=self.pending,
        )  # fmt: skip

    @cached_property
    def factors(self) -> tuple[np.ndarray, np.ndarray]:
        """A [64, 64] and B transposed [columns, 64], as bit patterns."""
        return (
            bits(self.kind, (64, 64), 1, integers=self.integers),
            bits(self.kind, (self.columns, 64), 2, integers=self.integers),
        )

    @cached_property
    def before(self) -> np.ndarray:
        """Registers of D before, uint32 [blocks, count, 128 threads]."""
        each = 2 if self.d_type == "f16" else 1
        shape = (BLOCKS, self.columns // 2 // each, 128, each)
        return bits(self.d_type, shape, 3, integers=self.integers).view(np.uint32).reshape(shape[:3])

    @cached_property
    def arguments(self) -> tuple[np.ndarray | np.int32, ...]:
        """Arguments of the kernel; the last one is written."""
        a, b = self.layouts
        image = np.zeros((a or b).base // 2 + (a or b).size // 2, np.uint16)
        b.fill(image, self.factors[1])
        if a is not None:
            a.fill(image, self.factors[0])
        to_a = np.array([a.descriptor(step) if a else 0 for step in range(4)], np.uint64)
        to_b = np.array([b.descriptor(step) for step in range(4)], np.uint64)
        fragments = fragments_of(self.factors[0])
        return (
            image, np.int32(image.size // 8), to_a, to_b, fragments, np.int32(4), np.int32(self.add_first), self.before,
        )  # fmt: skip

    @property
    def shared(self) -> int:
        """Bytes of dynamic shared memory."""
        image = self.arguments[0]
        assert isinstance(image, np.ndarray)
        return image.nbytes

    def simulate(self) -> tuple[np.ndarray, simt.LaunchResult]:
        """Run it on the PTX machine; return D [blocks, 64, columns] and the result of the launch."""
        memory = simt.Memory()
        placed = [
            memory.allocate(f"argument{at}", item) if isinstance(item, np.ndarray) else item
            for at, item in enumerate(self.arguments)
        ]
        result = simt.launch(
            module_of(self.source, (), "compute_90a"),
            simt.LaunchSpec("product", (BLOCKS, 1, 1), (128, 1, 1), dynamic_shared=self.shared),
            placed,
            memory,
            simt.LaunchOptions(architecture="sm_90"),
        )
        sums = placed[-1]
        assert isinstance(sums, simt.Buffer)
        return self.matrices(sums.read()), result

    def matrices(self, registers: np.ndarray) -> np.ndarray:
        """Return D [blocks, 64, columns] from registers of every block."""
        return np.stack([sums_of(block, self.columns, self.d_type) for block in registers.reshape(self.before.shape)])

    def expected(self) -> np.ndarray:
        """Return D as steps of exact products give it, each rounded once."""
        total = self.matrices(self.before) * self.add_first
        left, right = (numbers(self.kind, factor) for factor in self.factors)
        left = left * np.prod(self.signs)
        for step in range(4):
            part = slice(16 * step, 16 * step + 16)
            total = (total.astype(np.float64) + left[:, part] @ right[:, part].T).astype(total.dtype)
        return total
