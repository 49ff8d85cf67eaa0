"""The bench of ablations (tests/bench): its searches are those of the engine, and what it fits is what was recorded."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
from kernel_tuner_files import kernel_tuner_cache, write_json
from paths import ROOT

from evokern.declaration.genes import Config, Mutation, Parameter
from evokern.device.recorded.table import Table, measured
from evokern.hardware.profiles import chip
from evokern.sampler_benchmark import Settings
from evokern.sampler_benchmark.results import one_repeat
from evokern.samplers import TrialSchedule
from evokern.study.trial import Evaluation, Outcome

sys.path.insert(0, str(ROOT / "tests" / "bench"))

import ablations
import figure_tables
import figures
import gpu_searches
import landscapes


def _table() -> Table:
    genes = (Mutation("LOAD", ("a", "b")), Parameter("TILE", tuple(range(1, 9)), 4), Parameter("WARPS", (1, 2, 4)))
    answers: dict[Config, Evaluation] = {}
    for load in ("a", "b"):
        for tile in range(1, 9):
            for warps in (1, 2, 4):
                config = Config({"LOAD": load, "TILE": tile, "WARPS": warps})
                if tile % warps:
                    continue
                crashed = Evaluation(Outcome.CRASHED, evidence={"error": "illegal address"})
                answers[config] = crashed if tile == 8 else measured(10.0 + tile / warps + 3 * (load == "a"))
    return Table("made", genes, answers, chip("l4"))


@pytest.mark.parametrize("text", figures.ABLATIONS)
def test_every_switch_names_a_constant_of_evo(text: str) -> None:
    """A constant that was renamed or removed is noticed here, not in a run of hours."""
    with ablations.Variant.read(text).applied():
        pass


@pytest.mark.parametrize("sampler", ["evo", "tpe"])
@pytest.mark.parametrize("window", ["3", "live"])
def test_searches_without_the_engine_are_those_of_the_engine(sampler: str, window: str) -> None:
    """What `replay` finds after each evaluation, with the same seed and as many in flight, the bench finds too."""
    table = _table()

    def answer(config: Config) -> landscapes.Answer:
        found = table.answers[config]
        return found.outcome, None if found.time_us is None else math.log(found.time_us)

    case = landscapes.Case("made", table.space(), answer, 0.0)
    found = ablations.searched(case, sampler, 5, window, 20)
    settings = Settings("made", 20, window=None if window == "live" else int(window))
    replayed = one_repeat(table, settings, sampler, 5)
    expected = [None if best is None else pytest.approx(math.log(best), abs=1e-5) for best in replayed.best_us]
    assert expected == found["curve"]


def test_a_window_may_be_another_schedule() -> None:
    """Most, least and ramp of a schedule can be named, so that others than today's are compared."""
    assert (TrialSchedule(96), TrialSchedule(51, 16, 4)) == tuple(
        ablations.schedule_of(window)[1] for window in ("live", "live 51 16 4")
    )


def test_a_variant_is_a_sampler_with_other_constants() -> None:
    """Constants of the sampler are set while its searches run, and only then."""
    from evokern.samplers.evo import _candidates

    before = _candidates.ROUNDS
    variant = ablations.Variant.read("flat: evo; _candidates.ROUNDS=0; _model.LINEAR=0.5")
    assert ("flat", "evo") == (variant.name, variant.sampler)
    with variant.applied():
        assert 0 == _candidates.ROUNDS
    assert before == _candidates.ROUNDS
    assert ablations.Variant("tpe", "tpe") == ablations.Variant.read("tpe")


@pytest.mark.slow  # 30 s: three searches with a model
def test_a_fit_of_drawn_trials_is_another_one_and_fails_alike() -> None:
    """Draws differ, each is the same whenever it is made, and what always fails is of all trials."""
    path = ROOT / "tests" / "data" / "attention_s512_h200.json.gz"
    whole, one, other = landscapes.fit_of(path), landscapes.fit_of(path, 1), landscapes.fit_of(path, 2)
    assert landscapes.fit_of(path, 1) == one
    assert len({tuple(fit.single.items()) for fit in (whole, one, other)}) == 3
    assert whole.fails == one.fails == other.fails


