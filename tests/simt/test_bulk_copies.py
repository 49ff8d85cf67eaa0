"""Bulk and tensor copies: every swizzle, rank, edge and step, compared with a plain model of the tile."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from simt_tools import module_of

from evokern import simt
from evokern.errors import UsageError
from evokern.hardware.tensor_map import DTYPE_BYTES, SWIZZLES, TensorMap, unpacked
from evokern.simt.exact.field import P, Q, Value
from evokern.simt.exact.memory import ExactMemory

SOURCE = r"""
struct alignas(64) Map { unsigned long long opaque[16]; };
__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
extern "C" __global__ void kernel(unsigned char* out, const __grid_constant__ Map from, const __grid_constant__ Map to,
                                  int bytes, int c0, int c1, int c2, int c3, int c4) {
  extern __shared__ __align__(1024) unsigned char tile[];
  __shared__ unsigned long long full;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; fence.mbarrier_init.release.cluster;"
                 :: "r"(at(&full)) : "memory");
    asm volatile("prefetch.tensormap [%0];" :: "l"(&from) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at(&full)), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.tensor." RANK "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {" COORDINATES "}], [%2], %8;"
                 :: "r"(at(tile)), "l"(&from), "r"(at(&full)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4),
                 "l"(0x1000000000000000ull) : "memory");
  }
  __syncthreads();
  asm volatile("{ .reg .pred P; WAIT: mbarrier.try_wait.parity.shared::cta.b64 P, [%0], 0; @!P bra WAIT; }"
               :: "r"(at(&full)) : "memory");
  for (int i = threadIdx.x; i < bytes; i += blockDim.x) out[i] = tile[i];
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.tensor." RANK "d.global.shared::cta.tile.bulk_group [%1, {" COORDINATES "}], [%0];"
                 :: "r"(at(tile)), "l"(&to), "r"(0), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4) : "memory");
    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;" ::: "memory");
  }
}
"""


def swizzled(offset: int, span: int) -> int:
    """Return where a byte of a tile is stored, from the tables of the CUDA Programming Guide."""
    chunk, row = offset // 16, offset // 128
    return 16 * (chunk ^ row % (span // 16) if span else chunk) + offset % 16


def expected(shape: TensorMap, data: np.ndarray, corner: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes of a tile in shared memory, and which bytes of the tensor a copy back writes."""
    size, rank = shape.element_bytes, shape.rank
    tile, touched = np.zeros(shape.tile_bytes, np.uint8), np.zeros(data.size, np.bool_)
    if shape.fill == "nan":
        tile[:] = np.tile([0xFF, 0x7F], tile.size // 2)
    steps = (1, *(shape.steps or (1,) * rank)[1:])
    for number, index in enumerate(itertools.product(*(range(along) for along in reversed(shape.tile)))):
        where = [start + step * along for start, step, along in zip(corner, steps, reversed(index), strict=True)]
        if not all(0 <= one < most for one, most in zip(where, shape.shape, strict=True)):
            continue
        first = where[0] * size + sum(one * stride for one, stride in zip(where[1:], shape.strides, strict=True))
        for byte in range(size):
            tile[swizzled(number * size + byte, SWIZZLES[shape.swizzle])] = data[first + byte]
            touched[first + byte] = True
    return tile, touched


MAPS = [
    (TensorMap(dtype="u8", shape=(200,), strides=(), box=(64,)), (0,)),
    (TensorMap(dtype="f32", shape=(70,), strides=(), box=(32,)), (50,)),
    (TensorMap(dtype="f16", shape=(100, 40), strides=(208,), box=(64, 8), swizzle="128B"), (64, 36)),
    (TensorMap(dtype="bf16", shape=(64, 40), strides=(128,), box=(32, 16), swizzle="64B"), (32, -5)),
    (TensorMap(dtype="f32", shape=(24, 40), strides=(96,), box=(8, 16), swizzle="32B"), (-3, 2)),
    (TensorMap(dtype="bf16", shape=(20, 9), strides=(48,), box=(16, 4), fill="nan"), (8, 7)),
    (TensorMap(dtype="f64", shape=(12, 9, 5), strides=(96, 1056), box=(4, 4, 3)), (10, 7, 3)),
    (TensorMap(dtype="u16", shape=(32, 6, 3, 4), strides=(64, 384, 1152), box=(8, 3, 2, 2)), (8, 1, 2, -1)),
    (TensorMap(dtype="s32", shape=(8, 3, 2, 3, 2), strides=(32, 96, 192, 576), box=(4, 2, 2, 2, 2)), (4, 2, 0, 1, 1)),
    (TensorMap(dtype="f16", shape=(64, 40), strides=(128,), box=(64, 16), steps=(1, 3), swizzle="128B"), (0, 7)),
]


@pytest.mark.parametrize(("shape", "corner"), MAPS, ids=lambda one: f"{len(one)}d" if isinstance(one, tuple) else "")
def test_tiles_are_loaded_and_stored(shape: TensorMap, corner: tuple[int, ...]) -> None:
    """A tile has the bytes of the model, zeros outside the tensor, and a copy back writes only the inside."""
    outer = (stride * along for stride, along in zip(shape.strides, shape.shape[1:], strict=True))
    size = max([shape.shape[0] * shape.element_bytes, *outer])
    data = np.random.default_rng(5).integers(0, 256, size, np.uint8)
    memory = simt.Memory()
    given, back = memory.allocate("in", data, writable=False), memory.allocate("back", np.zeros_like(data))
    out = memory.allocate("out", np.zeros(shape.tile_bytes, np.uint8))
    maps = [np.void(shape.packed(buffer.address)) for buffer in (given, back)]
    whole = TensorMap(**{**_fields(shape), "steps": shape.steps or (1,) * shape.rank})  # type: ignore[arg-type]
    assert unpacked(maps[0].tobytes()) == (whole, given.address)
    places = ", ".join(f"%{number + 3}" for number in range(shape.rank))
    module = module_of(SOURCE, (f'-DRANK="{shape.rank}"', f'-DCOORDINATES="{places}"'), "compute_90a")
    args = [out, *maps, *(np.int32(one) for one in (shape.tile_bytes, *corner, 0, 0, 0, 0)[:6])]
    spec = simt.LaunchSpec("kernel", (1, 1, 1), (64, 1, 1), dynamic_shared=shape.tile_bytes)
    result = simt.launch(module, spec, args, memory)
    assert (result.findings, result.completed) == ((), True)
    placed = len(memory.buffers)
    simt.launch(module, spec, args, memory)
    assert len(memory.buffers) == placed, "a second launch places its arguments where the first one did"
    tile, touched = expected(shape, data, corner)
    np.testing.assert_array_equal(out.read().view(np.uint8), tile)
    np.testing.assert_array_equal(back.read().view(np.uint8), np.where(touched, data, 0))


def _fields(shape: TensorMap) -> dict[str, object]:
    return {name: getattr(shape, name) for name in TensorMap.__slots__}


GOOD = TensorMap(dtype="f16", shape=(64, 32), strides=(128,), box=(64, 8), swizzle="128B")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"box": (128, 8)}, "a row of the box has 256 bytes, but swizzle 128B allows at most 128"),
        ({"box": (64, 257)}, "the box size 257 is not between 1 and 256"),
        ({"box": (4, 8), "swizzle": "none"}, "a row of the box has 8 bytes, not a multiple of 16"),
        ({"strides": (136,)}, "the stride 136 is not a multiple of 16 bytes"),
        ({"strides": (1 << 40,)}, "the stride 1099511627776 is not between 0 and"),
        ({"shape": (64, 0)}, "the size 0 is not between 1 and"),
        ({"steps": (1, 9)}, "the step 9 is not between 1 and 8"),
        ({"fill": "nan", "dtype": "u16"}, "fill 'nan' needs a floating-point type, not u16"),
        ({"dtype": "f8"}, "dtype 'f8'"),
        ({"box": (64,)}, "2 dimensions need 1 strides, 2 box sizes"),
        ({"shape": (1,) * 6}, "1 to 5 dimensions, not 6"),
    ],
)
def test_maps_that_the_driver_refuses(change: dict[str, object], told: str) -> None:
    """Each rule of the driver is stated with the value that breaks it."""
    assert GOOD.refusals(0x1000) == []
    shape = TensorMap(**{**_fields(GOOD), **change})  # type: ignore[arg-type]
    assert any(told in one for one in shape.refusals(0x1000)), shape.refusals(0x1000)
    with pytest.raises(UsageError, match="tensor map of"):
        shape.packed(0x1000)
    assert GOOD.refusals(0x1008) == ["the address 0x1008 is not a multiple of 16"]


