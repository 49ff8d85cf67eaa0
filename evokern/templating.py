"""HTML from Jinja2 templates with all text escaped.

Templates are in the folder `templates` of the package that renders them, and contain all markup. No text is ever marked
as safe, so text from a database, log or file name cannot become markup. Data for scripts is in
`<script type="application/json">`, written by the filter `tojson`.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from functools import cache
from pathlib import Path

import jinja2
from jinja2 import Environment, FileSystemBytecodeCache, PackageLoader, StrictUndefined
from jinja2.bccache import Bucket

from evokern.version import __version__


class _TemplateCache(FileSystemBytecodeCache):
    """Cache of compiled templates next to Python's compiled modules.

    Compiling the templates of a page takes longer than rendering them. Anyone who can write to that folder can change
    evokern itself, so the cache adds no risk.
    """

    def load_bytecode(self, bucket: Bucket) -> None:
        """Load a compiled template if it can be read."""
        try:
            super().load_bytecode(bucket)
        except Exception:  # truncated or unreadable file
            bucket.reset()

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Save a compiled template, unless Python writes no bytecode or the folder is read-only."""
        if not sys.dont_write_bytecode:
            with contextlib.suppress(OSError):
                super().dump_bytecode(bucket)


@cache
def environment(package: str) -> Environment:
    """Return the Jinja2 environment of a package. Undefined names are errors; only `version` is predefined.

    Args:
        package: `__package__` of a module next to the folder `templates`.
    """
    made = Environment(
        bytecode_cache=_compiled_beside(package),
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # `tojson` escapes `<`, `>`, `&` and `'`, so no text can close its script element.
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    made.globals["version"] = __version__
    return made


def _compiled_beside(package: str) -> _TemplateCache | None:
    cached = importlib.import_module(package).__cached__
    folder = Path(cached).parent if cached else None
    if folder is None or not folder.is_dir():
        return None
    return _TemplateCache(str(folder), f"template-{jinja2.__version__}-{__version__}-%s.cache")
