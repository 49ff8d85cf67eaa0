"""A study file is validated whole: unknown keys, wrong types and bad values are named with the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evokern.analysis.check.study_soundness import require_sound
from evokern.errors import StudyError
from evokern.study.file import read_study
from evokern.study.options import parse_duration
from evokern.wording import duration

GOOD = """
kernel = "attention"
problems = ["2,8,512,64"]
budget = "1h30m"
seed = 7
[sampler]
name = "evo"
elites = 4
[genes]
TENSOR_CORES = ["wmma"]
[limits]
chip = "l4"
[timing]
cache = "flush"
[gate]
input_sets = ["normal"]
"""


def _read(tmp_path: Path, text: str) -> object:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return read_study(path)


def test_a_whole_study_reads(tmp_path: Path) -> None:
    """Every table arrives in its record."""
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    study = read_study(path)
    assert (study.name, study.kernel, study.budget_s, study.seed) == ("mine", "attention", 5400.0, 7)
    assert study.sampler.options == {"elites": 4}
    assert study.genes == {"TENSOR_CORES": ("wmma",)}
    assert (study.limits, study.timing.cache, study.gate.input_sets) == ({"chip": "l4"}, "flush", ("normal",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('kernal = "a"\n', "unknown key 'kernal': did you mean 'kernel'"),
        ('kernel = "a"\n', "lacks the key 'problems'"),
        ('kernel = "a"\nproblems = []\n', "has no problem"),
        ('kernel = "a"\nproblems = "1"\nbudget = "2x"\n', "'2x' is not a duration"),
        ('kernel = "a"\nproblems = "1"\nbudget = 2\n', 'budget = 2 has no unit; use, for example, budget = "2h"'),
        ('kernel = "a"\nproblems = "1"\nbudget = 1.5\n', "budget = 1.5 has no unit"),
        ('kernel = "a"\nproblems = "1"\nbudget = "2"\n', "budget: '2' has no unit; use, for example, 2h"),
        ('kernel = "a"\nproblems = "1"\nbudget = "0m"\n', "'0m' is not a positive duration"),
        ('kernel = "a"\nproblems = "1"\nbudget = true\n', "True is not a duration"),
        ('kernel = "a"\nproblems = "1"\nseed = "x"\n', "seed is 'x'; it must be an integer"),
        ('kernel = "a"\nproblems = "1"\ntrials = 0\n', "trials = 0; use at least 1"),
        ('kernel = "a"\nproblems = "1"\n[timing]\ncash = 1\n', "unknown key 'timing.cash': did you mean 'cache'"),
        ('kernel = "a"\nproblems = "1"\n[timing]\ncache = "cold"\n', "timing.cache = 'cold'"),
        ('kernel = "a"\nproblems = "1"\n[gate]\nprecision = "f23"\n', "gate.precision = 'f23': did you mean 'f32'?"),
        (
            'kernel = "a"\nproblems = "1"\n[gate]\nprecision = "f32"\natol = 0.1\n',
            "which gate.atol",
        ),
        ('kernel = "a"\nproblems = "1"\n[gate]\natol = -1.0\n', "gate.atol = -1.0 is not a tolerance"),
        ('kernel = "a"\nproblems = "1"\n[gate]\ninput_sets = ["nromal"]\n', "did you mean 'normal'"),
        ('kernel = "a"\nproblems = [\n', "is not valid TOML"),
        ("kernel = matmul\n", "(at line 1, column 10); quote text, as in kernel = "),
        ('kernel = 3\nproblems = "1"\n', "kernel is 3; it must be a string"),
        (
            'kernel = "a"\nproblems = "1"\n[gate]\ninput_sets = [1, 2]\n',
            "gate.input_sets is [1, 2]; it must be",
        ),
        (
            'kernel = "a"\nproblems = "1"\n[gate]\ninput_sets = "normal"\n',
            "gate.input_sets is 'normal'; it must be",
        ),
        ('kernel = "a"\nproblems = "1"\n[gate]\nruns = true\n', "gate.runs is True; it must be an integer"),
        ('kernel = "a"\nproblems = "1"\n[gate]\nruns = 1000000000\n', "gate.runs = 1000000000; use 1 to 1000"),
        ('kernel = "a"\nproblems = "1"\n[timing]\ncache = -1\n', "timing.cache is -1; it must be a string"),
        ('kernel = "a"\nproblems = "1"\n[timing]\nrace = nan\n', "timing.race = nan; use a finite number"),
        ('kernel = "a"\nproblems = "1"\n[timing]\nhang_s = inf\n', "timing.hang_s = inf; use a finite number"),
        (
            'kernel = "a"\nproblems = "1"\nseed = 9223372036854775808\n',
            "seed is a number of 64 bits",
        ),
        (f'kernel = "a"\nproblems = "1"\nseed = {10**400}\n', "seed is a number of 1329 bits; use at most 63"),
        (f'kernel = "a"\nproblems = "1"\nseed = {"9" * 5000}\n', "is not valid TOML: Exceeds the limit"),
        (f'kernel = "a"\nproblems = [{{N = {10**400}}}]\n', "problems.N is a number of 1329 bits"),
        (f'kernel = "a"\nproblems = {"[" * 5000}{"]" * 5000}\n', "nests tables or lists too deeply"),
        ('kernel = "a"\nproblems = "1"\nbudget = "' + "9" * 400 + 'h"\n', "is longer than 100 years"),
        (
            'kernel = "a"\nproblems = "1"\nseed = 1979-05-27\n',
            "seed is datetime.date(1979, 5, 27); it must be an integer",
        ),
    ],
)
def test_each_mistake_is_named(tmp_path: Path, text: str, message: str) -> None:
    """The message says which key, which value, and what is wanted."""
    with pytest.raises(StudyError) as caught:
        _read(tmp_path, text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("sampler", "told"),
    [
        ('name = "tpe"\nn_startup_trials = "ten"', "n_startup_trials = 'ten'; use a whole number from 0 to 1000000"),
        ('name = "tpe"\nn_startup_trials = 1.5', "n_startup_trials = 1.5; use a whole number"),
        ('name = "tpe"\nmultivariate = 1', "multivariate = 1; use true or false"),
        ('name = "tpe"\nprior_weight = [1.0]', "prior_weight = [1.0]; use a number"),
        ('name = "tpe"\ngamma = 3', "gamma = 3 is not allowed"),
        ('name = "tpe"\nn_ei_candidates = -1', "n_ei_candidates = -1; use a whole number from 0"),
        ('name = "nsga2"\npopulation_size = 4000000000', "population_size = 4000000000; use a whole number from 0"),
        ('name = "nsga2"\nmutation_prob = "high"', "mutation_prob = 'high'; use a number"),
        ('name = "random"\nguard = "no"', "guard = 'no'; use true or false"),
        ('name = "evo"\nelites = 4', "sampler evo has no option 'elites'"),
    ],
)
def test_sampler_options_have_types(tmp_path: Path, sampler: str, told: str) -> None:
    """A value that would fail at some later proposal is refused before anything is searched, and in `list`."""
    path = tmp_path / "mine.toml"
    path.write_text(f'kernel = "a"\nproblems = "1"\ndevice = "replay:x.json"\n[sampler]\n{sampler}\n')
    with pytest.raises(StudyError) as caught:
        require_sound(read_study(path))
    assert told in str(caught.value)


def test_a_byte_order_mark_is_no_key(tmp_path: Path) -> None:
    """Editors on Windows write one; other encodings are named."""
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert "attention" == read_study(path).kernel
    path.write_bytes(GOOD.encode("utf-16"))
    with pytest.raises(StudyError, match="is not UTF-8 text"):
        read_study(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The path that could not be read stands in the message."""
    with pytest.raises(StudyError, match=r"cannot read study .*absent\.toml"):
        read_study(tmp_path / "absent.toml")


