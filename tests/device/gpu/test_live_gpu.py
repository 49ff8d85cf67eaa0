"""What only a GPU can show: crashes, hangs, noise, baselines, launch attributes, the end of every process."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import live_bench
import pytest
from live_bench import Bench
from paths import DATA

from evokern.declaration.kernel import DTYPE_BYTES, Problem, Tensor, Tolerance
from evokern.errors import DeviceError, KernelError
from evokern.study.discovery import load_kernel
from evokern.study.settings import GateSettings, TimingSettings
from evokern.study.trial import Outcome

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180)]


@pytest.fixture(scope="class")
def rows() -> Iterator[Bench]:
    with Bench("scale_rows", "4096,1024") as bench:
        yield bench


class TestOneDevice:
    """What one started device promises; it is closed before the other tests start their own."""

    def test_right_candidates_are_measured_with_their_evidence(self, rows: Bench) -> None:
        """Each candidate comes back with samples, interval, resources, clock and gate report."""
        configs = rows.feasible()[:24]
        found = rows.run(configs)
        assert {one.outcome for one in found} <= {Outcome.MEASURED, Outcome.DUPLICATE}
        one = found[0]
        assert one.time_us is not None
        timing = one.timings[0]
        assert timing.ci95_us[0] <= timing.median_us <= timing.ci95_us[1]
        assert len(timing.samples_us) >= 7
        assert timing.clock_mhz
        assert one.resources[0].registers > 0
        assert one.gate["4096,1024"]["relative_error"] < 1e-6
        # 32 MB move; no candidate beats twice the memory's peak rate, and none takes a hundred times as long.
        floor_us = 8 * 4096 * 1024 / rows.device.profile.dram_bytes_per_s * 1e6
        assert all(floor_us / 4 < (one.time_us or 0) < 100 * floor_us for one in found)

    def test_the_start_is_told_step_by_step(self, rows: Bench) -> None:
        """Each baseline by its name."""
        assert rows.steps == [
            "compiling the default candidate",
            "starting the GPU worker",
            "checking that the gate distinguishes correct from wrong results",
            "timing the default candidate's first launches",
            "baseline 1 of 1: torch",
        ]

    def test_phases_lie_within_their_evaluation(self, rows: Bench) -> None:
        """Gate, timing and the gate after it follow one another, within what the worker held the GPU for."""
        rows.forget()
        (found,) = rows.run([rows.config()])
        compiled, whole, *inner = found.spans
        assert [span.phase for span in (compiled, whole, *inner)] == ["compile", "evaluate", "gate", "timing", "gate"]
        assert compiled.worker.startswith("compiler ")
        assert {span.worker for span in inner} == {whole.worker}
        ends = [whole.began_s, *(end for span in inner for end in (span.began_s, span.began_s + span.seconds))]
        assert ends == sorted(ends)
        assert ends[-1] <= whole.began_s + whole.seconds
        assert sum(span.seconds for span in inner) <= found.device_s + 1e-3

    def test_the_baseline_is_checked_and_timed_alike(self, rows: Bench) -> None:
        """The torch expression is right and takes longer than the best candidate."""
        (baseline,) = rows.report.baselines
        assert (baseline.name, baseline.error) == ("torch", "")
        best = min(one.time_us for one in rows.run(rows.feasible()[:24]) if one.time_us)
        assert baseline.timings[0].median_us > best

    def test_one_candidate_measured_apart_gives_the_same_time(self, rows: Bench) -> None:
        """Medians of one candidate, other candidates in between, spread by at most 1.5 %."""
        probe, *others = rows.feasible()[:12]
        medians = []
        for _ in range(12):
            rows.forget()
            medians.append(rows.run([probe])[0].time_us or 0)
            rows.run(others[:3])
        assert (max(medians) - min(medians)) / statistics.median(medians) <= 0.015

    def test_racing_stops_a_slow_candidate_early(self, rows: Bench) -> None:
        """Against an elite that nothing reaches a candidate is slow by its pilot, after what a bound needs.

        One that is slow, but not by far, is sampled; with nobody behind it, for a twentieth of a second at most.
        """
        rows.forget()
        found = rows.run(rows.feasible()[:6], elite_us=0.5)
        assert {one.outcome for one in found} <= {Outcome.SLOW, Outcome.DUPLICATE}
        slow = [one for one in found if one.outcome is Outcome.SLOW]
        assert {(len(one.timings[0].samples_us), one.evidence.get("pilot")) for one in slow} == {(5, True)}
        rows.forget()
        (measured,) = rows.run(rows.feasible()[:1])
        rows.forget()
        (close,) = rows.run(rows.feasible()[:1], elite_us=measured.time_us / 1.25)
        assert (close.outcome, close.evidence.get("pilot")) == (Outcome.SLOW, None)
        assert TimingSettings().min_samples < len(close.timings[0].samples_us) <= TimingSettings().max_samples

    def test_equal_programs_are_run_once(self, rows: Bench) -> None:
        """The same candidate asked for twice is a duplicate with the same time."""
        first, second = rows.run([rows.config(UNROLL=4), rows.config(UNROLL=4)])
        assert {first.outcome, second.outcome} <= {Outcome.MEASURED, Outcome.DUPLICATE}
        assert second.outcome is Outcome.DUPLICATE
        assert first.time_us == second.time_us

    def test_two_searches_do_not_share_a_gpu(self, rows: Bench) -> None:
        """A second search on the same GPU is refused, and told by whom it is held."""
        with pytest.raises(DeviceError, match=rf"by process {os.getpid()}"), Bench("scale_rows", "64,256"):
            pass


def test_faults_are_recorded_and_a_crash_costs_little() -> None:
    """Crashing, hanging and wrong candidates each get their outcome, and the right ones between them are measured."""
    with Bench("faulty", "3000", timing=TimingSettings(hang_s=1.0)) as bench:
        right = [bench.config(FAULT="none", VARIANT=n) for n in range(10)]
        assert {one.outcome for one in bench.run(right[:5])} == {Outcome.MEASURED}
        time.sleep(4)  # both spares are warm now
        began = time.monotonic()
        crash, after = bench.run([bench.config(FAULT="out_of_bounds"), right[5]])
        spent = time.monotonic() - began
        assert (crash.outcome, after.outcome) == (Outcome.CRASHED, Outcome.MEASURED)
        assert crash.evidence["error"] == "CUDA_ERROR_ILLEGAL_ADDRESS"
        assert spent - after.device_s <= 1.0  # compiles included
        kinds = ["misaligned", "wrong", "nan", "endless", "none"]
        found = bench.run([bench.config(FAULT=kind, VARIANT=6 if kind == "none" else 1) for kind in kinds])
        assert [one.outcome for one in found] == ["crashed", "wrong", "wrong", "hung", "measured"]
        assert found[0].evidence["error"] == "CUDA_ERROR_MISALIGNED_ADDRESS"
        assert found[3].evidence["limit_s"] == 1.0


def test_over_the_limits_nothing_is_launched() -> None:
    """A study's lowered limits turn a compiled candidate away as over_resources."""
    with Bench("scale_rows", "64,256", limits={"registers_per_sm": 6144}) as bench:
        over, within = bench.run([bench.config(WARPS=8), bench.config(WARPS=1)])
        assert (over.outcome, within.outcome) == (Outcome.OVER_RESOURCES, Outcome.MEASURED)
        assert over.evidence["constraint"] == "registers_per_block"


