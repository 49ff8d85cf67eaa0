"""`compare --html`: the verdict and both times in one file that runs and loads nothing, in the report's design."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hostile_texts import HOSTILE, Markup
from stored_studies import write_study
from typer.testing import CliRunner

from evokern.analysis.compare.compare import ComparedRun, RunTiming, compare
from evokern.cli.app import app
from evokern.report.pages.compare_page import compare_page


def run_of(label: str, time_us: float, **changes: object) -> ComparedRun:
    """Return a run with twenty samples at each of two problems."""
    samples = tuple(time_us * (1 + 1e-4 * (n - 10)) for n in range(20))
    readings = {
        name: RunTiming(samples[10], (samples[5], samples[14]), samples) for name in ("2,8,512,64", "1,8,77,64")
    }
    found = ComparedRun(label, "attention", "NVIDIA H200", False, readings, {"TILE": label}, {"driver": "580"})
    return replace(found, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("new_us", "kind", "word"),
    [(6.0, "bad", "slower"), (5.0, "unasked", "no relevant difference"), (4.0, "good", "faster")],
)
def test_the_verdict_stands_first(new_us: float, kind: str, word: str) -> None:
    """A red card for slower, a green one for faster; each problem has both times with their intervals and a plot."""
    page = compare_page(compare(run_of("old.db", 5.0), run_of("new.db", new_us)))
    assert re.search(rf'<section class="card {kind}".*?<b>{word}</b>', page, re.DOTALL)
    assert page.index('id="verdict-title"') < page.index("At 2,8,512,64") < page.index("<h2>Details</h2>")
    assert page.count('class="interval"') == 4
    assert page.count('<svg viewBox="0 0 560 300"') == 2
    assert f"{new_us:.2f} µs [" in page
    (rule,) = re.findall(r'<p class="note">(Slower means [^<]*)</p>', page)
    assert all(part in rule for part in ("3 %", "0.01", "Mann-Whitney"))
    assert "TILE" in page


def test_a_page_of_a_comparison_runs_and_loads_nothing() -> None:
    """No script, no link out, a policy that allows neither; colours follow the reader's light or dark."""
    page = compare_page(compare(run_of("old.db", 5.0), run_of("new.db", 6.0)))
    assert not {tag[0] for tag in Markup(page).tags} & {"script", "link", "img", "iframe", "object", "form"}
    assert not re.search(r"https?:|url\(|@import", page)
    assert "default-src 'none'" in page
    assert "prefers-color-scheme: dark" in page


def test_predicted_times_are_called_so() -> None:
    """Every time of a comparison of predictions says *predicted*; there are no samples to draw."""
    old, new = (
        run_of(name, 1.0, predicted=True, readings={"2,8,512,64": RunTiming(time_us)})
        for name, time_us in (("old.db", 5.0), ("new.db", 6.0))
    )
    page = compare_page(compare(old, new))
    assert "Times are <b>predicted</b>" in page
    assert "5.00 predicted µs" in page
    assert "<figure>" not in page
    assert "significant" not in page


def test_names_of_compared_runs_stay_text() -> None:
    """Labels, kernels, chips, choices and remarks of a database are shown as they are."""
    plain = compare(run_of("old.db", 5.0), run_of("new.db", 6.0))
    words = {"kernel": "k" + HOSTILE, "device": "d" + HOSTILE}
    hostile = replace(
        compare(run_of("o" + HOSTILE, 5.0, **words), run_of("n" + HOSTILE, 6.0, **words)),
        remarks=("r" + HOSTILE,),
    )
    found = Markup(compare_page(hostile))
    assert found.tags == Markup(compare_page(replace(plain, remarks=("r",)))).tags
    told = "".join(found.texts)
    assert [word for word in "kdonr" if word + HOSTILE not in told] == []


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    """`--html FILE` writes it beside what is printed; a folder that is not there is said."""
    for name in ("old", "new"):
        write_study(tmp_path / f"{name}.db", 20)
    command = ["compare", str(tmp_path / "old.db"), str(tmp_path / "new.db"), "--stored", "--html"]
    done = CliRunner().invoke(app, [*command, str(tmp_path / "c.html")])
    assert (done.exit_code, "wrote " in done.output) == (0, True), done.output
    assert "no relevant difference" in (tmp_path / "c.html").read_text(encoding="utf-8")
    refused = CliRunner().invoke(app, [*command, str(tmp_path / "absent" / "c.html")])
    assert (refused.exit_code, "another file with --html" in refused.output) == (2, True), refused.output
