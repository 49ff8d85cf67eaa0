"""Texts of a database that look like markup: the report shows them as they are, and its markup stays the same."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable
from pathlib import Path

import pytest
from hostile_texts import HOSTILE, Markup, poison
from stored_studies import add_proofs, reseal, write_study

import evokern
from evokern.report import gather, page, render_page
from evokern.store import add_proof, open_readonly


def _filled(path: Path, device: str) -> None:
    """Write a study with everything that a report can show."""
    changes = {"control": "random", "cost_per_hour": 3.0, "cost_unit": "EUR", "device": device}
    study = write_study(path, 60, settings={"gate": {"inputs": "normal"}, "limits": {"why": "half a chip"}}, **changes)
    add_proofs(path, study)
    finalist = {"name": "trial 3", "standing": "champion", "time_us": 5.0, "ratio": 1.0, "ratio_ci95": [1.0, 1.0]}
    playoff = {"predicted": False, "rounds": 9, "level": 0.05, "finalists": [{**finalist, "cliffs_delta": 0.0}] * 2}
    playoff["finalists"][1] = {**playoff["finalists"][1], "name": "baseline", "standing": "beaten"}
    stages = {"gate": {"state": "passed", "detail": "ten inputs"}, "fuzz": {"state": "skipped", "detail": "no time"}}
    add_proof(path, study, "verify", 3, {"stages": stages, "playoff": playoff})
    write_study(path, 20, name="neighbour", sampler="tpe", device=device)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE evokern_trials SET evidence = json_set(evidence, '$.bound', 'it waits') WHERE time_us > 0")
        # The study that was written last would be reported on.
        db.execute("UPDATE evokern_sessions SET rowid = 100 WHERE rowid = 1")
    reseal(path)


SHOWN: Iterable[str] = (
    *("small", "tiny", "2,8,512,64", "evo", "neighbour", "EUR"),  # of the studies
    *("sdpa <math>", "heat", "trials", "driver"),  # of their sessions
    *("relative_error", "normal", "half a chip", "ring_needs_lookahead"),
    *("ten inputs", "gate", "champion", "beaten", "baseline"),
)
"""Texts that the page shows, each followed by the hostile words."""


@pytest.mark.thorough
@pytest.mark.parametrize("device", ["NVIDIA H200", "a chip of somebody's own"])
def test_no_text_of_a_database_becomes_markup(device: str, tmp_path: Path) -> None:
    """Hostile words in every stored text leave each tag and each attribute in its place, and are shown as they are."""
    path = tmp_path / "h.db"
    _filled(path, device)
    with open_readonly(path) as reader:
        plain = Markup(page(reader))
    poison(path)
    with open_readonly(path) as reader:
        facts = gather(reader, None)
        text = render_page(facts)
    found = Markup(text)
    assert found.tags == plain.tags
    assert sum(tag[0] == "script" for tag in found.tags) == 2
    data = json.loads(next(text for text in found.texts if text.startswith('{"study"')))
    assert (data["study"], any(HOSTILE in one for one in data["texts"])) == ("small" + HOSTILE, True)
    assert "<!--" not in text, "which would turn a script's end into text"
    shown = "".join(text for text in found.texts if not text.startswith('{"study"'))
    assert [word for word in SHOWN if word + HOSTILE not in shown] == []
    assert HOSTILE + "kernel.cu" in shown
    assert ("it waits" if device == "NVIDIA H200" else device) + HOSTILE in shown
    words = [value for gene in facts.record.genes for value in gene.values if isinstance(value, str)]
    assert [word for word in words if word not in shown] == [], "values of genes"
    assert any(HOSTILE in value for value in found.values), "titles and labels are attributes"
    assert "<script>alert" not in text
    assert "{{ study }}" in text, "a template's own syntax in a text is text"


def test_nothing_is_marked_as_safe() -> None:
    """Templates are filled with escaping on, and neither a filter nor Python takes a text out of it."""
    root = Path(evokern.__file__).parent
    files = [*root.rglob("*.py"), *root.rglob("*.j2")]
    assert len([file for file in files if file.suffix == ".j2"]) > 10
    loopholes = re.compile(r"\|\s*safe\b|\bMarkup\b|autoescape\s*(?:=\s*)?(?:false|False)|__html__")
    assert [str(file) for file in files if loopholes.search(file.read_text(encoding="utf-8"))] == []
