"""How slow a candidate may be at one of several problems before a simulated device stops it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from columns_kernel import copying

from evokern.api import search
from evokern.declaration.genes import Config, Parameter
from evokern.declaration.kernel import AtMost, Constraint, Kernel, Launch, ProblemField, Tensor, Tolerance, Workload
from evokern.declaration.space import Space
from evokern.device import Task
from evokern.device._first import first_candidate
from evokern.device.sim import host_memory
from evokern.device.sim.study_prediction import _share
from evokern.errors import DeviceError, KernelError, StudyError
from evokern.hardware.profiles import CHIPS
from evokern.study.discovery import find_kernel
from evokern.study.settings import GateSettings, Study
from evokern.study.trial import Evaluation, Outcome

NO_GENE = copying("copy", grid="1", block="p.N", small="32")


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


@pytest.mark.slow
def test_problems_of_different_size_leave_the_default_in_the_race(tmp_path: Path) -> None:
    """The default candidate is measured though one problem takes several times the limit of the mean over all."""
    problems = ("8,8192", "12,8192", "16,8192", "1024,8192")
    study = Study(name="sizes", kernel="rmsnorm", problems=problems, device="sim:h200")
    best = search(study, db=tmp_path / "sizes.db", trials=1, verify=False).best
    assert best is not None
    times = [timing.median_us for timing in best.evaluation.timings]
    assert times[3] > 3.1 * math.prod(times) ** (1 / 4)


def test_a_slow_candidate_is_told_limit_and_time_to_beat() -> None:
    """The limit is not passed off as the elite's time; without a margin between them there is one number."""
    slow = Evaluation(Outcome.SLOW, 70.0, evidence={"elite_us": 20.0, "limit_us": 62.0})
    assert slow.reason == (
        "slower than 62.000 µs, 3.1 × the 20.000 µs to beat, by its predicted time: its output was not checked"
    )
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


def _scale(size: int) -> Kernel:
    return Kernel(
        name="copy",
        genes=(Parameter("THREADS", (32,)),),
        fields=(ProblemField("N", most=2**50),),
        launches=lambda c, p: [Launch("copy", grid=1, block=32, args=("x", "y"))],
        workload=Workload(
            tensors=lambda p, c: {"x": Tensor("f32", (p.N,)), "y": Tensor("f32", (p.N,), "output")},
            reference=lambda p, t: {"y": t["x"]},
            tolerance={"y": Tolerance(0, 0)},
            flops=lambda p: p.N,
            bytes=lambda p: size * p.N,
        ),
    )


