"""The report in a real browser: whole, drawn, reached by keyboard, readable in light and dark, silent."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import FRAME, MARK_OF, UNFOLD, Browser, find
from columns_kernel import work_in, write_columns
from paths import DATA
from stored_studies import FIELDS, NASTY, add_proofs, write_study
from typer.testing import CliRunner

from evokern.cli.app import app
from evokern.report import SECTIONS, page
from evokern.store import StudyRecord, add_proof, open_readonly

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
    told = {"fields": FIELDS, "problems": ("2,8,512,64,0",)}
    path, study = _written(tmp_path_factory, 120, control="random", cost_per_hour=3.0, **told)
    add_proofs(path, study)
    return _report(path)


@pytest.fixture(scope="module")
def proved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of a study of many problems, whose champion is proved at many shapes; faster trials were refuted."""
    problems = tuple(f"2,8,{length},64,0" for length in (128, 256, 512, 1024))
    path, study = _written(tmp_path_factory, 120, control="random", fields=FIELDS, problems=problems)
    for _ in range(3):
        with open_readonly(path) as reader:
            best = reader.best(study)
        assert best is not None
        failed = {"state": "failed", "detail": "tolerance at B=1 H=1 S=3 D=64: " + 30 * "o[0, 3] is -1.05; "}
        add_proof(path, study, "verify", best.number, {"stages": {"fuzz": failed}, "playoff": None})
    with open_readonly(path) as reader:
        best = reader.best(study)
    assert best is not None
    add_proof(path, study, "verify", best.number, many_shapes(list(problems)))
    return _report(path)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of a few predicted trials, with most sections missing what they would show."""
    return _report(_written(tmp_path_factory, 12, predicted=True)[0])


@pytest.fixture(scope="module")
def refuted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report whose fastest trial was refuted."""
    path, study = _written(tmp_path_factory, 120, control="random")
    with open_readonly(path) as reader:
        best = reader.best(study)
    assert best is not None
    failed = {"state": "failed", "detail": "o[0, 3] is -1.05, expected -1.06"}
    add_proof(path, study, "verify", best.number, {"stages": {"fuzz": failed}, "playoff": None})
    return _report(path)


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of a study in which every trial was wrong."""
    return _report(_written(tmp_path_factory, 30, only_wrong=True)[0])


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of a study without a trial."""
    return _report(_written(tmp_path_factory, 0)[0])


def many_shapes(problems: list[str]) -> dict[str, Any]:
    """Return a verification that passed at many shapes, as it is kept, of a study of so many problems."""
    blocks = {problem: [28 if place < 3 else 6, 88 if place < 3 else 256] for place, problem in enumerate(problems)}
    gate = {
        problem: {"checks": {"of_tolerance": {"normal": 0.1, "large": 0.52 if place == 1 else 0.4}}}
        for place, problem in enumerate(problems)
    }
    finalists = [
        {"name": name, "standing": standing, "time_us": 5.0, "ratio": 1.0, "ratio_ci95": [1.0, 1.0], "cliffs_delta": 0}
        for name, standing in (("trial 3", "champion"), ("trial 4", "tie"), ("trial 5", "beaten"))
    ]
    shapes = [f"1,1,{length},64,0" for length in range(40)]
    shapes[0] = "1,1,40,64,0"
    stages = {
        "gate": {"state": "passed", "detail": "right", "gate": gate},
        "sanitizer": {"state": "passed", "detail": f"no finding at {', '.join(shapes)}", "problems": shapes},
        "fuzz": {"state": "passed", "detail": "12 cases", "cases": 12, "problems": 9, "near": shapes[:2], "seed": 4},
        "playoff": {"state": "passed", "detail": "trial 3 has the smallest time"},
        "own problem": {"state": "passed", "detail": "90 of 520 blocks ran", "problems": blocks, "covered": True},
    }
    played = {"predicted": False, "rounds": 9, "level": 0.05, "finalists": finalists}
    return {"stages": stages, "playoff": played}


