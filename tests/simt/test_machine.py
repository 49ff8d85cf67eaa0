"""The machine executes what the compiler emits: control flow, arithmetic, memory, warps, atomics, calls, headers."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from paths import DATA
from simt_tools import launch, module_of

from evokern import simt
from evokern.errors import SourceError, UsageError
from evokern.simt.arrays import Active
from evokern.simt.schedule import MAX_WAIT, Schedule

PLAIN = (DATA / "simt" / "plain.cu").read_text()
HEADERS = (DATA / "simt" / "headers.cu").read_text()


def run(
    entry: str,
    *args: Any,
    grid: tuple[int, int, int] = (1, 1, 1),
    block: tuple[int, int, int] = (32, 1, 1),
    source: str = PLAIN,
    **options: Any,
) -> tuple[simt.LaunchResult, list[np.ndarray[Any, Any]]]:
    """Launch with arrays as writable buffers; return the result and what the buffers hold then."""
    memory = simt.Memory()
    bound = [
        memory.allocate(f"argument {n}", a) if isinstance(a, np.ndarray) and a.dtype.fields is None and a.ndim else a
        for n, a in enumerate(args)
    ]
    flags = ("-default-device", "--std=c++17") if source is HEADERS else ()
    spec = simt.LaunchSpec(entry, grid, block)
    result = launch(module_of(source, flags), spec, bound, memory, source=source, **options)
    return result, [item.read() for item in bound if isinstance(item, simt.Buffer)]


def clean(entry: str, *args: Any, **options: Any) -> list[np.ndarray[Any, Any]]:
    """Launch, insist on no findings, return the buffers."""
    result, arrays = run(entry, *args, **options)
    assert result.findings == ()
    assert result.completed
    return arrays


RNG = np.random.default_rng(5)
REALS = RNG.standard_normal(64).astype(np.float32) * 3


def test_tail_of_the_grid() -> None:
    """Lanes beyond the end leave early and the others finish."""
    x, y = (RNG.random(1000).astype(np.float32) for _ in "xy")
    got, _ = clean("saxpy", y, x, np.float32(2), np.int32(1000), grid=(8, 1, 1), block=(128, 1, 1))
    np.testing.assert_array_equal((2.0 * x.astype(float) + y).astype(np.float32), got)


@pytest.mark.parametrize("batch", [1, 3, None])
def test_tiled_product(batch: int | None) -> None:
    """Shared memory and barriers work whatever the number of blocks side by side."""
    a, b = (RNG.random((64, 64)).astype(np.float32) for _ in "ab")
    got = clean("matmul", np.zeros_like(a), a, b, np.int32(64), grid=(4, 4, 1), block=(16, 16, 1), batch_blocks=batch)[
        0
    ]
    np.testing.assert_allclose(a.astype(float) @ b, got, rtol=1e-5)


def test_reduction() -> None:
    """A tree reduction in shared memory, with a grid-stride loop whose trip count differs between threads."""
    x = RNG.random(5003).astype(np.float32)
    got = clean("reduction", np.zeros(4, np.float32), x, np.int32(5003), grid=(4, 1, 1), block=(256, 1, 1))[0]
    assert float(x.astype(float).sum()) == pytest.approx(float(got.sum()), rel=1e-5)


def test_divergent_loops_and_tables() -> None:
    """Every lane follows its own path and meets the others again."""
    steps = clean("collatz", np.zeros(64, np.int32), block=(64, 1, 1))[0]

    def collatz(value: int) -> int:
        count = 0
        while value != 1:
            value, count = (3 * value + 1 if value & 1 else value // 2), count + 1
        return count

    assert [collatz(i + 1) for i in range(64)] == list(steps)
    n = 5
    cases = [3, 7, 2 + n, n // 4, 9, 25, n - 6, n ^ 7]
    expected = [cases[i] if i < 8 else -1 for i in range(32)]
    assert expected == list(clean("table", np.arange(32, dtype=np.int32), np.int32(n))[0])


def test_calls() -> None:
    """Device functions take and return structures, and pointers to local memory; tables of functions work."""
    got, given = clean("calls", np.zeros(32, np.float32), REALS[:32].copy())
    x = given
    turned = np.where(np.arange(32) % 2 == 1, -x[0] + 2 * (x * x[1]), x + 2)
    np.testing.assert_allclose(turned, got, rtol=1e-6)
    got = clean("indirect", REALS[:32].copy())[0]
    np.testing.assert_array_equal(np.where(np.arange(32) % 2 == 0, REALS[:32] * 2, REALS[:32] ** 2), got)


def test_recursion_is_refused_by_line() -> None:
    """What the machine cannot execute is refused before the run, with line and instruction; other entries still run."""
    line = next(n for n, text in enumerate(PLAIN.splitlines(), 1) if "int below" in text)
    with pytest.raises(SourceError, match=rf"line {line} .*recursive call"):
        run("recursive", np.zeros(32, np.int32))


def test_module_data_and_structures() -> None:
    """Kernels take structures and read the module's data, and its variables last from launch to launch."""
    pair = np.zeros((), np.dtype([("a", np.int32, 3), ("b", np.float64)], align=True))
    pair["a"], pair["b"] = (2, 3, 4), 0.5
    memory = simt.Memory()
    out = memory.allocate("out", np.zeros(32))
    for turn in (1, 2):
        result = simt.launch(
            module_of(PLAIN), simt.LaunchSpec("data", (1, 1, 1), (32, 1, 1)), [out, pair, np.int32(3)], memory
        )
        assert result.findings == ()
        weights = np.array([1.5, -2, 0.25, 8])
        expected = [weights[i & 3] + (2, 3, 4)[i % 3] * 0.5 + ord("eo"[i & 1]) for i in range(31)]
        assert [*expected, 40 + 3 * turn] == list(out.read())


