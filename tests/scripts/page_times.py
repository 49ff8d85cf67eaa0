"""How soon does a report answer? Opens a page in Chromium several times and clicks through it.

    python tests/scripts/page_times.py PAGE.html|ADDRESS [--repeat 5] [--width 1400] [--axe axe.min.js]

Prints the median and the worst, in ms: `interactive`, from the start of the navigation until the page has loaded, its
scripts have run and a frame was drawn; then each click, from the event until the next frame was drawn: on a mark of
every plot, on a heading of the table of trials, and a filter's change. With `--axe` (of npm's axe-core) it also prints
serious and critical violations at 1400 and 400 px, light and dark, folded, unfolded and with a card open, and exits
with 1 if there are any.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import helpers_path  # noqa: F401 (finds the helpers)
from paths import ROOT

sys.path.append(str(ROOT / "tests" / "report"))
from browser import FRAME, MARK_OF, UNFOLD, Browser, find

LOADED = "performance.now()"
WATCH = """
window.took = [];
for (const kind of ['click', 'change'])
  window.addEventListener(kind, event => {
    const began = event.timeStamp;
    requestAnimationFrame(() => setTimeout(() => window.took.push(performance.now() - began)));
  }, true)
"""
"""Notes how long each click or change takes until the frame after it is drawn."""
PAUSE_S = 0.5
"""Seconds between a click and the next: plots whose room a card took are drawn anew meanwhile, as for a reader."""
VIEWS = ("convergence", "time", "parallel", "against", "roofline")


def clicks(browser: Browser) -> dict[str, float]:
    """Click on a mark of every plot, on headings and filters of the table; returns the milliseconds of each."""
    found = {}

    def last(what: str) -> None:
        browser.run(FRAME)
        browser.wait_until("window.took.length > 0")
        found[what] = browser.run("window.took.pop()")
        time.sleep(PAUSE_S)

    browser.run(UNFOLD)
    browser.run(WATCH)
    for view in VIEWS:
        plot = f"document.querySelector('[data-view={view}] .plot')"
        if not browser.run(f"Boolean({plot}?.querySelector('.mark.measured, .parallel.quick'))"):
            continue
        browser.run(f"{plot}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        browser.run(FRAME)
        place = browser.run(MARK_OF.replace("VIEW", view))
        browser.click(place["x"], place["y"])
        last(f"mark of {view}")
    for column in ("number", "time"):
        if browser.run(f"Boolean(document.querySelector('[data-sort={column}]'))"):
            browser.run(f"document.querySelector('[data-sort={column}]').click()")
            last(f"sort by {column}")
    for value in ("wrong", ""):
        browser.run(
            "(() => { const field = document.getElementById('filter-outcome'); "
            f"field.value = {value!r}; field.dispatchEvent(new Event('change', {{bubbles: true}})); }})()"
        )
        last(f"filter {value or 'taken back'}")
    return found


def violations(browser: Browser, page: Path | str, axe: Path) -> list[str]:
    """Return what axe-core finds serious or critical, a line each."""
    lines = []
    for width in (1400, 400):
        for dark in (False, True):
            browser.open(page, width, dark=dark)
            browser.run(axe.read_text(encoding="utf-8") + "\n0")
            for step in ("0", UNFOLD, "location.hash = 'trial=3'"):
                browser.run(step)
                browser.run(FRAME)
                time.sleep(PAUSE_S)
                lines += browser.run(
                    "axe.run().then(found => found.violations"
                    ".filter(one => ['serious', 'critical'].includes(one.impact))"
                    f".map(one => `{width} px {'dark' if dark else 'light'}: ${{one.id}} ${{one.nodes[0].html}}`))"
                )
    return lines


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--width", type=int, default=1400)
    parser.add_argument("--axe", type=Path)
    given = parser.parse_args()
    command = find()
    if command is None:
        parser.error("no Chromium here; install one (apt-get install chromium) or name it in EVOKERN_CHROMIUM")
    page = given.page if "://" in given.page else Path(given.page)
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = Browser(command, Path(folder))
        try:
            for _ in range(given.repeat):
                browser.open(page, given.width)
                browser.run(FRAME)
                times.setdefault("interactive", []).append(browser.run(LOADED))
                for what, took in clicks(browser).items():
                    times.setdefault(what, []).append(took)
            for what, found in times.items():
                print(f"{what:24s} {median(found):7.0f} {max(found):7.0f} ms")
            lines = violations(browser, page, given.axe) if given.axe else []
        finally:
            browser.close()
    for line in lines:
        print(line)
    if given.axe:
        print(f"axe: {len(lines)} serious or critical")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
