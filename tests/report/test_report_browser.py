"""The report in a real browser: whole, drawn, reached by keyboard, readable in light and dark, silent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, find
from stored_studies import add_proofs, write_study

from evokern.report import SECTIONS, page
from evokern.store import open_readonly

COMMAND = find()
LEAST_CONTRAST = 4.5
"""Text against what lies behind it (Web Content Accessibility Guidelines 2.2, success criterion 1.4.3, level AA)."""

pytestmark = pytest.mark.skipif(
    COMMAND is None, reason="no Chromium here; install one (apt-get install chromium) or name it in EVOKERN_CHROMIUM"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert COMMAND is not None
    browser = Browser(COMMAND, tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with every section filled."""
    folder = tmp_path_factory.mktemp("measured")
    study = write_study(folder / "r.db", 120, control="random", cost_per_hour=3.0)
    add_proofs(folder / "r.db", study)
    return _report(folder)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of a few predicted trials, with most sections missing what they would show."""
    folder = tmp_path_factory.mktemp("bare")
    write_study(folder / "r.db", 12, predicted=True)
    return _report(folder)


def _report(folder: Path) -> Path:
    with open_readonly(folder / "r.db") as reader:
        (folder / "r.html").write_text(page(reader), encoding="utf-8")
    return folder / "r.html"


def of_method(browser: Browser, *methods: str) -> list[dict[str, Any]]:
    return [event["params"] for event in browser.events if event.get("method") in methods]


@pytest.mark.parametrize("report", ["measured", "bare"])
@pytest.mark.parametrize("width", [1280, 480])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_is_whole(
    report: str, width: int, dark: bool, browser: Browser, request: pytest.FixtureRequest
) -> None:
    """Nothing is cut, no plot is empty, every text stands out, nothing is fetched, and the console stays silent."""
    file: Path = request.getfixturevalue(report)
    browser.open(file, width, dark=dark)
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run(CUT) == []
    plots = browser.run(PLOTS)
    assert len(plots) >= (9 if report == "measured" else 5)
    assert [plot for plot in plots if plot["marks"] < 1 or plot["outside"]] == []
    lines = browser.run("Math.max(...[...document.querySelectorAll('.bars tr')].map(row => row.clientHeight)) / 24")
    assert lines < 1.5 or width < 1280, "names are broken where there is room"
    faint = browser.run(FAINT.replace("LEAST", str(LEAST_CONTRAST)))
    assert faint == []
    asked = [event["request"]["url"] for event in of_method(browser, "Network.requestWillBeSent")]
    assert asked == [file.resolve().as_uri()]
    assert of_method(browser, "Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded") == []


def test_dark_is_dark(measured: Path, browser: Browser) -> None:
    """The page follows the system's wish, and the button overrules it and says which it is."""
    for dark in (False, True):
        browser.open(measured, 1280, dark=dark)
        assert browser.run(IS_DARK) is dark
        assert browser.run(PRESSED) == str(dark).lower()
        browser.run("document.getElementById('theme').click()")
        assert browser.run(IS_DARK) is not dark
        assert browser.run(PRESSED) == str(not dark).lower()
        assert browser.run(FAINT.replace("LEAST", str(LEAST_CONTRAST))) == []


@pytest.mark.parametrize("width", [1280, 480])
def test_the_keyboard_reaches_everything(width: int, measured: Path, browser: Browser) -> None:
    """Tab stops at the button, every link, every fold and whatever must be scrolled, in the page's order, visibly."""
    browser.open(measured, width, dark=False)
    wanted = browser.run(STOPS)
    assert {"theme", *(f"#{anchor}" for anchor, _, _ in SECTIONS)} <= set(wanted)
    assert any(name.startswith(("div ", "pre ")) for name in wanted) or width > 480
    reached = []
    for _ in range(len(wanted)):
        browser.press("Tab", 9)
        assert browser.run("getComputedStyle(document.activeElement).outlineStyle") != "none"
        reached.append(browser.run(f"({NAME})(document.activeElement)"))
    assert reached == wanted
    assert browser.run("document.querySelectorAll('details:not([open])').length") == 0
    browser.run("document.querySelector('summary').focus()")
    browser.press("Enter", 13)
    assert browser.run("document.querySelectorAll('details:not([open])').length") == 1


