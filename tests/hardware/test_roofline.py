"""Speed of light: the floor that no time may pass, and the limit that a copy and a matrix product show to be near."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from columns_kernel import ColumnsGpu, work_without_gpu
from live_bench import Bench
from typer.testing import CliRunner

from evokern.api import search
from evokern.cli._command import app
from evokern.cli.app import run  # noqa: F401 (registers every command)
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem, ProblemField, Tensor, Tolerance, Workload
from evokern.device.contract import Request
from evokern.device.rates_cache import load_rates, store_rates
from evokern.errors import DeviceError, KernelError
from evokern.hardware.profiles import chip
from evokern.measurement.plausible import contradictions, declared_work
from evokern.measurement.roofline import (
    Rates,
    Work,
    below,
    boosted,
    floor,
    peak_rates,
    recorded,
    roofline_bound_of,
    work,
)
from evokern.report import page
from evokern.store import open_readonly
from evokern.study.discovery import find_kernel, find_study
from evokern.study.settings import TimingSettings
from evokern.study.trial import Evaluation, Outcome, Timing

H200 = chip("h200")
MEASURED = Rates(matrix_flops_per_s=790e12, dram_bytes_per_s=4.3e12)
"""What an H200 reached (2026-11-20)."""
MATMUL = Work(flops=2 * 4096.0**3, bytes=6 * 4096.0**2, dram_bytes=6 * 4096.0**2)
STREAM = Work(flops=1e9, bytes=1e9, dram_bytes=1e9)


def evidence(*tasks: Work) -> dict[str, object]:
    """Return what a trial on an H200 keeps of its work."""
    return recorded(tasks, [floor(task, peak_rates(H200), H200) for task in tasks])


@pytest.mark.parametrize(
    ("task", "time_us", "limit_us", "bound"),
    [(MATMUL, 353.0, 2 * 4096**3 / 790e6, "compute"), (STREAM, 500.0, 1e9 / 4.3e6, "memory")],
)
def test_the_limit_is_what_takes_longest_at_measured_rates(
    task: Work, time_us: float, limit_us: float, bound: str
) -> None:
    """Operations over the matrix rate or bytes over the copy rate, whichever is more; the share is limit over time."""
    found = roofline_bound_of(evidence(task), time_us, MEASURED)
    assert found is not None
    told = found.as_dict()
    assert (True, bound) == (told["measured"], told["bound"])
    assert (limit_us, limit_us / time_us) == pytest.approx((told["time_us"], told["share"]))
    assert (790e12, 4.3e12) == (told["matrix_flops_per_s"], told["copy_bytes_per_s"])


def test_without_measured_rates_it_is_the_floor_at_peak_rates() -> None:
    """A trial of a simulated chip, or of a version that kept less, has the data sheet's limit, and says so."""
    for kept, rates in ((evidence(MATMUL), None), ({"floor_us": [128.0], "floor_bound": "operations"}, MEASURED)):
        found = roofline_bound_of(kept, 256.0, rates)
        assert found is not None
        assert (False, "compute", None) == tuple(found.as_dict()[k] for k in ("measured", "bound", "copy_bytes_per_s"))
        assert 0.5 == pytest.approx(found.share, rel=0.01)
    assert roofline_bound_of({}, 1.0, MEASURED) is None
    assert roofline_bound_of(evidence(Work(0, 0, 0)), 1.0, MEASURED) is None


def test_over_several_problems_the_limit_is_a_geometric_mean() -> None:
    """As the objective is; what takes longest in all binds."""
    found = roofline_bound_of(evidence(MATMUL, STREAM), 400.0, MEASURED)
    assert found is not None
    first, second = (2 * 4096**3 / 790e6, 1e9 / 4.3e6)
    assert ((first * second) ** 0.5, "dram") == (pytest.approx(found.time_us), found.bound)


def test_narrow_inputs_have_a_higher_limit() -> None:
    """8-bit inputs count at twice the rate of 16-bit ones."""
    narrow = Work(MATMUL.flops, MATMUL.bytes, MATMUL.dram_bytes, gain=2.0)
    found, wide = (roofline_bound_of(evidence(task), 353.0, MEASURED) for task in (narrow, MATMUL))
    assert found is not None
    assert wide is not None
    assert wide.time_us / 2 == pytest.approx(found.time_us)


