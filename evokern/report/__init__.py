"""`evokern report`: a self-contained HTML page built from the database alone.

The page needs no network. The function of each section returns the data for its template,
`templates/sections/ANCHOR.html.j2`. Functions return plain text and numbers. Only the templates contain markup; they
escape every text (`evokern.templating`).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

from evokern.analysis.genes.importance import forest_process
from evokern.report import champion, genes, origin, search_sections, times
from evokern.report.facts import Facts, KnownFacts, gather
from evokern.report.first_screen import first_screen
from evokern.report.page_data import page_data, rows_of
from evokern.store import Reader
from evokern.templating import environment

SECTIONS = (
    ("trials", "All trials", search_sections.fastest_trials),
    ("genes", "Trials by gene", genes.linked),
    ("convergence", "Convergence over time", search_sections.convergence),
    ("outcomes", "Outcomes and failure reasons", search_sections.outcomes),
    ("champion", "Champion and full verification", champion.proof),
    ("ablation", "Ablation", champion.ablation),
    ("effects", "Gene effects and interactions", genes.effects),
    ("values", "Results of each gene value", genes.matrix),
    ("roofline", "Roofline", times.roofline),
    ("timing", "Timing", times.timing),
    ("source", "Source", origin.source),
    ("environment", "Environment", origin.environment),
    ("words", "Glossary", origin.words),
)
"""Anchor (and template), title and data function of each section, in page order.

The heading of a collapsed section shows the value of the key `about`.
"""


def page(reader: Reader, study: str | None = None) -> str:
    """Return the report of a study as an HTML page.

    Args:
        reader: Open database.
        study: Name of the study; None selects the latest one.

    Raises:
        StudyError: There is no such study.
    """
    with forest_process(reader.path) as forests:
        return render_page(gather(reader, study, forests=forests))


def render_page(
    facts: Facts,
    live: Mapping[str, Any] | None = None,
    known: tuple[list[list[Any]], list[str]] | None = None,
) -> str:
    """Return the page for gathered facts.

    Args:
        facts: Facts about the study.
        live: Extra data of a served page (`evokern.report.live`); None for a static file.
        known: Rows of the trials and the texts they refer to, if already built.
    """
    record = facts.record
    templates = environment(__name__)
    # Compile the templates and build the rows first, because the gene model may still be fitting.
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
        # Allow only this script to run, whatever the page contains.
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        live=live is not None,
    )


def render_first(facts: Facts) -> str:
    """Return only the cards of the first screen, to update a page in a browser."""
    return environment(__name__).get_template("first.html.j2").render(first=first_screen(facts, curve=False))


__all__ = ["SECTIONS", "Facts", "KnownFacts", "gather", "page", "render_first", "render_page"]
