"""`evaluate`: a source from outside is judged as a search's own candidates are, and nothing that it does gets out."""

from __future__ import annotations

import json
import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from paths import DATA, ROOT
from typer.testing import CliRunner, Result

import evokern
from evokern.analysis.evaluate import SourceResult, sources_of
from evokern.cli.app import app
from evokern.compile.pool import CompileSettings, CompileWorker
from evokern.compile.records import Built
from evokern.declaration.feasibility import launches_of
from evokern.declaration.foreign import ForeignCandidate, ForeignSource, LaunchGeometry
from evokern.declaration.problem import ProblemField
from evokern.declaration.render import render
from evokern.device import Answer, Request, StartReport, Task
from evokern.device.sim.jobs import SimSettings, Simulate
from evokern.device.sim.worker import SimWorker
from evokern.errors import SourceError, UsageError
from evokern.hardware.profiles import Profile, chip
from evokern.study.discovery import WorkerContext, load_kernel
from evokern.study.settings import GateSettings, SimulationSettings, Study, TimingSettings
from evokern.study.trial import Evaluation, Outcome, Timing

FOLDER = DATA / "kernels" / "scale_rows"
KERNEL = load_kernel(FOLDER)
CONFIG = KERNEL.space.default()
SMALL = KERNEL.problem("3,64")
L4 = chip("l4")

