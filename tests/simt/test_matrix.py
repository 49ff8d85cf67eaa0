"""Matrix instructions over warps against plain products, with the fragments of the ISA written out lane by lane."""

from __future__ import annotations

import numpy as np
import pytest

from evokern.errors import InternalError
from evokern.simt import matrix, numerics

WARPS = 3


@pytest.fixture(autouse=True)
def _quiet():
    with numerics.ignore_float_warnings():
        yield


def values(kind: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Random numbers of a type, as bit patterns in storage type."""
    rng = np.random.default_rng(seed)
    dtype = numerics.STORAGE[kind]
    if kind[0] in "su":
        info = np.iinfo(dtype)
        return rng.integers(max(info.min, -100_000), min(info.max, 100_000), shape, dtype=dtype, endpoint=True)
    return numerics.encode(kind, rng.standard_normal(shape))


# ------------------------------------------------------------------------------------ fragments as the ISA prints them


def fragment_a(shape, bits, lane, i):
    """Row and column of a_i (PTX ISA 8.5, 9.7.14.5: fragments of m16n8k4 to m16n8k32, m8n8k4.f64 and m8n8k16)."""
    group, thread = lane >> 2, lane % 4
    m, _, k = shape
    if m == 8:  # m8n8k4.f64 and m8n8k16.s8
        return group, thread * (k // 4) + i
    if bits == 64:  # m16n8k4, k8, k16: even elements in the upper half
        return group + 8 * (i % 2), thread + 4 * (i // 2)
    if bits == 32:  # m16n8k4: a0 a1; m16n8k8: a0 to a3
        return (group if i in (0, 2) else group + 8), (thread if i < 2 else thread + 4)
    if bits == 16 and k == 8:
        return (group if i < 2 else group + 8), thread * 2 + (i & 1)
    if bits == 16:
        row = group if 0 <= i < 2 or 4 <= i < 6 else group + 8
        return row, thread * 2 + (i & 1) + (8 if i >= 4 else 0)
    if k == 16:
        return (group if i < 4 else group + 8), thread * 4 + (i & 3)
    row = group if 0 <= i < 4 or 8 <= i < 12 else group + 8
    return row, thread * 4 + (i & 3) + (16 if i >= 8 else 0)


def fragment_b(shape, bits, lane, i):
    group, thread = lane >> 2, lane % 4
    k = shape[2]
    if bits in (64, 32):
        return thread + 4 * i, group
    if bits == 16:
        return thread * 2 + (i & 1) + (8 if i >= 2 else 0), group
    del k
    return thread * 4 + (i & 3) + (16 if i >= 4 else 0), group


def fragment_c(shape, lane, i):
    group, thread = lane >> 2, lane % 4
    return (group if i < 2 else group + 8), thread * 2 + (i & 1)


def pack(elements: np.ndarray) -> np.ndarray:
    """Elements [elements, warps, 32] -> registers, several narrow ones to a word, the first in the low bits."""
    size = elements.dtype.itemsize
    if size >= 4:
        return elements.view(f"u{size}")
    count, word = 4 // size, np.zeros((elements.shape[0] * size // 4, *elements.shape[1:]), np.uint32)
    for index in range(elements.shape[0]):
        word[index // count] |= elements[index].view(f"u{size}").astype(np.uint32) << np.uint32(
            8 * size * (index % count)
        )
    return word


def load(source: np.ndarray, place, count: int) -> np.ndarray:
    """Distribute [warps, rows, columns] over lanes by a function (lane, i) -> (row, column)."""
    elements = np.empty((count, source.shape[0], 32), source.dtype)
    for lane in range(32):
        for i in range(count):
            row, column = place(lane, i)
            elements[i, :, lane] = source[:, row, column]
    return pack(elements)


CASES = [
    ((16, 8, 8), "f32", "f16", "f16", "f32"),
    ((16, 8, 8), "f16", "f16", "f16", "f16"),
    ((16, 8, 16), "f32", "f16", "f16", "f32"),
    ((16, 8, 16), "f16", "f16", "f16", "f16"),
    ((16, 8, 16), "f32", "f16", "f16", "f16"),
    ((16, 8, 16), "f16", "f16", "f16", "f32"),
    ((16, 8, 8), "f32", "bf16", "bf16", "f32"),
    ((16, 8, 16), "f32", "bf16", "bf16", "f32"),
    ((16, 8, 4), "f32", "tf32", "tf32", "f32"),
    ((16, 8, 8), "f32", "tf32", "tf32", "f32"),
    ((8, 8, 16), "s32", "s8", "s8", "s32"),
    ((16, 8, 16), "s32", "s8", "u8", "s32"),
    ((16, 8, 32), "s32", "u8", "u8", "s32"),
    ((16, 8, 32), "s32", "u8", "s8", "s32"),
    ((16, 8, 16), "f32", "e4m3", "e5m2", "f32"),
    ((16, 8, 32), "f32", "e4m3", "e4m3", "f32"),
    ((16, 8, 32), "f16", "e5m2", "e4m3", "f16"),
    ((8, 8, 4), "f64", "f64", "f64", "f64"),
    ((16, 8, 4), "f64", "f64", "f64", "f64"),
    ((16, 8, 8), "f64", "f64", "f64", "f64"),
    ((16, 8, 16), "f64", "f64", "f64", "f64"),
]


def product(a_type, b_type, c_type, d_type, a, b, c):
    """The plain matrix product, rounded once."""
    if d_type == "s32":
        return (a.astype(np.int64) @ b.astype(np.int64) + c).astype(np.int32)
    left, right = numerics.decode(a_type, a).astype(np.float64), numerics.decode(b_type, b).astype(np.float64)
    return numerics.encode(d_type, left @ right + numerics.decode(c_type, c))


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"m{case[0][0]}n{case[0][1]}k{case[0][2]}.{'.'.join(case[1:])}"
)
def test_mma_multiplies_the_fragments_of_the_isa(case):
    """Registers filled by the ISA's formulas give a result that lies where the ISA's formulas say."""
    shape, d_type, a_type, b_type, c_type = case
    m, n, k = shape
    a, b, c = values(a_type, (WARPS, m, k), 1), values(b_type, (WARPS, k, n), 2), values(c_type, (WARPS, m, n), 3)
    bits = 8 * a.dtype.itemsize
    registers = (
        load(a, lambda lane, i: fragment_a(shape, bits, lane, i), m * k // 32),
        load(b, lambda lane, i: fragment_b(shape, bits, lane, i), k * n // 32),
        load(c, lambda lane, i: fragment_c(shape, lane, i), m * n // 32),
    )
    got = matrix.bind_mma(shape, d_type, a_type, b_type, c_type)(*registers)
    expected = product(a_type, b_type, c_type, d_type, a, b, c)
    wanted = load(expected, lambda lane, i: fragment_c(shape, lane, i), m * n // 32)
    instruction = matrix.bind_mma(shape, d_type, a_type, b_type, c_type)
    assert instruction.registers == {
        name: part.shape[0] for name, part in zip("abcd", (*registers, wanted), strict=True)
    }
    if d_type == "f64":  # the order of a float64 sum is free: three further roundings of terms near 1
        assert np.abs(got.view(np.float64) - wanted.view(np.float64)).max() <= 2.0**-48
    else:
        assert np.array_equal(got, wanted)


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"m{case[0][0]}n{case[0][1]}k{case[0][2]}.{'.'.join(case[1:])}"
)
def test_fragment_tables_equal_the_isa(case):
    """`mma_fragment` gives the ISA's row and column for every lane and element."""
    shape, _, a_type, b_type, c_type = case
    bits = 8 * numerics.STORAGE[a_type].itemsize
    for operand, kind, place in (
        ("a", a_type, lambda lane, i: fragment_a(shape, bits, lane, i)),
        ("b", b_type, lambda lane, i: fragment_b(shape, bits, lane, i)),
        ("c", c_type, lambda lane, i: fragment_c(shape, lane, i)),
    ):
        fragment = matrix.mma_fragment(operand, kind, shape)
        expected = [[place(lane, i) for i in range(fragment.elements)] for lane in range(32)]
        assert np.stack([fragment.rows, fragment.columns], axis=-1).tolist() == np.array(expected).tolist()


def test_tf32_ignores_the_low_bits_of_its_registers():
    """The 13 low bits of a tf32 operand do not count."""
    a, b, c = (np.full((n, 1, 32), 0x3F800000, np.uint32) for n in (4, 2, 4))
    plain = matrix.bind_mma((16, 8, 8), "f32", "tf32", "tf32", "f32")(a, b, c)
    assert np.array_equal(matrix.bind_mma((16, 8, 8), "f32", "tf32", "tf32", "f32")(a | 0x1FFF, b | 0xFFF, c), plain)
    assert plain.view(np.float32)[0, 0, 0] == 9.0


def test_integer_results_wrap_or_saturate():
    """Integer accumulators wrap, and clamp with .satfinite."""
    a, b = np.full((4, 1, 32), 0x7F7F7F7F, np.uint32), np.full((2, 1, 32), 0x7F7F7F7F, np.uint32)
    c = np.full((4, 1, 32), 2**31 - 10, np.uint32)
    total = 32 * 127 * 127 + 2**31 - 10
    wrapped = matrix.bind_mma((16, 8, 32), "s32", "s8", "s8", "s32")(a, b, c).view(np.int32)
    clamped = matrix.bind_mma((16, 8, 32), "s32", "s8", "s8", "s32", True)(a, b, c).view(np.int32)
    assert (wrapped[0, 0, 0], clamped[0, 0, 0]) == (total - 2**32, 2**31 - 1)


def test_one_rounding_and_its_bound():
    """The f32 sum is the exact one rounded once: it keeps what a running f32 sum would lose."""
    a, b, c = np.zeros((1, 16, 16)), np.zeros((1, 16, 8)), np.zeros((1, 16, 8), np.float32)
    a[0, 0, :3], b[0, :3, 0], c[0, 0, 0] = [1.0, 2.0**-12, 2.0**-12], [1.0, 2.0**-12, 2.0**-12], 0.0
    fragments = [matrix.mma_fragment(o, k, (16, 8, 16)) for o, k in (("a", "f16"), ("b", "f16"), ("c", "f32"))]
    parts = [f.scatter(numerics.encode(f.kind, x)) for f, x in zip(fragments, (a, b, c), strict=True)]
    got = fragments[2].gather(matrix.bind_mma((16, 8, 16), "f32", "f16", "f16", "f32")(*parts), (16, 8))
    assert got[0, 0, 0] == np.float32(1 + 2.0**-23)
    assert matrix.accumulation_bound(a, b, c)[0, 0, 0] == 25 * 2.0**-23 * (1 + 2.0**-23)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (((16, 8, 32), "f32", "f16", "f16", "f32"), "shape"),
        (((16, 8, 16), "f32", "f16", "bf16", "f32"), "incompatible types"),
        (((16, 8, 16), "f16", "bf16", "bf16", "f16"), "accumulator"),
        (((16, 8, 16), "f32", "fp16", "fp16", "f32"), "did you mean 'f16'"),
        (((16, 8, 16), "f32", "f16", "f16", "f32", True), "satfinite"),
    ],
)
def test_unknown_instructions_are_refused_by_name(arguments, named):
    """A shape or type that PTX does not have is an error that says which."""
    with pytest.raises(InternalError, match=named):
        matrix.bind_mma(*arguments)


