"""`evokern profile` on a GPU: Nsight Compute is asked rightly, read rightly, and its refusals come with a remedy."""

from __future__ import annotations

import json
import pickle
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from columns_kernel import DECLARATION, ColumnsGpu, work_in, write_columns
from gpu_tools import find_tool
from paths import DATA
from profile_command import profile, refused
from typer.testing import CliRunner

from evokern.analysis.profile.bound import (
    ADVICE,
    Bottleneck,
    Suggestion,
    bottleneck_from_counters,
    bottleneck_from_times,
    with_suggestions,
)
from evokern.analysis.profile.counters import combined
from evokern.analysis.profile.nsight import METRICS
from evokern.api import search
from evokern.cli._command import app
from evokern.cli.app import run  # noqa: F401 (registers every command)
from evokern.declaration.genes import CAUSES, Gene, Mutation, Parameter
from evokern.declaration.space import Space
from evokern.device.contract import Request
from evokern.device.gpu.lock import GpuLock
from evokern.device.gpu.profile import LiveGpu
from evokern.device.recorded.table import measured
from evokern.hardware.driver import Driver, Gpu
from evokern.hardware.profiles import CHIPS
from evokern.simt.time_model import prediction as timemodel
from evokern.store import open_readonly
from evokern.study.discovery import find_study
from evokern.study.trial import Evaluation

FAKE = DATA / "ncu"
DOCUMENTED = DECLARATION.replace(
    'Parameter("STRIDE", (1, 2, 32), default=1)',
    'Parameter("STRIDE", (1, 2, 4, 32), default=1, doc="floats between neighbours", relieves=("shared-memory",))',
)
SHORT = "smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio"
TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"


class FiveMicroseconds(ColumnsGpu):
    """Takes long enough for the launch not to be what counts."""

    def evaluation(self, request: Request) -> Evaluation:
        return measured(5.0 + abs(request.config.STRIDE - 2), f"{request.number}")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an H200 and Nsight Compute, as far as `profile` can see, and a searched study."""
    write_columns(tmp_path, DOCUMENTED)
    work_in(tmp_path, monkeypatch)
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "ncu").write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{FAKE / "ncu.py"}" "$@"\n')
    (tools / "ncu").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setenv("FAKE_NCU_LOG", str(tmp_path / "asked.log"))
    gpu = LiveGpu(0, "NVIDIA H200", "GPU-of-a-test", "0000:00:00.0", "13.0", CHIPS["h200"])
    monkeypatch.setattr("evokern.analysis.profile.subject.live_gpu", lambda index: gpu)
    driver = Driver((13, 0), (Gpu(0, "NVIDIA H200", (9, 0), 1 << 37),))
    monkeypatch.setattr("evokern.analysis.profile.subject.probe", lambda: driver)
    monkeypatch.setattr("evokern.analysis.profile.counters.GpuLock", partial(GpuLock, directory=tmp_path))
    search(find_study("mine"), db=tmp_path / "evokern.db", device=FiveMicroseconds(), trials=7)
    return tmp_path


def _asked(folder: Path) -> list[list[str]]:
    return [json.loads(line) for line in (folder / "asked.log").read_text().splitlines()]


def test_counters_are_read_and_judged(here: Path) -> None:
    """The champion on its own GPU: every counter with its value, the bound with numbers, and a gene to try."""
    found = profile()
    assert ("ncu", False, "NVIDIA H200", "4096", 2) == (
        found["source"], found["predicted"], found["device"], found["problem"], found["config"]["STRIDE"],
    )  # fmt: skip
    counters = found["counters"]
    assert {metric.key for metric in METRICS} == set(counters)
    assert (5632.0, 126976.0, 17.6, 3.71) == pytest.approx(
        tuple(counters[key] for key in ("duration_ns", "load_conflicts", "short_scoreboard", "dram_percent"))
    )
    assert (5.632, 5.0) == (found["duration_us"], found["time_us"])
    assert [{"entry": "columns", "grid": [128, 1, 1], "block": [32, 1, 1], "counters": counters}] == found["launches"]
    verdict = found["verdict"]
    assert "shared-memory-bound" == verdict["bound"]
    assert "the shared-memory pipe is busy 81 % of the time" in verdict["evidence"]
    assert "bank conflicts add 126,976 wavefronts to loads and 0 to stores of 135,168 wavefronts" in verdict["evidence"]
    (gene,) = [one for one in verdict["try"] if one["gene"] == "STRIDE"]
    assert {1, 4, 32} == {*gene["untried"], *map(int, gene["tried"])}
    assert any("% (trial" in what for what in gene["tried"].values())


def test_what_is_asked_of_nsight_compute(here: Path) -> None:
    """Clocks and caches as when timed, our launches only, the candidate's own program; the command line is logged."""
    log = here / "log.txt"
    found = profile("--log", str(log))
    ((*options,),) = _asked(here)
    text = " ".join(options)
    for part in (
        "--clock-control none", "--cache-control none", "--csv --page raw", "--profile-from-start off",
        "--kernel-name-base mangled --kernel-name regex:^(columns)$", "-m evokern.analysis.profile.profiled_call",
    ):  # fmt: skip
        assert part in text
    assert found["command"] in log.read_text()
    job = pickle.loads((here / "asked.pickle").read_bytes())
    assert ({"N": 4096}, 2, 0) == (dict(job.problem), job.config["STRIDE"], job.device_index)
    assert job.built.build(job.problem).launches[0].entry == "columns"