@given(st.integers(0, 99), st.integers(0, 59), st.integers(1, 59))
def test_durations_add_up(hours: int, minutes: int, seconds: int) -> None:
    """Any mixture of hours, minutes and seconds reads as their sum."""
    assert parse_duration(f"{hours}h{minutes}m{seconds}s") == 3600 * hours + 60 * minutes + seconds


@pytest.mark.parametrize(("seconds", "said"), [(45, "45 s"), (75, "1 min 15 s"), (720, "12 min"), (5400, "1 h 30 min")])
def test_a_duration_reads_as_it_is_printed(seconds: int, said: str) -> None:
    """What a page or a terminal says of a time can be given back."""
    assert duration(seconds) == said
    assert parse_duration(said) == seconds


@pytest.mark.parametrize("given", ["0", "0s", "0h0m", 0, -3, float("nan")])
def test_a_time_is_longer_than_nothing(given: str | float) -> None:
    """A time of zero is called what it is, with examples of a longer one, however it was written."""
    with pytest.raises(StudyError, match=r"is not a positive duration; use, for example, 2h"):
        parse_duration(given)


def test_a_number_is_seconds_only_in_python() -> None:
    """A number given from Python is seconds; the same digits as text are refused, since most mean hours by them."""
    assert parse_duration(2) == 2.0
    with pytest.raises(StudyError, match=r"^'2' has no unit; use, for example, 2h, 2m or 2s$"):
        parse_duration("2")


def test_the_example_has_the_kernel_s_fields(tmp_path: Path) -> None:
    """A study without problems gets an example for its kernel, whose code is not run."""
    (tmp_path / "studies").mkdir()
    (tmp_path / "kernels" / "own").mkdir(parents=True)
    (tmp_path / "kernels" / "own" / "kernel.py").write_text('raise SystemExit\nProblemField("ROWS"), ProblemField("C")')
    path = tmp_path / "studies" / "own.toml"
    for text, fault in (("problems = []", "study own has no problem"), ("", "lacks the key 'problems'")):
        path.write_text(f'kernel = "own"\n{text}\n')
        with pytest.raises(StudyError, match=fault) as told:
            read_study(path)
        assert 'problems = ["ROWS=1024 C=1024"]' in str(told.value)
    path.write_text('kernel = "other"\n')
    with pytest.raises(StudyError, match="FIELD=1024"):
        read_study(path)
