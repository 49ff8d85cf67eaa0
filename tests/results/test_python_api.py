"""The Python API: the page's examples run, names are exported, and mistakes are explained."""

from __future__ import annotations

import doctest
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_helpers import small_table, study
from paths import ROOT
from stored_studies import write_study

import evokern
from evokern.device.recorded.table import TableDevice
from evokern.study.discovery import find_kernel

PAGE = (ROOT / "docs" / "python-api.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"\b\d+(\.\d+)?\b")
EIGHT_TRIALS = {'budget="10m")': 'budget="10m", trials=8)', "trials=20": "trials=8"}
"""Changes of the page's searches that shorten them."""
SMALL = {
    "trials=8": "trials=8, verify=False", ", verified>": ", not verified>", "ROWS=4096 COLS=4096": "ROWS=16 COLS=256",
}  # fmt: skip
"""Further changes for the fast test, which searches attention at a small problem."""


class _Shapes(doctest.OutputChecker):
    """Checker that accepts other numbers and other spaces."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        plain = [NUMBER.sub("0", text) for text in (want, got)]
        return super().check_output(*plain, optionflags | doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)


def _run_page(changes: dict[str, str]) -> None:
    """Run the examples of the page as one doctest."""
    pytest.importorskip("pandas")
    pytest.importorskip("plotly")
    text = "\n".join(re.findall(r"^```pycon\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    told: list[str] = []
    runner = doctest.DocTestRunner(_Shapes(), verbose=False)
    failures = runner.run(doctest.DocTestParser().get_doctest(text, {}, "python-api.md", None, 0), out=told.append)
    assert "".join(told) == ""
    assert failures.attempted >= 14


@pytest.mark.thorough
def test_the_page_runs_as_a_doctest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All examples work on the simulated L4, with eight trials and small problems."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "studies").mkdir()
    small = 'kernel = "attention"\nproblems = ["B=1 H=1 S=64 D=64"]\ndevice = "sim:l4"\n'
    (tmp_path / "studies" / "attention-s512.toml").write_text(small + '[gate]\ninput_sets = ["normal"]\n')
    sim = {'kernel="rmsnorm", ': 'kernel="rmsnorm", device="sim:l4", '}
    monkeypatch.setattr(evokern.Study, "__repr__", _without_device(evokern.Study.__repr__))
    _run_page({**EIGHT_TRIALS, **SMALL, **sim})


def _without_device(shown: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda record: shown(record).replace(", device='sim:l4'", "")


@pytest.mark.slow
def test_the_page_runs_on_its_own_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All examples work as they are written, with eight trials per search, on the device of this machine."""
    monkeypatch.chdir(tmp_path)
    _run_page(EIGHT_TRIALS)


def _named(annotation: Any) -> Iterator[Any]:
    """Yield evokern's classes in an annotation, and its aliases as far as they still exist at run time."""
    if inspect.isclass(annotation) and annotation.__module__.startswith("evokern"):
        yield annotation
    for part in typing.get_args(annotation):
        yield from (one for each in (part if isinstance(part, list) else [part]) for one in _named(each))


def test_what_a_signature_names_is_exported() -> None:
    """Each class in a signature of `search`, `resume` and of the objects that they return is `evokern.NAME`."""
    hints = [typing.get_type_hints(one) for one in (evokern.search, evokern.resume)]
    hints += [typing.get_type_hints(one) for one in (evokern.Study, evokern.Evaluation, evokern.Progress)]
    found = {one for each in hints for annotation in each.values() for one in _named(annotation)}
    assert {"Study", "SearchResult", "Device", "RayRequest", "Trial", "GateSettings"} <= {one.__name__ for one in found}
    assert [one.__name__ for one in found if getattr(evokern, one.__name__, None) is not one] == []
    assert [name for name in evokern.__all__ if not hasattr(evokern, name)] == []


def test_options_are_described_once() -> None:
    """`help` of a search describes each argument, and the command line has the same options."""
    for function in (evokern.search, evokern.resume):
        section = (function.__doc__ or "").partition("Args:")[2].partition("Returns:")[0]
        assert re.findall(r"^    (\w+): ", section, re.MULTILINE) == [*inspect.signature(function).parameters]


def test_reprs_are_short(tmp_path: Path) -> None:
    """The repr of each object takes at most two lines of 120 columns."""
    found = evokern.search(study(), db=tmp_path / "a.db", device=TableDevice(small_table()), trials=8)
    stored = evokern.load_study(db=tmp_path / "a.db")
    gate = evokern.Study("a", "k", "N=1", gate={"runs": 3}, sampler="tpe")  # type: ignore[arg-type]
    kernel, source = find_kernel("attention"), evokern.SourceResult("a.cu", stored.trials[0].evaluation, False)
    more = (stored.best, *evokern.list_studies(tmp_path / "a.db"), study(), gate, kernel, source, source.evaluation)
    for one in (stored, *stored, *more):
        assert len(repr(one)) <= 240
    assert repr(stored.trials[0]).startswith("Trial(number=0, outcome='")
    assert repr(found).startswith("<study 'small' of ")
    assert (found.best_params, found.best_time_us) == (dict(found.best.config), found.best.time_us)  # type: ignore[union-attr]


def test_callbacks_see_each_trial_once_recorded(tmp_path: Path) -> None:
    """Callbacks get the stored study, which contains the trial; an exception ends the search and loses no trial.

    Trials that were recorded together with the one of the exception are not passed.
    """
    seen: list[int] = []

    def watch(stored: evokern.StudyResults, trial: evokern.Trial) -> None:
        assert trial.number in [one.number for one in stored]
        seen.append(trial.number)
        if len(seen) == 5:
            raise ZeroDivisionError

    def again(**more: Any) -> evokern.SearchResult:
        return evokern.search(study(), db=tmp_path / "a.db", device=TableDevice(small_table()), trials=12, **more)

    with pytest.raises(ZeroDivisionError):
        again(callbacks=[watch])
    assert len(seen) == 5
    found = again(callbacks=(lambda _study, trial: seen.append(trial.number),))
    numbers = [trial.number for trial in found]
    assert len(numbers) == 12 and set(seen) <= set(numbers) and len(set(seen)) == len(seen) >= 8


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        (lambda db: evokern.search("small", db=db, budget="soon"), "budget = 'soon' is not a duration"),
        (lambda db: evokern.search("small", db=db, extend="5"), "extend = '5' has no unit; use, for example, 5h"),
        (lambda db: evokern.search("small", db=db, trials="8"), "trials = '8'; use an integer"),
        (lambda db: evokern.search("small", db=db, fresh="yes"), "fresh = 'yes'; use True or False"),
        (lambda db: evokern.search("small", db=db, device=5), "device = 5; use text or a device object"),
        (lambda db: evokern.search(study(), db=db, device=object()), "device = <object.*; use a name such as cuda:0"),
        (lambda db: evokern.search("small", db=db, kernel="k"), "kernel = 'k'; use an evokern.Kernel"),
        (lambda db: evokern.search("small", db=db, callbacks=print), "callbacks = .*; use a list of functions"),
        (lambda db: evokern.search("small", db=db, callbacks=[5]), r"callbacks\[0\] = 5; use a function of"),
        (
            lambda db: evokern.search("small", db=db, callbacks=[lambda one: 0]),
            r"\(one\) is not a function of \(study,",
        ),
        (lambda db: evokern.search("small", db=db, on_progress=7), "on_progress = 7; use a function of"),
        (lambda db: evokern.search(5, db=db), "study = 5; use the name of a study"),
        (lambda db: evokern.search(evokern.load_study(db=db), db=db), r"use evokern.resume\('small'"),
        (lambda db: evokern.search("small", db=None), "db = None; use the path"),
        (lambda db: evokern.resume(5, db=db), "study = 5; use the name of a study"),
        (lambda db: evokern.load_study("smal", db=db), "did you mean 'small'"),
        (lambda db: evokern.load_study(db=db).get_trials("mesured"), "no outcome 'mesured': did you mean 'measured'"),
        (lambda db: evokern.load_study(db=db).get_trials([5]), "no outcome 5: known: measured, "),
        (lambda db: evokern.load_study(db=db).export(5), "path = 5; use the path"),
        (lambda db: evokern.load_study(db=db).export("x", trial="a"), "trial = 'a'.*use whole numbers"),
        (lambda db: evokern.Study(5, "k", ["N=1"]), "name is 5; it must be a string"),
        (lambda db: evokern.Study("a.toml", "k", ["N=1"]), "name = 'a.toml'; use"),
        (lambda db: evokern.Study("a", "k", [(1, 2)]), r"problems is \[\(1, 2\)\]; use problems"),
        (lambda db: evokern.Study("a", "k", ["N=1"], genes={"V": []}), r"genes.V is \[\]; use a value"),
        (lambda db: evokern.Study("a", "k", ["N=1"], gate={"run": 1}), "'gate.run': did you mean 'runs'"),
        (lambda db: evokern.Study("a", "k", ["N=1"], trials="8"), "trials is '8'; it must be an integer"),
        (
            lambda db: evokern.search(evokern.Study("a", "rmsnorm", "ROWS=8 COLS=64", genes={"VECTR": 4}), db=db),
            "no gene 'VECTR': did you mean 'VECTOR'",
        ),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, mistake: Callable[[Path], Any], told: str) -> None:
    """A wrong value or type is a UsageError with the name and the remedy, before anything is written."""
    path = tmp_path / "a.db"
    write_study(path, 3)
    before = path.read_bytes()
    with pytest.raises(evokern.UsageError, match=told):
        mistake(path)
    assert before == path.read_bytes()