def test_a_flushed_study_is_counted_with_empty_caches(here: Path) -> None:
    """Where calls are timed after a flush, Nsight Compute empties the caches too."""
    (here / "studies" / "cold.toml").write_text('kernel = "columns"\nproblems = ["64"]\n[timing]\ncache = "flush"\n')
    profile("cold")
    assert "--cache-control all" in " ".join(_asked(here)[0])


def test_the_text_names_bound_evidence_and_next_steps(here: Path) -> None:
    """A person reads what bounds the kernel and why, what to try, and each counter with its unit."""
    lines = CliRunner().invoke(app, ["profile"]).stdout.splitlines()
    assert "NVIDIA H200" in lines[0] and lines[0].endswith("by Nsight Compute")
    assert lines[1].startswith("time 5.00 µs ") and lines[1].endswith(", 5.63 µs under Nsight Compute")
    assert lines[2].startswith("shared-memory-bound: the shared-memory pipe is busy 81 %")
    assert any(line.startswith("try next:  STRIDE ") for line in lines)  # its values, or what they were when tried
    assert max(map(len, lines)) <= 120
    assert any(line.split() == ["DRAM", "throughput", "3.7", "%"] for line in lines)


def test_a_suggestion_names_new_values_first() -> None:
    """What to try comes before what the candidate has; the tensor cores are not given up where they are the limit."""
    one = Suggestion("KV_LOAD", "how keys are read", "cp_async", ("vector16", "tma"), {"ring": "+28.2 % (trial 7)"})
    assert one.text == "KV_LOAD = vector16 or tma (now cp_async: how keys are read); ring was +28.2 % (trial 7)"
    assert (
        "KV_LOAD (now cp_async): all values were tried"
        in Suggestion("KV_LOAD", "", "cp_async", (), {"ring": "wrong"}).text
    )
    genes = (Mutation("TENSOR_CORES", ("mma_sync", "wmma", "none"), relieves=("tensor",)),)
    (found,) = with_suggestions(Bottleneck("tensor-bound", (), {}), _subject(genes)).suggestions
    assert found.untried == ("wmma",)


def _subject(genes: tuple[Gene, ...]) -> Any:
    return SimpleNamespace(
        config=Space(genes).default(), record=None, trial=None, history=(), kernel=SimpleNamespace(genes=genes),
        feasible=lambda config: True,
    )  # fmt: skip


def test_genes_that_relieve_the_bound_are_suggested_the_most_direct_first() -> None:
    """Weights order them; waits for shared memory call for what relieves shared memory as well; others are left out."""
    genes = (
        Parameter("UNROLL", (1, 2), relieves=("latency",)),
        Parameter("STAGES", (1, 2), relieves={"latency": 4}),
        Parameter("PAD", (0, 8), relieves=("shared-memory",)),
        Parameter("ROWS", (1, 2)),
    )
    verdict = Bottleneck("latency-bound", (), {})
    assert ["STAGES", "UNROLL"] == [one.gene for one in with_suggestions(verdict, _subject(genes)).suggestions]
    waiting = with_suggestions(verdict, _subject(genes), {"short_scoreboard": 3.0})
    assert ["STAGES", "UNROLL", "PAD"] == [one.gene for one in waiting.suggestions]
    assert not waiting.undeclared


def test_genes_that_do_not_say_what_they_relieve_are_not_suggested(here: Path) -> None:
    """A kernel whose genes say nothing of it gets the general advice and a line that tells how to declare it."""
    kernel = here / "kernels" / "columns" / "kernel.py"
    kernel.write_text(DECLARATION)
    (here / "studies" / "silent.toml").write_text('kernel = "columns"\nproblems = ["4096"]\n')
    assert profile("silent")["verdict"]["try"] == []
    told = " ".join(CliRunner().invoke(app, ["profile", "silent"]).stdout.split())
    assert "reduce shared-memory wavefronts" in told
    assert "in kernel.py" in told and 'Parameter(…, relieves=("shared-memory",))' in told


