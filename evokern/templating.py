"""HTML from Jinja2 templates, in which every text is escaped.

Templates lie in the folder `templates` of the package that fills them, and all markup stands there. No text is ever
marked as safe, neither in Python nor by a filter, so nothing that a database, a log or a file name says becomes markup.
Data for a script stand in `<script type="application/json">`, written by the filter `tojson`.
"""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from evokern.version import __version__


@cache
def environment(package: str) -> Environment:
    """Return the templates of a package; a name that a template uses and is not given is an error, but for `version`.

    Args:
        package: the package beside whose modules the folder `templates` lies: its own `__package__`.
    """
    made = Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # `tojson` writes `<`, `>`, `&` and `'` as escapes of JSON, so no text ends the script element that it stands in.
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    made.globals["version"] = __version__
    return made