def test_an_unknown_argument_is_named() -> None:
    """A mistyped keyword is a TypeError with the nearest name, as for any Python function."""
    with pytest.raises(TypeError, match=r"search\(\) has no argument 'bugdet': did you mean 'budget'"):
        evokern.search("small", bugdet="3m")  # type: ignore[call-arg]


def test_values_of_other_libraries_are_accepted(tmp_path: Path) -> None:
    """NumPy integers, tuples, ranges and arrays become plain values."""
    given = evokern.Study("a", "k", "N=1", genes={"A": np.array([4, 8]), "B": range(2), "C": "x"})  # type: ignore[dict-item]
    assert (given.problems, given.genes) == (("N=1",), {"A": (4, 8), "B": (0, 1), "C": ("x",)})
    table = TableDevice(small_table())
    found = evokern.search(study(), db=tmp_path / "a.db", device=table, trials=np.int64(4))  # type: ignore[arg-type]
    assert found.summary["trials"] >= 4
    assert [trial.outcome for trial in found.get_trials("measured")] == len(found.get_trials(["measured"])) * [
        "measured"
    ]


def test_convergence_is_a_figure(tmp_path: Path) -> None:
    """The figure has the time of each measured trial, and the best time so far never rises."""
    pytest.importorskip("plotly")
    write_study(tmp_path / "a.db", 30)
    stored = evokern.load_study(db=tmp_path / "a.db")
    points, best = stored.plot_convergence().data
    measured = stored.get_trials("measured")
    assert (list(points.x), list(points.y)) == ([t.number for t in measured], [t.time_us for t in measured])
    assert list(best.y) == [min(points.y[: n + 1]) for n in range(len(points.y))]


def test_plotly_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra that installs it."""
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    write_study(tmp_path / "a.db", 3)
    with pytest.raises(evokern.UsageError, match=r"needs plotly.*`pip install 'evokern\[notebook\]'`"):
        evokern.load_study(db=tmp_path / "a.db").plot_convergence()
