"""Resolve type names of a source with the compiler."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from evokern.compile.build import compile_to_ptx
from evokern.compile.records import Program
from evokern.cuda_source.c_types import ELEMENT_TYPES
from evokern.cuda_source.mangled import BUILTIN_TYPES
from evokern.declaration.render import Rendered
from evokern.hardware.profiles import Profile
from evokern.scaffold.plan import generated_headers

_PROBE = "\ntemplate <class evokern_T> __global__ void evokern_type() {}\n"


def types(source: str, names: Iterable[str], options: Sequence[str], chip: Profile) -> dict[str, str]:
    """Return the actual types that type names of a source stand for, for example `__nv_bfloat16` for `floatX`.

    Args:
        source: device code.
        names: types as written in the source.
        options: compiler options, including macros.
        chip: chip to compile for.

    Returns:
        Name → actual type, without structures; empty if the source does not compile.
    """
    asked = sorted({name for name in names if re.fullmatch(r"[\w:]+", name)})
    if not asked:
        return {}
    entries = tuple(f"evokern_type<{name}>" for name in asked)
    rendered = Rendered(source + _PROBE, "kernel.cu", generated_headers(options), tuple(options), entries)
    program = compile_to_ptx(rendered, chip)
    if not isinstance(program, Program):
        return {}
    found: dict[str, str] = {}
    for name, entry in zip(asked, entries, strict=True):
        match = re.search(r"evokern_typeI(?:(\d+)(\w+)|([a-z]))EvvE?", program.lowered.get(entry, ""))
        if match and match[3] in BUILTIN_TYPES:
            found[name] = BUILTIN_TYPES[match[3]]
        elif match and match[1] and match[2][: int(match[1])] in ELEMENT_TYPES:
            found[name] = match[2][: int(match[1])]
    return found
