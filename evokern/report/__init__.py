"""`evokern report`: one HTML page that needs no network, from the database alone.

Each section is a function that returns what its template, `templates/sections/ANCHOR.html.j2`, shows. Functions return
plain text and numbers; markup stands in the templates only, which escape every text (`evokern.templating`).
"""

from __future__ import annotations

from evokern.report import champion, genes, origin, space, times
from evokern.report.facts import Facts, gather
from evokern.store import Reader
from evokern.templating import environment
from evokern.version import __version__

SECTIONS = (
    ("champion", "Champion and proof", champion.proof),
    ("convergence", "Convergence", space.convergence),
    ("fastest", "Fastest trials", space.elites),
    ("outcomes", "Outcomes by reason", space.outcomes),
    ("tunability", "Tunability", genes.matrix),
    ("effects", "Gene effects and interactions", genes.effects),
    ("ablation", "Ablation", champion.ablation),
    ("roofline", "Roofline", times.roofline),
    ("timing", "Timing", times.timing),
    ("source", "Source", origin.source),
    ("environment", "Environment", origin.environment),
)
"""Anchor (and template), title, and what gathers each section's contents, in the page's order."""


def page(reader: Reader, study: str | None = None) -> str:
    """Return the report of a study as an HTML page.

    Args:
        reader: the open database.
        study: its name; None takes the one searched last.

    Raises:
        StudyError: there is no such study, or none of its trials was measured.
    """
    return render_page(gather(reader, study))


def render_page(facts: Facts) -> str:
    """Return the page of what was gathered."""
    record = facts.record
    predicted = "Times are predicted by a model, not measured. " if record.predicted else ""
    return (
        environment(__name__)
        .get_template("page.html.j2")
        .render(
            study=record.name,
            about=f"{predicted}Kernel {record.kernel} at {' and '.join(record.problems)} on {record.device}.",
            tiles=champion.headline(facts),
            sections=[{"anchor": anchor, "title": title, "view": show(facts)} for anchor, title, show in SECTIONS],
            version=__version__,
        )
    )


__all__ = ["SECTIONS", "Facts", "gather", "page", "render_page"]