def test_what_genes_may_relieve_is_what_bounds_kernels() -> None:
    """Declarations, the time model and `profile` know the same causes, and a power limit, which no gene relieves."""
    bounds = {"power-bound", *(f"{cause}-bound" for cause in CAUSES)}
    assert bounds == set(timemodel.CAUSES.values()) == set(ADVICE)


def test_a_profile_is_kept_with_its_trial(here: Path) -> None:
    """`show --trial` tells it; a candidate that is no trial leaves nothing in the database."""
    profile("mine", "--set", "STRIDE=32")
    found = profile()
    number = int(found["title"].split()[1])
    with open_readonly(here / "evokern.db") as reader:
        record = reader.study("mine")
        (kept,) = reader.profiles(record, number)
        assert sum(len(reader.profiles(record, t.number)) for t in reader.trials(record)) == 1
    assert ("ncu", "NVIDIA H200", "4096") == (kept.source, kept.device, kept.problem)
    assert found["counters"] == kept.result["counters"]
    told = CliRunner().invoke(app, ["show", "--trial", str(number)]).stdout
    assert "shared-memory-bound\n  evidence: the shared-memory pipe is busy 81 % of the time" in told
    shown = json.loads(CliRunner().invoke(app, ["show", "--trial", str(number), "--json"]).stdout)
    assert ("ncu", found["counters"]) == (shown["profile"]["source"], shown["profile"]["counters"])


def test_a_study_being_searched_is_profiled_and_not_kept(here: Path) -> None:
    """While a search has the database the profile is shown, and that it is not kept is told."""
    from evokern.store import Store

    with Store(here / "evokern.db"):
        found = profile()
    (note,) = found["notes"]
    assert note.startswith("could not store the profile") and "evokern.db is in use by" in note


def test_nsight_computes_report_is_kept_on_request(here: Path) -> None:
    """`--keep` writes the report and reads the counters from it."""
    found = profile("--keep", "best")
    assert str(here / "best.ncu-rep") == found["report"]
    assert (here / "best.ncu-rep").is_file()
    assert 5632.0 == found["counters"]["duration_ns"]
    first, second = _asked(here)
    assert "--export" in first
    assert ["--import", str(here / "best.ncu-rep"), "--csv"] == second[:3]
    assert "create it" in refused("--keep", "nowhere/best")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("permission", "(ERR_NVGPUCTRPERM): the driver restricts them to administrators. Run this command as root"),
        ("permission", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("permission", "--device sim:h200"),
        ("busy", "another program is using the GPU's counters"),
        ("nothing", "no launch of the candidate"),
        ("crash", "failed under Nsight Compute: crashed, CUDA_ERROR_MISALIGNED_ADDRESS"),
    ],
)
def test_a_refusal_comes_with_the_remedy(here: Path, monkeypatch: pytest.MonkeyPatch, how: str, told: str) -> None:
    """Each way in which Nsight Compute gives nothing ends with exit code 2, the cause and what to do."""
    monkeypatch.setenv("FAKE_NCU", how)
    assert told in refused()