HEAD = 'extern "C" __global__ void scale_rows(const float* x, float* y, int rows, int cols, float factor)'
RIGHT = (
    HEAD
    + """ {
  // one thread a row, whatever the grid is
  for (int row = blockIdx.x * blockDim.x + threadIdx.x; row < rows; row += gridDim.x * blockDim.x) {
    float largest = 1e-30f;
    for (int i = 0; i < cols; ++i) largest = fmaxf(largest, fabsf(x[row * cols + i]));
    for (int i = 0; i < cols; ++i) y[row * cols + i] = factor * (x[row * cols + i] / largest);
  }
}
"""
)
BY_BLOCK = (
    HEAD
    + """ {
  // a block a row: right only where there are as many blocks as rows
  const int row = blockIdx.x;
  if (row >= rows || threadIdx.x) return;
  float largest = 1e-30f;
  for (int i = 0; i < cols; ++i) largest = fmaxf(largest, fabsf(x[row * cols + i]));
  for (int i = 0; i < cols; ++i) y[row * cols + i] = factor * (x[row * cols + i] / largest);
}
"""
)
SOURCES = {
    "a_right": RIGHT,
    "b_wrong": HEAD + " {\n  for (int i = threadIdx.x; i < rows * cols; i += blockDim.x) y[i] = factor * x[i];\n}\n",
    "c_does_not_compile": HEAD + " {\n  y[0] = undeclared;\n}\n",
    "d_crashes": HEAD + " {\n  y[1ll << 40] = x[0];\n}\n",
    "e_hangs": HEAD + " {\n  while (true) { y[0] = x[0]; __threadfence(); }\n}\n",
    "f_other_entry": RIGHT.replace("scale_rows", "scale_columns"),
    "g_other_signature": HEAD.replace(", float factor", "") + " {\n  y[0] = x[0];\n}\n",
    "h_prints_and_leaves": HEAD + ' {\n  printf("HEARD OUTSIDE\\n");\n  asm volatile("exit;");\n}\n',
    "i_takes_all_memory": "__device__ float all[1ull << 40];\n" + HEAD + " {\n  y[0] = all[rows];\n}\n",
    "j_right_again": "// the same program under another name\n" + RIGHT,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ten sources, and what is no source."""
    made = tmp_path_factory.mktemp("candidates")
    for name, text in SOURCES.items():
        (made / f"{name}.cu").write_text(text, encoding="utf-8")
    (made / "notes.txt").write_text("no source", encoding="utf-8")
    return made


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["evaluate", *map(str, words)])


@pytest.fixture(scope="module")
def batch(folder: Path) -> Iterator[tuple[Result, dict[str, dict[str, object]]]]:
    """What the command says of the ten."""
    before = (Path.cwd(), dict(os.environ), resource.getrlimit(resource.RLIMIT_AS))
    done = run(FOLDER, "--source", folder, "--problem", "3,64", "--device", "sim:l4", "--json")
    assert (Path.cwd(), dict(os.environ), resource.getrlimit(resource.RLIMIT_AS)) == before
    found = json.loads(done.stdout)
    yield done, {Path(str(one["source"])).stem: one for one in found["results"]}


@pytest.mark.parametrize(
    ("ran", "covered", "share", "doubt"),
    [
        (8, True, 1.0, ""),
        (2, True, 0.25, "25 % of its blocks ran"),
        (2, False, 0.25, "25 % of its blocks ran; could not confirm that every output is written"),
    ],
)
def test_what_did_not_run_is_said(ran: int, covered: bool, share: float, doubt: str) -> None:
    """A right source of a large problem says by how many of its blocks, and whether the rest may be unwritten."""
    evidence = {"own_problem": {"64,256": {"blocks": ran, "of": 8, "covered": covered}}}
    result = SourceResult("a.cu", Evaluation(Outcome.MEASURED, 2.0, evidence=evidence), predicted=True)
    assert (result.share, result.covered, result.doubt) == (share, covered, doubt)
    evidence["own_problem"]["64,256"]["scaled"] = "5,96"
    scaled = Evaluation(Outcome.MEASURED, 2.0, evidence=evidence)
    fields = (ProblemField("ROWS"), ProblemField("COLS"))
    doubtful = SourceResult("a.cu", scaled, predicted=True, fields=fields).doubt
    assert ("scaled down to ROWS=5 COLS=96" in doubtful) is bool(doubt)
    wrong = SourceResult("a.cu", Evaluation(Outcome.WRONG, evidence={"check": "guard", **evidence}), predicted=True)
    assert (wrong.share, wrong.covered, wrong.doubt) == (None, None, "")


@pytest.mark.thorough
class TestBatchOfTen:
    """Ten sources of every kind, through one device."""

    def test_exits_with_one_and_counts(self, batch: tuple[Result, dict[str, dict[str, object]]]) -> None:
        """Where one source is not right the exit code is 1; results stand in the order of the names."""
        done, results = batch
        facts = json.loads(done.stdout)
        assert done.exit_code == 1
        assert list(results) == list(SOURCES)
        assert (facts["kernel"], facts["problem"], facts["device"]) == ("scale_rows", "3,64", "sim:l4")
        assert (facts["total"], facts["right"], facts["predicted"], facts["baseline"]) == (10, 2, True, None)

    def test_a_right_source_has_a_time(self, batch: tuple[Result, dict[str, dict[str, object]]]) -> None:
        """An honest source is measured; a predicted time has no interval, and without a baseline no speedup."""
        one = batch[1]["a_right"]
        assert (one["right"], one["outcome"], one["check"]) == (True, "measured", None)
        assert float(str(one["time_us"])) > 0
        assert (one["ci95_us"], one["speedup"], one["predicted"]) == (None, None, True)
        assert (one["share"], one["covered"]) == (1.0, True)

    @pytest.mark.parametrize(
        ("name", "outcome", "check", "said"),
        [
            ("b_wrong", "wrong", "tolerance", "expected"),
            ("c_does_not_compile", "compile_error", None, "c_does_not_compile.cu:2: identifier"),
            ("d_crashes", "crashed", "out_of_bounds", "out of bounds at line 2"),
            ("e_hangs", "hung", None, "line 2"),
            ("f_other_entry", "compile_error", None, "no entry point 'scale_rows'"),
            ("g_other_signature", "compile_error", None, "scale_rows takes 4 parameters"),
            ("h_prints_and_leaves", "wrong", "tolerance", "never written"),
            ("i_takes_all_memory", "compile_error", None, ""),
        ],
    )
    def test_each_failure_is_told(
        self, batch: tuple[Result, dict[str, dict[str, object]]], name: str, outcome: str, check: str | None, said: str
    ) -> None:
        """What is not right has its outcome, the check that it failed and a reason of one line."""
        one = batch[1][name]
        assert (one["right"], one["outcome"], one["check"], one["time_us"]) == (False, outcome, check, None)
        assert said.lower() in str(one["reason"]).lower()
        assert "\n" not in str(one["reason"])

    def test_lines_are_quoted_from_the_source_that_has_them(
        self, batch: tuple[Result, dict[str, dict[str, object]]]
    ) -> None:
        """A finding quotes the foreign source, not the kernel's own at that line."""
        finding = batch[1]["d_crashes"]["evidence"]["finding"]  # type: ignore[index]
        assert (finding["line"], finding["source"]) == (2, "y[1ll << 40] = x[0];")

    def test_the_same_program_is_evaluated_once(self, batch: tuple[Result, dict[str, dict[str, object]]]) -> None:
        """A source with the same machine code has the other one's time, and says whose."""
        results = batch[1]
        one = results["j_right_again"]
        assert (one["right"], one["outcome"], one["duplicate_of"]) == (True, "duplicate", "a_right.cu")
        assert one["time_us"] == results["a_right"]["time_us"]

    def test_nothing_that_a_source_prints_gets_out(self, batch: tuple[Result, dict[str, dict[str, object]]]) -> None:
        """What device code prints stays with its process."""
        assert "HEARD OUTSIDE" not in batch[0].output


@pytest.mark.thorough
def test_one_warm_device_serves_files_texts_and_generators(tmp_path: Path) -> None:
    """From Python: a path, then a generator of texts, a launch of one's own, progress; the device stays the same."""
    seen: list[SourceResult] = []
    path = tmp_path / "mine.cu"
    path.write_text(RIGHT, encoding="utf-8")
    with evokern.Evaluator(FOLDER, problem="3,64", device="sim:l4", grid=(1, 1, 1), block=(32, 1, 1)) as judge:
        first = judge.evaluate(path)
        # One block is enough for what strides over the grid, and too little for what needs a block a row.
        rest = judge.evaluate_all((text for text in (BY_BLOCK, "// again\n" + RIGHT)), seen.append)
    assert (first.source, first.right, first.outcome) == ("mine.cu", True, "measured")
    assert [(one.outcome, one.check) for one in rest] == [("wrong", "tolerance"), ("duplicate", None)]
    assert (rest[1].source, rest[1].duplicate_of) == ("source_2.cu", "mine.cu")
    assert sorted(one.source for one in seen) == ["source_1.cu", "source_2.cu"]
    with pytest.raises(UsageError, match="closed"):
        judge.evaluate(RIGHT)


def test_a_simulator_failure_is_the_outcome_of_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """More memory than there is, or a defect of the machine's, ends neither the worker nor its neighbours."""
    settings = SimSettings(
        WorkerContext(FOLDER, (SMALL,), L4), GateSettings(), TimingSettings(race=0.0), SimulationSettings(), CONFIG
    )
    worker = SimWorker(settings)

    def exhausted(*_: object) -> Evaluation:
        raise MemoryError("32 GiB")

    monkeypatch.setattr(worker, "_evaluate", exhausted)
    foreign = ForeignCandidate(CONFIG, ForeignSource("theirs.cu", RIGHT), LaunchGeometry())
    built = cast(Built, None)  # what would be run is never looked at
    found = worker.handle(Simulate(foreign, built, None))
    assert found is not None
    assert (found.outcome, "MemoryError: 32 GiB" in found.reason) == (Outcome.CRASHED, True)
    with pytest.raises(MemoryError):
        worker.handle(Simulate(CONFIG, built, None))


class CannedDevice:
    """A device that knows the answers: no process is started."""

    identity = "NVIDIA Canned"
    predicted = False
    window = 2
    verifiable = True
    diagnoses = False

    def __init__(self, report: StartReport) -> None:
        self.report = report
        self.task: Task | None = None
        self.waiting: list[Request] = []
        self.most_waiting = 0
        self.closed = False

    @property
    def profile(self) -> Profile:
        return chip("h200")

    def start(self, task: Task) -> StartReport:
        self.task = task
        return self.report

    def submit(self, request: Request) -> None:
        self.waiting.append(request)
        self.most_waiting = max(self.most_waiting, len(self.waiting))

    def poll(self, timeout_s: float) -> list[Answer]:
        if not timeout_s:
            return []
        last = self.waiting.pop()  # the last one first
        timing = Timing(5.0, (4.9, 5.2), (5.0,))
        return [Answer(last.number, Evaluation(Outcome.MEASURED, 5.0, (timing,)))]

    def busy_s(self) -> float:
        return 0.0

    def close(self) -> None:
        self.closed = True


def baselines(**times_us: float) -> StartReport:
    from evokern.device import BaselineResult

    made = [BaselineResult(name, (Timing(us, (us, us), (us,)),)) for name, us in times_us.items()]
    return StartReport((*made, BaselineResult("broken", error="out of memory")))


def test_speedup_interval_and_order_with_a_clock() -> None:
    """Measured times have interval and speedup over the fastest baseline that ran; results have the caller's order."""
    device = CannedDevice(baselines(slow=20.0, fast=10.0))
    asked: list[int] = []

    def texts() -> Iterator[str]:
        for number in range(5):
            asked.append(len(device.waiting))
            yield f"// {number}\n"

    results = evokern.evaluate(KERNEL, texts(), problem="3,64", device=device)
    assert [one.source for one in results] == [f"source_{number}.cu" for number in range(5)]
    assert {(one.time_us, one.ci95_us, one.speedup, one.baseline) for one in results} == {
        (5.0, (4.9, 5.2), 2.0, ("fast", 10.0))
    }
    assert device.most_waiting == 2, "no more are in flight than the device takes"
    assert max(asked) <= 1, "the iterable is asked for the next one while there is room"
    assert device.closed
    assert device.task is not None
    assert (device.task.foreign, device.task.study.timing.race) == (True, 0.0)


def test_the_documents_harness_runs() -> None:
    """The harness of docs/evaluating.md tells what came of each source, and returns the fastest right one."""
    page = (ROOT / "docs" / "evaluating.md").read_text()
    (text,) = [one for one in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL) if "harness" in one]
    names: dict[str, Any] = {}
    exec(compile(text, "docs/evaluating.md", "exec"), names)
    seen: list[int] = []

    def write(history: list[tuple[str, SourceResult]]) -> str:
        seen.append(len(history))
        return f"// {len(history)}\n"

    best, history = names["harness"](KERNEL, "3,64", 3, write, device=CannedDevice(baselines(torch=10.0)))
    assert seen == [0, 1, 2]
    assert [result.source for _, result in history] == ["round_0.cu", "round_1.cu", "round_2.cu"]
    assert (best.source, best.speedup) == ("round_0.cu", 2.0)