def test_types_are_those_of_the_driver() -> None:
    """The order of the element types is that of ``CUtensorMapDataType``."""
    assert [(name, DTYPE_BYTES[name]) for name in list(DTYPE_BYTES)[6:10]] == [
        ("f16", 2), ("f32", 4), ("f64", 8), ("bf16", 2),
    ]  # fmt: skip


EXACT = r"""
#define PTX(text, ...) asm volatile(text :: __VA_ARGS__ : "memory")
__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
extern "C" __global__ void kernel(float* out, float* copy, const float* in) {
  __shared__ __align__(128) float tile[64];
  __shared__ unsigned long long full;
  const int t = threadIdx.x;
  if (t == 0) {
    PTX("mbarrier.init.shared::cta.b64 [%0], 1; fence.mbarrier_init.release.cluster;", "r"(at(&full)));
    PTX("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 256;", "r"(at(&full)));
    PTX("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 256, [%2];",
        "r"(at(tile)), "l"(in), "r"(at(&full)));
  }
  __syncthreads();
  PTX("{ .reg .pred P; W: mbarrier.try_wait.parity.shared::cta.b64 P, [%0], 0; @!P bra W; }", "r"(at(&full)));
  out[t] = tile[63 - t];
  if (t == 0) PTX("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 256; cp.async.bulk.commit_group; "
                  "cp.async.bulk.wait_group.read 0;", "l"(copy), "r"(at(tile)));
}
"""


def test_bulk_copies_move_exact_values() -> None:
    """The shadow for exact arithmetic follows copies into shared memory and out of it."""
    memory, rng = simt.Memory(), np.random.default_rng(2)
    given = memory.allocate("in", rng.random(64).astype(np.float32), writable=False)
    outs = [memory.allocate(name, np.zeros(64, np.float32)) for name in ("out", "copy")]
    exact, values = ExactMemory(memory), Value(rng.integers(0, P, 64, np.uint64), rng.integers(0, Q, 64, np.uint64))
    exact.write(given, "f32", values)
    spec = simt.LaunchSpec("kernel", (1, 1, 1), (64, 1, 1))
    simt.launch(module_of(EXACT, (), "compute_90a"), spec, [*outs, given], memory, simt.LaunchOptions(exact=exact))
    found = [exact.read(buffer, "f32") for buffer in outs]
    assert [one.bad for one in found] == [None, None]
    np.testing.assert_array_equal(found[0].p, values.p[::-1])
    np.testing.assert_array_equal(found[1].q, values.q)