@pytest.mark.parametrize("name", DTYPE_BYTES)
def test_the_gate_works_in_every_dtype_on_the_gpu(name: str) -> None:
    """Drawing, poisoning and comparing run on the GPU for every dtype; the right answer passes, nothing does not."""
    import torch

    from evokern.gate import Gate
    from evokern.gate.check import prove_power

    kernel = load_kernel(DATA / "kernels" / "cheats")
    tensors = {"x": Tensor(name, (4, 64)), "y": Tensor(name, (4, 64), role="output")}
    workload = replace(
        kernel.workload,
        reference=lambda p, i: {"y": i["x"].flip(0) + 1},
        tolerance={"y": Tolerance(1e-2, 0.2)},
        flops=lambda p: 256.0,
    )
    gate = Gate(replace(kernel, workload=workload), Problem({}), GateSettings(), torch.device("cuda"))
    assert gate.accepts_reference(tensors)
    prove_power(gate, (), tensors)


@pytest.mark.parametrize("cache", ["rotate", "flush"])
def test_both_cache_modes_measure_several_problems(cache: str) -> None:
    """Two problems give two timings and their geometric mean, with input sets in turn and with a flushed cache."""
    timing = TimingSettings(cache=cache)  # type: ignore[arg-type]
    with Bench("scale_rows", "256,1024", "512,512", timing=timing) as bench:
        (found,) = bench.run([bench.config()])
        assert found.outcome is Outcome.MEASURED
        first, second = (timing.median_us for timing in found.timings)
        assert found.time_us == pytest.approx((first * second) ** 0.5)
        assert 0.5 < first < 50


