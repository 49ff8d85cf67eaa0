"""Fresh inputs on a GPU: nothing to be read in its memory while a candidate runs, and what a gate costs there.

pytest -p no:xdist -m gpu -s tests/gate/test_fresh_inputs_gpu.py     prints the cost of a candidate's gate
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from paths import ROOT

from evokern.declaration.kernel import Launch, Tensor
from evokern.gate import Call, Gate
from evokern.gate.check import calls
from evokern.study.discovery import load_kernel
from evokern.study.settings import GateSettings

pytestmark = pytest.mark.gpu


@dataclass
class Torch:
    """A right kernel, by torch's operations on the current stream."""

    kernel: Callable[[dict[str, torch.Tensor]], None]

    def run(self, calls: Sequence[Call]) -> None:
        for call in calls:
            self.kernel(dict(call.arguments))
        torch.cuda.synchronize()


def product(buffers: dict[str, torch.Tensor]) -> None:
    torch.matmul(buffers["a"], buffers["b"], out=buffers["c"])


def normalised(buffers: dict[str, torch.Tensor]) -> None:
    x = buffers["x"].float()
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * buffers["weight"].float()
    buffers["y"].copy_(y)


def parts(name: str, text: str) -> tuple[Gate, dict[str, Tensor], Sequence[Launch]]:
    kernel = load_kernel(ROOT / "kernels" / name)
    problem, config = kernel.problem(text), kernel.space.default()
    gate = Gate(kernel, problem, GateSettings(), torch.device("cuda", 0), seed=1)
    return gate, kernel.workload.buffers(problem, config), kernel.launches(config, problem)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "problem", "run"), [("rmsnorm", "8192,8192", normalised), ("matmul", "4096,4096,4096", product)]
)
def test_the_gate_of_a_large_problem_costs_so_much(
    name: str, problem: str, run: Callable[[dict[str, torch.Tensor]], None]
) -> None:
    """A right candidate passes at the study's own problem; the time of its gate and the memory are printed."""
    gate, tensors, launches = parts(name, problem)
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(12):
        torch.cuda.synchronize()
        began = time.perf_counter()
        verdict = gate.check(Torch(run), launches, tensors)
        times.append(1e3 * (time.perf_counter() - began))
        assert verdict.passed, verdict.evidence
    peak = torch.cuda.max_memory_allocated() / 2**30
    kept = torch.cuda.memory_allocated() / 2**30
    print(
        f"\n{name} {problem}: first {times[0]:.1f} ms, median of those after the second {sorted(times[2:])[5]:.1f} ms, "
        f"slowest {max(times[2:]):.1f} ms; {kept:.2f} GiB kept, {peak:.2f} GiB at most"
    )


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "problem", "run"), [("matmul", "2048,2048,2048", product)])
def test_no_reference_lies_in_memory_while_a_candidate_runs(
    name: str, problem: str, run: Callable[[dict[str, torch.Tensor]], None]
) -> None:
    """Neither in what the gate holds nor in memory that torch keeps for later is there an element of a reference."""
    gate, tensors, launches = parts(name, problem)
    counts: list[int] = []
    after: list[int] = []
    looked_for: list[list[int]] = []

    def searches(buffers: dict[str, torch.Tensor]) -> None:
        rows = torch.tensor([5, 700, 2000], device="cuda")
        exact = buffers["a"].double() @ buffers["b"].double()
        needles = exact[rows, rows].view(torch.int64)
        exact.zero_()  # what this search itself computed is not to be found
        del exact
        looked_for.append(needles.tolist())
        needles.zero_()  # nor what it looks for
        counts.append(occurrences(looked_for[-1]))
        run(buffers)

    bench = gate.bench(tensors, ("normal",), 1)
    for _ in range(3):
        bench.refresh()
        bench.poison()
        (call,) = calls(bench, launches)
        Torch(searches).run([call])
        assert not any(one.bad for one in bench.verify().worst)
        after.append(occurrences(looked_for[-1]))
    assert bench.large
    assert any(after), "the search finds no reference even where one was just computed"
    assert counts == [0, 0, 0]


def occurrences(needles: list[int]) -> int:
    """Return how often some words lie in the memory that torch holds."""
    from cuda.bindings import runtime

    found = 0
    for segment in torch.cuda.memory_snapshot():  # type: ignore[no-untyped-call]
        size = segment["total_size"] // 8 * 8
        host = torch.empty(size // 8, dtype=torch.int64)
        runtime.cudaMemcpy(host.data_ptr(), segment["address"], size, runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost)
        found += sum(int((host == word).sum()) for word in needles)
    return found