def _written(factory: pytest.TempPathFactory, trials: int, **changes: Any) -> tuple[Path, StudyRecord]:
    path = factory.mktemp("study") / "r.db"
    return path, write_study(path, trials, **changes)


def _report(path: Path) -> Path:
    written = path.with_suffix(".html")
    with open_readonly(path) as reader:
        written.write_text(page(reader), encoding="utf-8")
    return written


def stored(page: Path) -> dict[str, Any]:
    """Return the data that a page holds."""
    text = page.read_text(encoding="utf-8")
    return dict(json.loads(text.partition('id="data">')[2].partition("</script>")[0]))


def of_method(browser: Browser, *methods: str) -> list[dict[str, Any]]:
    return [event["params"] for event in browser.events if event.get("method") in methods]


@pytest.mark.parametrize("report", ["measured", "bare", "failed", "empty"])
@pytest.mark.parametrize("width", [1400, 800, 400])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_is_whole(
    report: str, width: int, dark: bool, browser: Browser, request: pytest.FixtureRequest
) -> None:
    """Nothing is cut, no plot is empty, every text stands out, nothing is fetched, and the console stays silent."""
    file: Path = request.getfixturevalue(report)
    browser.open(file, width, dark=dark)
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run(CUT) == [], "folded"
    browser.run(UNFOLD)
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run(CUT) == []
    plots = browser.run(PLOTS)
    assert len(plots) >= {"measured": 11, "bare": 6, "failed": 5, "empty": 0}[report]
    assert [(plot["name"], plot["outside"]) for plot in plots if plot["marks"] < 1 or plot["outside"]] == []
    if width >= 1400 and plots:
        lines = browser.run("Math.max(...[...document.querySelectorAll('.bars tr')].map(row => row.clientHeight)) / 24")
        assert lines < 1.5, "names are broken where there is room"
    faint = browser.run(FAINT.replace("LEAST", str(LEAST_CONTRAST)))
    assert faint == []
    asked = [event["request"]["url"] for event in of_method(browser, "Network.requestWillBeSent")]
    assert asked == [file.resolve().as_uri()]
    assert silent(browser)


@pytest.fixture(scope="module")
def other_pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of other commands, by their names."""
    folder = tmp_path_factory.mktemp("pages")
    for name in ("old", "new"):
        write_study(folder / f"{name}.db", 60)
    write_columns(folder)
    recorded = str(DATA / "table_small.json.gz")
    columns = ["columns", "--device", "sim:l4", "--problem", "4096", "--set", "STRIDE=32"]
    commands = {
        "compare": ["compare", str(folder / "old.db"), str(folder / "new.db"), "--stored", "--html"],
        "replay": ["replay", recorded, "--samplers", "random,grid", "--trials", "30", "--repeats", "3", "--plot"],
        "profile": ["profile", *columns, "--html"],
    }
    written = {name: folder / f"{name}.html" for name in commands}
    with pytest.MonkeyPatch.context() as patch:
        work_in(folder, patch)
        for name, words in commands.items():
            done = CliRunner().invoke(app, [*words, str(written[name])])
            assert done.exit_code == 0, done.output
    return written


@pytest.mark.parametrize("name", ["compare", "replay", "profile"])
@pytest.mark.parametrize("width", [1400, 800, 400])
@pytest.mark.parametrize("dark", [False, True])
def test_pages_of_other_commands_are_whole(
    name: str, width: int, dark: bool, browser: Browser, other_pages: dict[str, Path]
) -> None:
    """They have the report's header and colours; nothing is cut, every text stands out, the console stays silent."""
    browser.open(other_pages[name], width, dark=dark)
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run(CUT) == []
    plots = browser.run(PLOTS)
    assert len(plots) == {"compare": 1, "replay": 1, "profile": 0}[name]
    assert [plot for plot in plots if plot["marks"] < 2 or plot["outside"]] == []
    assert browser.run(FAINT.replace("LEAST", str(LEAST_CONTRAST))) == []
    assert browser.run("[...document.body.children].map(one => one.tagName).slice(0, 1)") == ["HEADER"]
    assert browser.run(IS_DARK) is dark
    assert silent(browser)