def test_an_impossible_launch_is_infeasible_before_any_compile() -> None:
    """A block that no chip has is turned away by its constraint, and costs nothing."""
    device = CannedDevice(StartReport())
    one = evokern.evaluate(KERNEL, RIGHT, problem="3,64", device=device, block=(2048, 1, 1))
    assert (one.right, one.outcome, one.check) == (False, "infeasible", "block_extent")
    assert "at most 1024 threads" in one.reason
    assert device.most_waiting == 0


class LaunchSeen(CannedDevice):
    """Keeps what each candidate is launched as."""

    def __init__(self) -> None:
        super().__init__(StartReport())
        self.seen: dict[str, tuple[tuple[int, ...], tuple[int, ...], int, int]] = {}

    def submit(self, request: Request) -> None:
        super().submit(request)
        assert isinstance(request.config, ForeignCandidate)
        (launch,) = launches_of(KERNEL, request.config, KERNEL.problem("3,256"))
        values = (launch.grid, launch.block, launch.shared_bytes, int(str(request.config["WARPS"])))
        self.seen[request.config.source.name] = values


def test_each_source_may_have_a_launch_of_its_own(tmp_path: Path) -> None:
    """Genes and geometry of one source hold for it alone, and before what is said of all; a file beside it says so."""
    for name, text in {
        "none.cu": RIGHT,
        "own.cu": RIGHT,
        "own.toml": "grid = 5\nblock = [32, 2]\nsmem = 64\n[set]\nWARPS = 8\n",
        "notes.toml": "belongs to nothing\n",
    }.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    texts = [
        ForeignSource("genes.cu", RIGHT, {"WARPS": 8}),
        ForeignSource("block.cu", RIGHT, geometry=LaunchGeometry(block=(96, 1, 1))),
    ]
    device = LaunchSeen()
    with evokern.Evaluator(KERNEL, problem="3,256", device=device, grid=(7, 1, 1)) as judge:
        judge.evaluate_all([*sources_of([tmp_path]), *texts])
    assert device.seen == {
        "none.cu": ((7, 1, 1), (128, 1, 1), 0, 4),
        "own.cu": ((5, 1, 1), (32, 2, 1), 64, 8),
        "genes.cu": ((7, 1, 1), (256, 1, 1), 0, 8),
        "block.cu": ((7, 1, 1), (96, 1, 1), 0, 4),
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("grid = 0", "grid = 0 is not an extent"),
        ("block = [1, 2, 3, 4]", "block = [1, 2, 3, 4] is not an extent"),
        ("block = true", "block = True is not an extent"),
        ("smem = -1", "smem = -1 is not a number of bytes"),
        ("gird = 1", "did you mean 'grid'"),
        ("set = 3", "set = 3 is not a table of genes"),
        ("[set]\nWARPS = 1.5", "is not a table of genes"),
        ("[set]\nNO_GENE = 1", "there is no gene 'NO_GENE'"),
        ("[set]\nWARPS = 77", "77"),
        ("grid = [", "cannot read"),
    ],
)
def test_an_invalid_launch_is_rejected_before_the_batch_starts(text: str, said: str, tmp_path: Path) -> None:
    """A mistake in the file beside the last source is told before the first one costs anything."""
    for name in ("a.cu", "b.cu"):
        (tmp_path / name).write_text(RIGHT, encoding="utf-8")
    (tmp_path / "b.toml").write_text(text, encoding="utf-8")
    device = LaunchSeen()
    with pytest.raises(UsageError, match=re.escape(said)):
        evokern.evaluate(KERNEL, list(sources_of([tmp_path])), problem="3,256", device=device)
    assert device.seen == {}


