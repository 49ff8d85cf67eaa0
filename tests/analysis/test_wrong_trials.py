"""What `show` and `search` say of wrong answers: narrow misses, a default candidate that is wrong, real examples."""

from __future__ import annotations

import pytest

from evokern.analysis.no_success import hints
from evokern.declaration.genes import Config, Parameter
from evokern.report.trial_counts import reasons
from evokern.study.trial import Evaluation, Outcome, Proposal, Trial
from evokern.wording import command, distinguishing_digits

GENES = (Parameter("TILE", (1, 2, 3, 4)),)


def _wrong(number: int, tile: int, **evidence: object) -> Trial:
    found = {"check": "tolerance", "input_set": "normal", "got": 1.0, "expected": 3.0, **evidence}
    return Trial(number, Proposal(Config({"TILE": tile})), Evaluation(Outcome.WRONG, evidence=found))


def test_narrow_misses_point_to_the_tolerance() -> None:
    """Where most wrong trials miss by few elements just beyond the tolerance, that is said, with a real one."""
    narrow = [_wrong(n, 2, over=1.3, bad=2, elements=65536) for n in (3, 4)]
    far = _wrong(5, 3, over=900.0, bad=2, elements=65536)
    (told,) = hints("my kernel", GENES, [*narrow, far])
    assert told.startswith("2 of 3 wrong trials exceed the tolerance only slightly")
    assert "trial 3: 2 of 65,536 elements, the worst at 1.3 × the tolerance" in told
    assert "`evokern check 'my kernel'`" in told
    assert hints("k", GENES, [narrow[0], far, far]) == []
    (told,) = hints("k", GENES, [_wrong(n, 2, check="margin", over=0.632) for n in (3, 4)])
    assert "trial 3: correct, but at 0.632 × the tolerance" in told
    (told,) = hints("k", GENES, [_wrong(n, 2, over=1.3, bad=2, elements=65536, limit="bound") for n in (3, 4)])
    assert "exceed the bound only slightly" in told and "the worst at 1.3 × the bound" in told
    assert "tolerance" not in told


def test_a_gene_whose_other_values_always_fail_is_named() -> None:
    """A trial that changes one gene decides; without one, the genes that most failures share are suspects."""
    genes = (Parameter("TILE", (1, 2, 3, 4)), Parameter("BLOCK", (32, 64)))

    def trial(number: int, tile: int, block: int, outcome: Outcome) -> Trial:
        measured = outcome is Outcome.MEASURED
        evidence = {"check": "tolerance", "got": 1.0, "expected": 3.0} if outcome is Outcome.WRONG else {"error": "x"}
        made = Evaluation(outcome, 1.0 if measured else None, evidence={} if measured else evidence)
        return Trial(number, Proposal(Config({"TILE": tile, "BLOCK": block})), made)

    right, wrong, crashed = Outcome.MEASURED, Outcome.WRONG, Outcome.CRASHED
    default = trial(0, 1, 32, right)
    (told,) = hints("k", genes, [default, trial(1, 1, 64, right), trial(2, 2, 32, wrong), trial(3, 3, 64, crashed)])
    assert told.startswith("all 2 trials with other values of TILE fail (trial 2 changes nothing else)")
    assert told.endswith("check that the code and the launch use TILE everywhere, or give it one value")
    (told,) = hints("k", genes, [default, trial(1, 4, 64, wrong), trial(2, 2, 64, wrong), trial(3, 3, 32, wrong)])
    assert told.startswith("only the default candidate is right; all 3 others have other values of TILE and fail (tr")
    (told,) = hints("k", genes, [default, trial(1, 4, 64, wrong), trial(2, 2, 64, wrong)])
    assert "other values of TILE or BLOCK and fail: the code" in told and told.endswith("or give each one value")
    assert not hints("k", genes, [default, trial(1, 2, 32, wrong)])
    assert not hints("k", genes, [default, trial(1, 2, 32, wrong), trial(2, 2, 64, wrong), trial(3, 2, 32, right)])
    assert not hints("k", genes, [trial(1, 2, 32, wrong), trial(2, 3, 64, wrong)])


