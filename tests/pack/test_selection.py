"""Selection of variants: general candidates, refuted programs, and the edges of regions, from given times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from paths import ROOT

from evokern.analysis.candidates import TrialUnderTest
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Problem
from evokern.errors import StudyError
from evokern.events import current_step
from evokern.hardware.profiles import chip
from evokern.pack.candidates import Place, PoolCandidate, measured_at, narrow_genes, pool_of, starting_points_of
from evokern.pack.choice import summary_of
from evokern.pack.crosswise import CrosswiseTimes, OverBudgetError, PlaceTimes, _measure_rounds
from evokern.pack.selection import PackRequest, Selection
from evokern.store import Verification
from evokern.study.discovery import load_kernel
from evokern.study.trial import Outcome
from evokern.workers.jobs import JobResult

KERNEL = load_kernel(ROOT / "kernels/attention")


def _place(
    length: int, *, held_out: bool = False, genes: Mapping[str, Any] | None = None, on: str = "l4",
    further: bool = False,
) -> Place:  # fmt: skip
    record = SimpleNamespace(device="sim:l4", predicted=True, secret=1, created="", timing_rule=None)
    trial = SimpleNamespace(number=7, config=KERNEL.space.default())
    problem = KERNEL.problem(f"1,2,{length},64")
    subject: Any = TrialUnderTest(record, SimpleNamespace(genes=genes or {}), KERNEL, (problem,), trial, (), None)  # type: ignore[arg-type]
    return Place(f"S{length}", subject, chip(on), 1.0, held_out, further)


class _Stored:
    """Times as a function of the candidate and the shape."""

    baselines = ("SDPA", "SDPA flash")

    def __init__(
        self, refuted_at: int = 0, failing_edges: bool = False, baseline_us: float = 3.0, verified: bool | None = True,
        wrong: str = "runtime",
    ) -> None:  # fmt: skip
        self.refuted_at, self.failing_edges, self.baseline_us = refuted_at, failing_edges, baseline_us
        self.verified, self.wrong = verified, wrong
        """Verification of candidates for several lengths; the others are right."""
        self.edges: list[str] = []
        self.titles: list[str] = []
        self.measured: dict[int, list[str]] = {}
        """Length → values of LENGTH that were measured there last."""

    def at(self, place: Place, configs: Sequence[Config]) -> PlaceTimes:
        self.measured[int(place.problem["S"])] = [str(config["LENGTH"]) for config in configs]
        times: dict[str, float] = {}
        refuted: Mapping[str, str] = {}
        for config in configs:
            key, general = place.program(config).config, config["LENGTH"] == "runtime"
            if config["LENGTH"] == self.wrong and place.problem["S"] == self.refuted_at:
                refuted = {key: "wrong: it differs"}
            else:
                times[key] = 1.1 if general else 1.0
        return PlaceTimes(times, refuted, {"SDPA": 4.0, "SDPA flash": self.baseline_us}, {})

    def failure_at(self, place: Place, candidate: PoolCandidate, problems: Sequence[Problem]) -> str:
        self.edges += [str(one["S"]) for one in problems]
        return "wrong: it differs" if self.failing_edges and candidate.config["LENGTH"] == "runtime" else ""

    def verifications(self, variants: Sequence[tuple[PoolCandidate, Place]]) -> list[Verification]:
        self.titles += [one.title for one, _ in variants]
        return [
            Verification(one.config["LENGTH"] == "static" or self.verified, "sanitizer: a race", 1.0)
            for one, _ in variants
        ]


def _selection(
    stored: Any, variants: int = 1, *, unseen: bool = False, force: bool = False, lines: list[str] | None = None,
    more: Sequence[Place] = (),
) -> Selection:  # fmt: skip
    places = [_place(64), _place(128), _place(256), *more, _place(192, held_out=True), _place(320, held_out=True)]
    request = PackRequest(variants, 8, force=force)
    return Selection(places, places[:2], stored, request, ([] if lines is None else lines).append, unseen=unseen)


def test_a_champion_with_problem_constants_contributes_a_general_candidate() -> None:
    """LENGTH=static serves one length; the same champion with LENGTH=runtime serves all, and comes first."""
    sample = [_place(64), _place(128), _place(256)]
    pool = pool_of(sample[:2], sample, 8, variants=1)
    assert [(one.changed, one.config["LENGTH"]) for one in pool] == [("LENGTH=runtime", "runtime"), ("", "static")]
    assert pool[0].title == "trial 7 of S64 with LENGTH=runtime"
    assert len(pool_of(sample[:2], sample, 1, variants=1)) == 1
    assert isinstance(pool[0], PoolCandidate)


def test_starting_points_are_candidates() -> None:
    """Those that run on the chip and that no study contributes, each with the gene that lets it serve all lengths."""
    sample = [_place(length, on="h100", genes={"LENGTH": ("steps", "runtime")}) for length in (64, 128, 2048)]
    assert starting_points_of([], [_place(1024)], [_place(1024), _place(2048)], 99, 1) == []  # wgmma, or short rows
    found = starting_points_of([], sample, sample, 99, 1)
    assert len(found) == len(KERNEL.starting_points)
    assert {one.config["LENGTH"] for one in found} == {"runtime"}
    assert found[0].title.startswith("starting point TENSOR_CORES=wgmma LENGTH=runtime ")
    others = starting_points_of(found[:5], sample, sample, 7, 1)
    assert [one.key for one in others] == [one.key for one in found[5:7]]


def test_a_starting_point_is_kept_if_no_more_general_one_has_its_choices() -> None:
    """KV_BUFFERS=resident needs LENGTH=steps. With LENGTH=runtime, the point serves all lengths, but has a ring."""
    sample = [_place(length, on="h100", genes={"LENGTH": ("steps", "runtime")}) for length in (100, 110, 120, 2048)]
    found = [one.config for one in starting_points_of([], sample, sample, 99, 2)]
    kinds = {(one["TENSOR_CORES"], one["LENGTH"]) for one in found if one["KV_BUFFERS"] == "resident"}
    assert kinds == {("mma_sync", "steps"), ("wgmma", "steps")}
    assert {(one["TENSOR_CORES"], one["LENGTH"]) for one in found if one["KV_BUFFERS"] == "ring"} >= {
        ("wgmma", "runtime")
    }


def test_a_gene_that_compiles_a_shape_into_the_code_is_named() -> None:
    """Both champions serve one length because of LENGTH; without the value, a champion is a reference only."""
    sample = [_place(64), _place(128), _place(256)]
    assert [(gene.name, values) for gene, values in narrow_genes(sample[:2], sample)] == [("LENGTH", ["static"] * 2)]
    other = _place(192, genes={"LENGTH": ("steps", "runtime")})
    _, references = measured_at(_place(200), [], [other], lambda program: False)
    assert [config["LENGTH"] for config in references] == ["static"]


def test_the_general_candidate_serves_held_out_shapes() -> None:
    """One variant serves each shape; the loss counts champions compiled for a shape as the best known code."""
    stored = _Stored()
    work = _selection(stored)
    chosen, variants, tree = work.choose()
    assert [variant.config["LENGTH"] for variant in variants] == ["runtime"]
    found = summary_of(tree, work.samples_of(chosen, held_out=True))
    assert (found.shapes, found.own_share, found.to_baseline, found.slower) == (2, 1.0, 0, 0)
    assert found.loss == pytest.approx(0.1)
    assert found.speedup == pytest.approx(3.0 / 1.1)
    assert stored.edges == ["319"]  # the smallest and the largest shape were measured already
    (facts,) = work.facts(chosen, variants)
    assert (facts["changed"], facts["verification"]["verified"]) == ("LENGTH=runtime", True)
    assert stored.titles == ["trial 7 of S64 with LENGTH=runtime"]


def test_only_the_chosen_variants_are_measured_at_further_shapes() -> None:
    """The dispatch sees their times, and a variant that is wrong there is left out. They are no part of the summary."""
    stored = _Stored()
    work = _selection(stored, more=[_place(512, further=True)])
    chosen, _, tree = work.choose()
    assert (stored.measured[256], stored.measured[512]) == (["runtime", "static"], ["runtime"])
    assert summary_of(tree, work.samples_of(chosen, held_out=False)).shapes == 3
    (row,) = [one for one in work.shapes(chosen, tree) if one["further"]]
    assert (row["variant"], row["time_us"], row["loss"]) == (0, 1.1, None)
    _, (variant,), _ = _selection(_Stored(refuted_at=512), more=[_place(512, further=True)]).choose()
    assert variant.config["LENGTH"] == "static"


def test_a_baseline_that_is_faster_at_further_shapes_leaves_nothing_to_pack() -> None:
    """The variant gains 3 % at light shapes. A decision for them gains too little, so the baseline serves all."""

    class Slow(_Stored):
        def at(self, place: Place, configs: Sequence[Config]) -> PlaceTimes:
            found = super().at(place, configs)
            return replace(found, times=dict.fromkeys(found.times, 9.0)) if place.further else found

    heavy = replace(_place(512, further=True), weight=1e4)
    with pytest.raises(StudyError, match="nothing to pack"):
        _selection(Slow(baseline_us=1.13, wrong="static", refuted_at=64), more=[heavy]).choose()


def test_force_packs_a_variant_that_cannot_be_verified() -> None:
    """`force` packs it without a verification; otherwise it is left out."""
    stored = _Stored(verified=None)
    work = _selection(stored, force=True)
    chosen, variants, _ = work.choose()
    assert [variant.config["LENGTH"] for variant in variants] == ["runtime"]
    assert [one["verification"] for one in work.facts(chosen, variants)] == [None]
    assert stored.titles == []


@pytest.mark.parametrize(
    ("stored", "why"),
    [
        (_Stored(refuted_at=192), "wrong: it differs"),
        (_Stored(failing_edges=True), "wrong: it differs"),
        (_Stored(verified=False), "sanitizer: a race"),
        (_Stored(verified=None), "it is not verified at B=1 H=2 S=64 D=64 (sanitizer: a race)"),
    ],
)
def test_a_program_that_fails_the_gate_anywhere_is_left_out(stored: _Stored, why: str) -> None:
    """A wrong result at a held-out shape or at an edge, or no verification, removes the program; the reason is kept."""
    work = _selection(stored)
    chosen, variants, tree = work.choose()
    assert [variant.config["LENGTH"] for variant in variants] == ["static"]
    assert why in work.refuted["trial 7 of S64 with LENGTH=runtime"]
    assert summary_of(tree, work.samples_of(chosen, held_out=True)).own_share == 0.0


@pytest.mark.parametrize("length", [128, 256, 320])
def test_a_candidate_that_is_wrong_at_one_place_loses_all_its_programs(length: int) -> None:
    """LENGTH=static is another program at each length. If one is wrong, also at a held-out place, none is packed."""
    stored, lines = _Stored(refuted_at=length, wrong="static", baseline_us=1000.0), list[str]()
    work = _selection(stored, 3, lines=lines)
    chosen, variants, tree = work.choose()
    assert [variant.config["LENGTH"] for variant in variants] == ["runtime"]
    assert [line for line in lines if "left out" in line] == [
        f"trial 7 of S64 is left out: wrong: it differs at B=1 H=2 S={length} D=64"
    ]
    assert summary_of(tree, work.samples_of(chosen, held_out=True)).loss == pytest.approx(0.0)  # no wrong time is best


def test_shapes_that_were_not_sampled_need_a_general_variant() -> None:
    """Three variants could be the champions of the three sampled shapes; a sample of a distribution needs another."""
    for unseen, expected, share in ((False, ["static"] * 3, 0.0), (True, ["runtime", "static", "static"], 1.0)):
        work = _selection(_Stored(baseline_us=1000.0), 3, unseen=unseen)
        chosen, variants, tree = work.choose()
        assert sorted(variant.config["LENGTH"] for variant in variants) == expected
        assert summary_of(tree, work.samples_of(chosen, held_out=True)).own_share == share


def test_a_faster_baseline_leaves_nothing_to_pack() -> None:
    """If a baseline is faster at each shape, there is no package."""
    with pytest.raises(StudyError, match="nothing to pack"):
        _selection(_Stored(baseline_us=0.5)).choose()


class _Rounds:
    """Device whose rounds disagree with its single measurements."""

    def rounds(self, task: object, entrants: Sequence[Config | str]) -> Any:
        self.entrants = entrants
        return lambda alive, samples: [[5.0 + index] * samples for index in alive]


@pytest.mark.parametrize(("baseline_us", "entrants"), [(2.0, 4), (1.15, 6)])
def test_candidates_far_from_the_baseline_need_no_rounds(baseline_us: float, entrants: int) -> None:
    """The fastest four take part always; the others only if their ratio to the baseline is not clear."""
    device, default = _Rounds(), KERNEL.space.default()
    configs = [KERNEL.space.with_changes(default, {"MIN_BLOCKS": n}) for n in range(1, 5)]
    configs += [KERNEL.space.with_changes(default, {"UNROLL": n}) for n in (2, 4)]
    passed = {config: 1.0 + 0.01 * place for place, config in enumerate(configs)}
    entry: dict[str, Any] = {"times": {}, "baselines": {"SDPA": baseline_us}, "ratios": {}}
    _measure_rounds(device, None, passed, entry)  # type: ignore[arg-type]
    assert device.entrants == ["SDPA", *configs[:entrants]]
    assert len(entry["ratios"]) == entrants


def test_rounds_replace_the_times_of_the_fastest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates near the fastest are compared with the fastest packable baseline; stored times are kept."""
    place, device = _place(64), _Rounds()
    default = KERNEL.space.default()
    configs = [default, *(KERNEL.space.with_changes(default, {"MIN_BLOCKS": n}) for n in (2, 3))]
    timing = [SimpleNamespace(median_us=2.0)]
    baselines = [SimpleNamespace(name=name, timings=timing, error="") for name in ("SDPA", "torch.compile")]
    found = [
        SimpleNamespace(time_us=1.0, passed_gate=True, outcome=Outcome.MEASURED),
        SimpleNamespace(time_us=1.6, passed_gate=True, outcome=Outcome.MEASURED),
        SimpleNamespace(time_us=None, passed_gate=False, outcome=Outcome.WRONG, reason="it differs"),
    ]
    module = "evokern.pack.crosswise"
    monkeypatch.setattr(f"{module}.device_for", lambda record, name: device)
    monkeypatch.setattr(
        f"{module}.running_device", lambda device, task: nullcontext(SimpleNamespace(baselines=baselines))
    )
    monkeypatch.setattr(f"{module}.candidates.evaluate", lambda device, missing: found)
    monkeypatch.setattr(TrialUnderTest, "task", lambda self, strict: None)
    first, second, third = (place.program(one).config for one in configs)
    measured = CrosswiseTimes(tmp_path, ("SDPA",), lambda text: None).at(place, configs)
    assert device.entrants == ["SDPA", default]
    assert measured.times == {first: 6.0, second: 1.6}
    assert (measured.baselines, measured.refuted) == ({"SDPA": 5.0}, {third: "wrong: it differs"})
    assert measured.ratios[first] == pytest.approx((1.2, 1.2))
    assert CrosswiseTimes(tmp_path, ("SDPA",), lambda text: None, budget_s=0.0).at(place, configs) == measured