def test_the_time_to_beat_and_the_settings_are_the_callers() -> None:
    """What a caller sets holds: the time that decides what is run whole, and the settings of a study of theirs."""
    device = CannedDevice(StartReport())
    study = Study("mine", "scale_rows", ("3,64",), timing=TimingSettings(race=1.2, max_samples=7))
    with evokern.Evaluator(KERNEL, problem="3,64", device=device, study=study, best_us=4.5) as judge:
        asked: list[float | None] = []
        submit = device.submit
        device.submit = lambda request: (asked.append(request.elite_us), submit(request))[1]  # type: ignore[method-assign]
        judge.evaluate(RIGHT)
    assert asked == [4.5]
    assert device.task is not None
    assert (device.task.study.timing.max_samples, device.task.study.timing.race) == (7, 0.0)


def test_a_gene_that_does_not_count_is_told() -> None:
    """A gene asked for that is inactive stands first among what the user should know."""
    device = CannedDevice(StartReport(notes=("the device's own",)))
    with evokern.Evaluator("matmul", problem="64,64,64", device=device, genes={"LANES": "row"}) as judge:
        assert judge.notes == (
            "LANES=row has no effect with PATH=tiled; it needs PATH=skinny", "the device's own",
        )  # fmt: skip


def test_a_mistake_leaves_no_process_behind() -> None:
    """A device whose processes have begun to start is closed where a gene or a launch cannot be as asked."""
    device = CannedDevice(StartReport())
    with pytest.raises(UsageError, match="NO_GENE"):
        evokern.Evaluator(KERNEL, problem="3,64", device=device, genes={"NO_GENE": 1})
    assert device.closed


