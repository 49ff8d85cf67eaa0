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
from evokern.declaration.kernel_files import outside_headers
from evokern.declaration.render import Rendered
from evokern.simt.exact import MARK, MARKED

HEADER = "evokern_functions.h"
FORMAL = MARKED[MARKED.index("sin") :]
"""Functions that exact arithmetic knows itself."""
FUNCTIONS = (
    "exp2", "exp", "exp10", "expm1", "log2", "log", "log10", "log1p", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
    "erfc", "normcdf", "tan", "sinpi", "cospi", *FORMAL,
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
    functions, formal = (" ".join(f"F({name})" for name in names) for names in (FUNCTIONS, FORMAL))
    marks = ", ".join(f"OF_{name} = {MARK + number}" for number, name in enumerate(MARKED))
    lists = {"EVOKERN_FUNCTIONS(F)": functions, "EVOKERN_FORMALS(F)": formal, "EVOKERN_MARKS": marks}
    renamed = {name: f"evokern_{name}" for name in _NAMES}
    before, after = ("".join(f"#define {name} {text}\n" for name, text in each.items()) for each in (lists, renamed))
    return before + (SHIMS / HEADER).read_text() + after