# ----------------------------------------------------------------------------------------------------------------- wmma

REGISTERS = {
    ("f16", (16, 16, 16)): (8, 8), ("f16", (32, 8, 16)): (8, 8), ("f16", (8, 32, 16)): (8, 8),
    ("bf16", (16, 16, 16)): (4, 4), ("bf16", (32, 8, 16)): (8, 2), ("bf16", (8, 32, 16)): (2, 8),
    ("s8", (16, 16, 16)): (2, 2), ("s8", (32, 8, 16)): (4, 1), ("s8", (8, 32, 16)): (1, 4),
    ("u8", (16, 16, 16)): (2, 2), ("u8", (32, 8, 16)): (4, 1), ("u8", (8, 32, 16)): (1, 4),
    ("tf32", (16, 16, 8)): (4, 4), ("f64", (8, 8, 4)): (1, 1),
}  # fmt: skip
ACCUMULATORS = {"f16": ("f16", "f32"), "s8": ("s32",), "u8": ("s32",), "f64": ("f64",)}
WMMA = [(kind, shape, c) for kind, shape in REGISTERS for c in ACCUMULATORS.get(kind, ("f32",))]


@pytest.mark.parametrize(("kind", "shape", "accumulator"), WMMA)
def test_wmma_through_memory_is_the_plain_product(kind, shape, accumulator):
    """Loading, multiplying and storing by offsets is the product in every layout, in the ISA's number of registers."""
    m, n, k = shape
    sources = values(kind, (m, k), 1), values(kind, (k, n), 2), values(accumulator, (m, n), 3)
    instruction = matrix.bind_wmma(shape, accumulator, kind, accumulator)
    counts = [instruction.fragments[o].registers for o in "abcd"]
    accumulators = m * n // 32 // (2 if accumulator == "f16" else 1)
    assert counts == [*REGISTERS[kind, shape], accumulators, accumulators]
    expected = product(kind, kind, accumulator, accumulator, *sources)
    for layout in ("row", "col"):
        parts = [_load(instruction.fragments[o], x, layout) for o, x in zip("abc", sources, strict=True)]
        result = instruction(*parts)
        fragment = instruction.fragments["d"]
        memory = np.zeros((m + 1) * (n + 40), expected.dtype)
        leading = (n if layout == "row" else m) + 5
        memory[fragment.offsets(layout, leading)] = fragment.unpack(result)[:, 0].T
        rows, columns = np.indices((m, n))
        stored = memory[rows * leading + columns if layout == "row" else columns * leading + rows]
        if accumulator == "f64":
            assert np.allclose(stored, expected, rtol=0, atol=2.0**-48)
        else:
            assert np.array_equal(stored.view(f"u{stored.dtype.itemsize}"), expected.view(f"u{stored.dtype.itemsize}"))


