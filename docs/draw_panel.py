"""Run a search and draw its panel as `docs/panel.svg`.

    python docs/draw_panel.py                                      Search a recording of an H200 (half a minute).
    python docs/draw_panel.py --device cuda:0 --budget 45s         Search on a GPU.
    python docs/draw_panel.py --draw-only                          Redraw the last search.

The picture shows the panel of `evokern search` on a terminal after the last trial, drawn by the same function. Its data
is stored in `docs/panel.json`. The search of the recording is deterministic, so it always gives the same picture.
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
from evokern.declaration.genes import Config
from evokern.study.settings import Study
from evokern.study.trial import Evaluation, Outcome, Proposal, Trial

FOLDER = Path(__file__).resolve().parent
FACTS = FOLDER / "panel.json"
PICTURE = FOLDER / "panel.svg"
RECORDING = FOLDER.parent / "tests" / "data" / "attention_s512_h200.json.gz"
SEED, TRIALS = 7, 150
"""Random seed, and number of trials on the recording."""
WIDTH, HEIGHT = 100, 30
"""Size of the panel in characters and lines."""
PLAIN = (
    *("event", "study", "device", "predicted", "elapsed_s", "budget_s", "trials", "evaluated", "trials_limit"),
    *("in_flight", "outcomes", "rejections", "trials_per_minute", "busy_share", "baseline", "improvements"),
    *("last_failures", "failure_counts"),
)
"""Fields of `Progress` that are stored unchanged."""


def record(device: str, budget: str | None = None, trials: int | None = None) -> dict[str, Any]:
    """Search `attention-s512` and return the progress after the last trial as JSON values.

    Args:
        device: value of `--device`.
        budget: value of `--budget`.
        trials: value of `--trials`.
    """
    # One trial at a time, because the number of results that arrive together depends on the machine.
    window = 1 if device.startswith("replay:") else None
    study = Study(name="attention-s512", kernel="attention", problems=("2,8,512,64",), window=window)
    seen: list[evokern.Progress] = []
    with tempfile.TemporaryDirectory() as folder:
        evokern.search(
            study, db=Path(folder) / "panel.db", device=device, budget=budget, trials=trials, seed=SEED,
            on_progress=seen.append,
        )  # fmt: skip
    last = [progress for progress in seen if progress.event == "trial"][-1]
    facts = {field.name: getattr(last, field.name) for field in dataclasses.fields(last) if field.name in PLAIN}
    facts["best"] = None
    if last.best is not None:
        defaults = {gene.name: gene.default for gene in last.genes}
        changed = {name: value for name, value in last.best.config.items() if value != defaults[name]}
        facts["best"] = {"number": last.best.number, "changed": changed, "time_us": last.best.evaluation.time_us}
    found: dict[str, Any] = json.loads(json.dumps(facts, default=dict))
    return found


def progress_of(facts: dict[str, Any]) -> evokern.Progress:
    """Return the progress for stored facts, which contain only the changed genes of the champion."""
    best = facts["best"]
    found = best and Trial(
        best["number"], Proposal(Config(best["changed"])), Evaluation(Outcome.MEASURED, best["time_us"])
    )
    pairs = {name: tuple(map(tuple, facts[name])) for name in ("improvements",)}
    texts = {name: tuple(facts[name] or ()) for name in ("last_failures", "failure_counts")}
    baseline = tuple(facts["baseline"]) if facts["baseline"] else None
    plain = {name: facts[name] for name in PLAIN}
    return evokern.Progress(**{**plain, **pairs, **texts, "baseline": baseline}, best=found)


def draw(facts: dict[str, Any]) -> str:
    """Return the panel as SVG; equal facts give equal text."""
    from rich.console import Console

    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(panel(progress_of(facts), WIDTH, HEIGHT))
    return console.export_svg(title="evokern search", unique_id="panel")


def main() -> None:
    """Run the search and draw the panel."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="device to search on (default: the recording)")
    parser.add_argument("--budget", help="budget of the search (default: none)")
    parser.add_argument("--trials", type=int, help=f"number of trials (default: {TRIALS} on the recording)")
    parser.add_argument("--draw-only", action="store_true", help="redraw the last search without searching")
    given = parser.parse_args()
    if not given.draw_only:
        recorded = given.device is None
        trials = TRIALS if recorded and given.trials is None else given.trials
        facts = record(f"replay:{RECORDING}" if recorded else given.device, given.budget, trials)
        FACTS.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PICTURE.write_text(draw(json.loads(FACTS.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
