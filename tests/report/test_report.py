"""The report: whole from the database alone, escaped, small, and honest about what is missing."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from engine_helpers import small_table
from stored_studies import NASTY, add_proofs, multiplied, write_study
from typer.testing import CliRunner

from evokern.cli.app import app
from evokern.declaration.genes import Config
from evokern.report import SECTIONS, gather, page
from evokern.report.plots import Axis, Plot, bars, number, span
from evokern.report.trial_counts import reasons
from evokern.store import add_proof, open_readonly
from evokern.study.trial import Evaluation, Outcome, Proposal, Trial


class Page(HTMLParser):
    """What a browser would make of the page: elements, text, what it would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.anchors: set[str] = set()
        self.ids: list[str] = []
        self.fetched: list[str] = []
        self.scripts = 0
        self.unbalanced: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.scripts += tag == "script"
        self.ids += [found["id"]] if found.get("id") else []
        if tag == "a" and (found.get("href") or "").startswith("#"):
            self.anchors.add((found["href"] or "")[1:])
        self.fetched += [v for name in ("src", "href") if (v := found.get(name)) and not v.startswith("#")]
        if tag not in ("meta", "link", "br", "img", "wbr"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.unbalanced.append(tag)


@pytest.fixture(scope="module")
def thousand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "r.db"
    study = write_study(path, 50)
    multiplied(path, 20)
    with open_readonly(path) as reader:
        assert len(list(reader.trials(study))) == 1000
    return path


@pytest.mark.thorough
def test_a_thousand_trials_make_a_small_page_in_seconds(thousand: Path, tmp_path: Path) -> None:
    """At most 5 s and 1 MB for 1,000 trials."""
    began = time.process_time()
    done = CliRunner().invoke(app, ["report", "--db", str(thousand), "-o", str(tmp_path / "r.html")])
    assert done.exit_code == 0, done.stderr
    assert time.process_time() - began <= 5
    assert (tmp_path / "r.html").stat().st_size <= 1e6


@pytest.mark.thorough
def test_the_page_stands_alone_and_is_escaped(thousand: Path) -> None:
    """Nothing is fetched, every element is closed, every link has its target, and no text becomes markup."""
    with open_readonly(thousand) as reader:
        text = page(reader)
    found = Page(text)
    assert found.fetched == []
    assert found.unbalanced == []
    sections = {anchor for anchor in found.anchors if "=" not in anchor}
    whole = {anchor for anchor in sections if not anchor.startswith("values-of-")} - {"next"}
    assert whole == {name for name, _, _ in SECTIONS}
    assert sections <= set(found.ids)
    assert {anchor.partition("=")[0] for anchor in found.anchors - sections} == {"trial", "against", "gene"}
    assert found.scripts == 2, "the page's data and its script"
    assert "alert('x')" not in re.sub(r"&[a-z#0-9x]+;", "", text).replace("alert(x)", "")
    assert "url(" not in text
    assert "@import" not in text


@pytest.mark.thorough
def test_every_plot_is_drawn_inside_its_frame(thousand: Path) -> None:
    """Each SVG is well-formed, has something in it, and no point or text lies outside."""
    with open_readonly(thousand) as reader:
        plots = re.findall(r"<figure>(<svg.*?</svg>)", page(reader), re.DOTALL)
    assert len(plots) == 5
    for plot in plots:
        root = ElementTree.fromstring(plot)
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        shapes = [e for e in root.iter() if e.tag in ("circle", "path", "polyline", "rect")]
        assert len(shapes) >= 1
        for element in root.iter():
            for name, most in (("x", width), ("cx", width), ("y", height), ("cy", height)):
                if name in element.attrib:
                    assert -1 <= float(element.attrib[name]) <= most + 1, (element.tag, element.attrib)


def test_the_stage_of_the_full_size_problem_is_named_as_in_the_docs(tmp_path: Path) -> None:
    """The stored name of the stage is an old one; the card and the section print the name from the glossary."""
    path = tmp_path / "p.db"
    study = write_study(path, 10)
    with open_readonly(path) as reader:
        best = reader.best(study)
    assert best is not None
    stage = {"state": "passed", "detail": "all blocks ran", "problems": {}, "covered": True}
    with open_readonly(path) as reader:
        assert "<p><b>Exact arithmetic:</b> not compared</p>" in page(reader)
    algebra = {"state": "passed", "detail": "y is the same expression"}
    stages = {"own problem": stage, "algebra": algebra}
    add_proof(path, study, "verify", best.number, {"stages": stages, "playoff": None})
    with open_readonly(path) as reader:
        text = page(reader)
    assert "<b>full-size problem</b>: all blocks ran" in text
    assert "<p><b>Exact arithmetic:</b> y is the same expression</p>" in text
    assert "own problem" not in text


@pytest.mark.thorough
def test_proof_and_ablation_are_shown(tmp_path: Path) -> None:
    """What verify and ablate kept stands in the report, and without them it says how to get it."""
    path = tmp_path / "p.db"
    study = write_study(path, 40)
    with open_readonly(path) as reader:
        bare = page(reader)
    assert "evokern verify" in bare
    assert "evokern ablate" in bare
    add_proofs(path, study)
    with open_readonly(path) as reader:
        text = page(reader)
    assert "Verification of trial 3" in text
    assert "STAGES=1" in text
    assert "No ablation yet" not in text
    assert NASTY not in text


@pytest.mark.thorough
def test_the_studys_own_control_is_drawn(tmp_path: Path) -> None:
    """Sampler and control each have a curve, and a sentence says who did better; the price is told."""
    path = tmp_path / "c.db"
    write_study(path, 60, control="random", cost_per_hour=3.0, cost_unit="EUR")
    with open_readonly(path) as reader:
        text, verdict = page(reader), gather(reader, None).verdict
    assert text.count("best so far, random (control)") == 2
    assert verdict
    assert verdict.replace("'", "&#39;") in text
    assert "0.05 EUR (3.00 EUR per hour)" in text


def test_a_gene_that_only_a_comment_names_is_not_marked(tmp_path: Path) -> None:
    """A line of the source is marked where its code names a gene, with the champion's value."""
    path = tmp_path / "s.db"
    write_study(path, 20)
    with open_readonly(path) as reader:
        best = reader.best(reader.study())
        text = page(reader)
    assert best is not None
    gene = small_table().genes[0].name
    assert f"<small>{gene}={best.config[gene]}</small>" in text
    assert "<em" not in text[text.index("<pre") :].splitlines()[0].partition("</li>")[0]


def test_a_control_is_drawn_beside(tmp_path: Path) -> None:
    """Another study of the same problem on the same device is a second curve."""
    path = tmp_path / "c.db"
    write_study(path, 30, name="control", sampler="random")
    write_study(path, 30)
    with open_readonly(path) as reader:
        assert "best so far, control (random)" in page(reader, "small")


def test_a_long_reason_ends_with_an_ellipsis() -> None:
    """Reasons are counted without their numbers and told as the first trial has them; what is cut off is marked."""
    config = Config({"A": 1})
    failed = [Evaluation(Outcome.WRONG, evidence={"check": text}) for text in ("off by 3", "off by 4", 99 * "far ")]
    found = reasons([Trial(number, Proposal(config), evaluation) for number, evaluation in enumerate(failed)])
    assert [(one.outcome, one.example[:3], one.trial, one.count) for one in found] == [
        ("wrong", "off", 0, 2),
        ("wrong", "far", 2, 1),
    ]
    assert [one.example.endswith(" …") for one in found] == [False, True]


def test_what_cannot_be_reported_is_said(tmp_path: Path) -> None:
    """No such study, no database, a folder that is not there: one message each."""
    path = tmp_path / "e.db"
    write_study(path, 0)
    for words, message in (
        (("other", "--db", str(path)), "no study 'other'"),
        (("--db", str(tmp_path / "none.db")), "there is no database"),
    ):
        done = CliRunner().invoke(app, ["report", *words])
        assert (done.exit_code, message in done.stderr) == (2, True), done.stderr
    write_study(tmp_path / "ok.db", 20)
    done = CliRunner().invoke(app, ["report", "--db", str(tmp_path / "ok.db"), "-o", str(tmp_path / "no" / "r.html")])
    assert (done.exit_code, "cannot write" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (5.4321, "5.43"), (0.01234, "0.0123"), (1234.5, "1,234"), (100, "100")]
)
def test_numbers_show_the_digits_that_matter(value: float, text: str) -> None:
    """Three digits, no empty tail, thousands apart."""
    assert number(value) == text


