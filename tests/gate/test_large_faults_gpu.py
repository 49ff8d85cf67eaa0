"""Faults that touch one tile, row or tail of a large problem, as mistakes of kernels leave them: each is seen.

Candidates are torch's operations with a mistake planted, so that its place is known. One that leaves a single key of
4,096 out of a single row is not among them: the gate passed it, for that key's weight was below the tolerance on all
inputs. `faults()` also runs at problems that a CPU can afford:

    pytest -p no:xdist -m gpu -s tests/gate/test_large_faults_gpu.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest
import torch
from paths import ROOT

from evokern.gate import Call, Gate
from evokern.study.discovery import load_kernel
from evokern.study.settings import GateSettings

Buffers = dict[str, torch.Tensor]
Step = Callable[[Buffers], None]


@dataclass(frozen=True)
class Fault:
    """A mistake: what is done before the right answer is written, which may keep something, and after."""

    name: str
    after: Callable[[Buffers, torch.Tensor | None], None]
    keep: Callable[[Buffers], torch.Tensor] | None = None
    """What was in the output before the call, where the mistake leaves it there."""


@dataclass
class PlantedFault:
    """A right kernel with a mistake, run on the current stream."""

    right: Step
    fault: Fault | None

    def run(self, calls: Sequence[Call]) -> None:
        for call in calls:
            buffers = dict(call.arguments)
            kept = self.fault.keep(buffers).clone() if self.fault and self.fault.keep else None
            self.right(buffers)
            if self.fault:
                self.fault.after(buffers, kept)
        if torch.cuda.is_available():
            torch.cuda.synchronize()


def attention(b: Buffers, heads: slice = slice(None), keys: int | None = None, rows: slice = slice(None)) -> None:
    """Write the attention of some rows of some heads over the first keys, in fp32, head by head."""
    q, k, v, o = (b[name].flatten(0, 1)[heads] for name in "qkvo")
    scale = q.shape[-1] ** -0.5
    for head in range(len(q)):
        scores = (q[head, rows].float() * scale) @ k[head, :keys].float().T
        o[head, rows] = (scores.softmax(-1) @ v[head, :keys].float()).to(o.dtype)


def _of_heads(b: Buffers, name: str) -> torch.Tensor:
    return b[name].flatten(0, 1)


def _other_values(b: Buffers, _: torch.Tensor | None) -> None:
    """The last tile of rows of one head takes the values of the head before."""
    q, k, v, o = (_of_heads(b, name) for name in "qkvo")
    scores = (q[-1, -64:].float() * q.shape[-1] ** -0.5) @ k[-1].float().T
    o[-1, -64:] = (scores.softmax(-1) @ v[-2].float()).to(o.dtype)


def _not_rescaled(b: Buffers, _: torch.Tensor | None) -> None:
    """In one tile of rows the last keys enter with the maximum of those before, and the sum is theirs alone."""
    q, k, v, o = (_of_heads(b, name) for name in "qkvo")
    scores = (q[1, 64:128].float() * q.shape[-1] ** -0.5) @ k[1].float().T
    most = scores[:, :-64].amax(-1, keepdim=True)
    p = (scores - most).exp()
    o[1, 64:128] = (p @ v[1].float() / p[:, :-64].sum(-1, keepdim=True)).to(o.dtype)


ATTENTION = (
    Fault("last tile of keys left out for one tile of rows", lambda b, _: attention(b, slice(2, 3), -64, slice(0, 64))),
    Fault("last key left out in one head", lambda b, _: attention(b, slice(-1, None), -1)),
    Fault("another head's values in the last tile of rows", _other_values),
    Fault("one tile of rows not rescaled", _not_rescaled),
    Fault("last row zero", lambda b, _: _of_heads(b, "o")[-1, -1].zero_().sum()),
    Fault("two neighbouring rows exchanged", lambda b, _: _exchange(_of_heads(b, "o")[0], 100, 101)),
    Fault("a warp's fragment transposed", lambda b, _: _transpose(_of_heads(b, "o")[3, 128:136, 8:16])),
    Fault("a warp's fragment 1 % too large", lambda b, _: _of_heads(b, "o")[1, 16:32, :8].mul_(1.01).sum()),
    Fault("one element not a number", lambda b, _: _of_heads(b, "o")[-1, 200, 3].fill_(float("nan")).sum()),
    Fault(
        "one tile not written",
        lambda b, kept: _of_heads(b, "o")[1, -64:].copy_(kept).sum(),  # type: ignore[arg-type]
        lambda b: _of_heads(b, "o")[1, -64:],
    ),
)


def product(b: Buffers) -> None:
    torch.matmul(b["a"], b["b"], out=b["c"])


def _without_last_terms(b: Buffers, _: torch.Tensor | None) -> None:
    """One tile leaves out its last step of 32 terms."""
    b["c"][128:256, 256:384] = (b["a"][128:256, :-32].float() @ b["b"][:-32, 256:384].float()).to(b["c"].dtype)


def _a_part_twice(b: Buffers, _: torch.Tensor | None) -> None:
    """One tile adds the last of four parts of its terms twice."""
    last = b["a"].shape[1] // 4
    more = b["a"][:64, -last:].float() @ b["b"][-last:, :64].float()
    b["c"][:64, :64] = (b["c"][:64, :64].float() + more).to(b["c"].dtype)


def _half_sums(b: Buffers, _: torch.Tensor | None) -> None:
    """One tile adds up in fp16, step by step."""
    rows, columns = slice(-64, None), slice(-64, None)
    total = torch.zeros_like(b["c"][rows, columns])
    for first in range(0, b["a"].shape[1], 64):
        step = b["a"][rows, first : first + 64].float() @ b["b"][first : first + 64, columns].float()
        total = (total.float() + step).half()
    b["c"][rows, columns] = total


MATMUL = (
    Fault("last step of terms left out in one tile", _without_last_terms),
    Fault("a part of the terms added twice in one tile", _a_part_twice),
    Fault("one tile summed in fp16", _half_sums),
    Fault("a fragment of 16 by 8 zero", lambda b, _: b["c"][512:528, 72:80].zero_().sum()),
    Fault("two tiles exchanged", lambda b, _: _exchange(b["c"].view(-1, 64, b["c"].shape[1]), 2, 3)),
    Fault("last column of the last rows stale", lambda b, kept: b["c"][-16:, -1].copy_(kept).sum(),  # type: ignore[arg-type]
          lambda b: b["c"][-16:, -1]),
    Fault("one row begins eight columns late", lambda b, _: b["c"][777, 8:].copy_(b["c"][777, :-8].clone()).sum()),
    Fault("one element 2 % too large", lambda b, _: b["c"][-3, 5].mul_(1.02).sum()),
)  # fmt: skip


def normalised(b: Buffers) -> None:
    x = b["x"].float()
    b["y"].copy_(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * b["weight"].float())


def _row(b: Buffers, row: int, of: torch.Tensor, count: int | None = None) -> None:
    """Write one row with the sum of squares of other elements."""
    scale = torch.rsqrt(of.float().square().sum() / (count or len(of)) + 1e-5)
    b["y"][row] = (b["x"][row].float() * scale * b["weight"].float()).to(b["y"].dtype)


RMSNORM = (
    Fault("last vector of a row missing in its sum", lambda b, _: _row(b, 98, b["x"][98][:-8], b["x"].shape[1])),
    Fault("a row takes its neighbour's scale", lambda b, _: _row(b, -2, b["x"][-1])),
    Fault("last row not scaled", lambda b, _: b["y"][-1].copy_(b["x"][-1]).sum()),
    Fault("last eight columns of one row without weights", lambda b, _: _unweighted(b)),
    Fault("one row zero", lambda b, _: b["y"][len(b["y"]) // 2].zero_().sum()),
    Fault("tail of one row stale", lambda b, kept: b["y"][-5, -3:].copy_(kept).sum(),  # type: ignore[arg-type]
          lambda b: b["y"][-5, -3:]),
    Fault("weights shifted by one in one row", lambda b, _: _shifted(b)),
)  # fmt: skip


def _unweighted(b: Buffers) -> None:
    x = b["x"][7].float()
    b["y"][7, -8:] = (x * torch.rsqrt(x.square().mean() + 1e-5))[-8:].to(b["y"].dtype)


def _shifted(b: Buffers) -> None:
    x = b["x"][99].float()
    scaled = x * torch.rsqrt(x.square().mean() + 1e-5)
    b["y"][99] = (scaled * b["weight"].roll(1).float()).to(b["y"].dtype)


def _exchange(parts: torch.Tensor, one: int, other: int) -> None:
    parts[[one, other]] = parts[[other, one]]


def _transpose(part: torch.Tensor) -> None:
    part.copy_(part.T.clone())


KERNELS: dict[str, tuple[Step, tuple[Fault, ...]]] = {
    "attention": (attention, ATTENTION),
    "matmul": (product, MATMUL),
    "rmsnorm": (normalised, RMSNORM),
}


def faults(name: str, problem: str, device: torch.device) -> Iterator[tuple[Fault | None, bool, str]]:
    """Yield the right kernel (None) and each fault, whether it passed the gate at a problem, and what the gate said."""
    right, planted = KERNELS[name]
    kernel = load_kernel(ROOT / "kernels" / name)
    at, config = kernel.problem(problem), kernel.space.default()
    gate = Gate(kernel, at, GateSettings(), device, seed=1)
    tensors, launches = kernel.workload.buffers(at, config), kernel.launches(config, at)
    for fault in (None, *planted):
        verdict = gate.check(PlantedFault(right, fault), launches, tensors)
        yield fault, verdict.passed, "" if verdict.passed else f"{verdict.evidence}"


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "problem"), [("attention", "4,16,4096,128"), ("matmul", "8192,8192,8192"), ("rmsnorm", "65536,1024")]
)
def test_a_fault_of_one_tile_of_a_large_problem_is_seen(name: str, problem: str) -> None:
    """The right kernel passes; each of the 25 faults is turned away."""
    device = torch.device("cuda", 0)
    found = list(faults(name, problem, device))
    for fault, passed, said in found:
        print(f"{name} {problem}: {'right' if fault is None else fault.name}: {'passed' if passed else said[:150]}")
    assert [fault.name if fault else "right" for fault, passed, _ in found if passed] == ["right"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("attention", "2,2,256,64"),
        pytest.param("matmul", "1024,384,512", marks=pytest.mark.slow),
        ("rmsnorm", "128,1024"),
    ],
)
def test_the_same_faults_are_seen_at_a_small_problem(name: str, problem: str) -> None:
    """So that what the GPU's run asks of the gate is asked on every machine."""
    found = list(faults(name, problem, torch.device("cpu")))
    assert [fault.name if fault else "right" for fault, passed, _ in found if passed] == ["right"]
    assert sum(len(planted) for _, planted in KERNELS.values()) == 25
