"""Search, and draw the panel of that search as `docs/panel.svg`.

    python docs/draw_panel.py                                      searches the recording of an H200: half a minute
    python docs/draw_panel.py --device cuda:0 --budget 45s         searches there
    python docs/draw_panel.py --draw-only                          draws the last search again

The picture is what `evokern search` shows on a terminal after its last trial: the same function draws it. What it shows
stands in `docs/panel.json`. Seed and window are fixed and a recording tells what each trial took, so the same search of
it always draws the same picture.
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
"""Of the search of the recording."""
WIDTH, HEIGHT = 100, 30
"""Characters of a line, and lines."""
PLAIN = (
    *("event", "study", "device", "predicted", "elapsed_s", "budget_s", "trials", "evaluated", "trials_limit"),
    *("in_flight", "outcomes", "rejections", "trials_per_minute", "busy_share", "baseline", "improvements"),
    *("last_failures", "failure_counts"),
)
"""Fields of `Progress` that are kept as they are."""


def record(device: str, budget: str | None = None, trials: int | None = None) -> dict[str, Any]:
    """Search `attention-s512` and return what the panel showed after its last trial, as JSON values.

    Args:
        device: as `--device`.
        budget: as `--budget`.
        trials: as `--trials`.
    """
    # One trial at a time: how many answers of a recording come together depends on the machine.
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
    """Return the progress that recorded facts describe; of the champion they hold the changed genes."""
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
    """Return the panel as SVG, the same text for the same facts."""
    from rich.console import Console

    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(panel(progress_of(facts), WIDTH, HEIGHT))
    return console.export_svg(title="evokern search", unique_id="panel")


def main() -> None:
    """Search and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="search there instead of on the recording")
    parser.add_argument("--budget", help="of that search")
    parser.add_argument("--trials", type=int, help="of that search")
    parser.add_argument("--draw-only", action="store_true", help="search nothing")
    given = parser.parse_args()
    if not given.draw_only:
        recorded = given.device is None
        trials = TRIALS if recorded and given.trials is None else given.trials
        facts = record(f"replay:{RECORDING}" if recorded else given.device, given.budget, trials)
        FACTS.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PICTURE.write_text(draw(json.loads(FACTS.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