def test_only_a_time_below_the_peak_rates_is_an_alarm() -> None:
    """A time between the floor at peak rates and the limit at measured ones passes the limit, and is no fault."""
    peak, measured = (floor(MATMUL, rates, H200) for rates in (peak_rates(H200), MEASURED))
    assert peak.time_us < 150 < measured.time_us
    assert below(150, peak) is None
    assert "below the lower bound" in (below(100, peak) or "")
    assert roofline_bound_of(evidence(MATMUL), 150, MEASURED).share > 1  # type: ignore[union-attr]


def test_a_card_that_boosts_beyond_its_data_sheet_raises_no_alarm() -> None:
    """The floor follows the highest clock read while samples were taken, and is never above the data sheet's."""
    assert H200 == boosted(H200, [None, 1755.0])
    faster = boosted(H200, [1980.0, 2178.0, None])
    assert floor(MATMUL, peak_rates(H200), H200).time_us / 1.1 == pytest.approx(
        floor(MATMUL, peak_rates(faster), faster).time_us
    )


@pytest.mark.parametrize(("cache", "share"), [("rotate", 0.0), ("flush", 0.75)])
def test_what_stays_in_l2_is_not_asked_of_dram(cache: str, share: float) -> None:
    """Input sets that L2 holds need no DRAM; after a flush everything does that the call does not write itself."""
    kernel = find_kernel("attention")
    problem = kernel.problem("2,8,512,64")
    tensors = kernel.workload.tensors(problem, kernel.space.default())
    timing = TimingSettings(cache=cache)  # type: ignore[arg-type]
    task = work(kernel, problem, tensors, timing, H200)
    assert share * task.bytes == pytest.approx(task.dram_bytes)


def test_rates_are_kept_for_each_gpu_and_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured comes back for that GPU and driver alone; damage and a cache that is off mean measuring."""
    monkeypatch.setenv("EVOKERN_CACHE", str(tmp_path / "cache"))
    assert load_rates("GPU-1", "580.65") is None
    store_rates("GPU-1", "580.65", MEASURED)
    assert MEASURED == load_rates("GPU-1", "580.65")
    assert load_rates("GPU-1", "590.1") is None
    assert load_rates("GPU-2", "580.65") is None
    (file,) = (tmp_path / "cache" / "rates").iterdir()
    for damage in ("{", "[1]", '{"matrix_flops_per_s": 0, "dram_bytes_per_s": 1}', '{"matrix_flops_per_s": 1}'):
        file.write_text(damage)
        assert load_rates("GPU-1", "580.65") is None
    monkeypatch.setenv("EVOKERN_CACHE", "off")
    store_rates("GPU-1", "580.65", MEASURED)
    assert load_rates("GPU-1", "580.65") is None


class Measuring(ColumnsGpu):
    """Answers with the work of a stream in 500 µs, and knows its own rates; or it cannot measure them."""

    broken = False

    def evaluation(self, request: Request) -> Evaluation:
        timing = Timing(500.0, (499.0, 501.0), (500.0,))
        return Evaluation(Outcome.MEASURED, 500.0, (timing,), (), f"{request.number}", evidence(STREAM), {})

    def rates(self) -> Rates:
        if self.broken:
            raise DeviceError("its memory is full")
        return MEASURED


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a kernel and a study, on a machine without a GPU."""
    return work_without_gpu(tmp_path, monkeypatch)


def _searched(folder: Path, device: ColumnsGpu) -> tuple[dict[str, Any], list[str]]:
    """Search a study; returns the object of `show --json` and every note."""
    notes: list[str] = []
    result = search(
        find_study("mine"), db=folder / "evokern.db", device=device, trials=2,
        on_progress=lambda progress: notes.extend(n for n in progress.notes if n not in notes),
    )  # fmt: skip
    return dict(result.summary), notes