def test_launch_attributes_take_effect() -> None:
    """Clusters, an L2 window, dynamic shared memory over 48 KB and a zeroed workspace all reach the launch."""
    with Bench("attributes", "1024") as bench:
        configs = bench.feasible()
        found = bench.run(configs)
        assert [one.outcome for one in found] == [Outcome.MEASURED] * len(configs), [one.reason for one in found]


def test_other_candidates_do_not_change_what_a_launch_costs() -> None:
    """After a dozen candidates with each launch attribute a candidate takes what it took before them."""
    with Bench("attributes", "1024") as bench:
        before = _time_of_plain(bench)
        for feature in ("l2_window", "cluster", "big_shared", "workspace"):
            for _ in range(12):
                bench.forget()
                assert bench.run([bench.config(FEATURE=feature)])[0].outcome is Outcome.MEASURED
            assert _time_of_plain(bench) == pytest.approx(before, rel=0.06), feature


def test_what_a_window_kept_in_l2_does_not_serve_the_next_candidate() -> None:
    """With a flushed cache a candidate takes after one with a window what it took before it."""
    with Bench("attributes", str(1 << 22), timing=TimingSettings(cache="flush")) as bench:
        before = _time_of_plain(bench)
        assert bench.run([bench.config(FEATURE="l2_window")])[0].outcome is Outcome.MEASURED
        assert _time_of_plain(bench) == pytest.approx(before, rel=0.06)


def _time_of_plain(bench: Bench) -> float:
    bench.forget()
    time_us = bench.run([bench.config(FEATURE="plain")])[0].time_us
    assert time_us is not None
    return time_us


def test_a_kernel_that_remembers_answers_is_found_out() -> None:
    """Kernels that are right at first and cheat later fail when the call is repeated, or in the timed runs."""
    with Bench("cheats", "4096") as bench:
        configs = bench.feasible()
        found = {config["CHEAT"]: one for config, one in zip(configs, bench.run(configs), strict=True)}
        assert found["none"].outcome is Outcome.MEASURED
        for name in ("skip_when_written", "remember_by_address", "remember_by_sample", "only_first_launches"):
            assert found[name].outcome is Outcome.WRONG, name
            kept = ("repeat", "timed_runs") if name == "skip_when_written" else ("state",)
            assert found[name].evidence["check"] in kept, found[name].evidence


def test_a_workload_without_power_is_refused() -> None:
    """A tolerance that lets zeros through stops the study before it starts."""
    bench = Bench("scale_rows", "64,256", gate=GateSettings(atol=9))
    with pytest.raises(KernelError, match="writes zeros passes"), bench:
        pass


def test_the_compiler_reports_registers_again_of_a_source_that_it_has_seen() -> None:
    """In a process that uses the GPU, where NVRTC would answer from a cache of its own that lacks this report."""
    script = """
import torch
from evokern.compile.nvrtc import compile_program
torch.zeros(1, device="cuda")
source = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }'
seen = [compile_program(source, "twice.cu", {}, (), ["twice"], "sm_90").uses["twice"].registers for _ in range(2)]
assert seen[0] == seen[1] > 0, seen
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False)
    assert run.returncode == 0, run.stderr


def test_no_process_outlives_a_killed_search() -> None:
    """After kill -9 of a search whose candidate hangs no worker is left, and the GPU can be searched on again."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    script = Path(live_bench.__file__)
    search = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, env=environment)
    assert search.stdout is not None
    processes = [int(word) for word in search.stdout.readline().split()]
    assert len(processes) >= 2
    search.kill()
    search.wait()
    search.stdout.close()
    end = time.monotonic() + 20
    while (left := [pid for pid in processes if Path(f"/proc/{pid}").exists()]) and time.monotonic() < end:
        time.sleep(0.1)
    assert left == []
    with Bench("scale_rows", "64,256") as bench:
        assert bench.run([bench.config()])[0].outcome is Outcome.MEASURED