def test_a_candidate_brings_source_and_launch_and_keeps_the_rest() -> None:
    """Macros, headers, arguments and entry stay the kernel's; text, name and geometry are the candidate's."""
    own = render(KERNEL, CONFIG, SMALL)
    foreign = ForeignCandidate(CONFIG, ForeignSource("theirs.cu", RIGHT), LaunchGeometry(block=(64, 2, 1)))
    made = render(KERNEL, foreign, SMALL)
    assert (made.source, made.name) == (RIGHT, "theirs.cu")
    assert (made.options, made.headers, made.entries) == (own.options, own.headers, own.entries)
    (launch,), (before,) = launches_of(KERNEL, foreign, SMALL), launches_of(KERNEL, CONFIG, SMALL)
    assert (launch.grid, launch.block, launch.args) == (before.grid, (64, 2, 1), before.args)
    assert foreign == ForeignCandidate(dict(CONFIG), foreign.source, foreign.geometry)
    assert foreign != CONFIG
    assert CONFIG != foreign


def test_one_geometry_for_several_launches_is_refused() -> None:
    """Nobody can tell which of two launches a grid is for."""
    source = ForeignSource("theirs.cu", RIGHT)
    candidate = ForeignCandidate(CONFIG, source, LaunchGeometry(grid=(4, 1, 1)))
    two = [*KERNEL.launches(CONFIG, SMALL)] * 2
    with pytest.raises(UsageError, match="2 launches"):
        candidate.launched(two)
    assert len(ForeignCandidate(CONFIG, source, LaunchGeometry()).launched(two)) == 2


