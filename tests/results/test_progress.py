"""A search in a notebook: where the panel is shown, when it is updated, what stands in it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from engine_helpers import study
from hostile_texts import HOSTILE, Markup
from paths import DATA
from stored_studies import example_progress

import evokern
from evokern.declaration.genes import Config
from evokern.progress import notebook_panel
from evokern.progress.terminal import NotebookPanel, panel_html
from evokern.study.trial import Proposal, Trial

RECORDING = DATA / "table_small.json.gz"


class FakeIPython:
    """IPython as a search sees it: a shell, and displays that are updated in place."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, shell: object) -> None:
        self.escaped: list[list[str]] = []
        """For each display the HTML that it showed, one after the other."""
        package, displays = ModuleType("IPython"), ModuleType("IPython.display")
        package.get_ipython = lambda: shell  # type: ignore[attr-defined]
        displays.HTML = str  # type: ignore[attr-defined]
        displays.display = self.display  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "IPython", package)
        monkeypatch.setitem(sys.modules, "IPython.display", displays)

    def display(self, shown: str, *, display_id: bool) -> Any:
        assert display_id, "a display is updated by its id"
        told = [shown]
        self.escaped.append(told)
        return SimpleNamespace(update=told.append)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> FakeIPython:
    return FakeIPython(monkeypatch, SimpleNamespace(kernel=object()))


def _search(path: Path, **options: Any) -> evokern.SearchResult:
    return evokern.search(study(), db=path, device=f"replay:{RECORDING}", trials=5, seed=1, **options)


def test_a_notebook_shows_one_panel_to_the_end(
    notebook: FakeIPython, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One display, updated in place; the last update says how it ended; the caller's own watcher hears everything."""
    heard: list[str] = []
    result = _search(tmp_path / "r.db", on_progress=lambda progress: heard.append(progress.event))
    (shown,) = notebook.escaped
    assert len(shown) >= 2
    text = " ".join(Markup(shown[-1]).texts)
    best = result.best
    assert best is not None
    for told in ("small on", "5 of 5 trials evaluated", f"(trial {best.number})", "the trial limit is reached"):
        assert told in text, text
    assert (heard[0], heard[-1], heard.count("trial") >= 5) == ("opening", "end", True)
    assert capsys.readouterr() == ("", "")


def test_each_search_has_a_panel_of_its_own(notebook: FakeIPython, tmp_path: Path) -> None:
    """A resumed study goes on below its own cell."""
    _search(tmp_path / "r.db")
    evokern.resume(db=tmp_path / "r.db", trials=8)
    assert len(notebook.escaped) == 2
    assert "8 of 8 trials evaluated" in notebook.escaped[1][-1]


@pytest.mark.parametrize("shell", [None, SimpleNamespace()], ids=["no shell", "a terminal's shell"])
def test_elsewhere_nothing_is_shown(
    shell: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """IPython in a terminal, or imported by a script, is no notebook: no display, no output."""
    fake = FakeIPython(monkeypatch, shell)
    _search(tmp_path / "r.db")
    assert (fake.escaped, capsys.readouterr()) == ([], ("", ""))


def test_ipython_is_not_imported_to_find_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody imported it, there is no notebook; a module that is half imported is none either."""
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert notebook_panel() is None
    assert "IPython" not in sys.modules
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    assert notebook_panel() is None


def test_a_page_is_not_flooded(notebook: FakeIPython, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials are drawn every half second; begin and end at once."""
    clock: Iterator[float] = iter([0.0, 0.1, 0.4, 0.6, 0.7, 0.7, 9.0, 9.0])
    # Not time.monotonic itself: other threads of this process ask it, too.
    monkeypatch.setattr("evokern.progress.terminal.time", SimpleNamespace(monotonic=lambda: next(clock)))
    panel = NotebookPanel()
    drawn = []
    for event in ("start", "trial", "trial", "trial", "end"):
        panel(replace(example_progress(), event=event))  # type: ignore[arg-type]
        drawn.append(len(notebook.escaped[0]))
    assert drawn == [1, 1, 1, 2, 3]


def test_the_panel_tells_what_a_terminals_does() -> None:
    """The same rows; the budget as a bar; notes and the reason of the end below."""
    found = Markup(panel_html(replace(example_progress(), event="end", notes=("a foreign load",), end="budget")))
    texts = " ".join(found.texts)
    for told in ("44 shared_memory_per_block", "TILE=64", "trial 11 wrong: output", "62 %", "SDPA 9.00 µs", "1.80×"):
        assert told in texts
    assert ("progress", "max", "value") in found.tags
    assert "0.500" in found.values
    assert "a foreign load" in texts
    assert "the budget is used up" in texts
    assert "opening the device" in panel_html(replace(example_progress(), event="opening"))


def test_texts_of_a_search_do_not_become_markup() -> None:
    """Compilers' logs, kernels' and baselines' names are shown as they are."""
    still = example_progress()
    assert still.best is not None
    best = Trial(4, Proposal(Config({"TILE": HOSTILE})), still.best.evaluation)
    hostile = replace(
        still, study=HOSTILE, device=HOSTILE, best=best, baseline=(HOSTILE, 9.0), last_failures=(HOSTILE,),
        notes=(HOSTILE,), set_aside=HOSTILE, outcomes={HOSTILE: 3}, rejections={HOSTILE: 3},
    )  # fmt: skip
    plain = Markup(panel_html(replace(still, notes=("a",), set_aside="b")))
    found = Markup(panel_html(hostile))
    assert found.tags == plain.tags
    assert "".join(found.texts).count(HOSTILE) == 9