# What is asked of the page, as JavaScript expressions.

CUT = """
[...document.querySelectorAll('body *')].filter(e => {
  const style = getComputedStyle(e);
  const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
  if (!own || e.closest('svg, caption, script') || style.display === 'inline') return false;
  const scrolls = e.closest('.wide');
  const wide = e.scrollWidth > e.clientWidth + 1 && !['auto', 'scroll'].includes(style.overflowX);
  const high = e.scrollHeight > e.clientHeight + 1 && ['hidden', 'clip'].includes(style.overflowY);
  const away = !scrolls && e.getBoundingClientRect().right > innerWidth + 1;
  return wide && !scrolls || high || away;
}).map(e => e.tagName + ' ' + e.textContent.slice(0, 60))
"""
"""Elements with text that is cut: wider than their box, or out of the window, and not within a box that scrolls."""

PLOTS = """
[...document.querySelectorAll('figure svg, table.bars')].map(plot => {
  const frame = plot.getBoundingClientRect();
  const marks = plot.matches('svg')
    ? [...plot.querySelectorAll('circle, path, polyline, line:not(.grid)')] : [...plot.querySelectorAll('.bar')];
  const boxes = marks.map(m => m.getBoundingClientRect()).filter(b => b.width + b.height > 0);
  const texts = [...plot.querySelectorAll('text, th, span')].map(t => t.getBoundingClientRect());
  const inside = b => b.left >= frame.left - 1 && b.right <= frame.right + 1 &&
    b.top >= frame.top - 1 && b.bottom <= frame.bottom + 1;
  return { name: plot.textContent.trim().slice(0, 40), marks: frame.width * frame.height > 0 ? boxes.length : 0,
    outside: [...boxes, ...texts].filter(b => !inside(b)).length };
})
"""
"""Every plot: how many marks it has whose box is not empty, and how many marks or texts lie outside it."""

FAINT = """
(() => {
  const parse = text => { const v = text.match(/[\\d.]+/g).map(Number); return v.length > 3 ? v : [...v, 1]; };
  const over = (top, under) => top.slice(0, 3).map((v, i) => v * top[3] + under[i] * (1 - top[3]));
  const behind = e => {
    const found = [];
    for (let n = e; n && n.nodeType === 1; n = n.parentElement) found.push(parse(getComputedStyle(n).backgroundColor));
    return found.reverse().reduce((under, top) => over(top, under), [255, 255, 255]);
  };
  const light = c => c.map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const contrast = (a, b) => [light(a), light(b)].sort((p, q) => q - p).reduce((x, y) => (x + .05) / (y + .05));
  return [...document.querySelectorAll('body *')].filter(e => !e.closest('script, title, caption') &&
    [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())).map(e => {
      const style = getComputedStyle(e), under = behind(e);
      const ink = parse(e.closest('svg') ? style.fill : style.color);
      return [contrast(over(ink, under), under), e];
    }).filter(([ratio]) => ratio < LEAST).map(([ratio, e]) => ratio.toFixed(2) + ' ' + e.textContent.slice(0, 40));
})()
"""
"""Texts whose contrast with what lies behind them is below LEAST: the formula of WCAG 2.2, 'contrast ratio'."""

NAME = """
e => e.id || e.getAttribute('href') || e.tagName.toLowerCase() + ' ' + e.textContent.slice(0, 40)
"""
STOPS = f"""
[...document.querySelectorAll('a[href], button, summary, .wide')]
  .filter(e => !e.matches('.wide') || e.scrollWidth > e.clientWidth || e.scrollHeight > e.clientHeight).map({NAME})
"""
"""What can be clicked, opened or scrolled, in the page's order."""

IS_DARK = "getComputedStyle(document.body).backgroundColor.match(/[0-9.]+/g).every(v => Number(v) < 60)"
PRESSED = "document.getElementById('theme').getAttribute('aria-pressed')"