def test_compiler_memory_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine code beyond the limit, and what cannot be read, are the source's outcome and not the batch's end."""
    settings = CompileSettings(WorkerContext(FOLDER, (SMALL,), L4), None)
    worker = CompileWorker(settings)
    candidate = ForeignCandidate(CONFIG, ForeignSource("theirs.cu", RIGHT), LaunchGeometry())
    monkeypatch.setattr("evokern.compile.pool.FOREIGN_PROGRAM", 100)
    large = worker.handle(candidate)
    assert isinstance(large, Evaluation)
    assert (large.outcome, "100 are allowed" in large.reason) == (Outcome.COMPILE_ERROR, True)

    def unreadable(*_: object) -> object:
        raise ValueError("no symbol table")

    monkeypatch.setattr("evokern.compile.pool.build", unreadable)
    broken = worker.handle(candidate)
    assert isinstance(broken, Evaluation)
    assert "ValueError: no symbol table" in broken.reason
    with pytest.raises(ValueError, match="no symbol table"):
        worker.handle(CONFIG)


HOSTED = f"""#include <cstdio>
#include <vector>
#include <cuda_runtime.h>
{RIGHT}
#define CHECK(call) do {{ if ((call) != cudaSuccess) {{ std::printf("failed\\n"); return 1; }} }} while (0)
int main() {{
  std::vector<float> x(192, 1.0f);
  float *d = nullptr, *y = nullptr;
  CHECK(cudaMalloc(&d, 192 * sizeof(float)));
  scale_rows<<<3, 64>>>(d, y, 3, 64, 2.0f);
  CHECK(cudaDeviceSynchronize());
  return 0;
}}
"""


def test_host_code_of_a_source_is_set_aside() -> None:
    """A file with `main` and its kernel, as people have it, is built from its device code, lines as they were."""
    worker = CompileWorker(CompileSettings(WorkerContext(FOLDER, (SMALL,), L4), None))

    def handled(text: str) -> Built | Evaluation:
        return worker.handle(ForeignCandidate(CONFIG, ForeignSource("theirs.cu", text), LaunchGeometry()))

    bare, hosted = handled(RIGHT), handled(HOSTED)
    assert isinstance(bare, Built)
    assert isinstance(hosted, Built), hosted.reason
    assert hosted.fingerprint == bare.fingerprint
    broken = handled(HOSTED.replace("largest = 1e-30f", "largest = undeclared"))
    assert isinstance(broken, Evaluation)
    line = 1 + HOSTED[: HOSTED.index("largest = 1e-30f")].count("\n")
    assert broken.reason == f'theirs.cu:{line}: identifier "undeclared" is undefined'


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--source"),
        (("--source", "nowhere.cu"), "nowhere.cu does not exist"),
        (("--source", "empty"), "has no .cu file"),
        (("--source", "fifo.cu"), "is not a regular file"),
        (("--source", "one.cu", "--grid", "0"), "--grid '0' is not a valid extent"),
        (("--source", "one.cu", "--set", "NO_GENE=1"), "there is no gene 'NO_GENE'"),
        (("--source", "one.cu", "--problem", "1,2,3"), "more values than fields"),
        (("--source", "one.cu", "--device", "sim:none"), "none"),
        (("--source", "one.cu", "--device", f"replay:{DATA / 'table_small.json.gz'}"), "runs no kernel"),
    ],
)
def test_mistakes_end_with_two(
    words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the user can mend ends with exit code 2, the value and the remedy, before anything starts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "one.cu").write_text(RIGHT, encoding="utf-8")
    os.mkfifo(tmp_path / "fifo.cu")
    done = run(FOLDER, "--trust", *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr


def test_sources_are_named_so_that_results_can_be_told_apart(tmp_path: Path) -> None:
    """Files of one name in two folders keep their paths; bytes that are no text do not end a batch."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kernel.cu").write_bytes(b"\xef\xbb\xbfint a;\xff\0\n")
    read = list(sources_of([tmp_path / "first", tmp_path / "second" / "kernel.cu"]))
    assert [one.name for one in read] == [str(tmp_path / name / "kernel.cu") for name in ("first", "second")]
    assert read[0].text == "int a;\ufffd\ufffd\n"
    with pytest.raises(SourceError, match="is a folder; pass its files"):
        evokern.evaluate(KERNEL, tmp_path, problem="3,64", device=CannedDevice(StartReport()))
