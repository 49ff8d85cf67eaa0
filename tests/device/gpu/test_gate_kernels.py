"""The gate's own kernels on a GPU against what they stand for: on the PTX machine, and with `-m gpu` on a GPU."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from simt_tools import module_of

from evokern import simt
from evokern.declaration.kernel import Tensor, Tolerance
from evokern.device.gpu.gate_kernels import DTYPES, NONFINITE, SOURCE
from evokern.gate import comparison
from evokern.gate.comparison import Rule
from evokern.gate.data import largest_finite, torch_dtype
from evokern.gate.device_kernels import NonFinite
from evokern.gate.sealed import ReferenceValues, Sealed

PUBLISHED = (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
"""The generator's first four words for the key 0 (Random123's kat_vectors)."""


def stream(key: int, count: int) -> Any:
    """Return words of a key's stream, 8 bytes each, written down from the paper's description in plain Python."""
    words: list[int] = []
    for counter in range(-(-count // 2)):
        x = [counter & 0xFFFFFFFF, counter >> 32, 0, 0]
        k = [key & 0xFFFFFFFF, key >> 32]
        for _ in range(10):
            one, two = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
            x = [two >> 32 ^ x[1] ^ k[0], two & 0xFFFFFFFF, one >> 32 ^ x[3] ^ k[1], one & 0xFFFFFFFF]
            k = [k[0] + 0x9E3779B9 & 0xFFFFFFFF, k[1] + 0xBB67AE85 & 0xFFFFFFFF]
        words += [x[0] | x[1] << 32, x[2] | x[3] << 32]
    return np.array(words[:count], dtype=np.uint64)


def test_the_stream_is_philox() -> None:
    """The plain description gives the published words."""
    assert tuple(int(word) for word in stream(0, 2).view(np.uint32)) == PUBLISHED


@pytest.mark.parametrize("count", [1, 2, 255, 1030])
def test_the_kernel_xors_with_the_stream(count: int) -> None:
    """Every word, the last one of an odd number too, is XORed with its own of the key's stream; none behind it is."""
    key = 0xA4093822_299F31D0
    words = np.random.default_rng(1).integers(0, 2**64, count, dtype=np.uint64)
    memory = simt.Memory()
    given = memory.allocate("words", words, writable=False)
    out = memory.allocate("out", np.zeros(count, dtype=np.uint64), writable=True)
    scalars = [np.uint64(count), np.uint32(key & 0xFFFFFFFF), np.uint32(key >> 32)]
    result = simt.launch(
        module_of(SOURCE.read_text("utf-8")),
        simt.LaunchSpec("xor_stream", (2, 1, 1), (256, 1, 1)),
        [given, out, *scalars],
        memory,
        simt.LaunchOptions(instruction_limit=10_000_000),
    )
    assert result.fatal is None
    assert result.findings == ()
    assert np.array_equal(out.read().reshape(-1).view(np.uint64), words ^ stream(key, count))


RULES = {
    "f16": Rule(Tensor("f16", (1,), "output"), Tolerance(1e-3, 1e-3), nonfinite=False),
    "bf16": Rule(Tensor("bf16", (1,), "output"), Tolerance(0.0, 2**-7), nonfinite=False),
    "f32": Rule(Tensor("f32", (1,), "output"), Tolerance(0.0, 0.0), nonfinite=False),
}
"""Of each dtype a rule, one that allows nothing among them."""
ODD = ("none", "wrong", "nan", "infinite", "beyond", "no reference", "both nan", "both infinite", "other infinity")
"""What is odd about some elements: nothing; a wrong one; NaN; infinity; a reference beyond the range of the dtype, met
as infinity; a reference that is NaN where the answer is a number, or NaN; one that is an infinity where the answer is
the same, or the other one, beside elements that are the same."""
ON_EDGES = ("no reference", "both nan", "both infinite", "other infinity")
"""Those that come on `edges` inputs alone."""