def test_a_fit_tells_what_was_recorded() -> None:
    """Values and pairs explain a made-up recording, what always failed fails, and a kept fit is the same fit."""
    table = _table()
    timed = {config: found.time_us for config, found in table.answers.items() if found.time_us}
    failed = [config for config in table.answers if config not in timed]
    fails = landscapes._failing(table.genes, list(timed), failed * 3)
    assert ("TILE", "TILE", 8, 8) in fails
    fit = landscapes.Fit({("LOAD", "a"): 0.5}, {("LOAD", "TILE", "a", 1): 0.25}, fails, 2.0, 0.1)
    assert 2.75 == fit.log_time({"LOAD": "a", "TILE": 1, "WARPS": 1})
    assert fit.failing({"LOAD": "a", "TILE": 8, "WARPS": 1})
    assert not fit.failing({"LOAD": "a", "TILE": 1, "WARPS": 1})
    assert fit == landscapes.Fit.read(fit.written())
    # A starting point with a value that no recorded trial had is none on this landscape.
    assert fit.knows({"LOAD": "a", "TILE": 1})
    assert not fit.knows({"LOAD": "b", "TILE": 1})


def test_a_switch_may_set_a_field_of_a_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    """A constant that is a record keeps its identity: whoever imported it sees the change, and only meanwhile."""
    from evokern.samplers.evo import _model

    kept = _model.Scale(0.0, 1.0)
    monkeypatch.setattr(_model, "KEPT", kept, raising=False)
    with ablations.Variant.read("wide: evo; _model.KEPT.unit=2.0").applied():
        assert 2.0 == kept.unit
    assert 1.0 == kept.unit


def test_searches_come_by_stage_then_by_seed() -> None:
    """What matters most is made first; the variants of an ablation come together, so that their seeds are paired."""
    cases = {"a.json.gz": landscapes.Case("a", _table().space(), lambda _: (Outcome.WRONG, None), 0.0, (), 300)}
    stages = [[("recorded", "evo", "live", 0)], [("", "evo", "8", 50), ("", "tpe", "8", 50)], [("wide", "evo", "8", 9)]]
    found = [search.key for search in figures.planned(cases, stages, 2)]
    whole = [("evo", "a", "live", seed, 540) for seed in (0, 1)]
    assert [*whole, *((name, "a", "8", seed, 50) for seed in (0, 1) for name in ("evo", "tpe"))] == found


def test_kept_results_are_the_search(tmp_path: Path) -> None:
    """From the line that a search leaves its best log(time) after each evaluation comes back."""
    file = write_json(tmp_path / "made.json", kernel_tuner_cache())
    search = figures.Search(str(file), "tpe", "live", 12, 3)
    line = json.loads(json.dumps(figures.made(search, tmp_path)))
    case = landscapes.case_of(str(file))
    direct = ablations.searched(case, "tpe", 3, "live", 12)["curve"]
    expected = [None if best is None else pytest.approx(best, abs=1e-5) for best in direct]
    assert expected == figure_tables.curve_of(str(file), case, line)
    steps = {"key": [], "best": [[2, 1.5], [4, 1.0]], "evaluations": 5}
    assert [None, 1.5, 1.5, 1.0, 1.0] == figure_tables.curve_of("wide.py:1", case, steps)


def test_a_search_has_arrived_at_the_first_trial_that_is_fast_enough() -> None:
    """Evaluations up to it are counted in number order, duplicates apart; an empty search never arrives."""
    trials = [["measured", 9.0, 0.0, 1.0], ["duplicate", 9.0, 0.1, 1.1], ["wrong", None, 0.2, 1.2]]
    trials += [["measured", 4.6, 0.3, 2.5], ["measured", 4.4, 0.4, 1.5]]
    assert (3, 2.5) == gpu_searches.arrived(trials, 1.05 * 4.44)
    assert (4, 1.5) == gpu_searches.arrived(trials, 4.5)
    assert gpu_searches.arrived([], 4.5) is None
    assert [0, 1, 2, 7] == gpu_searches.seeds_of("0-2,7")


def test_errors_of_measurement_are_drawn_once_and_shown_without() -> None:
    """A configuration has the same error whenever it is asked; a curve shows what the incumbent takes without it."""
    table = _table()

    def answer(config: Config) -> landscapes.Answer:
        found = table.answers[config]
        return found.outcome, None if found.time_us is None else math.log(found.time_us)

    exact = landscapes.Case("made", table.space(), answer, 0.0)
    case = landscapes.with_errors(exact, 0.5)
    timed = [config for config in table.answers if answer(config)[1] is not None]
    errors = [(case.answer(config)[1] or 0.0) - (answer(config)[1] or 0.0) for config in timed]
    assert errors == [(case.answer(config)[1] or 0.0) - (answer(config)[1] or 0.0) for config in timed]
    assert 0.2 < math.sqrt(sum(error * error for error in errors) / len(errors)) < 0.8
    assert all(case.answer(config) == answer(config) for config in table.answers if config not in timed)
    found = ablations.searched(case, "random", 2, "1", 12)
    shown = [best for best in found["curve"] if best is not None]
    assert set(shown) <= {round(answer(config)[1] or 0.0, 5) for config in found["configs"]}
