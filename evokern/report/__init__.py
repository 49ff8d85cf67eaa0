"""`evokern report`: one HTML page that needs no network, from the database alone.

Each section is a function that returns what its template, `templates/sections/ANCHOR.html.j2`, shows. Functions return
plain text and numbers; markup stands in the templates only, which escape every text (`evokern.templating`).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

from evokern.analysis.genes.forest import forest_process
from evokern.report import champion, genes, origin, space, times
from evokern.report.facts import Facts, KnownFacts, gather
from evokern.report.first_screen import first_screen
from evokern.report.page_data import page_data, rows_of
from evokern.store import Reader
from evokern.templating import environment

SECTIONS = (
    ("trials", "Every trial", space.fastest_trials),
    ("genes", "Trials by their genes", genes.linked),
    ("convergence", "Convergence over time", space.convergence),
    ("outcomes", "Outcomes by reason", space.outcomes),
    ("champion", "Champion and proof in full", champion.proof),
    ("ablation", "Ablation", champion.ablation),
    ("effects", "Gene effects and interactions", genes.effects),
    ("values", "Values of each gene: which worked, which did not", genes.matrix),
    ("roofline", "Roofline", times.roofline),
    ("timing", "Timing", times.timing),
    ("source", "Source", origin.source),
    ("environment", "Environment", origin.environment),
    ("words", "Words", origin.words),
)
"""Anchor (and template), title, and what gathers each section's contents, in the page's order.

Contents have a key `about`, which the heading of the folded section shows.
"""


def page(reader: Reader, study: str | None = None) -> str:
    """Return the report of a study as an HTML page.

    Args:
        reader: the open database.
        study: its name; None takes the one searched last.

    Raises:
        StudyError: there is no such study.
    """
    with forest_process(reader.path) as forests:
        return render_page(gather(reader, study, forests=forests))


def render_page(
    facts: Facts,
    live: Mapping[str, Any] | None = None,
    known: tuple[list[list[Any]], list[str]] | None = None,
) -> str:
    """Return the page of what was gathered.

    Args:
        facts: the study.
        live: what a page that is served knows beside it (`evokern.report.live`); None for a file, a frozen copy of it.
        known: rows of its trials and the texts that they name, where they are made already.
    """
    record = facts.record
    templates = environment(__name__)
    # First what asks nothing of the model of the genes, which may still be fitted: templates compiled, and rows.
    script = templates.get_template("script.js").render()
    for name in ("page", "first", "pieces", *(f"sections/{anchor}" for anchor, _, _ in SECTIONS)):
        templates.get_template(f"{name}.html.j2")
    known = known or rows_of(facts)
    sections = [{"anchor": anchor, "title": title, "view": show(facts)} for anchor, title, show in SECTIONS]
    return templates.get_template("page.html.j2").render(
        study=record.name,
        predicted=record.predicted,
        first=first_screen(facts),
        sections=sections,
        data=page_data(facts, known) | {"live": live},
        # Nothing but this very script may run, whatever stands in the page.
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        live=live is not None,
    )


def render_first(facts: Facts) -> str:
    """Return the cards of the first screen alone, for a page that is in a browser already."""
    return environment(__name__).get_template("first.html.j2").render(first=first_screen(facts, curve=False))


__all__ = ["SECTIONS", "Facts", "KnownFacts", "gather", "page", "render_first", "render_page"]
