"""One small kernel for each rule: the shadow of its output is the expression that the kernel computes."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from simt_tools import module_of
from wgmma_tools import Layout, Product

from evokern import simt
from evokern.simt.exact import field
from evokern.simt.exact.field import P, Q, Value
from evokern.simt.exact.memory import ExactMemory
from evokern.simt.numerics import STORAGE, encode

N = 64
HEAD = """#include <cuda_fp16.h>
typedef unsigned char Byte;
__device__ __noinline__ float third(float a, double b, __half h) { return a * (float)b + __half2float(h); }
__device__ __forceinline__ unsigned short e4m3(float low, float high) {
  unsigned short both;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;" : "=h"(both) : "f"(low), "f"(high));
  return both;
}
__device__ __forceinline__ float2 numbers(unsigned short both) {
  unsigned pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(both));
  return __half22float2(*(__half2*)&pair);
}
extern "C" __global__ void kernel(const float* x, const float* y, float* out, const __half* h, __half* half_out) {
  __shared__ float tile[64];
  __shared__ __align__(16) __half halves[64 * 8];
  __shared__ double wide[64];
  __shared__ Byte bytes[128];
  const int i = threadIdx.x;
"""
ONE = np.ones(N, np.uint64)
NUMBERS = np.random.default_rng(3).normal(size=(2, N)).astype(np.float32)


def _shadow(seed: int) -> Value:
    rng = np.random.default_rng(seed)
    return Value(rng.integers(0, P, N, np.uint64), rng.integers(0, Q, N, np.uint64))


X, Y, H = _shadow(1), _shadow(2), _shadow(3)


def _run(body: str, x: np.ndarray = NUMBERS[0]) -> tuple[Value, Value, ExactMemory]:
    """Return the shadows of the two outputs of a kernel with one block of 64 threads."""
    memory = simt.Memory()
    inputs = [memory.allocate(name, data, writable=False) for name, data in (("x", x), ("y", NUMBERS[1]))]
    out = memory.allocate("out", np.zeros(N, np.float32))
    halves = memory.allocate("h", NUMBERS[1].astype(np.float16), writable=False)
    half_out = memory.allocate("half_out", np.zeros(N, np.float16))
    exact = ExactMemory(memory)
    for buffer, kind, value in ((inputs[0], "f32", X), (inputs[1], "f32", Y), (halves, "f16", H)):
        exact.write(buffer, kind, value)
    options = simt.LaunchOptions(sanitize=False, count=False, exact=exact)
    spec = simt.LaunchSpec("kernel", (1, 1, 1), (N, 1, 1))
    result = simt.launch(module_of(HEAD + body + "}"), spec, [*inputs, out, halves, half_out], memory, options)
    assert result.completed, result.fatal
    return exact.read(out, "f32"), exact.read(half_out, "f16"), exact


def _sum(p: np.ndarray, modulus: int) -> int:
    return sum(int(one) for one in p) % modulus


def _turned(value: Value, order: np.ndarray) -> Value:
    return Value(value.p[order], value.q[order])


def _total(value: Value) -> Value:
    return Value(ONE * np.uint64(_sum(value.p, P)), ONE * np.uint64(_sum(value.q, Q)))


def _where(condition: np.ndarray, yes: Value, no: Value) -> Value:
    return Value(np.where(condition, yes.p, no.p), np.where(condition, yes.q, no.q))


def _number(value: float) -> Value:
    return field.embedded(np.full(N, value), np.uint64(0))


RULES: dict[str, tuple[str, Callable[[], Value]]] = {
    "add": ("out[i] = x[i] + y[i];", lambda: field.add(X, Y)),
    "sub": ("out[i] = x[i] - y[i];", lambda: field.add(X, field.negate(Y))),
    "fma": ("out[i] = fmaf(x[i], y[i], 0.1f);", lambda: field.fma(X, Y, _number(float(np.float32(0.1))))),
    "div": ("out[i] = x[i] / y[i];", lambda: field.multiply(X, field.reciprocal(Y, np.uint64(0)))),
    "rsqrt": ("out[i] = rsqrtf(x[i]);", lambda: field.reciprocal(field.root(X), np.uint64(0))),
    "abs": ("out[i] = fabsf(x[i]);", lambda: _where(NUMBERS[0] < 0, field.negate(X), X)),
    "max": ("out[i] = fmaxf(x[i], y[i]);", lambda: _where(NUMBERS[0] > NUMBERS[1], X, Y)),
    "select": ("out[i] = i % 3 ? x[i] : y[i];", lambda: _where(np.arange(N) % 3 != 0, X, Y)),
    "branch": ("out[i] = x[i]; if (i > 9) out[i] = y[i];", lambda: _where(np.arange(N) > 9, Y, X)),
    "half": ("out[i] = __half2float(h[i]);", lambda: H),
    "bfloat": (
        "const unsigned both = __float_as_uint(x[i]); unsigned packed;"
        'asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(x[i]), "f"(y[i]));'
        "out[i] = __uint_as_float(i % 2 ? packed & 0xffff0000u : packed << 16); if (both == 1) out[i] = 0;",
        lambda: _where(np.arange(N) % 2 == 1, X, Y),
    ),
    "integer": ("out[i] = x[i] * i;", lambda: field.multiply(X, field.integers(np.arange(N)))),
    "shuffle": ("out[i] = __shfl_xor_sync(~0u, x[i], 5);", lambda: _turned(X, np.arange(N) ^ 5)),
    "shared": (
        "tile[i] = x[i]; __syncthreads(); out[i] = tile[63 - i];",
        lambda: _turned(X, np.arange(N)[::-1]),
    ),
    "atomic": (
        "tile[0] = 0; __syncthreads(); atomicAdd(tile, x[i]); __syncthreads(); out[i] = tile[0];",
        lambda: _total(X),
    ),
    "copy": (
        'asm volatile("cp.async.ca.shared.global [%0], [%1], 4; cp.async.commit_group; cp.async.wait_group 0;"'
        '    :: "r"((unsigned)__cvta_generic_to_shared(tile + i)), "l"(x + i) : "memory");'
        "__syncthreads(); out[i] = tile[i ^ 1];",
        lambda: _turned(X, np.arange(N) ^ 1),
    ),
    "double": (
        "const double d = x[i]; wide[i] = fma(d, (double)y[i], 0.1) / 3.0; __syncthreads();"
        "out[i] = (float)__shfl_xor_sync(~0u, wide[i ^ 1], 1);",
        lambda: field.multiply(field.fma(X, Y, _number(0.1)), field.reciprocal(_number(3.0), np.uint64(0))),
    ),
    "atomic_double": (
        "wide[0] = 0; __syncthreads(); atomicAdd(wide, (double)x[i]); __syncthreads(); out[i] = (float)wide[0];",
        lambda: _total(X),
    ),
    "atomic_halves": (
        "if (i == 0) *(__half2*)halves = __half2half2(h[1]); __syncthreads();"
        "atomicAdd((__half2*)halves, __halves2half2(h[i], h[i ^ 1])); __syncthreads();"
        "out[i] = __half2float(halves[i % 2]);",
        lambda: field.add(_total(H), Value(H.p[1] * ONE, H.q[1] * ONE)),
    ),
    "function": (
        "out[i] = i % 2 ? third(x[i], y[i], h[i]) : third(y[i], 2.0, h[i ^ 1]);",
        lambda: _where(
            np.arange(N) % 2 == 1,
            field.fma(X, Y, H),
            field.fma(Y, _number(2.0), _turned(H, np.arange(N) ^ 1)),
        ),
    ),
    "fp8": (
        "const float2 both = numbers(e4m3(x[i], y[i])); out[i] = i % 3 ? both.x : both.y;",
        lambda: _where(np.arange(N) % 3 != 0, X, Y),
    ),
    "fp8_bytes": (
        "bytes[i] = (Byte)e4m3(x[i], 0.f); bytes[64 + i] = (Byte)e4m3(y[i], 0.f); __syncthreads();"
        "const unsigned low = bytes[63 - i], high = bytes[64 + i]; const float2 both = numbers(low | high << 8);"
        "out[i] = both.x * both.y;",
        lambda: field.multiply(_turned(X, np.arange(N)[::-1]), Y),
    ),
    "fp8_permuted": (
        "const unsigned words[2] = {e4m3(x[i], y[i]), e4m3(0.5f, x[i])};"
        "const unsigned four = __byte_perm(words[0], words[1], 0x4150);"
        "const float2 low = numbers((unsigned short)four), high = numbers((unsigned short)(four >> 16));"
        "const float2 middle = numbers((unsigned short)(four >> 8)), top = numbers((unsigned short)(four >> 24));"
        "out[i] = low.x * low.y + high.x + 2.f * high.y + middle.y + top.x + 3.f * top.y;",
        lambda: field.add(field.multiply(X, X), field.add(field.add(Y, Y), _number(1.5))),
    ),
    "local": (
        "float own[4]; for (int n = 0; n < 4; ++n) own[n] = x[i] * n; out[i] = own[i % 4 ^ (int)(x[0] > 1e9f)];",
        lambda: field.multiply(X, field.integers(np.arange(N) % 4)),
    ),
}
"""Rule → (body of a kernel, the residues of its output)."""


@pytest.mark.parametrize("rule", RULES)
def test_the_shadow_is_the_expression(rule: str) -> None:
    """The residues of the output follow from those of the inputs."""
    body, expected = RULES[rule]
    found, _, _ = _run(body)
    wanted = expected()
    assert found.bad is None
    assert (found.p == wanted.p).all()
    assert (found.q == wanted.q).all() or rule == "rsqrt"


def test_blocks_of_a_cluster_read_the_shadow_of_the_other_block() -> None:
    """Addresses of another block, and ldmatrix of a block that is not the first of its cluster."""
    body = """typedef unsigned short Half;
    extern "C" __global__ void __cluster_dims__(2, 1, 1) kernel(const Half* x, Half* out) {
      __shared__ __align__(16) unsigned short part[64];
      const int t = threadIdx.x; unsigned there, read, own = (unsigned)__cvta_generic_to_shared(part);
      part[t] = x[64 * blockIdx.x + t], part[t + 32] = x[64 * blockIdx.x + t + 32];
      asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
      asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(own + 2 * t), "r"(blockIdx.x ^ 1));
      asm volatile("ld.shared::cluster.u16 %0, [%1];" : "=h"(out[96 * blockIdx.x + t]) : "r"(there) : "memory");
      asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(read) : "r"(own + t % 8 * 16));
      ((unsigned*)(out + 96 * blockIdx.x + 32))[t] = read;
      asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
    }"""
    numbers = encode("f16", np.arange(128, dtype=np.float64)).view(np.uint16)
    spec = simt.LaunchSpec("kernel", (2, 1, 1), (32, 1, 1))
    _computed(body, [("f16", 3, numbers), ("f16", 3, np.zeros(192, np.uint16))], spec, "compute_90")


def test_halves_keep_their_own_shadows() -> None:
    """Packing, unpacking and swapping moves the shadow of each half."""
    body = (
        "__half2 both = __floats2half2_rn(x[i], y[i]); both = __lowhigh2highlow(both);"
        "half_out[i] = i % 2 ? __low2half(both) : __high2half(both);"
    )
    _, found, _ = _run(body)
    assert found.bad is None and (found.p == np.where(np.arange(N) % 2, Y.p, X.p)).all()


def test_matrix_products() -> None:
    """Ldmatrix and mma.sync compute the product of the shadows: here A = B = 16 by 8 halves of h, twice."""
    body = """
  for (int n = i; n < 64; n += 64) halves[n] = h[n];
  __syncthreads();
  if (i < 32) {
    unsigned a, b; float c[4] = {0, 0, 0, 0};
    const unsigned at = (unsigned)__cvta_generic_to_shared(halves + i % 8 * 8);
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(a) : "r"(at) : "memory");
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(b) : "r"(at) : "memory");
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a), "r"(a), "r"(b));
    out[i / 4 * 8 + i % 4 * 2] = c[0], out[i / 4 * 8 + i % 4 * 2 + 1] = c[1];
  }"""
    found, _, _ = _run(body)
    matrix = H.p.astype(object).reshape(8, 8)
    assert found.bad is None and (found.p.astype(object) == (matrix @ matrix % P).reshape(-1)).all()


def test_an_unwritten_predicate_has_no_residues() -> None:
    """A predicate that was never written is false, as in the machine, and selects the second value."""
    text = "{ .reg .pred p; selp.f32 %0, %2, %1, p; setp.gt.f32 p, %1, %2; @p add.f32 %0, %0, %1; }"
    out, _, _ = _run(f'asm("{text}" : "=&f"(out[i]) : "f"(x[i]), "f"(y[i]));')
    greater = NUMBERS[0] > NUMBERS[1]
    assert (out.p == np.where(greater, 2 * X.p % P, X.p)).all()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("out[i] = exp2f(exp2f(x[i]) - 1.f) + x[i];", field.SECOND),
        ("out[i] = __uint_as_float(__float_as_uint(x[i]) + 1);", field.BITS),
        ("out[i] = x[i] / (y[i] - y[i]);", field.ZERO),
        ("out[i] = x[i] + __int_as_float(0x7f800000);", field.INFINITE),
        ("out[i] = __saturatef(x[i]);", field.NO_RULE),
        ("out[i] = (float)(int)x[i];", field.BITS),
        ("out[i] = __half2float(__ushort_as_half((unsigned short)(__float_as_uint(x[i]) >> 16)));", field.MIXED),
        ("tile[0] = 0; __syncthreads(); out[i] = atomicAdd(tile, x[i]);", field.ORDER),
        (
            'asm("{ .reg .f32 sum; add.f32 sum, sum, %1; mov.f32 %0, sum; }" : "=f"(out[i]) : "f"(x[i]));',
            field.UNWRITTEN,
        ),
    ],
)
def test_what_leaves_the_field_is_not_comparable(body: str, reason: np.uint64) -> None:
    """Such values carry the instruction and the reason; the line is the kernel's."""
    found, _, exact = _run(body)
    assert found.bad is not None and found.bad.all()
    obstacle = exact.obstacle(int(found.bad[0]))
    assert obstacle.reason == field.REASONS[int(reason)] and obstacle.location.line == HEAD.count("\n") + 1


