"""A candidate that the simulator, or a function of its kernel, cannot take is an outcome, and the search goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from paths import DATA

from evokern import load_study
from evokern.api import search
from evokern.compile.records import Built
from evokern.device.sim.jobs import SimSettings, Simulate
from evokern.device.sim.worker import SimWorker
from evokern.errors import KernelError
from evokern.hardware.profiles import chip
from evokern.study.discovery import WorkerContext, load_kernel
from evokern.study.settings import Study
from evokern.study.trial import Evaluation, Outcome

DECLARED = """
from evokern import Kernel, Launch, Mutation, ProblemField, Tensor, Tolerance, Workload


def tensors(p, c):
    if c.STAGING == "unknown" or (c.STAGING == "large_only" and p.N < 1024):
        raise ValueError(f"no layout for {c.STAGING}")
    return {"x": Tensor("f32", (p.N,)), "y": Tensor("f32", (p.N,), "output")}


kernel = Kernel(
    name="heap",
    genes=(Mutation("STAGING", ("registers", "unknown", "large_only", "heap", "recursive")),),
    fields=(ProblemField("N"),),
    launches=lambda c, p: [Launch("copy", grid=p.N // 32, block=32, args=("x", "y"))],
    workload=Workload(
        tensors=tensors,
        reference=lambda p, t: {"y": t["x"]},
        tolerance={"y": Tolerance(0, 0)},
        flops=lambda p: p.N,
        bytes=lambda p: 8 * p.N,
        small_problems=("64",),
    ),
)
"""
SOURCE = """#ifndef STAGING
#error "STAGING must be defined"
#endif
__device__ __noinline__ int ackermann(int m, int n) {
  return m == 0 ? n + 1 : n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1));
}
extern "C" __global__ void copy(const float* x, float* y) {
  const int i = blockIdx.x * 32 + threadIdx.x;
#if STAGING == STAGING_HEAP
  float* own = (float*)malloc(4 * threadIdx.x + 4);
  own[threadIdx.x] = x[i];
  y[i] = own[threadIdx.x];
  free(own);
#elif STAGING == STAGING_RECURSIVE
  y[i] = x[i] + 0.f * ackermann(1, i & 1);
#elif STAGING == STAGING_LARGE_ONLY
  y[i] = __ldcg(x + i);  // another program than the one below
#else
  y[i] = x[i];
#endif
}
"""


@pytest.mark.thorough
def test_a_candidate_that_is_not_simulated_ends_no_search(tmp_path: Path) -> None:
    """A recursive call, and `tensors` that raises, at the study's or a small problem, crash the candidate they are of.

    The record says the call and its line, or what was raised; the candidate that is sound is measured. One on
    the heap is wrong on any device.
    """
    folder = tmp_path / "heap"
    folder.mkdir()
    (folder / "kernel.py").write_text(DECLARED)
    (folder / "kernel.cu").write_text(SOURCE)
    (folder / "reference.h").write_text("")
    study = Study(name="heap", kernel=str(folder), problems=("1024",), device="sim:l4")
    search(study, db=tmp_path / "heap.db", trials=5, trust=True)
    trials = {str(trial.config["STAGING"]): trial for trial in load_study("heap", db=tmp_path / "heap.db").trials}
    assert trials["registers"].outcome is Outcome.MEASURED
    heap = trials["heap"].evaluation
    assert heap is not None
    assert (heap.outcome, heap.evidence["check"]) == (Outcome.WRONG, "state")
    refused = trials["recursive"].evaluation
    assert refused is not None
    assert (refused.outcome, refused.evidence["error"]) == (Outcome.CRASHED, "not simulated")
    assert refused.reason.startswith("not simulated: line 5 of kernel.cu: recursive call to ackermann")
    for staging in ("unknown", "large_only"):
        raised = trials[staging].evaluation
        assert raised is not None
        assert raised.outcome is Outcome.CRASHED
        assert raised.reason.startswith(
            f"kernel.py: kernel heap: tensors raised ValueError: no layout for {staging} for"
        )


def test_a_candidate_does_not_take_the_phases_of_one_that_broke_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `kernel.py` raised within a phase, what was noted until then is not the next candidate's."""
    kernel, study = load_kernel(DATA / "kernels" / "scale_rows"), Study("s", "scale_rows", ("64,256",))
    context, config = WorkerContext(kernel.folder, (kernel.problem("64,256"),), chip("l4")), kernel.space.default()
    worker = SimWorker(SimSettings(context, study.gate, study.timing, study.simulation, config))
    breaks = iter((True, False))

    def evaluate(job: Simulate) -> Evaluation:
        with worker._phases.phase("prediction"):
            if next(breaks):
                raise KernelError("tensors raised")
        return Evaluation(Outcome.MEASURED, 1.0)

    monkeypatch.setattr(worker, "_evaluate", evaluate)
    job = Simulate(config, Built((), (), (), "", 0.0), None)
    with pytest.raises(KernelError):
        worker.handle(job)
    found = worker.handle(job)
    assert found is not None
    assert [span.phase for span in found.spans] == ["prediction"]