@pytest.mark.parametrize(
    ("elements", "room", "fit"),
    [(1 << 20, 1 << 40, 16), (1 << 20, 5 * 3 * 8 << 20, 5), (1 << 20, None, 16)],
)
def test_as_many_workers_as_the_memory_holds(
    elements: int, room: int | None, fit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One worker a core, or as many as can hold the study's buffers three times each."""
    monkeypatch.setattr(host_memory, "available_bytes", lambda: room)
    kernel = _scale(8)
    problems = [kernel.problem("32"), kernel.problem(str(elements))]
    assert host_memory.workers_that_fit(kernel, kernel.space.default(), problems, 16) == fit


@pytest.mark.parametrize(
    ("elements", "room", "told"),
    [
        (
            10**11,
            1 << 50,
            r"copy at N=100000000000 need 745 GiB, .* 4 GiB; use a smaller problem",
        ),
        (
            1 << 28,
            1 << 30,
            r"copy at N=268435456 needs 6 GiB of memory, .*this machine .* 1 GiB .*cuda",
        ),
    ],
)
def test_a_study_larger_than_the_memory_is_refused(
    elements: int, room: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A study that the simulator or this machine cannot hold is its user's mistake, told before anything is drawn."""
    monkeypatch.setattr(host_memory, "available_bytes", lambda: room)
    kernel = _scale(8)
    with pytest.raises(DeviceError, match=told):
        host_memory.workers_that_fit(kernel, kernel.space.default(), [kernel.problem(str(elements))], 2)


def test_this_machine_tells_its_memory() -> None:
    """Linux says how much memory is left; a process holds less than all of it."""
    room = host_memory.available_bytes()
    assert room is None or room > 1 << 20


def test_an_infeasible_default_is_replaced_by_one_near_it() -> None:
    """A study begins with a feasible candidate near its default, and says which and why; else it says that none is."""
    study = Study(name="rms", kernel="rmsnorm", problems=("65536,1024",))
    kernel = find_kernel("rmsnorm")
    few = replace(kernel, constraints=(Constraint("few", lambda c: AtMost(c.THREADS_PER_ROW, 128), "that many wait"),))
    first, notes = first_candidate(Task(few, (kernel.problem("65536,1024"),), study), CHIPS["l4"])
    assert dict(first) == {**kernel.space.default(), "THREADS_PER_ROW": 128}
    assert len(notes) == 1
    assert "cannot run on NVIDIA L4 at ROWS=65536 COLS=1024: few: needs 256, has 128" in notes[0]
    assert notes[0].endswith("starts with THREADS_PER_ROW=128")
    fine = Task(kernel, (kernel.problem("65536,1024"),), study)
    assert first_candidate(fine, CHIPS["l4"]) == (kernel.space.default(), ())
    hopeless = replace(kernel, constraints=(Constraint("never", lambda c: False, "nothing can work"),))
    with pytest.raises(KernelError, match=r"never: nothing can work; no feasible candidate was found"):
        first_candidate(Task(hopeless, (kernel.problem("8192,8192"),), study), CHIPS["l4"])


ATTENTION, ROWS = "B=1 H=1 S=128 D=64", "ROWS=8 COLS=64"


@pytest.mark.parametrize(
    ("kernel", "problem", "gate", "told"),
    [
        ("attention", ATTENTION, GateSettings(atol=1e-3, rtol=1e-3), ""),  # twice what rounding to fp16 takes
        ("attention", ATTENTION, GateSettings(atol=0.1, rtol=0.0), "of o above 205, because rounding to f16"),
        (
            "attention",
            f"{ATTENTION} dtype=bf16",
            GateSettings(atol=1e-3, rtol=1e-3),
            "o above 0.344, because",
        ),
        ("attention", f"{ATTENTION} dtype=bf16", GateSettings(rtol=0.0), "gate.rtol to at least 0.00781"),
        ("attention", f"{ATTENTION} dtype=bf16", GateSettings(atol=1e-3, rtol=2**-8), ""),
        ("attention", f"{ATTENTION} dtype=bf16", GateSettings(), ""),
        ("rmsnorm", ROWS, GateSettings(atol=1e-3, rtol=1e-3), ""),  # has no `sum`
        # The reference of `sum` is rounded, and the kernel's own rtol finer than that.
        ("rmsnorm", f"{ROWS} dtype=bf16 residual=add", GateSettings(atol=1e-4), ""),
        ("rmsnorm", f"{ROWS} dtype=bf16 residual=add", GateSettings(rtol=1e-3), "of y above"),
    ],
)
def test_a_tolerance_of_a_study_that_rounding_alone_misses_is_told_at_the_start(
    kernel: str, problem: str, gate: GateSettings, told: str
) -> None:
    """An exact answer, rounded, must pass: a study's tolerance for fp16 turns bf16 away, baselines among it."""
    found = find_kernel(kernel)
    study = Study(name="fine", kernel=kernel, problems=(problem,), gate=gate)
    _, notes = first_candidate(Task(found, (found.problem(problem),) * 2, study), CHIPS["h100"])
    assert len(notes) == bool(told)
    assert told in "".join(notes)


def test_the_first_feasible_candidate_differs_in_as_few_genes_as_can_be() -> None:
    """One gene is changed before two, values next to the default first, and the space alone decides."""
    genes = (Parameter("A", (1, 2, 4, 8), default=2), Parameter("B", (1, 2, 4, 8), default=8))
    assert Space(genes, lambda c: c.A * c.B == 8).first_feasible() == Config({"A": 1, "B": 8})
    assert Space(genes, lambda c: c.A * c.B == 2).first_feasible() == Config({"A": 2, "B": 1})
    assert Space(genes, lambda c: c.A + c.B == 2).first_feasible() == Config({"A": 1, "B": 1})
    assert Space(genes, lambda c: False).first_feasible() is None