def test_decisions_use_the_real_bits() -> None:
    """A comparison, an index and a predicate from floats do not make a value incomparable."""
    found, _, _ = _run("out[i] = x[(int)(y[i] * y[i]) & 63] + (x[i] > 0.f ? 1.f : 2.f);")
    at = (NUMBERS[1] * NUMBERS[1]).astype(np.int64) & 63
    wanted = field.add(_turned(X, at), _where(NUMBERS[0] > 0, _number(1.0), _number(2.0)))
    assert found.bad is None and (found.p == wanted.p).all()


def test_all_lanes_choose_the_same_of_equal_values() -> None:
    """Two different values that are equal after rounding: every lane subtracts the same maximum."""
    body = "float top = x[i]; for (int s = 16; s; s /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, s)); out[i] = top;"
    found, _, _ = _run(body, np.ones(N, np.float32))
    assert found.bad is None and len(set(found.p[:32].tolist())) == 1 and found.p[0] in X.p[:32]


def _computed(
    program: str, arguments: list[tuple[str, int, np.ndarray]], spec: simt.LaunchSpec, target: str
) -> None:  # fmt: skip
    """Run a kernel on small integers, whose shadows are multiples; that of the last buffer is one of its contents.

    Args:
        program: the source.
        arguments: format, factor of the shadow, and contents of each argument; the last is the result.
        spec: the launch.
        target: architecture.
    """
    memory = simt.Memory()
    exact, placed = ExactMemory(memory), []
    for at, (kind, factor, data) in enumerate(arguments):
        placed.append(memory.allocate(f"argument{at}", data) if data.ndim else data[()])
        if not kind:
            continue
        value = _multiple(kind, factor, data)
        if STORAGE[kind].itemsize > 1:
            exact.write(placed[-1], kind, value)
        else:
            start = placed[-1].offset // 2
            words = value.words(kind)
            exact.words[start : start + data.nbytes // 2] = exact.joined(words[::2], words[1::2])
    options = simt.LaunchOptions(sanitize=False, count=False, exact=exact)
    result = simt.launch(module_of(program, (), target), spec, placed, memory, options)
    assert result.completed, result.fatal
    kind, factor, _ = arguments[-1]
    found, wanted = exact.read(placed[-1], kind), _multiple(kind, factor, placed[-1].read())
    assert found.bad is None and len(set(found.p.tolist())) > 4
    assert (found.p == wanted.p).all() and (found.q == wanted.q).all()


def _multiple(kind: str, factor: int, data: np.ndarray) -> Value:
    numbers = field.floats(kind, data.reshape(-1).view(f"u{STORAGE[kind].itemsize}")).astype(np.float64)
    factors = field.embedded(np.full(numbers.size, float(factor)), np.uint64(0))
    return field.multiply(field.embedded(numbers, np.uint64(0)), factors)


@pytest.mark.parametrize(
    ("shape", "a", "c"),
    [
        ("m16n8k32", "e4m3", "f32"),
        ("m16n8k32", "e5m2", "f32"),
        ("m16n8k16", "bf16", "f32"),
        ("m16n8k8", "tf32", "f32"),
        ("m16n8k16", "f16", "f16"),
        ("m8n8k4", "f64", "f64"),
    ],
)
def test_matrix_products_of_all_formats(shape: str, a: str, c: str) -> None:
    """The registers of the operands come from memory, in any order: integers give the real result."""
    m, n, k = (int(one) for one in re.findall("[0-9]+", shape))
    size, to = STORAGE[a].itemsize, STORAGE[c].itemsize
    word, letter = ("double", "d") if a == "f64" else ("unsigned", "r")
    counts = [rows * columns * width // 32 // (8 if a == "f64" else 4)
              for rows, columns, width in ((m, n, to), (m, k, size), (k, n, size), (m, n, to))]  # fmt: skip
    names, at = [], 0
    for count in counts:
        names.append("{" + ", ".join(f"%{at + one}" for one in range(count)) + "}")
        at += count
    outs = ", ".join(f'"={letter}"(d[{one}])' for one in range(counts[0]))
    ins = ", ".join(f'"{letter}"({name}[{one} * 32 + threadIdx.x])'
                    for name, count in zip("abc", counts[1:], strict=True) for one in range(count))  # fmt: skip
    program = f"""extern "C" __global__ void product(const {word}* a, const {word}* b, const {word}* c, {word}* out) {{
      {word} d[{counts[0]}];
      asm("mma.sync.aligned.{shape}.row.col.{c}.{a}.{a}.{c} {", ".join(names)};" : {outs} : {ins});
      for (int i = 0; i < {counts[0]}; ++i) out[i * 32 + threadIdx.x] = d[i];
    }}"""
    dtype = np.uint64 if a == "f64" else np.uint32
    rng = np.random.default_rng(5)
    data = []
    for kind, factor, count in zip((a, a, c), (3, 1, 3), counts[1:], strict=True):
        values = rng.integers(-3, 4, count * 32 * np.dtype(dtype).itemsize // STORAGE[kind].itemsize)
        patterns = np.ascontiguousarray(encode(kind, values.astype(np.float64))).view(dtype)
        data.append((kind.replace("tf32", "f32"), factor, patterns))
    data.append((c, 3, np.zeros(counts[0] * 32, dtype)))
    _computed(program, data, simt.LaunchSpec("product", (1, 1, 1), (32, 1, 1)), "compute_90a")


@pytest.mark.parametrize("a", [None, Layout(False, 8, 64), Layout(True, 4, 64)], ids=["registers", "k", "mn"])
@pytest.mark.parametrize(("columns", "d_type"), [(72, "f32"), (64, "f16")])
def test_warpgroup_products(a: Layout | None, columns: int, d_type: str) -> None:
    """Products of wgmma with A in registers and in both layouts, of both accumulators, subtracted."""
    product = Product(columns, d_type, a=a, b=Layout(a is None, 4, columns), signs=(-1, 1), integers=True)
    kinds = (("f16", 3), ("", 0), ("", 0), ("", 0), ("f16", 3), ("", 0), ("", 0), (d_type, 9))
    arguments = [(*kind, np.asarray(one)) for kind, one in zip(kinds, product.arguments, strict=True)]
    spec = simt.LaunchSpec("product", (2, 1, 1), (128, 1, 1), dynamic_shared=product.shared)
    _computed(product.source, arguments, spec, "compute_90a")