def silent(browser: Browser) -> bool:
    """Tell whether nothing was written to the console."""
    return of_method(browser, "Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded") == []


ANSWERS = ("variant", "speed", "proof", "came", "decides")
"""What the first screen answers, in this order."""


@pytest.mark.parametrize("report", ["measured", "bare", "refuted", "proved"])
@pytest.mark.parametrize("scripts", [True, False])
def test_the_first_screen_answers_before_anything_is_unfolded(
    report: str, scripts: bool, browser: Browser, request: pytest.FixtureRequest
) -> None:
    """At 1400 × 900 every answer lies above the fold, in reading order, with its words and the curve."""
    browser.open(request.getfixturevalue(report), 1400, scripts=scripts)
    boxes = browser.run(BOXES)
    assert list(boxes) == list(ANSWERS)
    for name, box in boxes.items():
        assert box["bottom"] <= 900, f"{name} ends below the first screen: {box}"
        assert box["hidden"] == [], name
    order = [(boxes[name]["top"], boxes[name]["left"]) for name in ANSWERS]
    assert order == sorted(order), "they stand in another order than they are read in"
    assert re.search(r"trial \d+", boxes["variant"]["text"])
    unit = "predicted µs" if report == "bare" else "µs"
    assert re.search(rf"\d {unit}", boxes["speed"]["text"])
    word = {"measured": "not verified", "bare": "not verified", "refuted": "refuted", "proved": "verified"}[report]
    assert word in boxes["proof"]["text"]
    told = ["timed" if report == "bare" else "measured", "best so far", *(["wrong"] if report != "bare" else [])]
    assert [word for word in told if word not in boxes["came"]["text"]] == []
    assert browser.run("document.querySelectorAll('details.section[open]').length") == 0
    card = browser.run("getComputedStyle(document.getElementById('proof')).borderTopColor")
    red = report == "refuted"
    assert (max(map(int, re.findall(r"\d+", card)[1:])) < 100 < int(re.findall(r"\d+", card)[0])) is red, card


def test_raw_keys_stand_nowhere_before_the_fold(measured: Path, browser: Browser) -> None:
    """What the first screen shows is words: no key of a record or of a problem, no JSON."""
    browser.open(measured, 1400)
    shown = browser.run("document.body.innerText")
    assert re.findall(r"\w+_us\b|own_problem|equal_rows|of_tolerance|\d+,\d+,\d+,\d+|[{}]", shown) == []
    assert browser.run("document.getElementById('about').textContent").split(" · ")[1] == "at B=2 H=8 S=512 D=64"
    told = browser.run("document.querySelector('#about [title]').title")
    assert told.startswith("B=2 (batch), H=8 (heads), S=512 (sequence length), ")
    browser.run(UNFOLD)
    everything = browser.run("document.body.innerText + [...document.querySelectorAll('[title]')].map(e => e.title)")
    assert re.findall(r"2,8,512,64", everything) == []
    meant = "document.getElementById('environment-told').innerText"
    assert "B=2 H=8 S=512 D=64 causal=0" in browser.run(meant)
    assert re.search(r"S\s+512\s+sequence length", browser.run(meant))


