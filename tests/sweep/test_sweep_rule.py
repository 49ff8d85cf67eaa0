"""Which study of a sweep goes on next, and how far."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from evokern.study.settings import Study
from evokern.sweep import Journal, PlannedStudy, StudyState, SweepSlice
from evokern.sweep.rule import next_slice_end, next_study

HERE = Path("nowhere")


def planned(name: str, device: str = "replay:a", weight: float = 1.0, trials: int | None = 500) -> PlannedStudy:
    return PlannedStudy(Study(name, "matmul", ("1,2,3",), device=device, trials=trials), "1,2,3", weight)


def over(study: str, before_us: float | None, after_us: float | None, seconds: float = 10.0) -> SweepSlice:
    return SweepSlice(study, 0, 32, "", before_us, 0.0, after_us, seconds)


def chosen(studies: list[PlannedStudy], slices: list[SweepSlice], **changes: StudyState) -> str:
    states = {one.name: StudyState(one.name, HERE, "begun") for one in studies} | changes
    return next_study(studies, states, Journal(HERE, None, tuple(slices)))[0].name


FLAT = [over("a", None, 9.0), over("a", 9.0, 9.0), over("b", None, 9.0), over("b", 9.0, 9.0)]


def test_each_study_has_two_slices_first() -> None:
    """In the sweep's order, however much another one promises."""
    studies = [planned("a"), planned("b")]
    assert chosen(studies, []) == "a"
    assert chosen(studies, [over("a", None, 9.0)]) == "a"
    assert chosen(studies, [over("a", None, 9.0), over("a", 9.0, 1.0)]) == "b"


def test_then_the_greatest_improvement_per_second_goes_on() -> None:
    """Of the last slice alone, times the weight: log(9/8)/10 s is less than log(9/8)/5 s, and more at weight 3."""
    fast = [*FLAT, over("a", 9.0, 8.0, 10.0), over("b", 9.0, 8.0, 5.0)]
    assert chosen([planned("a"), planned("b")], fast) == "b"
    assert chosen([planned("a", weight=3.0), planned("b")], fast) == "a"
    assert chosen([planned("a"), planned("b")], [*fast, over("b", 8.0, 8.0)]) == "a"


def test_the_first_right_candidate_promises_most() -> None:
    """A study that had none before is ahead of any ratio; one that has none yet promises nothing."""
    studies = [planned("a"), planned("b")]
    assert chosen(studies, [*FLAT, over("a", 9.0, 1.0), over("b", None, 9.0)]) == "b"
    assert chosen(studies, [*FLAT, over("a", 9.0, 8.9), over("b", None, None)]) == "a"


def test_of_equals_the_one_with_the_fewest_trials_goes_on() -> None:
    """Then the first."""
    studies = [planned("a"), planned("b")]
    assert chosen(studies, FLAT) == "a"
    assert chosen(studies, FLAT, a=StudyState("a", HERE, "begun", 64), b=StudyState("b", HERE, "begun")) == "b"


def test_a_source_comes_first() -> None:
    """The first study of a kernel and a device goes on to its end, so that the others have something to begin with."""
    studies = [planned("a", "sim:l4"), planned("b", "sim:l4"), planned("c", "sim:h200"), planned("d", "sim:h200")]
    slices = [over("a", None, 9.0), over("a", 9.0, 9.0)]
    assert chosen(studies, slices) == "a"
    done = StudyState("a", HERE, "finished", 500, best_us=9.0)
    assert chosen(studies, slices, a=done) == "c"
    assert chosen(studies, slices, a=done, c=replace(done, name="c", state="unverified")) == "b"


def test_a_study_without_an_end_is_a_source_after_two_slices() -> None:
    """It would never be searched to its end: only the sweep's budget ends it."""
    studies = [planned("a", "sim:l4", trials=None), planned("b", "sim:l4", trials=None)]
    assert chosen(studies, [over("a", None, 9.0)]) == "a"
    assert chosen(studies, [over("a", None, 9.0), over("a", 9.0, 2.0)]) == "b"


def test_nothing_is_waited_for_where_studies_begin_cold() -> None:
    """With --warm-start none the rule of sources is left out."""
    studies = [planned("a", "sim:l4"), planned("b", "sim:l4")]
    states = {one.name: StudyState(one.name, HERE, "begun") for one in studies}
    journal = Journal(HERE, None, (over("a", None, 9.0), over("a", 9.0, 1.0)))
    assert next_study(studies, states, journal, warm=False)[0].name == "b"


@pytest.mark.parametrize(
    ("evaluated", "limit", "end"),
    [
        (0, None, 32),
        (31, None, 32),
        (32, None, 64),
        (70, None, 128),
        (0, 12, None),
        (32, 64, None),
        (32, 128, None),
        (32, 129, 64),
    ],
)
def test_slices_end_at_fixed_numbers_of_trials(evaluated: int, limit: int | None, end: int | None) -> None:
    """At 32, 64, 128 …, whatever was recorded when; the study's own number ends its last one."""
    assert next_slice_end(planned("a", trials=limit), evaluated) == end