def answers(dtype: str, odd: str, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return an output and its reference."""
    generator = torch.Generator().manual_seed(count)
    expected = torch.randn(count, generator=generator, dtype=torch.float64) * 3
    place = count // 2
    if odd == "beyond":
        expected[place] = -1e300 if dtype == "f32" else -1e39
    got = expected.to(torch_dtype(dtype))
    if odd == "wrong":
        got[place] += 0.5
    elif odd in ("nan", "infinite"):
        got[place] = float("nan") if odd == "nan" else float("inf")
    elif odd in ("no reference", "both nan"):
        expected[place] = float("nan")
        if odd == "both nan":
            got[place] = float("nan")
    elif odd in ("both infinite", "other infinity"):
        expected[place : place + 3] = torch.tensor([math.inf, -math.inf, math.nan])
        got[place : place + 3] = torch.tensor([math.inf, -math.inf, math.nan])
        if odd == "other infinity":
            got[place + 1] = math.inf
    return got, expected


def asked(*, edges: bool, judged: bool) -> NonFinite:
    """Return what is asked of elements whose reference is an infinity or NaN."""
    return "unexpected" if not edges else "judged" if judged else "passed_over"


def bound_of(kind: str, expected: torch.Tensor) -> torch.Tensor | None:
    """Return a bound on the error before rounding of each element, in the type that is stored for an output."""
    if kind == "none":
        return None
    error = torch.linspace(0, 1e-2, expected.numel(), dtype=torch.float64, device=expected.device)
    return error.to(torch.bfloat16) if kind == "bf16" else error


def compared(
    rule: Rule,
    got: torch.Tensor,
    expected: torch.Tensor,
    parts: torch.Tensor | None,
    *,
    edges: bool,
    error: torch.Tensor | None = None,
) -> Any:
    """Return the numbers of one call's comparison, by torch or of an own kernel's parts."""

    class Own:
        def compare(self, *_: object, **__: object) -> torch.Tensor | None:
            return parts

    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr(comparison, "MAX_TOGETHER", 0)
        (found,) = comparison.compare_calls(
            {"o": got.view(1, -1)},
            {"o": rule},
            [(0, 0)],
            [edges],
            lambda _: ReferenceValues({"o": expected}, {} if error is None else {"o": error}),
            Own(),  # type: ignore[arg-type]
        )
    return found[:, 0]


def same(one: torch.Tensor, other: torch.Tensor) -> None:
    """Require that two comparisons found the same, sums but for their order."""
    assert torch.equal(one[:5].nan_to_num(nan=77.0), other[:5].nan_to_num(nan=77.0))
    assert torch.allclose(one[5:], other[5:], rtol=1e-12, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("dtype", RULES)
@pytest.mark.parametrize(
    ("edges", "judged", "bound"),
    [(False, False, "none"), (False, False, "bf16"), (True, False, "none"), (True, True, "f64")],
)
def test_the_kernel_compares_as_torch_does(dtype: str, odd: str, edges: bool, judged: bool, bound: str) -> None:
    """Bad elements, the worst one, and every sum are those of torch's operations, whatever is odd."""
    if odd in ON_EDGES and not edges:
        pytest.skip("a reference that must be finite")
    (got, expected), rule, blocks = answers(dtype, odd, 1500), replace(RULES[dtype], nonfinite=judged), 2
    memory = simt.Memory()
    raw = got.view(torch.uint8).numpy()
    given = memory.allocate("values", raw, writable=False)
    references = memory.allocate("references", expected.numpy(), writable=False)
    error = bound_of(bound, expected)
    errors, size = np.uint64(0), 0
    if error is not None:
        size = error.element_size()
        errors = memory.allocate("errors", error.view(torch.uint8).numpy(), writable=False)
    out = memory.allocate("out", np.zeros(comparison.NUMBERS_PER_PART * blocks), writable=True)
    tolerance, how = rule.tolerance, NONFINITE[asked(edges=edges, judged=judged)]
    numbers = [np.float64(x) for x in (tolerance.atol, tolerance.rtol, largest_finite(dtype))]
    result = simt.launch(
        module_of(SOURCE.read_text("utf-8")),
        simt.LaunchSpec("compare", (blocks, 1, 1), (256, 1, 1)),
        [
            given,
            references,
            errors,
            np.uint32(size),
            np.uint64(1500),
            np.uint32(DTYPES[dtype]),
            *numbers,
            np.uint32(how),
            out,
        ],
        memory,
        simt.LaunchOptions(instruction_limit=50_000_000),
    )
    assert (result.fatal, result.findings) == (None, ())
    parts = torch.from_numpy(
        out.read().reshape(-1).view(np.float64).reshape(comparison.NUMBERS_PER_PART, blocks).copy()
    )
    by_torch = compared(rule, got, expected, None, edges=edges, error=error)
    same(compared(rule, got, expected, parts, edges=edges, error=error), by_torch)
    wrong = ["wrong", "nan", "infinite", *(("no reference", "other infinity") if judged else ())]
    assert by_torch[0] == (odd in wrong) or dtype != "f16"


@pytest.mark.parametrize("dtype", RULES)
def test_every_input_set_is_compared_by_the_kernel(dtype: str) -> None:
    """Edges inputs too, where infinities and NaN are asked for: torch's operations take 480 bytes an element."""
    seen: list[NonFinite] = []

    class Own:
        def compare(self, *_: object, nonfinite: NonFinite) -> torch.Tensor:
            seen.append(nonfinite)
            return torch.zeros((comparison.NUMBERS_PER_PART, 1), dtype=torch.float64)

    got = torch.zeros((2, 4), dtype=torch_dtype(dtype))
    with pytest.MonkeyPatch().context() as patch:
        patch.setattr(comparison, "MAX_TOGETHER", 0)
        for judged in (False, True):
            comparison.compare_calls(
                {"o": got}, {"o": replace(RULES[dtype], nonfinite=judged)}, [(0, 0), (0, 1)], [False, True],
                lambda _: ReferenceValues({"o": torch.zeros(4, dtype=torch.float64)}), Own(),  # type: ignore[arg-type]
            )  # fmt: skip
    assert seen == ["unexpected", "passed_over", "unexpected", "judged"]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", RULES)
@pytest.mark.parametrize("judged", [False, True])
def test_a_gpu_compares_as_torch_does(dtype: str, judged: bool) -> None:
    """The same on a GPU, of more elements than its threads."""
    from evokern.device.gpu.gate_kernels import GateKernels
    from evokern.device.gpu.profile import live_gpu

    torch.cuda.set_device(0)
    own, rule = GateKernels(live_gpu(0).profile), replace(RULES[dtype], nonfinite=judged)
    for odd in ODD:
        for edges in (True,) if odd in ON_EDGES else (False, True):
            got, expected = (one.cuda() for one in answers(dtype, odd, 3_000_001))
            how = asked(edges=edges, judged=judged)
            for bound in ("none", "bf16", "f64"):
                error = bound_of(bound, expected)
                parts = own.compare(got, expected, error, dtype, rule.tolerance, nonfinite=how)
                assert parts is not None
                by_torch = compared(rule, got, expected, None, edges=edges, error=error)
                same(compared(rule, got, expected, parts, edges=edges, error=error), by_torch)


@pytest.mark.gpu
def test_a_gpu_seals_and_opens() -> None:
    """What was sealed comes back, and rests as the stream has it; rows of odd lengths too."""
    from evokern.device.gpu.gate_kernels import GateKernels
    from evokern.device.gpu.profile import live_gpu

    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    own = GateKernels(live_gpu(0).profile)
    for length in (1, 5001, 1 << 20):
        words = torch.randint(0, 2**62, (3, length), device=device)
        sealed = Sealed(3, length, device, random.Random(1), active=True, together=False, own=own)
        sealed.put([0, 1, 2], words)
        assert all(torch.equal(sealed.get(row), words[row]) for row in range(3))
        rests = torch.zeros(length, dtype=torch.int64, device=device)
        own.cipher(words[1].contiguous(), rests, 5)
        expected = words[1, :5001].cpu().numpy().view(np.uint64) ^ stream(5, min(length, 5001))
        assert np.array_equal(rests[:5001].cpu().numpy().view(np.uint64), expected)