def test_the_proof_is_read_without_scrolling(proved: Path, browser: Browser) -> None:
    """Where shapes are many, the card counts them, the own problems first, names the worst, and folds the rest."""
    browser.open(proved, 1400)
    scrolls = "[...document.querySelectorAll('#proof, #proof *')].filter(e => e.scrollHeight > e.clientHeight + 1"
    assert browser.run(f"{scrolls} && ['auto', 'scroll'].includes(getComputedStyle(e).overflowY)).length") == 0
    shown = browser.run("[...document.querySelectorAll('#proof .parts > ul > li')].map(e => e.innerText)")
    assert shown == [
        "full-size problem: 90 of 520 blocks ran; smallest share for B=2 H=8 S=1024 D=64: 6 of 256 blocks ran",
        "gate: right; at most 52 % of the tolerance (large inputs at B=2 H=8 S=256 D=64)",
        "sanitizer: no findings on 40 small shapes",
        "fuzz: 12 cases on 9 small shapes and 2 close to the full-size problem; none failed",
        "playoff: fastest of 3 finalists, 1 ties with it",
    ]
    words = browser.run("document.getElementById('proof').innerText")
    assert "all 5 stages passed, full-size problem at the study's 4 problems" in words
    assert re.search(r"As fast, but refuted: trial \d+, trial \d+ and 1 more", words)
    assert "B=1 H=1 S=39 D=64 causal=0" not in words
    browser.run("document.querySelector('#proof summary').click()")
    browser.run(FRAME)
    words = browser.run("document.getElementById('proof').innerText")
    assert "B=1 H=1 S=39 D=64 causal=0" in words, "every shape, with all its fields, is below the fold"
    assert silent(browser)


def test_a_part_that_was_left_out_stands_before_those_that_passed(tmp_path: Path, browser: Browser) -> None:
    """Behind the own problem, since it is what a reader would miss."""
    path = tmp_path / "r.db"
    study = write_study(path, 40, fields=FIELDS, problems=("2,8,512,64,0",))
    with open_readonly(path) as reader:
        best = reader.best(study)
    assert best is not None
    found = many_shapes(["2,8,512,64,0"])
    found["stages"]["fuzz"] = {"state": "skipped", "detail": "no simulator for this chip"}
    add_proof(path, study, "verify", best.number, found)
    browser.open(_report(path), 1400)
    shown = browser.run("[...document.querySelectorAll('#proof .parts > ul > li')].map(e => e.innerText)")
    assert [one.partition(":")[0] for one in shown] == [
        "full-size problem",
        "fuzz skipped",
        "gate",
        "sanitizer",
        "playoff",
    ]
    assert "4 passed, 1 skipped, full-size problem at B=2 H=8 S=512 D=64 causal=0" in browser.run(
        "document.getElementById('proof').innerText"
    )