def test_without_nsight_compute_counters_are_simulated_and_said_to_be(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No ncu: the simulated profile of the same chip, with a plain word about it in text and JSON."""
    (here / "bin" / "ncu").unlink()
    monkeypatch.setattr("evokern.analysis.profile.nsight.DEFAULT_CUDA_BIN", str(here))
    found = profile("--device", "cuda:0")
    assert ("simulated", "sim:h200", True) == (found["source"], found["device"], found["predicted"])
    (note,) = found["notes"]
    assert note.startswith("Nsight Compute (ncu) is not installed")
    assert note in CliRunner().invoke(app, ["profile"]).stderr
    assert "ncu) is not installed" in refused("--keep", "best")


@pytest.mark.parametrize("how", [f"refuse:{SHORT}", f"na:{SHORT}"])
def test_an_unknown_metric_costs_its_own_row_only(here: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """A counter that this chip or version does not know reads n/a; all others are there."""
    monkeypatch.setenv("FAKE_NCU", how)
    found = profile()
    assert {"short_scoreboard"} == {key for key, value in found["counters"].items() if value is None}
    text = CliRunner().invoke(app, ["profile"]).stdout
    assert any(line.split()[-2:] == ["n/a", "cycles"] for line in text.splitlines() if "short scoreboard" in line)


@pytest.mark.parametrize("how", [f"refuse:{TENSOR}", f"na:{TENSOR}"])
def test_a_metric_is_asked_for_by_its_other_name(here: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Where a chip names a counter differently, the second name is asked for."""
    monkeypatch.setenv("FAKE_NCU", how)
    assert 0.0 == profile()["counters"]["tensor_percent"]
    assert 2 == len(_asked(here))


def test_a_gpu_under_search_is_left_alone(here: Path) -> None:
    """Counting would disturb the times of a search on the same GPU: it is refused, with who has it."""
    lock = GpuLock("GPU-of-a-test", "cuda:0", here)
    try:
        assert "is in use by process" in refused()
    finally:
        lock.release()


def _counters(**values: float) -> dict[str, float | None]:
    return {**dict.fromkeys((metric.key for metric in METRICS), 5.0), **values}


@pytest.mark.parametrize(
    ("values", "time_us", "bound", "told"),
    [
        ({"dram_percent": 78.0, "sm_percent": 30.0}, 50.0, "memory-bound", "DRAM is at 78 % of its peak"),
        ({"l2_percent": 70.0}, 50.0, "memory-bound", "L2 is at 70 % of its peak"),
        ({"shared_percent": 81.0, "sm_percent": 82.0}, 50.0, "shared-memory-bound", "busy 81 %"),
        ({"tensor_percent": 75.0, "sm_percent": 76.0}, 50.0, "tensor-bound", "the tensor pipe is busy 75 %"),
        ({"sm_percent": 76.0, "tensor_percent": 12.0}, 50.0, "arithmetic-bound", "instruction pipes are busy 76 %"),
        ({"dram_percent": 40.0}, 2.0, "launch-bound", "takes about 1.4 of 2.00 µs"),
        ({"dram_percent": 40.0, "long_scoreboard": 9.1}, 50.0, "latency-bound", "9.1 stall cycles per instruction"),
    ],
)
def test_the_busiest_unit_bounds(values: dict[str, float], time_us: float, bound: str, told: str) -> None:
    """Whoever is busiest above 60 % bounds; with nobody there it is latency, with what warps wait for."""
    verdict = bottleneck_from_counters(_counters(**values), 1.4, time_us)
    assert (bound, True) == (verdict.bound, any(told in line for line in verdict.evidence)), verdict.evidence
    assert verdict.advice


def test_without_a_units_counter_nothing_is_claimed() -> None:
    """A verdict rests on numbers: with none it is unknown."""
    none = dict.fromkeys(metric.key for metric in METRICS)
    assert "unknown" == bottleneck_from_counters(none, 1.4, 2.0).bound


def test_predicted_terms_make_the_same_verdict() -> None:
    """The time model's terms are judged in the same words."""
    verdict = bottleneck_from_times({"shared": 8.0, "l2": 2.0, "latency": 3.0, "launch": 1.4}, 10.0)
    assert ("shared-memory-bound", 80.0) == (verdict.bound, verdict.shares["shared-memory-bound"])
    assert "shared alone would take 8.00 of 10.00 µs" == verdict.evidence[0]


def test_launches_add_up_to_a_call() -> None:
    """Durations and counts are added; shares count by duration; what one launch lacks is not known of the call."""
    first = {"duration_ns": 3000.0, "load_conflicts": 10.0, "dram_percent": 20.0, "barrier": None}
    second = {"duration_ns": 1000.0, "load_conflicts": 5.0, "dram_percent": 60.0, "barrier": 1.0}
    together = combined([first, second])
    assert (4000.0, 15.0, 30.0, None) == tuple(
        together[key] for key in ("duration_ns", "load_conflicts", "dram_percent", "barrier")
    )


@pytest.mark.gpu
@pytest.mark.timeout(240)
@pytest.mark.skipif(find_tool("ncu") is None, reason="Nsight Compute (ncu) is not installed")
def test_a_real_candidate_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU every counter is there: a 32-way conflict is found as such, and the same kernel without it has none."""
    write_columns(tmp_path, DOCUMENTED)
    monkeypatch.chdir(tmp_path)
    words = ["profile", "columns", "--device", "cuda:0", "--problem", "1048576", "--json"]
    result = CliRunner().invoke(app, [*words, "--set", "STRIDE=32", "--keep", "report"])
    if "ERR_NVGPUCTRPERM" in result.stderr:
        pytest.skip("this user may not read the GPU's counters")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    lacking = [key for key, value in found["counters"].items() if value is None]
    assert lacking == [], found["counters"]
    # 32768 warps store and load once each: 31 wavefronts more than the one that each needs.
    for key in ("load_conflicts", "store_conflicts"):
        assert 31 * 32768 == pytest.approx(found["counters"][key], rel=0.05)
    assert any("bank conflicts add" in line for line in found["verdict"]["evidence"]), found["verdict"]
    assert (tmp_path / "report.ncu-rep").stat().st_size > 10_000
    plain = json.loads(CliRunner().invoke(app, words).stdout)
    assert plain["counters"]["load_conflicts"] < 0.01 * found["counters"]["load_conflicts"]