def test_no_measurement_begins_after_the_budget(tmp_path: Path) -> None:
    """The message states the budget and the next step of the work."""
    place = _place(64)
    stored = CrosswiseTimes(tmp_path, (), lambda text: None, budget_s=0.0)
    with pytest.raises(OverBudgetError, match="the budget of 0 s is used up before measuring 1 candidate at B=1 H=2"):
        stored.at(place, [KERNEL.space.default()])


def test_no_verification_begins_after_the_budget(tmp_path: Path) -> None:
    """Stored stages need no time."""
    place, config = _place(64), KERNEL.space.default()
    stored = CrosswiseTimes(tmp_path, (), lambda text: None, budget_s=0.0)
    with pytest.raises(OverBudgetError, match="before verifying 1 variant"):
        stored.verifications([(PoolCandidate(place, 7, config), place)])
    assert stored.verifications([]) == []


def test_a_verification_that_was_interrupted_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each result is reported and stored at once. The next call repeats only the variants without a result."""
    results: list[JobResult | None] = [
        JobResult(0, "done", {"stages": {"fuzz": {"state": "failed", "detail": "wrong at 3,5"}}}, 1.0),
        None,  # Ctrl-C
    ]
    begun: list[int] = []
    lines: list[str] = []

    def started(number: int, candidate: PoolCandidate, place: Place) -> Any:
        begun.append(place.problem["S"])
        return SimpleNamespace(close=lambda: None)

    def waited(pools: object, seconds: float) -> list[JobResult]:
        assert current_step() is not None and current_step()[0] == lines[0]  # type: ignore[index]
        if (found := results.pop(0)) is None:
            raise KeyboardInterrupt
        return [found]

    def verified(candidate: PoolCandidate, place: Place, stages: Mapping[str, Any]) -> Verification:
        failed = [one["detail"] for one in stages.values() if one["state"] == "failed"]
        return Verification(not failed, failed[0] if failed else "fuzz: 10 cases", 1.0)

    for name, fake in (("_started", started), ("wait", waited), ("cores", lambda: 2)):
        monkeypatch.setattr(f"evokern.pack.proofs.{name}", fake)
    monkeypatch.setattr("evokern.pack.crosswise.cores", lambda: 2)
    monkeypatch.setattr("evokern.pack.crosswise.verification_at", verified)
    places = [_place(64), _place(128), _place(256)]
    variants = [(PoolCandidate(place, 7, KERNEL.space.default()), place) for place in places]
    with pytest.raises(KeyboardInterrupt):
        CrosswiseTimes(tmp_path, (), lines.append).verifications(variants)
    assert lines == [
        "verifying 3 variants, 2 at a time",
        "verification 1 of 3: trial 7 of S64 at B=1 H=2 S=64 D=64: refuted (wrong at 3,5)",
    ]
    assert begun == [64, 128, 256]
    begun.clear()
    lines.clear()
    results[:] = [
        JobResult(1, "overran", 210.0, 210.0),
        JobResult(0, "done", {"stages": {"fuzz": {"state": "passed", "detail": "10 cases"}}}, 1.0),
    ]
    stored = CrosswiseTimes(tmp_path, (), lines.append)
    assert [one.verified for one in stored.verifications(variants)] == [False, True, None]
    assert begun == [128, 256]
    assert lines == [
        "verifying 2 variants, 2 at a time",
        "verification 1 of 2: trial 7 of S256 at B=1 H=2 S=256 D=64: not verified (the verifying process "
        "failed (no result within 210 s))",
        "verification 2 of 2: trial 7 of S128 at B=1 H=2 S=128 D=64: passed",
    ]
    results[:] = [JobResult(0, "done", {"stages": {}}, 1.0)]
    lines.clear()
    assert stored.verifications(variants)[2].verified
    assert lines == ["verifying 1 variant", "verification 1 of 1: trial 7 of S256 at B=1 H=2 S=256 D=64: passed"]
    refuted = {"stages": {"fuzz": {"state": "failed", "detail": "a new check"}}}
    results[:] = [JobResult(at, "done", refuted, 1.0) for at in (0, 1, 2)]
    begun.clear()
    lines.clear()
    monkeypatch.setattr("evokern.pack.crosswise.__version__", "later")
    later = CrosswiseTimes(tmp_path, (), lines.append).verifications(variants)
    assert [one.reason for one in later] == ["a new check"] * 3, "results of another version's checks do not count"
    assert begun == [64, 128, 256]
