"""How slow a candidate may be at one of several problems before a simulated device stops it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from evokern.api import search
from evokern.device.sim.study_prediction import _share
from evokern.errors import StudyError
from evokern.study.settings import Study
from evokern.study.trial import Evaluation, Outcome

NO_GENE = """
from evokern import Kernel, Launch, ProblemField, Tensor, Tolerance, Workload

kernel = Kernel(
    name="copy",
    genes=(),
    fields=(ProblemField("N"),),
    launches=lambda c, p: [Launch("copy", grid=1, block=p.N, args=("x", "y"))],
    workload=Workload(
        tensors=lambda p, c: {"x": Tensor("f32", (p.N,)), "y": Tensor("f32", (p.N,), "output")},
        reference=lambda p, t: {"y": t["x"]},
        tolerance={"y": Tolerance(0, 0)},
        flops=lambda p: p.N,
        bytes=lambda p: 8 * p.N,
        small_problems=("32",),
    ),
)
"""


def test_one_problem_has_the_limit_itself() -> None:
    """With a single problem its limit is the study's; without a limit there is none."""
    assert _share(20.0, [1.5], 0) == pytest.approx(20.0)
    assert _share(None, [1.5, 3.0], 0) is None


def test_the_limit_at_one_problem_is_where_the_mean_passes_its_own() -> None:
    """A time at the limit of one problem, with the others as quick as they can be, gives the mean's limit exactly."""
    least = [8.0, 9.0, 25.0]
    limit = _share(14.0, least, 2)
    assert limit is not None
    assert math.prod([8.0, 9.0, limit]) ** (1 / 3) == pytest.approx(14.0)
    assert limit > 25.0


def test_a_limit_that_no_mean_can_come_back_from_is_capped() -> None:
    """Lower bounds that are far too low do not let a candidate be simulated for minutes."""
    assert _share(14.0, [0.01, 0.01, 25.0], 2) == pytest.approx(3 * 14.0)


@pytest.mark.thorough
def test_problems_of_different_size_leave_the_default_in_the_race(tmp_path: Path) -> None:
    """The default candidate is measured though one problem takes several times the limit of the mean over all."""
    study = Study(name="sizes", kernel="rmsnorm", problems=("8,8192", "16,8192", "4096,8192"), device="sim:h200")
    best = search(study, db=tmp_path / "sizes.db", trials=1).best
    assert best is not None
    times = [timing.median_us for timing in best.evaluation.timings]
    assert times[2] > 3.1 * math.prod(times) ** (1 / 3)


def test_a_slow_candidate_is_told_limit_and_time_to_beat() -> None:
    """The limit is not passed off as the elite's time; without a margin between them there is one number."""
    slow = Evaluation(Outcome.SLOW, 70.0, evidence={"elite_us": 20.0, "limit_us": 62.0})
    assert slow.reason == "slower than 62.000 µs, 3.1 × the 20.000 µs to beat"
    assert Evaluation(Outcome.SLOW, 70.0, evidence={"elite_us": 20.0}).reason == "slower than the elite's 20.000 µs"


def test_a_kernel_without_genes_is_refused_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to search, and the message says how a gene is declared."""
    folder = tmp_path / "kernels" / "copy"
    folder.mkdir(parents=True)
    (folder / "kernel.cu").write_text(
        'extern "C" __global__ void copy(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }\n'
    )
    (folder / "kernel.py").write_text(NO_GENE)
    monkeypatch.chdir(tmp_path)
    study = Study(name="copy", kernel="copy", problems=("32",), device="sim:h200")
    with pytest.raises(StudyError, match=r"kernel copy declares no gene.*Parameter\(NAME"):
        search(study, db=tmp_path / "copy.db", trials=1)