def _load(fragment: matrix.Fragment, source: np.ndarray, layout: str) -> np.ndarray:
    """`wmma.load` from a padded matrix in memory."""
    rows, columns = source.shape
    if layout == "row":
        memory = np.pad(source, ((0, 0), (0, 3))).ravel()
        leading = columns + 3
    else:
        memory = np.pad(source.T, ((0, 0), (0, 3))).ravel()
        leading = rows + 3
    return fragment.pack(memory[fragment.offsets(layout, leading)].T[:, None, :])


@pytest.mark.parametrize(("kind", "shape", "accumulator"), WMMA)
def test_wmma_fragments_cover_their_matrices(kind, shape, accumulator):
    """Every element is held; accumulators hold each exactly once."""
    m, n, k = shape
    for operand, element, size in (("a", kind, (m, k)), ("b", kind, (k, n)), ("c", accumulator, (m, n))):
        rows, columns = matrix.wmma_elements(shape, operand, element)
        held = np.zeros(size, int)
        np.add.at(held, (rows, columns), 1)
        assert held.min() >= 1
        assert (held.max() == 1) or (element == "f16" and operand != "c")


def test_wmma_accumulators_are_two_mma_tiles():
    """The m16n16 accumulator is the mma accumulator of the left and then of the right eight columns."""
    rows, columns = matrix.wmma_elements((16, 16, 16), "c", "f32")
    assert (rows[5].tolist(), columns[5].tolist()) == ([1, 1, 9, 9, 1, 1, 9, 9], [2, 3, 2, 3, 10, 11, 10, 11])


