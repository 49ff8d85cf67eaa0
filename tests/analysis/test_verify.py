"""verify and ablate as typed, on a simulated device: a right study, and one whose champion has a planted bug."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from paths import DATA
from typer.testing import CliRunner

import evokern
from evokern.analysis.verify import verify as _verify
from evokern.analysis.verify.stages import Stage, fuzz_stage, sanitizer_stage
from evokern.analysis.verify.under_test import CandidateUnderTest
from evokern.analysis.verify.verify import Proof, can_win, gate_stage, playoff_stage
from evokern.cli.app import app
from evokern.declaration.as_data.golden import compared_with
from evokern.declaration.genes import Config
from evokern.device.contract import MeasuresRounds
from evokern.device.default_outputs import SameAsDefault
from evokern.hardware.profiles import chip
from evokern.measurement.playoff import by_prediction, effects
from evokern.store import open_readonly
from evokern.study.discovery import load_kernel
from evokern.study.settings import Study
from evokern.study.trial import Evaluation, Outcome, Proposal, Trial
from evokern.tuning.call import tuned_kernel
from evokern.tuning.options import TuneOptions

STUDY = 'kernel = "kernels/tail_bug"\nproblems = ["64,4096"]\ndevice = "sim:l4"\nsampler = "grid"\n'


def invoke(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished search: the right variants and those with the planted bug, which its gate cannot see."""
    folder = tmp_path_factory.mktemp("verify")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(DATA)
        path = folder / "v.db"
        for name, tails in (("right", '["right"]'), ("planted", '["forgotten"]')):
            study = folder / f"{name}.toml"
            study.write_text(STUDY.replace("kernels/", f"{DATA}/kernels/") + f"[genes]\nTAIL = {tails}\n")
            code, _, told = invoke("search", str(study), "--db", str(path), "--quiet", "--no-verify")
            assert code == 0, told
    return path


@pytest.fixture(autouse=True)
def trusted_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(DATA)


@pytest.mark.thorough
def test_a_right_champion_is_proved(db: Path) -> None:
    """Gate, sanitizer, playoff of predictions and fuzzing pass; the proof is kept with the study."""
    code, told, _ = invoke("verify", "right", "--db", str(db), "--fuzz", "2s", "--seed", "3", "--json")
    facts = json.loads(told)
    assert code == 0, facts
    assert [(name, stage["state"]) for name, stage in facts["stages"].items()] == [
        *(("gate", "passed"), ("sanitizer", "passed"), ("playoff", "passed"), ("own problem", "passed")),
        ("algebra", "passed"),
        ("fuzz", "passed"),
    ]
    assert facts["playoff"]["predicted"]
    assert facts["playoff"]["finalists"][0]["name"] == f"trial {facts['trial']}"
    with open_readonly(db) as reader:
        record = reader.study("right")
        (proof,) = reader.proofs(record, "verify")
        assert proof.result["stages"]["fuzz"]["seed"] == 3
        best = reader.best(record)
        assert best is not None
        assert best.evaluation.evidence["time_from"] == "playoff"


