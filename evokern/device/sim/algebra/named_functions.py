"""Proof build of a program: mathematical functions whose values exact arithmetic knows.

The compiler expands functions such as erff into instructions on the bits of floats. The proof build replaces their
names, so that each result also has an exact value; see `evokern_functions.h`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

from evokern.compile.headers import SHIMS
from evokern.cuda_source.lexer import without_comments
from evokern.declaration.outside_headers import outside_headers
from evokern.declaration.render import Rendered

HEADER = "evokern_functions.h"
FUNCTIONS = (
    "exp2", "exp", "exp10", "expm1", "log2", "log", "log10", "log1p", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
    "erf", "erfc", "normcdf", "sin", "cos", "tan", "sinpi", "cospi",
)  # fmt: skip
"""Functions of one argument; the names of those for float32 end with `f`."""
_NAMES = tuple(f"{one}{end}" for one in (*FUNCTIONS, "pow", "sincos", "sincospi") for end in ("", "f"))
_MENTION = re.compile(rf"\b(?:{'|'.join(_NAMES)})\b")


def with_named_functions(rendered: Rendered) -> Rendered | None:
    """Return the proof build of a program; None if its source and headers name no function."""
    texts = [rendered.source, *rendered.headers.values()]
    texts += [one.read_text(errors="replace") for one in outside_headers(texts, rendered.options, rendered.headers)]
    if not any(_MENTION.search(without_comments(one)) for one in texts if _MENTION.search(one)):
        return None
    options = (f"--pre-include={HEADER}", *rendered.options)
    return replace(rendered, headers={**rendered.headers, HEADER: _header()}, options=options)


@cache
def _header() -> str:
    listed = " ".join(f"F({name})" for name in FUNCTIONS)
    renamed = "".join(f"#define {name} evokern_{name}\n" for name in _NAMES)
    return f"#define EVOKERN_FUNCTIONS(F) {listed}\n{(SHIMS / HEADER).read_text()}{renamed}"