def test_a_click_opens_a_trial_everywhere(measured: Path, browser: Browser) -> None:
    """A click on a mark opens that trial's card, every plot rings it, the address keeps it, and a new page shows it."""
    browser.open(measured, 1400)
    browser.run(UNFOLD)
    for view in ("convergence", "time", "parallel", "against", "roofline"):
        plot = f"document.querySelector('[data-view={view}] .plot')"
        browser.run(f"{plot}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        browser.run(FRAME)
        place = browser.run(MARK_OF.replace("VIEW", view))
        browser.click(place["x"], place["y"])
        browser.run(FRAME)
        number = browser.run("new URLSearchParams(location.hash.slice(1)).get('trial')")
        assert number, view
        assert browser.run("document.getElementById('card-title').textContent").startswith(f"Trial {number}: ")
        ringed = browser.run("[...document.querySelectorAll('.plot .picked')].length")
        assert ringed >= 3, f"after a click in {view} only {ringed} plots show trial {number}"
    assert browser.run("document.querySelector('tr.picked [aria-label]')") is not None
    address = browser.run("location.href")
    browser.open(address, 1400)
    assert browser.run("document.getElementById('card-title').textContent").startswith(f"Trial {number}: ")
    browser.press("Escape", 27)
    assert browser.run("document.getElementById('card').hidden")
    assert "trial" not in browser.run("location.hash")
    assert silent(browser)


def test_a_trial_is_opened_by_its_number(measured: Path, browser: Browser) -> None:
    """A number in the field opens its card; one that no trial has is said. The row that is clicked stays in sight."""
    browser.open(measured, 1400)
    browser.run("document.getElementById('trials').open = true; " + FRAME)
    typed = (
        "(() => { const field = document.getElementById('open-trial'); field.value = 'VALUE'; "
        "field.dispatchEvent(new Event('change')); return field.validationMessage; })()"
    )
    number = stored(measured)["rows"][-1][0]
    assert browser.run(typed.replace("VALUE", "99999")) == "There is no trial 99999."
    assert browser.run("document.getElementById('card').hidden")
    assert browser.run(typed.replace("VALUE", str(number))) == ""
    assert browser.run("document.getElementById('card-title').textContent").startswith(f"Trial {number}: ")
    browser.press("Escape", 27)
    place = "document.querySelectorAll('.trials tbody [data-trial] button')[40]"
    browser.run(f"{place}.scrollIntoView({{block: 'center', behavior: 'instant'}}); " + FRAME)
    before = browser.run(f"{place}.getBoundingClientRect().top")
    browser.run(f"{place}.click(); " + FRAME)
    assert not browser.run("document.getElementById('card').hidden")
    assert browser.run(f"{place}.getBoundingClientRect().top") == pytest.approx(before, abs=1.5)


@pytest.mark.parametrize("width", [1400, 400])
def test_bars_of_one_list_have_one_scale(width: int, measured: Path, browser: Browser) -> None:
    """Whatever stands beside them, bars begin at one place, and their lengths are those of their shares."""
    browser.open(measured, width)
    lists = browser.run(BARS)
    assert len(lists) >= 2
    for bars in lists:
        assert len({round(bar["left"]) for bar in bars}) == 1
        scales = [bar["width"] / bar["share"] for bar in bars if bar["share"] > 0.2]
        assert max(scales) == pytest.approx(min(scales), rel=0.02), bars


def test_a_card_shows_the_reason_and_the_differences(measured: Path, browser: Browser) -> None:
    """A card has reason, resources, samples, the genes that differ, and the difference of the source."""
    data = stored(measured)
    wrong = next(row[0] for row in data["rows"] if data["outcomes"][row[1]] == "wrong")
    fast = next(number for number, lines in data["differences"].items() if lines)
    browser.open(f"{measured.resolve().as_uri()}#trial={wrong}", 1400)
    told = browser.run("document.getElementById('card').innerText")
    assert "wrong" in told
    assert "is 3.5, expected 1.2" in told
    assert NASTY in told, "names that hold markup are text"
    browser.open(f"{measured.resolve().as_uri()}#trial={fast}", 1400)
    told = browser.run("document.getElementById('card').innerText")
    for words in ("128 registers", "20 samples", "differ from the champion", "resources", "Source:"):
        assert words in told, words
    assert browser.run("document.querySelectorAll('#card .given').length") > 0
    assert browser.run("document.querySelectorAll('#card .taken').length") > 0


def test_the_table_sorts_and_filters(measured: Path, browser: Browser) -> None:
    """A click on a heading sorts, fields filter by outcome, gene and constraint, and plots grow faint for the rest."""
    browser.open(measured, 1400)
    browser.run("document.getElementById('trials').open = true; " + FRAME)
    numbers = "[...document.querySelectorAll('.trials tbody [data-trial]')].map(row => Number(row.dataset.trial))"
    browser.run("document.querySelector('[data-sort=number]').click()")
    found = browser.run(numbers)
    assert found == sorted(found)
    browser.run("document.querySelector('[data-sort=number]').click()")
    assert browser.run(numbers) == sorted(browser.run(numbers), reverse=True)
    assert (
        browser.run("document.querySelector('[data-sort=number]').closest('th').getAttribute('aria-sort')")
        == "descending"
    )
    choose = (
        "(() => { const field = document.getElementById('filter-NAME'); field.value = 'VALUE'; "
        "field.dispatchEvent(new Event('change')); })()"
    )
    browser.run(choose.replace("NAME", "outcome").replace("VALUE", "wrong"))
    cells = "[...document.querySelectorAll('.trials tbody td:nth-child(2)')]"
    assert set(browser.run(f"{cells}.map(cell => cell.textContent.split(' ')[0])")) == {"wrong"}
    assert browser.run("document.querySelectorAll('.mark.faint').length") > 0
    browser.run(choose.replace("NAME", "constraint").replace("VALUE", "tolerance"))
    assert "constraint=tolerance" in browser.run("location.hash")
    gene, value = stored(measured)["genes"][0]["name"], stored(measured)["genes"][0]["values"][0]
    browser.run("document.querySelector('.filters button').click()")
    every = browser.run("document.querySelector('[role=status]').textContent")
    browser.run(choose.replace("NAME", "gene").replace("VALUE", gene))
    browser.run(choose.replace("NAME", "value").replace("VALUE", value))
    some = browser.run("document.querySelector('[role=status]').textContent")
    assert int(some.split()[0]) < int(every.split()[0])
    browser.open(browser.run("location.href"), 1400)
    browser.run("document.getElementById('trials').open = true; " + FRAME)
    assert browser.run("document.querySelector('[role=status]').textContent") == some, "the address keeps the filters"
    assert silent(browser)


@pytest.mark.parametrize("by", ["mouse", "keyboard"])
def test_a_cell_of_the_matrix_of_values_shows_its_trials(by: str, measured: Path, browser: Browser) -> None:
    """A click, or Enter, leaves the trials with that gene's value alone in the table, whatever was filtered before."""
    browser.open(measured, 1400)
    browser.run(UNFOLD)
    browser.run("location.hash = 'outcome=wrong'")
    browser.run(FRAME)
    data = stored(measured)
    gene, value = data["genes"][1]["name"], data["genes"][1]["values"][-1]
    places = [one["values"].index(value) for one in data["genes"][1:2]]
    rows = [dict(zip(data["columns"], row, strict=True)) for row in data["rows"]]
    wanted = sum(row["genes"][1] == places[0] for row in rows)
    link = f"document.querySelector('.matrix a[href=\"#gene={gene}&value={value}&at=trials\"]')"
    place = f"(() => {{ const at = {link}.getBoundingClientRect(); return [at.left + 2, at.top + 2]; }})()"
    browser.run(f"{link}.scrollIntoView({{ behavior: 'instant', block: 'center' }}); {link}.focus()")
    browser.run("new Promise(done => setTimeout(done, 300))")  # what is drawn meanwhile moves it
    if by == "keyboard":
        browser.press("Enter", 13)
    else:
        browser.click(*browser.run(place))
    status = "document.querySelector('#trials [role=status]').textContent"
    browser.wait_until(f"{status}.startsWith('{wanted} of {len(rows)} trials')")
    assert 0 < wanted < len(rows)
    assert browser.run("[...document.querySelectorAll('.filters select')].map(e => e.value)") == ["", gene, value, ""]
    assert browser.run("document.activeElement.id") == "filter-value", "the keyboard is where the filter is changed"
    browser.wait_until("Math.abs(document.getElementById('trials').getBoundingClientRect().top) < 40")
    untried = "[...document.querySelectorAll('#values .matrix td')].filter(e => /not tried/.test(e.textContent))"
    assert browser.run(f"{untried}.filter(e => e.querySelector('a')).length") == 0
    browser.open(f"{measured.resolve().as_uri()}#gene={gene}&value={value}&at=trials", 1400)
    assert browser.run("document.getElementById('trials').open"), "its address, in another window, shows them too"
    browser.wait_until(f"{status}.startsWith('{wanted} of ')")
    assert silent(browser)


def test_a_link_into_a_section_leads_there(measured: Path, browser: Browser) -> None:
    """A gene's name in a section's line of links shows its values, one on the first screen its plot."""
    browser.open(measured, 1400)
    browser.run("document.querySelector('a[href=\"#values\"]').click()")
    last = browser.run("[...document.querySelectorAll('#values a[href^=\"#values-of-\"]')].pop().getAttribute('href')")
    browser.run(f"document.querySelector('#values a[href=\"{last}\"]').click()")
    top = f"document.getElementById('{last[1:]}').getBoundingClientRect().top"
    browser.wait_until(f"Math.abs({top}) < innerHeight / 2")
    browser.run("scrollTo({top: 0, behavior: 'instant'})")
    browser.run("document.querySelector('#decides a[href^=\"#against=\"]').click()")
    plot = "document.getElementById('against').getBoundingClientRect()"
    browser.wait_until(f"{plot}.top > -5 && {plot}.top < innerHeight / 2")
    assert silent(browser)


def test_what_failed_with_a_value_is_a_click_away(refuted: Path, browser: Browser) -> None:
    """A count of failures opens exactly those trials; a refuted one says so in the table and has its mark."""
    browser.open(refuted, 1400)
    assert browser.run("document.querySelectorAll('#came .plot .mark.refuted').length") == 1
    browser.run(UNFOLD)
    data = stored(refuted)
    rows = [dict(zip(data["columns"], row, strict=True)) for row in data["rows"]]
    link = browser.run("document.querySelector('.values a[href*=\"outcome=wrong\"]').getAttribute('href')")
    asked = dict(part.split("=") for part in link[1:].split("&"))
    gene = [one["name"] for one in data["genes"]].index(asked["gene"])
    value = data["genes"][gene]["values"].index(asked["value"])
    wrong = sum(row["genes"][gene] == value and data["outcomes"][row["outcome"]] == "wrong" for row in rows)
    status = "document.querySelector('#trials [role=status]').textContent"
    browser.run(f"document.querySelector('.values a[href=\"{link}\"]').click()")
    browser.wait_until(f"{status}.startsWith('{wrong} of {len(rows)} trials')")
    browser.run("document.querySelector('.values a[href*=\"outcome=refuted\"]').click()")
    browser.wait_until(f"{status}.startsWith('1 of {len(rows)} trials')")
    cells = browser.run("[...document.querySelectorAll('.trials tbody td')].map(e => e.textContent)")
    assert cells[0].startswith("measured, refuted")
    assert cells[-1] == "fuzz: o[0, 3] is -1.05, expected -1.06"
    assert silent(browser)


def test_a_plot_is_read_by_keyboard(measured: Path, browser: Browser) -> None:
    """Arrow keys go from trial to trial and tell them, Enter opens one, Escape gives the focus back."""
    browser.open(measured, 1400)
    browser.run("document.querySelector('.plot').focus()")
    browser.press("ArrowRight", 39)
    first = browser.run("document.querySelector('.tip').textContent")
    assert re.match(r"trial \d+, measured", first)
    browser.press("ArrowRight", 39)
    assert browser.run("document.querySelector('.tip').textContent") != first
    browser.press("Enter", 13)
    assert browser.run("document.activeElement.id") == "card-title"
    browser.press("Escape", 27)
    assert browser.run("document.activeElement.className") == "plot"


def test_without_scripts_facts_and_plots_remain(measured: Path, browser: Browser) -> None:
    """A browser that runs no scripts shows the plots as they were drawn, and every section unfolds."""
    browser.open(measured, 1400, scripts=False)
    assert browser.run("document.querySelectorAll('.plot').length") == 0
    browser.run("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    plots = browser.run(PLOTS)
    assert len(plots) >= 9
    assert [plot for plot in plots if plot["marks"] < 1 or plot["outside"]] == []
    assert browser.run("document.documentElement.scrollWidth") <= 1400


AXE = os.environ.get("EVOKERN_AXE")


@pytest.mark.thorough
@pytest.mark.skipif(not AXE, reason="EVOKERN_AXE names no axe.min.js (npm install axe-core)")
@pytest.mark.parametrize("width", [1400, 400])
@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing_serious(width: int, dark: bool, measured: Path, browser: Browser) -> None:
    """axe-core finds no serious or critical violation, folded, unfolded and with a card open."""
    browser.open(measured, width, dark=dark)
    browser.run(Path(str(AXE)).read_text(encoding="utf-8") + "\n0")
    for step in ("0", UNFOLD, "location.hash = 'trial=3'"):
        browser.run(step)
        browser.run(FRAME)
        found = browser.run(
            "axe.run().then(found => found.violations.map(one => [one.impact, one.id, one.nodes[0].html]))"
        )
        assert [one for one in found if one[0] in ("serious", "critical")] == []


@pytest.mark.thorough
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
    """Tab stops at the button, every link, every fold, plot and what must be scrolled, in the page's order, visibly."""
    browser.open(measured, width, dark=False)
    browser.run(UNFOLD)
    browser.run(FRAME)
    wanted = browser.run(STOPS)
    assert {"theme", *(f"#{anchor}" for anchor, _, _ in SECTIONS)} <= set(wanted)
    assert any(name.startswith(("div ", "pre ")) for name in wanted) or width > 480
    reached = []
    for _ in range(len(wanted)):
        browser.press("Tab", 9)
        assert browser.run("getComputedStyle(document.activeElement).outlineStyle") != "none"
        reached.append(browser.run(f"({NAME})(document.activeElement)"))
    assert reached == wanted
    browser.run("document.querySelector('#environment > summary').focus()")
    browser.press("Enter", 13)
    assert browser.run("document.getElementById('environment').open") is False


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
[...document.querySelectorAll('figure svg:not(.mark-key, .over), table.bars')].filter(p => p.checkVisibility())
.map(plot => {
  const frame = plot.getBoundingClientRect(), all = plot.closest('.plot') ?? plot;
  const marks = plot.matches('svg')
    ? [...all.querySelectorAll('circle, path, polyline, line:not(.grid, .axis)')] : [...plot.querySelectorAll('.bar')];
  const boxes = marks.map(m => m.getBoundingClientRect()).filter(b => b.width + b.height > 0);
  const inside = b => b.left >= frame.left - 1 && b.right <= frame.right + 1 &&
    b.top >= frame.top - 1 && b.bottom <= frame.bottom + 1;
  return { name: plot.textContent.trim().slice(0, 40), marks: frame.width * frame.height > 0 ? boxes.length : 0,
    outside: boxes.filter(b => !inside(b)).map(b => b.left + ' ' + b.top)
      .concat([...all.querySelectorAll('text, th, span')]
      .filter(t => !inside(t.getBoundingClientRect())).map(t => t.textContent)) };
})
"""
"""Every plot: how many marks it has whose box is not empty, and which marks or texts lie outside it."""

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

BOXES = """
Object.fromEntries([...document.querySelectorAll('.first > .card')].map(card => {
  const box = card.getBoundingClientRect();
  const cut = [...card.querySelectorAll('h2, h3, p, li, td, svg')].filter(one => one.checkVisibility())
    .filter(one => one.getBoundingClientRect().bottom > box.bottom + 1);
  return [card.id, { top: Math.round(box.top), left: Math.round(box.left), bottom: box.bottom, text: card.innerText,
    hidden: cut.map(one => one.textContent.slice(0, 40)) }];
}))
"""
"""Each card of the first screen: where it lies, what it says, and what of it lies below its own end."""
NAME = """
e => e.id || e.getAttribute('href') || e.tagName.toLowerCase() + ' ' + e.textContent.slice(0, 40)
"""
BARS = """
[...document.querySelectorAll('.bars2')].map(list => [...list.querySelectorAll('.track .bar')].map(bar => {
  const box = bar.getBoundingClientRect();
  return { left: box.left, width: box.width, share: Number(bar.style.getPropertyValue('--share')) };
}))
"""
STOPS = f"""
[...document.querySelectorAll('a[href], button, summary, select, input, .plot, .wide')]
  .filter(e => e.checkVisibility() && !e.disabled)
  .filter(e => !e.matches('.wide') || e.scrollWidth > e.clientWidth || e.scrollHeight > e.clientHeight).map({NAME})
"""
"""What can be clicked, opened or scrolled, in the page's order."""

IS_DARK = "getComputedStyle(document.body).backgroundColor.match(/[0-9.]+/g).every(v => Number(v) < 60)"
PRESSED = "document.getElementById('theme').getAttribute('aria-pressed')"