def test_printf() -> None:
    """Device printf formats like C."""
    result, _ = run("print", np.int32(2))
    assert (
        result.printed == "thread 0 of block:  0.00 z ff 1099511627776%\nthread 1 of block:  1.50 z ff 1099511627776%\n"
    )


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value


def test_integers() -> None:
    """Integer arithmetic and bit manipulation equal exact Python integers."""
    y = RNG.integers(-(2**31), 2**31, 33).astype(np.int32)
    y[3], y[9] = 0, -(2**31)
    n = 5
    x, long, _ = clean("integers", np.zeros(28 * 32, np.int32), np.zeros(12 * 32, np.int64), y, np.int32(n))
    x, long = x.reshape(28, 32), long.reshape(12, 32)
    m32, m64 = (1 << 32) - 1, (1 << 64) - 1

    def div(a: int, b: int) -> int:
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)

    def permute(a: int, b: int, selector: int) -> int:
        source = (a & m32) | (b & m32) << 32
        return sum((source >> 8 * (selector >> 4 * k & 7) & 255) << 8 * k for k in range(4))

    def each(a: int, b: int, bits: int, function: Any) -> int:
        ones = (1 << bits) - 1
        return sum((function(a >> at & ones, b >> at & ones) & ones) << at for at in range(0, 32, bits))

    for i in range(32):
        a, b = int(y[i]), int(y[i + 1])
        u, w, p = a & m32, b & m32, a * b
        s = b & 31
        dot = n + sum(_signed(a >> 8 * k, 8) * _signed(b >> 8 * k, 8) for k in range(4))
        expected = [
            div(a, b | 1),
            a - div(a, b | 1) * (b | 1),
            u // (w | 1),
            u % (w | 1),
            a * b >> 32,
            u * w >> 32,
            u.bit_count(),
            32 - u.bit_length(),
            (u & -u).bit_length(),
            int(f"{u:032b}"[::-1], 2),
            permute(a, b, 0x3715),
            permute(a, b, w & 0x7777),
            (w << 32 | u) << n >> 32,
            (w << 32 | u) >> 32,
            dot,
            abs(u - w) + n,
            min(a, b),
            max(u, w),
            abs(a),
            a << s,
            a >> s,
            u >> s,
            (a ^ b) & (n | ~a),
            _signed(a, 24) * _signed(b, 24),
            each(u, w, 8, lambda p, q: abs(p - q)),
            each(u, w, 8, lambda p, q: p + q),
            each(u, w, 16, lambda p, q: max(_signed(p, 16), _signed(q, 16))),
            each(u, w, 8, lambda p, q: (p + q + 1) // 2),
        ]
        assert [_signed(e, 32) for e in expected] == [int(v) for v in x[:, i]]
        q = p & m64
        wide = [
            p, div(p, b | 3), p - div(p, a | 5) * (a | 5), p * (p + 7) >> 64, q * ((q + 9) & m64) >> 64, p >> n, q << n,
            64 - q.bit_length(), q.bit_count(), (q & -q).bit_length(), int(f"{q:064b}"[::-1], 2), q >> n,
        ]  # fmt: skip
        assert [_signed(e, 64) for e in wide] == [int(v) for v in long[:, i]]


def test_exactly_rounded_floats() -> None:
    """Operations with one rounding equal NumPy's, or the exact result rounded in the direction asked for."""
    y = REALS[:33]
    x, d, _ = clean("floats", np.zeros(20 * 32, np.float32), np.zeros(8 * 32), y.copy())
    x, d = x.reshape(20, 32), d.reshape(8, 32)
    v, w = y[:32], y[1:]
    e, f = v.astype(float), w.astype(float)
    one = np.float32(1)
    nearest = [v + w, v * w, v / w, None, np.sqrt(abs(v)), one / v]
    exact = {6: e + f, 7: e * f}
    for row, expected in enumerate(nearest):
        if expected is not None:
            np.testing.assert_array_equal(expected, x[row])
    assert (x[6] >= exact[6]).all() and (np.nextafter(x[6], np.float32(-np.inf)).astype(float) < exact[6]).all()
    assert (x[7] <= exact[7]).all() and (np.nextafter(x[7], np.float32(np.inf)).astype(float) > exact[7]).all()
    others = [
        np.floor(v),
        np.rint(v),
        np.trunc(v),
        np.ceil(v),
        np.minimum(v, w),
        np.maximum(v, w),
        np.copysign(v, w),
        np.trunc(v),
        np.rint(abs(w)),
        np.floor(v),
    ]
    for row, expected in enumerate(others, 10):
        np.testing.assert_array_equal(expected, x[row])
    doubles = [e / 3, None, np.sqrt(abs(e)), e * f, np.floor(e), np.trunc(e * 1e10), np.minimum(e, 0.5)]
    for row, expected in enumerate(doubles):
        if expected is not None:
            np.testing.assert_array_equal(expected, d[row])


def test_library_functions() -> None:
    """The compiler's expansions of mathematical functions come out within a few units in the last place."""
    y = REALS[:32].copy()
    x, d, _ = clean("library", np.zeros(15 * 32, np.float32), np.zeros(6 * 32), y)
    e, a = y.astype(float), abs(y.astype(float))
    big = (np.float32(1e6) * y).astype(float)
    singles = [
        np.sin(e),
        np.cos(e),
        np.tan(e),
        np.exp(e),
        np.log(a),
        a ** float(np.float32(1.7)),
        [math.erf(t) for t in e],
        np.tanh(e),
        a**-0.5,
        np.cbrt(e),
        np.arctan2(e, 2),
        np.exp2(e),
        np.sin(big),
        np.fmod(e, float(np.float32(0.3))),
        [math.lgamma(float(np.float32(t) + np.float32(1))) for t in a],
    ]
    for row, expected in enumerate(singles):
        np.testing.assert_allclose(x.reshape(15, 32)[row], expected, rtol=2e-5, atol=2e-6)
    doubles = [np.sin(e), np.exp(e), np.log(a), a**2.5, np.tanh(e), [math.erf(t) for t in e]]
    for row, expected in enumerate(doubles):
        np.testing.assert_allclose(d.reshape(6, 32)[row], expected, rtol=1e-13, atol=1e-15)


def test_warp_operations() -> None:
    """Votes, matches, reductions, shuffles in all modes and block-wide counts."""
    got = clean("warps", np.zeros(16 * 64, np.uint32), block=(64, 1, 1))[0].reshape(16, 64)
    i = np.arange(64)
    lane = i % 32
    base = i - lane
    ballots = [sum(1 << k for k in range(32) if (32 * w + k) % 3 == 0) for w in range(2)]
    expected = [
        np.repeat(ballots, 32),
        i >= 32,
        i < 32,
        15 << lane // 4 * 4,
        np.full(64, 0x100000000) & 0xFFFFFFFF,
        np.where(i < 32, 496, 1520),
        np.where(i < 32, 31, 63),
        np.where(lane >= 3, i - 3, i),
        np.where(lane % 8 + 5 < 8, i + 5, i),
        base + i * 7 % 32,
        i ^ 6,
        np.full(64, 32),
        np.full(64, 1),
        np.zeros(64),
        np.full(64, 0xFFFFFFFF),
        np.where(i & 1, 0xAAAAAAAA, 0),
    ]
    for row, values in enumerate(expected):
        if row in (12, 13):
            np.testing.assert_array_equal(np.asarray(values) != 0, got[row] != 0)
        else:
            np.testing.assert_array_equal(np.asarray(values).astype(np.uint64) & 0xFFFFFFFF, got[row])


def test_atomics() -> None:
    """Every lane's update happens, once, and the old values form a chain."""
    n, f, d, q = clean(
        "atomics",
        np.zeros(96, np.int32),
        np.zeros(1, np.float32),
        np.zeros(1),
        np.zeros(2, np.uint64),
        block=(64, 1, 1),
    )
    i = np.arange(64)
    sums = np.array([i[i % 4 == k].sum() for k in range(4)])[i % 4]
    assert int(sums.sum()) == int(n[0])
    assert list(np.cumsum(sums) - sums) == list(n[16:80])
    assert list(n[1:4]) == [63, 7, 64 % 6]
    assert list(n[5:10]) == [-63, -1, 0, 0, 63]
    assert float(f[0]) == 32.0
    assert float(d[0]) == 16.0
    assert [int(v) for v in q] == [64 << 33, 63]


def test_spin_lock_makes_progress() -> None:
    """Lanes that spin on a lock let the holder go on, within a warp too."""
    result, arrays = run("spinlock", np.zeros(1, np.int32), block=(64, 1, 1))
    assert result.completed
    assert int(arrays[0][0]) == 64


def test_last_block_sees_the_others() -> None:
    """A fence and an atomic order the blocks: reading the others' partial sums is no race."""
    total = clean(
        "last_block",
        np.zeros(1, np.float32),
        np.zeros(8, np.float32),
        np.zeros(1, np.uint32),
        grid=(8, 1, 1),
        batch_blocks=3,
    )[0]
    assert float(total[0]) == 36.0


def test_several_launches_side_by_side() -> None:
    """`launch_many` gives each argument set its own result and findings."""
    memory = simt.Memory()
    inputs = [RNG.random(100).astype(np.float32) for _ in range(3)]
    sets = [
        [
            memory.allocate(f"y{k}", np.ones(100 - 40 * (k == 1), np.float32)),
            memory.allocate(f"x{k}", x, writable=False),
            np.float32(k),
            np.int32(100),
        ]
        for k, x in enumerate(inputs)
    ]
    results = simt.launch_many(module_of(PLAIN), simt.LaunchSpec("saxpy", (1, 1, 1), (128, 1, 1)), sets, memory)
    assert [set(), {"out_of_bounds"}, set()] == [{finding.kind for finding in result.findings} for result in results]
    assert [result.completed for result in results] == [True, False, True]
    for k in (0, 2):
        np.testing.assert_array_equal((k * inputs[k].astype(float) + 1).astype(np.float32), sets[k][0].read())


def test_wrong_arguments_are_told() -> None:
    """An argument list that does not match says what the entry takes."""
    with pytest.raises(UsageError, match=r"saxpy takes 4 arguments .*passes 1"):
        run("saxpy", np.zeros(4, np.float32))
    with pytest.raises(UsageError, match=r"argument 3 of saxpy must have 4 bytes"):
        run("saxpy", np.zeros(4, np.float32), np.zeros(4, np.float32), np.float32(1), np.int64(4))
    with pytest.raises(SourceError, match=r"no kernel 'saxpi'.*did you mean 'saxpy'"):
        run("saxpi")


@pytest.mark.thorough
def test_cooperative_groups_and_barrier_objects() -> None:
    """Tiles, grid-wide barriers and cuda::barrier from the CUDA headers."""
    x = np.arange(64, dtype=np.float32)
    got = clean("groups", x.copy(), block=(64, 1, 1), source=HEADERS)[0]
    np.testing.assert_array_equal(np.repeat([496.0, 1520.0], 32) + np.arange(64) // 8, got)
    got = clean("whole_grid", np.zeros(256, np.float32), grid=(4, 1, 1), source=HEADERS)[0]
    np.testing.assert_array_equal(np.r_[np.arange(128), np.arange(128)[::-1]], got)
    x = RNG.random(128).astype(np.float32)
    np.testing.assert_array_equal(x[::-1], clean("barrier_object", x.copy(), block=(128, 1, 1), source=HEADERS)[0])


@pytest.mark.thorough
def test_asynchronous_copies_fill_with_zeros() -> None:
    """The pipeline intrinsics copy, and clear what lies beyond the source size."""
    y = RNG.random(128).astype(np.float32)
    got = clean("pipeline", np.zeros(128, np.float32), y, np.int32(100), block=(128, 1, 1), source=HEADERS)[0]
    np.testing.assert_array_equal(np.where(np.arange(128) < 100, y, 0)[::-1], got)


def test_matrix_fragments() -> None:
    """Wmma loads, multiplies and stores."""
    a, b = (RNG.standard_normal((16, 16)).astype(np.float16) for _ in "ab")
    got = clean("fragments", np.zeros((16, 16), np.float32), a, b, source=HEADERS)[0]
    np.testing.assert_allclose(1 + a.astype(float) @ b.astype(float).T, got, rtol=1e-5, atol=1e-5)


def test_small_formats() -> None:
    """fp8 conversions and arithmetic in f16 and bf16, with atomics."""
    y = np.arange(32, dtype=np.uint8)
    x, _, z, _ = clean(
        "bytes", np.zeros(32, np.float32), y, np.zeros(32, np.uint8), np.zeros(32, np.uint8), source=HEADERS
    )
    assert [k / 512 for k in range(8)] + [(8 + k) / 512 for k in range(8)] == list(x[:16])
    assert [8 + k for k in range(2)] == [round(float(v) * 512) for v in x[8:10]]
    assert z[8] == 10, "8/512 times 1.3 rounds to 10/512"
    h = RNG.standard_normal(128).astype(np.float16)
    q = (RNG.standard_normal(32).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    got, _, p, _ = clean("halves", np.zeros(128, np.float16), h, np.zeros(32, np.uint16), q, source=HEADERS)
    a = h[:64].astype(float)
    b = ((a * a + a).astype(np.float16).astype(float) * abs(a)).astype(np.float16).astype(float)
    np.testing.assert_array_equal((b + abs(a)).astype(np.float16), got[:64])
    v = (q.astype(np.uint32) << 16).view(np.float32).astype(float)
    expected = v * v + v
    assert np.all(np.abs((p.astype(np.uint32) << 16).view(np.float32) - expected) <= np.abs(expected) * 2.0**-8)
    two, one, pair = clean(
        "half_atomics", np.zeros(2, np.float16), np.zeros(2, np.float16), np.zeros(2, np.uint16), source=HEADERS
    )
    assert list(two) == [32.0, 64.0]
    assert float(one[0]) == 16.0
    assert list((pair.astype(np.uint32) << 16).view(np.float32)) == [32.0, 64.0]


MODULE_SLOT = """
.version 8.0
.target sm_80
.address_size 64

.global .align 4 .b8 slot[262144];

.visible .entry put(.param .u64 put_param_0, .param .u64 put_param_1)
{
    .reg .b32 %r<6>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [put_param_0];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    mul.wide.s32 %rd2, %r4, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.u32 %r5, [%rd3];
    mov.u64 %rd4, slot;
    add.s64 %rd5, %rd4, %rd2;
    st.global.u32 [%rd5], %r5;
    ld.param.u64 %rd6, [put_param_1];
    add.s64 %rd7, %rd6, %rd2;
    ld.global.u32 %r5, [%rd5];
    st.global.u32 [%rd7], %r5;
    ret;
}
"""


def test_each_launch_has_its_own_module_variables_in_every_batch() -> None:
    """Launches side by side that need several batches keep their module variables apart."""
    memory, module = simt.Memory(), simt.parse(MODULE_SLOT)
    blocks, threads = 40, 128
    inputs = [np.arange(blocks * threads, dtype=np.uint32) + 100_000 * n for n in range(4)]
    pairs = [
        (memory.allocate("in", data, writable=False), memory.allocate("out", np.zeros_like(data))) for data in inputs
    ]
    simt.launch_many(module, simt.LaunchSpec("put", (blocks, 1, 1), (threads, 1, 1)), pairs, memory)
    kept = [memory.module_data[module, n]["slot"].read().view(np.uint32)[: blocks * threads] for n in range(4)]
    assert all((data == one).all() for data, one in zip(inputs, kept, strict=True))


def test_of_a_branchs_sides_the_first_in_the_code_runs_out_of_order_first() -> None:
    """Lanes that poll come first in the code; then one side of a branch must not run far beyond the other."""
    schedule = Schedule(SimpleNamespace(program=SimpleNamespace(segments=range(9)), live_count=64))  # type: ignore[arg-type]
    lanes = Active(np.ones(32, np.bool_), 32, 64)
    schedule.clock = 10
    for segment in (7, 5):
        schedule.push(schedule.key(0, segment), lanes)
    schedule.clock += MAX_WAIT + 1
    schedule.push(schedule.key(0, 2), lanes)
    assert [schedule.pop()[0] - schedule.base for _ in range(3)] == [5, 7, 2]