@pytest.mark.parametrize(
    ("evidence", "narrow"),
    [
        ({"over": 1.3, "bad": 600, "elements": 65536}, True),
        ({"over": 1.3, "bad": 700, "elements": 65536}, False),
        ({"over": 1.3, "bad": 8, "elements": 9}, True),
        ({"over": 5.0, "bad": 1, "elements": 65536}, False),
        ({"over": "inf", "bad": 9, "elements": 9, "got": 6.2049942017, "expected": 6.2049942079}, True),
        ({"over": "nan", "bad": 9, "elements": 9, "got": "nan"}, False),
        ({"over": 35.0, "bad": 9, "elements": 9, "got": 560.0, "expected": 558.004, "dtype": "bf16"}, True),
        ({"over": 35.0, "bad": 9, "elements": 9, "got": 560.0, "expected": 558.004, "dtype": "f16"}, False),
        ({"over": "inf", "bad": 9, "elements": 9, "got": 5.82812, "expected": 5.82975, "dtype": "f16"}, True),
        ({"check": "guard"}, False),
        ({"check": "margin", "over": 0.9}, True),
    ],
)
def test_what_counts_as_a_narrow_miss(evidence: dict[str, object], narrow: bool) -> None:
    """Few elements just beyond what is allowed, or errors of a few roundings whatever is allowed; nothing else."""
    assert bool(hints("k", GENES, [_wrong(n, 2, **evidence) for n in (0, 1)])) is narrow


@pytest.mark.parametrize(
    ("evidence", "suspect"),
    [
        ({"over": 1.3, "bad": 1, "elements": 64}, "the tolerance"),
        ({"over": 99.0, "bad": 64, "elements": 64}, "the declaration before the kernel: the reference"),
        ({"over": 99.0, "bad": 64, "elements": 64, "message": "y[3] was never written; 9 elements"}, "the grid"),
        ({"input_set": "large", "got": "inf", "bad": 64, "elements": 64}, "the range of values: large inputs fail"),
        ({"input_set": "large", "got": 65504.0, "dtype": "f16", "over": 9.0}, "the range of values: large inputs fail"),
        ({"input_set": "large", "over": 99.0, "bad": 64, "elements": 64}, "the precision of the accumulator"),
        ({"input_set": "large", "over": 99.0, "failed_sets": ["normal", "large"]}, "the declaration before the kernel"),
        ({"input_set": "denormal", "over": 99.0, "bad": 64, "elements": 64}, "the handling of subnormal numbers"),
        ({"check": "sanitizer:shared_race"}, "the kernel at that line"),
        ({"check": "sanitizer:input_write"}, "the order of the launch's args"),
        ({"check": "own_problem"}, "the kernel: the small problems passed, so suspect a late round"),
        ({"check": "sampled_blocks"}, "the kernel: the small problems passed"),
        ({"check": "guard"}, "a missing bounds check"),
        ({"check": "inputs_unchanged"}, "the order of the launch's args"),
        ({"check": "repeat"}, "state that persists between calls"),
        ({"check": "state"}, "variables that a call changes"),
        ({"check": "floor"}, "the workload's flops and bytes"),
    ],
)
def test_a_wrong_default_says_what_to_suspect(evidence: dict[str, object], suspect: str) -> None:
    """When the default candidate is wrong, what to look at first is named by what the gate found."""
    assert any(
        told.startswith("the default candidate is wrong (trial 0); suspect " + suspect)
        for told in hints("k", GENES, [_wrong(0, 1, **evidence)])
    )
    assert not any("default" in told for told in hints("k", GENES, [_wrong(0, 2, **evidence)]))


def test_each_reason_is_told_as_one_trial_has_it() -> None:
    """Reasons that differ in numbers alone are one reason, with the words and the number of its first trial."""
    found = reasons([_wrong(n, 1, message=f"y[{n}, 7] is {n}.5, expected nan within 0.{n}") for n in (9, 4, 6)])
    assert [(one.example, one.trial, one.count) for one in found] == [("y[4, 7] is 4.5, expected nan within 0.4", 4, 3)]


@pytest.mark.parametrize(
    ("got", "expected", "shown"),
    [
        (1.38761, 1.38762, ("1.387610", "1.387620")),
        (1.3876000001, 1.3876, ("1.38760000010", "1.3876")),
        (2.0, 2.0, ("2", "2")),
        (float("nan"), 2.0, ("nan", "2")),
        (5.0, 0.0, ("5", "0")),
    ],
)
def test_numbers_that_differ_read_differently(got: float, expected: float, shown: tuple[str, str]) -> None:
    """A wrong element never reads like the value that was expected."""
    told = distinguishing_digits(got, expected)
    assert tuple(map(float, told)) == pytest.approx(tuple(map(float, shown)), nan_ok=True)
    assert (told[0] == told[1]) is (got == expected)


def test_command_lines_are_quoted() -> None:
    """A name or path with a blank is one word of the line that is printed."""
    assert command("show", "my study", "--db", "a b/runs.db") == "evokern show 'my study' --db 'a b/runs.db'"
