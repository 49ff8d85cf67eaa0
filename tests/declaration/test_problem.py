"""Problems in words: what people read is what they type, names mean something, and stored keys stay."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evokern.declaration.problem import Problem, ProblemField, Value, meanings_of, parse_problems, problem_of, words_of
from evokern.errors import KernelError

FIELDS = (
    ProblemField("B", doc="batch"),
    ProblemField("S", most=4096, doc="sequence length"),
    ProblemField("causal", (0, 1), 0),
    ProblemField("dtype", ("f16", "bf16"), "f16"),
    ProblemField("order", ("by rows", "by columns"), "by rows", later=True),
)


def of(text: str) -> Problem:
    return problem_of("k", FIELDS, text)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Return any problem of fields of any kind, under names of any case."""
    names = draw(st.lists(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,6}", fullmatch=True), min_size=1, max_size=5,
                          unique_by=str.lower))  # fmt: skip
    words = st.lists(st.from_regex(r"[a-z]+[0-9]*( [a-z]+)?", fullmatch=True), min_size=1, max_size=3, unique=True)
    fields, values = [], {}
    for place, name in enumerate(names):
        choices = tuple(draw(st.one_of(words, st.just([]), st.just([0, 1])))) if place else ()
        values[name] = draw(st.sampled_from(choices)) if choices else draw(st.integers(1, 9000))
        default = draw(st.sampled_from([None, values[name], choices[0] if choices else 7])) if place else None
        fields.append(ProblemField(name, choices, default))
    fields.sort(key=lambda entry: entry.default is not None)
    return problem_of("k", fields, values)


@given(problems())
def test_what_people_read_is_what_they_type(problem: Problem) -> None:
    """Words, short or full, however they are set apart and ordered, are read as the same problem, and so is its key."""
    # The fields again, as the problem has them: numbers of any size, and the values of choices.
    fields = [
        ProblemField(name, () if isinstance(value, int) else (value,), problem._defaults.get(name), least=0)
        for name, value in problem.items()
    ]
    full = problem.in_words(every=True)
    assert full == " ".join(f"{name}={value}" for name, value in problem.items())
    assert str(problem) == problem.in_words()
    parts = [f"{name}={value}" for name, value in problem.items()]
    for text in (full, str(problem), problem.key, ", ".join(reversed(parts)), ",".join(parts).lower()):
        assert problem_of("k", fields, text) == problem


def test_fields_at_their_default_are_left_out_of_the_short_form() -> None:
    """What is left names the call; where nothing would be left, all is told."""
    assert str(of("2,512")) == "B=2 S=512"
    assert str(of("2,512,1,bf16")) == "B=2 S=512 causal=1 dtype=bf16"
    assert of("2,512").in_words(every=True) == "B=2 S=512 causal=0 dtype=f16 order=by rows"
    assert str(of("2,512").changed({"S": 7, "causal": 1})) == "B=2 S=7 causal=1"
    assert str(problem_of("k", FIELDS[2:4], "")) == "causal=0 dtype=f16"
    assert str(Problem({"recorded": "table"})) == "recorded=table"


def test_keys_stay_as_they_were() -> None:
    """The identity in databases and draws: numbers bare, words named, a later field at its default left out."""
    assert [of(text).key for text in ("S=512 B=2", "2,512,order=by columns")] == [
        "2,512,0,dtype=f16",
        "2,512,0,dtype=f16,order=by columns",
    ]
    again = pickle.loads(pickle.dumps(of("2,512")))
    assert (again.key, str(again), again) == ("2,512,0,dtype=f16", "B=2 S=512", of("2,512"))


@pytest.mark.parametrize("text", ["b=2 s=512 CAUSAL=1", "S = 512,B=2 causal=true", "2, 512, causal=1", "2,S=512,1"])
def test_names_are_taken_in_any_case_and_order(text: str) -> None:
    """Blanks or commas set parts apart, beside values in the order of the fields."""
    assert of(text) == of("2,512,1")


def test_a_choice_may_hold_blanks() -> None:
    """Blanks end a value only before the next name."""
    assert of("order=by columns B=2 S=3")["order"] == "by columns"


@pytest.mark.parametrize("given", ["2,512", "2,512,dtype=bf16", {"B": 2, "S": 512, "dtype": "bf16"}])
def test_a_studys_dtype_is_that_of_its_problems(given: str | dict[str, Value | bool]) -> None:
    """It holds for problems that name none or the same."""
    (found,) = parse_problems("k", FIELDS, [given], "bf16")
    assert found["dtype"] == "bf16"
    assert parse_problems("k", FIELDS, [given], " bf16 ") == (found,)


@pytest.mark.parametrize("given", ["2,512,dtype=f16", "2,512,0,f16", {"B": 2, "S": 512, "dtype": "f16"}])
def test_a_problem_that_names_another_dtype_is_refused(given: str | dict[str, Value | bool]) -> None:
    """Neither silently wins."""
    with pytest.raises(KernelError, match=r"dtype = 'bf16', but the problem .* f16"):
        parse_problems("k", FIELDS, [given], "bf16")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("B=2 S=512 T=3", "k has no problem field 'T': .*causal"),
        ("B=2 S=512 cusal=1", "did you mean 'causal'"),
        ("B=2 S=512 s=8", "k: the problem sets S twice, to 512 and 8"),
        ("2,512,B=3", "sets B twice, to 2 and 3"),
        ("S=512 2", "S='512 2' is not a whole number"),
        ("B=2", "k: the problem has no value for S; fields: B, S, causal"),
        (
            "2,512,0,f16,by rows,7",
            "problem '2,512,0,f16,by rows,7' has more values than fields.* B, S, causal",
        ),
        ("B=2 S=5000", "S=5000 is out of range; use 1 to 4096"),
    ],
)
def test_what_is_no_problem_is_said(text: str, message: str) -> None:
    """Unknown names, fields given twice, missing ones, values that are none: each is named, with what there is."""
    with pytest.raises(KernelError, match=message):
        of(text)
    with pytest.raises(KernelError, match="sets S twice"):
        problem_of("k", FIELDS, {"B": 2, "S": 512, "s": 512})


def test_a_stored_problem_is_told_by_the_fields_it_was_stored_with() -> None:
    """Without fields, and where they are not its own, its key is all that is known."""
    assert words_of(FIELDS, "2,512,1,dtype=f16") == "B=2 S=512 causal=1"
    assert words_of(FIELDS, "2,512,0,dtype=f16", every=True) == str(of("2,512").in_words(every=True))
    assert words_of((), "2,512,1,dtype=f16") == "2,512,1,dtype=f16"
    assert words_of(FIELDS, "2,512,1,dtype=e4m3") == "2,512,1,dtype=e4m3"
    assert meanings_of(FIELDS, "2,512,1")[:3] == (("B", 2, "batch"), ("S", 512, "sequence length"), ("causal", 1, ""))
    assert meanings_of((), "2,512,1") == ()
