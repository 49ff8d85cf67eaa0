"""`evokern report`: one HTML page that needs no network, from the database alone."""

from __future__ import annotations

from html import escape
from importlib import resources
from string import Template

from evokern.report import champion, genes, origin, space, times
from evokern.report.facts import Facts, gather
from evokern.store import Reader
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
"""Anchor, title, and what makes each section, in the page's order."""


def page(reader: Reader, study: str | None = None) -> str:
    """Return the report of a study as an HTML page.

    Args:
        reader: the open database.
        study: its name; None takes the one searched last.

    Raises:
        StudyError: there is no such study, or none of its trials was measured.
    """
    return render(gather(reader, study))


def render(facts: Facts) -> str:
    """Return the page of what was gathered; every text from logs, files and names is escaped."""
    template = Template(resources.files("evokern.report").joinpath("page.html.in").read_text(encoding="utf-8"))
    record = facts.record
    links = "".join(f'<li><a href="#{anchor}">{escape(title)}</a></li>' for anchor, title, _ in SECTIONS)
    body = "".join(
        f'<section id="{anchor}"><h2>{escape(title)}</h2>{make(facts)}</section>' for anchor, title, make in SECTIONS
    )
    predicted = "Times are predicted by a model, not measured. " if record.predicted else ""
    about = f"{predicted}Kernel {record.kernel} at {' and '.join(record.problems)} on {record.device}."
    return template.substitute(
        title=escape(f"{record.name}: evokern report"),
        study=escape(record.name),
        about=escape(about),
        headline=champion.headline(facts),
        links=links,
        body=body,
        version=escape(__version__),
    )


__all__ = ["SECTIONS", "Facts", "gather", "page", "render"]
