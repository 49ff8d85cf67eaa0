"""Draw the panel of a recorded search as `docs/panel.svg`.

    python docs/draw_panel.py                                        draws docs/panel.json again
    python docs/draw_panel.py --record DEVICE [--budget 45s]         searches first, and keeps how it stood at the end

The picture is what `evokern search` shows on a terminal: the same function draws it. `docs/panel.json` holds the facts.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import evokern
from evokern.cli.panel import panel
from evokern.declaration.space import Config
from evokern.study.settings import Study
from evokern.study.trial import Evaluation, Outcome, Proposal, Trial

FOLDER = Path(__file__).resolve().parent
FACTS = FOLDER / "panel.json"
PICTURE = FOLDER / "panel.svg"
WIDTH = 112
"""Characters of a line."""
PLAIN = (
    *("event", "study", "device", "predicted", "elapsed_s", "budget_s", "trials", "evaluated", "trials_limit"),
    *("in_flight", "outcomes", "rejections", "trials_per_minute", "busy_share"),
)
"""Fields of `Progress` that are kept as they are."""
FAILURES = 4
"""Failures that the panel shows."""


def record(device: str, budget: str | None, trials: int | None) -> dict[str, Any]:
    """Search `attention-s512` and return what the panel showed after its last trial.

    Args:
        device: as `--device`; a recording of the kernel will do.
        budget: as `--budget`.
        trials: as `--trials`.
    """
    study = Study(name="attention-s512", kernel="attention", problems=("2,8,512,64",))
    seen: list[evokern.Progress] = []
    with tempfile.TemporaryDirectory() as folder:
        evokern.search(
            study, db=Path(folder) / "panel.db", device=device, budget=budget, trials=trials, on_progress=seen.append
        )
    last = [progress for progress in seen if progress.event == "trial"][-1]
    facts = {name: value for name, value in dataclasses.asdict(last).items() if name in PLAIN}
    facts |= {"baseline": last.baseline, "last_failures": last.last_failures[:FAILURES], "best": None}
    if last.best is not None:
        best = last.best
        facts["best"] = {"number": best.number, "config": dict(best.config), "time_us": best.evaluation.time_us}
    return facts


def progress_of(facts: dict[str, Any]) -> evokern.Progress:
    """Return the progress that recorded facts describe."""
    best = facts["best"]
    found = best and Trial(
        best["number"], Proposal(Config(best["config"])), Evaluation(Outcome.MEASURED, best["time_us"])
    )
    baseline = facts["baseline"]
    return evokern.Progress(
        **{name: facts[name] for name in PLAIN},
        baseline=(baseline[0], baseline[1]) if baseline else None,
        best=found,
        last_failures=tuple(facts["last_failures"]),
    )


def draw(facts: dict[str, Any]) -> str:
    """Return the panel as SVG, the same text for the same facts."""
    from rich.console import Console

    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(panel(progress_of(facts)))
    return console.export_svg(title="evokern search", unique_id="panel")


def main() -> None:
    """Draw, after a search where one was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", metavar="DEVICE", help="search on this device first")
    parser.add_argument("--budget", help="of that search")
    parser.add_argument("--trials", type=int, help="of that search")
    given = parser.parse_args()
    if given.record:
        facts = record(given.record, given.budget, given.trials)
        FACTS.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PICTURE.write_text(draw(json.loads(FACTS.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