@pytest.mark.usefixtures("here")
def test_the_end_of_a_search_measures_what_the_limit_needs(tmp_path: Path) -> None:
    """The limit at measured rates stands in `show`, its JSON and the report, from the database alone."""
    summary, _ = _searched(tmp_path, Measuring())
    limit = summary["limit"]
    assert (True, "memory", "dram") == (limit["measured"], limit["bound"], limit["resource"])
    assert 1e9 / 4.3e6 / 500 == pytest.approx(limit["share"])
    shown = CliRunner().invoke(app, ["show"]).stdout
    setter = "by memory (DRAM) at the rates measured on this GPU (790 TFLOP/s fp16, 4.30 TB/s)"
    assert f"47 % of the roofline bound (233 µs), limited {setter}" in shown
    assert limit == json.loads(CliRunner().invoke(app, ["show", "--json"]).stdout)["limit"]
    with open_readonly(tmp_path / "evokern.db") as reader:
        report = page(reader)
    assert f"47 % of the roofline bound, set {setter}" in report


@pytest.mark.usefixtures("here")
def test_a_device_that_cannot_be_rated_is_told_of(tmp_path: Path) -> None:
    """Rates that cannot be measured end no search: the limit is the data sheet's, and a note says why."""
    device = Measuring()
    device.broken = True
    summary, notes = _searched(tmp_path, device)
    assert (False, None) == (summary["limit"]["measured"], summary["limit"]["copy_bytes_per_s"])
    (note,) = notes
    assert "the vendor's peak rates" in note and note.endswith(": its memory is full")
    assert "at the vendor's peak rates" in CliRunner().invoke(app, ["show"]).stdout


@pytest.mark.gpu
@pytest.mark.timeout(180)
def test_rates_of_this_gpu_are_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy and matrix product reach between a third and all of the peak in at most a second; then they are known."""
    import time

    monkeypatch.setenv("EVOKERN_CACHE", str(tmp_path))
    with Bench("scale_rows", "64,256") as bench:
        bench.run([bench.config()])
        bench.submit(bench.config(WARPS=8))  # still on its way when the search ends
        began = time.monotonic()
        rates = bench.device.rates()
        assert time.monotonic() - began <= 2.5  # the libraries' own start included
        peak = peak_rates(bench.device.profile)
        assert 0.33 * peak.matrix_flops_per_s < rates.matrix_flops_per_s <= peak.matrix_flops_per_s
        assert 0.33 * peak.dram_bytes_per_s < rates.dram_bytes_per_s <= peak.dram_bytes_per_s
        began = time.monotonic()
        assert rates == bench.device.rates()
        assert time.monotonic() - began <= 0.05


def _vectors(dtype: str, **changes: object) -> Kernel:
    tensors = {"x": Tensor(dtype, (1024,)), "y": Tensor(dtype, (1024,), "output")}
    tensors["sum"] = Tensor("f16", (1,), "workspace")
    workload = Workload(
        tensors=lambda p, c: tensors,
        reference=lambda p, t: {"y": t["x"]},
        tolerance={"y": Tolerance(0, 0)},
        flops=lambda p: 1e6,
        bytes=lambda p: 8192.0,
        **changes,  # type: ignore[arg-type]
    )
    return Kernel("vectors", (), (ProblemField("N"),), lambda c, p: [], workload)


@pytest.mark.parametrize(
    ("dtype", "declared", "arithmetic", "rate"),
    [
        ("f32", None, "f32", 256 * 132 * 1.98e9),
        ("f16", None, "f16", 4096 * 132 * 1.98e9),
        ("bf16", "f32", "f32", 256 * 132 * 1.98e9),
        ("f32", "tf32", "tf32", 2048 * 132 * 1.98e9),
        ("f64", None, "f64", 256 * 132 * 1.98e9),
        ("e4m3", None, "f8", 8192 * 132 * 1.98e9),
        ("i32", None, "f32", 256 * 132 * 1.98e9),
    ],
)
def test_operations_are_held_against_their_own_format(
    dtype: str, declared: str | None, arithmetic: str, rate: float
) -> None:
    """The limit takes the rate of the format that the workload computes in; the floor stays the tensor cores'."""
    kernel = _vectors(dtype, arithmetic=declared)
    tensors = dict(kernel.workload.tensors(Problem({}), Config({})))
    task = work(kernel, Problem({}), tensors, TimingSettings(), H200)
    assert task.arithmetic == arithmetic
    least = floor(task, peak_rates(H200), H200)
    assert least.arithmetic_us == pytest.approx(1e6 / rate * 1e6)
    assert least.parts_us["operations"] <= least.arithmetic_us * (1 + 1e-9)
    found = roofline_bound_of(recorded([task], [least]), 10.0, None)
    assert found is not None
    assert found.time_us >= least.arithmetic_us * (1 - 1e-9)
    assert found.as_dict()["arithmetic"] == arithmetic