def test_offsets_broadcast_over_leading_dimensions():
    """A leading dimension per warp gives offsets per warp."""
    fragment = matrix.wmma_fragment((16, 16, 16), "c", "f32")
    both = fragment.offsets("row", np.array([16, 24]))
    assert both.shape == (2, 32, 8)
    assert np.array_equal(both[1], fragment.offsets("row", 24))
    with pytest.raises(InternalError, match="row, col"):
        fragment.offsets("rows", 16)


# --------------------------------------------------------------------------------------------------- ldmatrix, stmatrix


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix_and_stmatrix_move_the_elements_of_the_isa(count, transposed):
    """Lane l gets element (l/4, 2(l%4)) and its right neighbour, or of the transpose; storing restores the memory."""
    memory = np.random.default_rng(4).integers(0, 1 << 16, (WARPS, 40, 8), dtype=np.uint16)
    order = np.random.default_rng(5).permutation(40)[: 8 * count]  # row addresses need no order
    flat = memory.ravel().view(np.uint8)
    rows = np.zeros((WARPS, 32), np.uint64)
    for warp in range(WARPS):
        rows[warp, : 8 * count] = (warp * 40 + order) * 16
    move = matrix.matrix_move(count, transposed=transposed)
    addresses = move.addresses(rows)
    pieces = flat.view(f"u{move.part_bytes}")[addresses // move.part_bytes]
    registers = move.registers(pieces)
    for warp in range(WARPS):
        for r in range(count):
            tile = memory[warp, order[8 * r : 8 * r + 8]]
            tile = tile.T if transposed else tile
            for lane in range(32):
                pair = tile[lane // 4, 2 * (lane % 4) : 2 * (lane % 4) + 2]
                assert int(registers[r, warp, lane]) == int(pair[0]) | int(pair[1]) << 16
    written = np.zeros_like(flat)
    written.view(f"u{move.part_bytes}")[addresses // move.part_bytes] = move.pieces(registers)
    kept = np.zeros_like(memory)
    kept[:, order] = memory[:, order]
    assert np.array_equal(written.view(np.uint16), kept.ravel())
    assert move.addressing_lanes == 8 * count


def test_ldmatrix_of_three_matrices_is_refused():
    """Only x1, x2 and x4 exist."""
    with pytest.raises(InternalError, match="not 3"):
        matrix.matrix_move(3)
