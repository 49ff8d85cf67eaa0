"""Screening: what a warm start from the simulated device learns of each, without small problems."""

from __future__ import annotations

from dataclasses import replace

import pytest
from paths import DATA

from evokern import simt
from evokern.compile.pool import CompileSettings, CompileWorker
from evokern.compile.records import Built
from evokern.device.sim.jobs import SimSettings, Simulate
from evokern.device.sim.screening import ScreeningWorker
from evokern.errors import SourceError
from evokern.hardware.profiles import CHIPS
from evokern.search.identity import problems_of
from evokern.study.discovery import WorkerContext, find_study, kernel_of
from evokern.study.settings import Study
from evokern.study.trial import Evaluation, Outcome

ATTRIBUTES = DATA / "kernels" / "attributes"
CHIP = CHIPS["h200"]


class Bench:
    """Screens candidates of a study."""

    def __init__(self, study: Study) -> None:
        self.kernel = kernel = kernel_of(study, trust=True)
        problems = problems_of(study, kernel)
        counting = replace(study.simulation, blocks=3)
        context = WorkerContext(kernel.folder, problems, CHIP)
        settings = SimSettings(context, study.gate, study.timing, counting, kernel.space.default())
        self.compiler = CompileWorker(CompileSettings(context, None))
        self.worker = ScreeningWorker(settings)

    def screen(self, elite_us: float | None = None, **genes: object) -> Evaluation:
        """Screen the default candidate with other values."""
        config = self.kernel.space.with_changes(self.kernel.space.default(), genes)
        built = self.compiler.handle(config)
        assert isinstance(built, Built), built
        return self.worker.handle(Simulate(config, built, elite_us))


@pytest.fixture(scope="module")
def attention() -> Bench:
    return Bench(find_study("attention-s512"))


@pytest.mark.thorough
def test_a_candidate_that_rounds_too_coarsely_is_found_by_some_of_its_blocks(attention: Bench) -> None:
    """The default's blocks are right on hard inputs; fp16 accumulators are not, and the evidence names the inputs."""
    right = attention.screen()
    assert right.outcome is Outcome.MEASURED
    assert right.time_us == pytest.approx(6.7, abs=1.5)
    wrong = attention.screen(EXP="f16x2", QK_ACC="fp16")
    assert wrong.outcome is Outcome.WRONG
    assert wrong.evidence["input_set"] in ("large", "equal_rows")


@pytest.mark.thorough
def test_only_what_may_be_among_the_best_is_checked(attention: Bench) -> None:
    """A candidate well behind the best has its predicted time and no verdict; far behind, the limit is its time."""
    right = attention.screen().time_us
    assert right is not None
    behind = attention.screen(elite_us=0.8 * right, EXP="f16x2", QK_ACC="fp16")
    assert behind.outcome is Outcome.SLOW
    far = attention.screen(elite_us=2.0, TENSOR_CORES="none")
    assert far.outcome is Outcome.SLOW
    assert far.time_us == pytest.approx(3.0)


def test_what_cannot_be_simulated_is_no_verdict(attention: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """An instruction that only the GPU executes costs a warm start that candidate, and not the search."""

    def refuse(*_: object, **__: object) -> None:
        raise SourceError("line 7: `frobnicate.u32` is not executed here")

    monkeypatch.setattr(simt, "launch", refuse)
    unknown = attention.screen()
    assert unknown.outcome is Outcome.CRASHED
    assert unknown.evidence["error"] == "not simulated"


def test_launches_that_feed_each_other_go_through_the_gate() -> None:
    """Where blocks alone tell nothing, what would be the best is checked in full, and nothing else is checked."""
    bench = Bench(Study(name="attributes", kernel=str(ATTRIBUTES), problems=("512",)))
    best = bench.screen(FEATURE="workspace")
    assert best.outcome is Outcome.MEASURED
    assert best.time_us is not None
    behind = bench.screen(elite_us=0.95 * best.time_us, FEATURE="workspace")
    assert behind.outcome is Outcome.SLOW
    assert behind.time_us == best.time_us


def test_a_study_that_asks_for_normal_inputs_alone_gets_no_others() -> None:
    """Where its gate draws nothing that is hard on rounding, no answers are held against a candidate for it."""
    study = find_study("attention-s512")
    plain = Bench(replace(study, gate=replace(study.gate, input_sets=("normal",))))
    assert plain.screen(EXP="f16x2", QK_ACC="fp16").outcome is Outcome.MEASURED