def test_a_champion_that_loses_is_told_of(db: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`verify` of the champion names the trial that took its place and nobody verified, with the command."""
    copy = tmp_path / "copy.db"
    shutil.copy(db, copy)
    with open_readonly(copy) as reader:
        first = reader.best(reader.study("right"))
        assert first is not None
        other = next(t for t in reader.trials(reader.study("right")) if t.outcome is Outcome.MEASURED and t != first)

    def verified(subject: Any, device: Any, *_: Any, **__: Any) -> Proof:
        players = (f"trial {first.number}", f"trial {other.number}")
        stages = (Stage("gate", "passed", "right"),)
        return Proof("right", first.number, subject.record.device, stages, by_prediction([6.0, 5.0], None), players)

    monkeypatch.setattr(_verify, "verify", verified)
    code, _, remarks = invoke("verify", "right", "--db", str(copy))
    assert (code, f"`evokern verify right --trial {other.number} --db {copy}`" in remarks) == (0, True), remarks


def test_predictions_are_compared_within_a_margin() -> None:
    """A tie of predicted times names the margin, since without noise it is the margin alone that makes one."""
    stage = playoff_stage(by_prediction([5.0, 5.03, 6.0], None), ["trial 0", "trial 1", "trial 2"], 0)
    assert "ties with trial 1 by predicted times that differ by less than 1 %" in stage.detail


@pytest.mark.thorough
def test_a_planted_bug_is_found_by_the_proof_and_by_fuzzing(db: Path) -> None:
    """A champion that is wrong at tails passes its own gate; `verify` exits with 1, and it is champion no more."""
    code, told, _ = invoke("verify", "planted", "--db", str(db), "--fuzz", "0")
    assert (code, "FAILED  algebra " in told, "FAILED  fuzz " in told, "Cliff" in told) == (1, True, False, False)
    code, told, _ = invoke("verify", "planted", "--db", str(db), "--fuzz", "10s")
    assert code == 1
    assert "FAILED  fuzz " in told
    code, told, _ = invoke("show", "planted", "--db", str(db))
    assert "best: trial 2," not in told


@pytest.mark.parametrize(("theirs", "plays"), [(4.0, True), (7.4, True), (7.6, False), (None, True)])
def test_a_trial_that_was_far_slower_plays_no_playoff(theirs: float | None, plays: bool) -> None:
    """Half as slow again as the champion, by what the search saw, cannot win and is not measured again."""

    def trial(number: int, time_us: float | None) -> Trial:
        return Trial(number, Proposal(Config({})), Evaluation(Outcome.SLOW, time_us, evidence={"elite_us": 5.0}))

    assert can_win(trial(0, 5.0), trial(1, theirs)) == plays
    assert not can_win(trial(0, 5.0), trial(0, 5.0))


@pytest.mark.thorough
def test_each_choice_is_taken_back(db: Path) -> None:
    """The ablation has a row for each gene that differs from the default, with its predicted effect, and is kept."""
    with open_readonly(db) as reader:
        record = reader.study("right")
        other = next(t.number for t in reader.trials(record) if t.config.ROWS == 2 and t.config.TILE == 32)
    code, told, _ = invoke("ablate", "right", "--trial", str(other), "--db", str(db), "--json")
    facts = json.loads(told)
    assert code == 0
    assert {row["gene"] for row in facts["alone"]} == {"ROWS", "TILE"}
    assert facts["champion"]["ratio"] == 1.0
    assert all(row["time_us"] > 0 and row["gb_per_s"] > 0 for row in facts["alone"])
    assert facts["path"][0]["gene"] == ""
    assert facts["path"][-1]["config"] == facts["champion"]["config"]
    with open_readonly(db) as reader:
        assert len(reader.proofs(record, "ablate")) == 1


@pytest.mark.thorough
def test_the_default_has_nothing_to_take_back(db: Path) -> None:
    """Ablating the default candidate says why there is nothing to do, which is no mistake."""
    with open_readonly(db) as reader:
        record = reader.study("right")
        default = next(t.number for t in reader.trials(record) if t.config.ROWS == 1 and t.config.TILE == 64)
    code, told, _ = invoke("ablate", "right", "--trial", str(default), "--db", str(db))
    assert (code, "no changed gene to reset" in told) == (0, True)
    code, told, _ = invoke("ablate", "right", "--trial", str(default), "--db", str(db), "--json")
    assert (code, json.loads(told)["alone"]) == (0, [])


@pytest.mark.parametrize("word", ["verify", "ablate"])
def test_what_is_missing_is_said(word: str, db: Path, tmp_path: Path) -> None:
    """No such database, study, trial or device: one message that says what is there."""
    for words, message in (
        (("--db", str(tmp_path / "none.db")), "there is no database"),
        (("nowhere", "--db", str(db)), "no study 'nowhere'"),
        (("right", "--trial", "99", "--db", str(db)), "trial 99 is not in study right"),
        (("right", "--device", "sim:q7", "--db", str(db)), "there is no chip 'q7'"),
    ):
        code, _, told = invoke(word, *words)
        assert (code, message in told) == (2, True), told


def test_a_device_without_a_clock_does_not_interleave() -> None:
    """The simulated device has no rounds to play, a live one has."""
    from evokern.device.gpu.live import LiveDevice
    from evokern.device.sim.simulated import SimulatedDevice

    device = SimulatedDevice("l4")
    device.close()
    assert not isinstance(device, MeasuresRounds)
    assert hasattr(LiveDevice, "rounds")


def test_effects_are_measured_beside_the_first() -> None:
    """Each candidate's ratio is to candidate 0, in a fixed number of rounds."""
    asked = []

    def measure(alive: object, samples: int) -> list[list[float]]:
        asked.append(samples)
        return [[5.0 + 0.01 * n for n in range(samples)], [6.0 + 0.012 * n for n in range(samples)]]

    first, second = effects(measure, 2, rounds=4, samples=5)
    assert asked == [5] * 4
    assert first.ratio == 1.0
    assert second.ratio == pytest.approx(1.2)
    assert second.ratio_ci95[0] == pytest.approx(1.2)


@pytest.mark.parametrize(("own", "near"), [("64,4096", "65,4096"), ("4096,8192", "257,8192")])
def test_shapes_near_a_large_problem_are_near_a_smaller_one(own: str, near: str) -> None:
    """33 million elements take their time as float64: the grid shrinks until four million are left."""
    kernel = load_kernel(DATA / "kernels" / "tail_bug")
    study = Study("near", str(kernel.folder), (own,))
    config = kernel.space.default()
    stage = fuzz_stage(CandidateUnderTest(kernel, config, study, (kernel.problem(own),), chip("l4"), 1), 1.0, 1, 1)
    assert stage.state == "passed"
    assert near == stage.facts["near"][0]


def test_without_a_known_result_nothing_is_called_correct() -> None:
    """The gate names what it compared; the default candidate is then compared only with itself."""
    passed = Evaluation(Outcome.MEASURED, time_us=1.0)

    assert gate_stage(passed, "").detail == "correct on every input set"
    for default, named in ((True, "itself"), (False, "the default candidate")):
        detail = gate_stage(passed, compared_with(SameAsDefault(), default)).detail
        assert "correct" not in detail and f"compared with {named} (no known result)" in detail


FIXED = """
__global__ void shifted(const float* x, float* y, int n) {
  __shared__ float part[BLOCK];
  int i = blockIdx.x * BLOCK + threadIdx.x;
  part[threadIdx.x] = x[i];
  SYNC
  y[i] = 2.0f * part[BLOCK - 1 - threadIdx.x] + (i == n - 1 ? FAULT : 0.0f);
}
"""


@pytest.mark.parametrize(
    ("sync", "fault", "states"),
    [("__syncthreads();", "0.0f", ("passed", "passed")), ("", "0.0f", ("failed", "failed")),
     ("__syncthreads();", "1.0f", ("passed", "failed")), ("__syncthreads();", "x[n]", ("failed", "failed"))],
)  # fmt: skip
def test_blocks_of_a_large_fixed_shape_are_verified(sync: str, fault: str, states: tuple[str, str]) -> None:
    """A kernel that was tuned at one large shape runs some blocks under the sanitizer, and some with other inputs."""
    x = torch.rand(1 << 22)
    options = TuneOptions(
        source=FIXED.replace("SYNC", sync).replace("FAULT", fault), entry="shifted",
        args=[x, evokern.out_like(x), x.numel()], params={"BLOCK": [64]}, grid=x.numel() // 64, block=64,
        reference=lambda x: 2 * x.view(-1, 64).flip(1).view(-1), tolerance=1e-6,
    )  # fmt: skip
    kernel = tuned_kernel(options).kernel
    problem = kernel.problem({})
    study = Study("s", kernel.name, (problem.key,), "sim:l4")
    candidate = CandidateUnderTest(kernel, kernel.space.default(), study, (problem,), chip("l4"), 5)
    stages = sanitizer_stage(candidate), fuzz_stage(candidate, 10.0, 3)
    assert tuple(one.state for one in stages) == states
    if states == ("passed", "passed"):
        assert "no findings at some blocks of SHAPES=x:f32[4194304]" in stages[0].detail
        assert "races looked for in 12 of 65536 blocks" in stages[0].detail
        assert stages[1].detail == "2 runs of some blocks of the full-size problem with other inputs, seed 3"
