"""HTML from Jinja2 templates, in which every text is escaped.

Templates lie in the folder `templates` of the package that fills them, and all markup stands there. No text is ever
marked as safe, neither in Python nor by a filter, so nothing that a database, a log or a file name says becomes markup.
Data for a script stand in `<script type="application/json">`, written by the filter `tojson`.
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


class _CompiledBesideModules(FileSystemBytecodeCache):
    """Keeps compiled templates where Python keeps compiled modules: whoever may write there may change evokern itself.

    To compile those of a page takes longer than to fill them.
    """

    def load_bytecode(self, bucket: Bucket) -> None:
        """Take in what was compiled, where it can be read."""
        try:
            super().load_bytecode(bucket)
        except Exception:  # a file that was cut, or cannot be read
            bucket.reset()

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep what was compiled, where Python would and may."""
        if not sys.dont_write_bytecode:
            with contextlib.suppress(OSError):
                super().dump_bytecode(bucket)


@cache
def environment(package: str) -> Environment:
    """Return the templates of a package; a name that a template uses and is not given is an error, but for `version`.

    Args:
        package: the package beside whose modules the folder `templates` lies: its own `__package__`.
    """
    made = Environment(
        bytecode_cache=_compiled_beside(package),
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


def _compiled_beside(package: str) -> _CompiledBesideModules | None:
    cached = importlib.import_module(package).__cached__
    folder = Path(cached).parent if cached else None
    if folder is None or not folder.is_dir():
        return None
    return _CompiledBesideModules(str(folder), f"template-{jinja2.__version__}-{__version__}-%s.cache")
