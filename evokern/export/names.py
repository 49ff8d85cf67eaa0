"""C++ names for the fields and buffers of a kernel, which may be words of C++ or names in the exported program."""

from __future__ import annotations

import re
from collections.abc import Iterable

_TAKEN = frozenset(
    # keywords (C++ standard, section 5.11), macros of the standard headers and of GCC, names in the program
    word
    for line in (
        "alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t char8_t class",
        "co_await co_return co_yield compl concept const const_cast consteval constexpr constinit continue decltype",
        "default delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline",
        "int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public",
        "register reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch",
        "template this thread_local throw true try typedef typeid typename union unsigned using virtual void volatile",
        "wchar_t while xor xor_eq assert errno linux major makedev minor signals stderr stdin stdout unix NULL EOF",
        "INFINITY NAN I SIZE_MAX Shape Status OK BAD_SHAPE MISALIGNED CUDA_ERROR refusal launch floor_div floor_mod",
        "ceil_div std evokern main shape stream addresses entry arguments config attributes shared_bytes device window",
        "window_limit persisting persisting_limit window_bytes uintptr_t size_t dim3",
        "None True False as async await def del elif except finally from global import in is lambda nonlocal pass",
        "raise with yield",  # Python
    )
    for word in line.split()
)


def cpp_names(names: Iterable[str], *, lower: bool = False) -> dict[str, str]:
    """Return a C++ name for each name; all are different, and none has a meaning in an exported program.

    Args:
        names: the names.
        lower: whether to use lower case.
    """
    found: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"\W", "_", name.lower() if lower else name, flags=re.ASCII)
        plain = f"_{plain}" if plain[:1].isdigit() else plain
        while plain in _TAKEN or plain in found.values() or re.fullmatch(r"argument_\d+|cuda\w*|evokern\w*", plain):
            plain += "_"
        found[name] = plain
    return found