@pytest.mark.parametrize(
    "axis", [Axis("a", 5.0, 6.0), Axis("b", 1, 1000, log=True), Axis("c", 5.2, 5.3, log=True), Axis("d", 0, 0.003)]
)
def test_axes_have_ticks_within_their_ends(axis: Axis) -> None:
    """Between two and a dozen round ticks, all within."""
    ticks = axis.ticks()
    assert 2 <= len(ticks) <= 14
    assert all(axis.low * 0.999 <= tick <= axis.high * 1.001 for tick in ticks)


def test_a_plot_of_one_value_is_still_drawn() -> None:
    """Degenerate data make a plot, not an error."""
    low, high = span([5.0])
    assert low < 5.0 < high
    plot = Plot("one", Axis("x", 0, 0), Axis("y", low, high))
    plot.points([(0, 5.0, "a < b")], "dot")
    (drawn,) = plot.shapes
    assert (drawn.tag, drawn.tip) == ("circle", "a < b")
    assert {shape.tag for shape in plot.drawn()} == {"rect", "line", "text", "circle"}
    assert bars("none", []).rows == ()
    assert replace(plot.x, high=1.0).share(2.0) == 1.0


@pytest.mark.parametrize(("problems", "said"), [(("2,8,512,64",), 0), (("2,8,512,64", "2,8,1024,64"), 1)])
def test_the_best_s_time_over_several_problems_is_called_a_mean(
    tmp_path: Path, problems: tuple[str, ...], said: int
) -> None:
    """The first screen says that the champion's time is a geometric mean, where the study has several problems."""
    study = write_study(tmp_path / "r.db", 20, problems=problems)
    with open_readonly(tmp_path / "r.db") as reader:
        text = page(reader, study.name)
    assert text.count(f", geometric mean over {len(problems)} problems") == said