def test_a_measured_matrix_rate_is_no_limit_of_fp32() -> None:
    """Beside rates measured on a GPU the operations of an fp32 kernel keep the data sheet's rate, and that is said."""
    task = Work(flops=1e12, bytes=1e6, dram_bytes=1e6, arithmetic="f32")
    kept = recorded([task], [floor(task, peak_rates(H200), H200)])
    found = roofline_bound_of(kept, 2e4, MEASURED)
    assert found is not None
    assert found.time_us == pytest.approx(1e12 / (256 * 132 * 1.98e9) * 1e6)
    assert found.setter == "compute (f32) at the vendor's peak rates"


@pytest.mark.parametrize(
    ("flops", "moved", "told"),
    [
        (1e3, 8192, []),
        (0, 8192, []),
        (1e3, 900, []),
        (1e3, 8192e-9, ["bytes returns 8.19e-06 at .* 8.19e\\+03 bytes: .*too low by .*1e\\+09"]),
        (1e3, 8192 * 20, ["too high by a factor of 20; .*bytes per call"]),
        (50, 8192, ["flops returns 50 at .* 1.02e\\+03 output elements: .*too low by .*20.5; .*not GFLOP"]),
        (1e9, 8192, ["flops returns 1e\\+09 .* 2.1e\\+06 .*too high by a factor of 477"]),
    ],
)
def test_operations_and_bytes_that_contradict_the_tensors_are_named(
    flops: float, moved: float, told: list[str]
) -> None:
    """Ten times more or fewer than the tensors can be meant for is said with both numbers; less is not."""
    kernel = _vectors("f32")
    kernel = replace(kernel, workload=replace(kernel.workload, flops=lambda p: flops, bytes=lambda p: moved))
    problem = Problem({"N": 1024})
    found = contradictions(kernel, problem, kernel.workload.tensors(problem, Config({})))
    assert len(found) == len(told)
    for sentence, pattern in zip(found, told, strict=True):
        assert re.search(pattern, sentence)


@pytest.mark.parametrize("name", ["attention", "attention_fp8", "matmul", "rmsnorm"])
def test_shipped_workloads_agree_with_their_tensors(name: str) -> None:
    """No kernel that comes with evokern declares operations or bytes that its tensors contradict."""
    kernel = find_kernel(name)
    shape = {"matmul": "512,256,128", "rmsnorm": "64,1024"}.get(name, "2,8,512,64")
    for problem in (kernel.problem(shape),):
        assert contradictions(kernel, problem, kernel.workload.tensors(problem, kernel.space.default())) == []


@pytest.mark.parametrize(("flops", "moved"), [("nan", 1.0), (-1.0, 1.0), (1.0, 0.0), (1.0, "inf"), (1.0, "far")])
def test_what_is_no_number_of_operations_or_bytes_is_refused(flops: object, moved: object) -> None:
    """Numbers that are negative or not finite, and functions that raise, are the declaration's mistake."""
    kernel = _vectors("f32")
    workload = replace(kernel.workload, flops=lambda p: float(flops), bytes=lambda p: float(moved))  # type: ignore[arg-type]
    with pytest.raises(KernelError, match="kernel vectors: "):
        declared_work(replace(kernel, workload=workload), Problem({"N": 8}))


def test_an_unknown_arithmetic_names_the_nearest() -> None:
    """A number format that does not exist is refused where it is declared."""
    with pytest.raises(KernelError, match="'fp32': did you mean 'f32'"):
        _vectors("f32", arithmetic="fp32")
